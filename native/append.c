/* Encodes records into the staging buffer, framed for the log, and appends them to it. */
#include <string.h>

#include "rmqpy_native.h"

/* What is longer may be refused or counted, which Python does (REVERSIBLE_PROPERTIES_MAX). */
#define PROPERTIES_BYTES_MAX 32671
#define BLANK_SIZE 8 /* also the size of an entry filler */
#define ENTRY_SIZE_MAX (4 * 1024 * 1024)
#define INDEX_UNIT_SIZE 32

static uint8_t *put_host(uint8_t *at, const uint8_t *ip, int32_t ip_length, int32_t port)
{
    memcpy(at, ip, (size_t)ip_length);
    rmq_store32(at + ip_length, (uint32_t)port);
    return at + ip_length + 4;
}

uint8_t *rmq_put_record(const rmq_core *core, const rmq_peer *from, const rmq_draft *message, uint8_t *out)
{
    rmq_store32(out + 4, RMQ_MESSAGE_MAGIC_V1);
    rmq_store32(out + 8, message->body_length ? rmq_crc32(message->body, (size_t)message->body_length) : 0u);
    rmq_store32(out + 12, (uint32_t)message->queue_id);
    rmq_store32(out + 16, (uint32_t)message->flag);
    rmq_store_long(out + 20, message->queue_offset);
    rmq_store32(out + 36, (uint32_t)message->sys_flag);
    rmq_store_long(out + 40, message->born_timestamp);
    uint8_t *at = put_host(out + 48, from->ip, from->ip_length, from->port);
    rmq_store_long(at, core->now_ms);
    at = put_host(at + 8, core->store_ip, core->store_ip_length, core->store_port);
    rmq_store32(at, (uint32_t)message->reconsume_times);
    rmq_store_long(at + 4, 0); /* prepared transaction offset: none */
    rmq_store32(at + 12, (uint32_t)message->body_length);
    memcpy(at + 16, message->body, (size_t)message->body_length);
    at += 16 + message->body_length;
    *at++ = (uint8_t)message->topic_length;
    memcpy(at, message->topic, (size_t)message->topic_length);
    uint8_t *const properties = at + message->topic_length + 2;
    memcpy(properties, message->item_properties, (size_t)message->item_properties_length);
    uint8_t *end = properties + message->item_properties_length;
    if (message->item_properties_length > 0 && end[-1] != 2)
        *end++ = 2;
    end = rmq_put_properties(end, message->properties, message->keeps_wait);
    const int64_t length = end - properties, size = end - out;
    if (length > PROPERTIES_BYTES_MAX || size > core->message_max)
        return NULL;
    properties[-2] = (uint8_t)(length >> 8);
    properties[-1] = (uint8_t)length;
    rmq_store32(out, (uint32_t)size);
    return end;
}

int rmq_has_staging_space(const rmq_core *core, int64_t length, int64_t count)
{
    return core->staging_capacity - core->log[RMQ_LOG_STAGED] >= length
           && (!core->dledger || core->units_capacity - core->log[RMQ_LOG_UNITS] >= count);
}

int rmq_check_fit(rmq_core *core, int64_t total, int64_t largest, int64_t count)
{
    const int64_t rest = core->log[RMQ_LOG_FILE_END] - core->log[RMQ_LOG_END];

    if (total + BLANK_SIZE > core->file_size)
        return RMQ_NEEDS_PYTHON;
    if (core->dledger && (largest > ENTRY_SIZE_MAX || count > core->entries_left))
        return RMQ_NEEDS_PYTHON;
    if (total + BLANK_SIZE <= rest)
        return RMQ_OK;
    if (core->dledger && count > 1)
        return RMQ_NEEDS_PYTHON; /* a batch of entries may span two files */
    core->status_detail = total;
    return -RMQ_ROLL;
}

/* Write the header of the entry around a record, and its index unit. */
static void put_entry(const rmq_core *core, uint8_t *out, int64_t position, int64_t size)
{
    const int64_t index = core->log[RMQ_LOG_INDEX];
    uint8_t *const unit = core->units + core->log[RMQ_LOG_UNITS] * INDEX_UNIT_SIZE;

    memset(out, 0, RMQ_ENTRY_HEADER_SIZE);
    rmq_store32(out, 1);
    rmq_store32(out + 4, (uint32_t)size);
    rmq_store_long(out + 8, index);
    rmq_store_long(out + 16, core->term);
    rmq_store_long(out + 24, position);
    rmq_store32(out + 44, (uint32_t)(size - (int64_t)RMQ_ENTRY_HEADER_SIZE));
    rmq_store32(unit, 1);
    rmq_store_long(unit + 4, position);
    rmq_store32(unit + 12, (uint32_t)size);
    rmq_store_long(unit + 16, index);
    rmq_store_long(unit + 24, core->term);
    core->log[RMQ_LOG_TERM] = core->term;
    core->log[RMQ_LOG_INDEX]++;
    core->log[RMQ_LOG_UNITS]++;
}

void rmq_append(rmq_core *core, const int64_t *sizes, int64_t count, int64_t *offsets)
{
    uint8_t *out = core->staging + core->log[RMQ_LOG_STAGED];
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;

    for (int64_t i = 0; i < count; i++) {
        const int64_t position = core->log[RMQ_LOG_END];
        const int64_t size = sizes[i] + frame;
        if (core->dledger)
            put_entry(core, out, position, size);
        offsets[i] = position + frame;
        rmq_store_long(out + frame + 28, offsets[i]);
        out += size;
        core->log[RMQ_LOG_END] += size;
        core->log[RMQ_LOG_STAGED] += size;
    }
    core->put_bytes += core->log[RMQ_LOG_END] - offsets[0];
    core->entries_left -= core->dledger ? count : 0;
    core->put_messages += count;
}
