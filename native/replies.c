/* Encodes replies from the templates of rmqpy/broker/fastpath/reply_templates.py, and collects them
 * by receiver. */
#include <string.h>

#include "rmqpy_native.h"

static uint8_t *put_decimal(uint8_t *out, int64_t value)
{
    uint8_t digits[20];
    size_t first = sizeof digits;
    uint64_t rest = value < 0 ? 0u - (uint64_t)value : (uint64_t)value;

    for (; rest >= 100; rest /= 100) {
        const unsigned two = (unsigned)(rest % 100);
        digits[--first] = (uint8_t)('0' + two % 10);
        digits[--first] = (uint8_t)('0' + two / 10);
    }
    if (rest >= 10)
        digits[--first] = (uint8_t)('0' + rest % 10);
    digits[--first] = (uint8_t)('0' + (rest >= 10 ? rest / 10 : rest));
    if (value < 0)
        *out++ = '-';
    while (first < sizeof digits)
        *out++ = digits[first++];
    return out;
}

/* Write four bytes as eight digits. */
static uint8_t *put_hex(uint8_t *out, uint32_t value)
{
    const uint64_t ones = 0x0101010101010101u;
    uint64_t digits = value;

    digits = (digits << 16 | digits) & 0x0000FFFF0000FFFFu;
    digits = (digits << 8 | digits) & 0x00FF00FF00FF00FFu;
    digits = (digits << 4 | digits) & 0x0F0F0F0F0F0F0F0Fu;
    const uint64_t letters = ((digits + 6 * ones) >> 4) & ones;
    rmq_store_long(out, (int64_t)(digits + '0' * ones + letters * ('A' - '0' - 10)));
    return out + 8;
}

uint8_t *rmq_put_msg_id(uint8_t *out, const uint8_t *ip, int32_t ip_length, uint32_t port, int64_t offset)
{
    for (int32_t at = 0; at < ip_length; at += 4)
        out = put_hex(out, rmq_load32(ip + at));
    out = put_hex(out, port);
    out = put_hex(out, (uint32_t)((uint64_t)offset >> 32));
    return put_hex(out, (uint32_t)(uint64_t)offset);
}

/* Write the ids of the messages, separated by commas. */
static uint8_t *put_msg_ids(uint8_t *out, const rmq_core *core, const rmq_answer *answer)
{
    for (int64_t i = 0; i < answer->offset_count; i++) {
        if (i > 0)
            *out++ = ',';
        out = rmq_put_msg_id(out, core->store_ip, core->store_ip_length, (uint32_t)core->store_port, answer->offsets[i]);
    }
    return out;
}

/* Write a field of a template. In binary headers it is preceded by its length, except the opaque. */
static uint8_t *put_field(uint8_t *out, const rmq_core *core, const rmq_reply *reply, int32_t field,
                          const rmq_answer *answer)
{
    if (reply->binary && field == RMQ_OPAQUE) {
        rmq_store32(out, (uint32_t)answer->opaque);
        return out + 4;
    }
    uint8_t *const start = out + (reply->binary ? 4 : 0);
    uint8_t *const end = field == RMQ_MSG_ID ? put_msg_ids(start, core, answer)
                                             : put_decimal(start, answer->numbers[field]);
    if (reply->binary)
        rmq_store32(out, (uint32_t)(end - start));
    return end;
}

uint8_t *rmq_put_reply(const rmq_core *core, const rmq_reply *reply, rmq_answer *answer, int64_t body_length,
                       uint8_t *out)
{
    uint8_t *const header = out + 8;
    uint8_t *at = header;
    int32_t copied = 0;

    answer->numbers[RMQ_OPAQUE] = answer->opaque;
    for (int32_t i = 0; i <= reply->field_count; i++) {
        const int32_t end = i < reply->field_count ? reply->ends[i] : reply->text_length;
        rmq_copy(at, reply->text + copied, (size_t)(end - copied));
        at += end - copied;
        copied = end;
        if (i < reply->field_count)
            at = put_field(at, core, reply, reply->field[i], answer);
    }
    if (reply->binary)
        rmq_store32(header + reply->ext_length_at, (uint32_t)(at - header - reply->ext_length_at - 4));
    rmq_store32(out, (uint32_t)(4 + (at - header) + body_length));
    rmq_store32(out + 4, (reply->binary ? 1u << 24 : 0u) | (uint32_t)(at - header));
    return at;
}

void rmq_add_outgoing(rmq_core *core, int64_t peer, int64_t length, int64_t log_end, int is_copy)
{
    rmq_outgoing *last = core->outgoing_count > 0 ? &core->outgoing[core->outgoing_count - 1] : NULL;

    if (last == NULL || last->peer != peer || (last->log_end == 0) != (log_end == 0) || last->is_copy != is_copy) {
        last = &core->outgoing[core->outgoing_count++];
        *last = (rmq_outgoing){.peer = peer, .start = core->out_used, .is_copy = is_copy};
    }
    last->length += length;
    last->replies++;
    last->log_end = log_end;
    core->out_used += length;
}

int rmq_has_reply_space(const rmq_core *core, int64_t length)
{
    return core->out_capacity - core->out_used >= length && core->outgoing_count < core->outgoing_capacity;
}
