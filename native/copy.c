/* Copies stored messages to other queues: delayed messages that are due, as
 * rmqpy/broker/services/schedule.py does, half messages that are committed, as
 * rmqpy/broker/processors/end_transaction.py, and messages that consumers send back, as
 * rmqpy/broker/processors/send_back.py. */
#include <string.h>

#include "rmqpy_native.h"

#define QUEUE_ID_DIGITS 9
#define QUEUE_ID_POSITION 12
#define QUEUE_OFFSET_POSITION 20
#define PHYSICAL_OFFSET_POSITION 28
#define SYS_FLAG_POSITION 36
#define BORN_HOST_POSITION 48
#define STORE_TIMESTAMP_POSITION 56 /* with a born host of 4 bytes */
#define PROPERTIES_BYTES_MAX 32671  /* of append.c */

#define NUMBER_DIGITS_MAX 20
#define TOPIC_BYTES_MAX 127
#define RETRY_PREFIX "%RETRY%"
#define FIRST_RETRY_LEVEL 3
#define OWN_MAXIMUM_SINCE_VERSION 121
#define MSG_ID_MAX 56
/* The properties that a message receives when it is sent back, and the most bytes of those and of
 * an op message. */
#define RETURN_PROPERTIES 6
#define RETURN_PROPERTIES_BYTES 512
#define OP_MESSAGE_BYTES 256

typedef struct {
    const uint8_t *record;
    rmq_record_places places;
    rmq_properties properties;
    int32_t sys_flag, reconsume_times;
} stored_message;

/* Where and how a copy is stored. */
typedef struct {
    const rmq_topic *topic;
    int64_t queue_id;
    int64_t prepared_offset; /* of the half message */
    int32_t sys_flag, reconsume_times;
} copy_target;

const uint8_t *rmq_read_log(const rmq_core *core, int64_t offset, int64_t size)
{
    if (offset < core->log_min || size <= 0 || size > core->confirm_offset - offset)
        return NULL;
    const uint8_t *const found = rmq_locate(&core->logs[0], offset, size);
    return found != NULL ? found : rmq_locate(&core->logs[1], offset, size);
}

/* Read a record of the version that brokers write, whose properties are plain ASCII. */
static int read_stored(const rmq_core *core, int64_t offset, int64_t size, stored_message *stored)
{
    const uint8_t *const record = stored->record = rmq_read_log(core, offset, size);

    if (record == NULL || size < (int32_t)RMQ_RECORD_SIZE_MIN || rmq_load_int(record) != size
        || rmq_load32(record + 4) != RMQ_MESSAGE_MAGIC_V1
        || rmq_measure_record(record, 0, (size_t)size, &stored->places) != RMQ_END
        || rmq_load_long(record + PHYSICAL_OFFSET_POSITION) != offset)
        return RMQ_NEEDS_PYTHON;
    stored->sys_flag = rmq_load_int(record + SYS_FLAG_POSITION);
    stored->reconsume_times = rmq_load_int(record + stored->places.head_size - 16);
    const uint8_t *const raw = record + stored->places.properties;
    for (size_t i = 0; i < stored->places.properties_length; i++)
        if (raw[i] >= 0x80u)
            return RMQ_NEEDS_PYTHON;
    return rmq_read_properties(raw, (int64_t)stored->places.properties_length, &stored->properties) ? RMQ_OK
                                                                                                    : RMQ_NEEDS_PYTHON;
}

/* Read the record at an offset that a client names. */
static int read_named(const rmq_core *core, int64_t offset, stored_message *stored)
{
    const uint8_t *const head = rmq_read_log(core, offset, RMQ_RECORD_SIZE_MIN);

    return head == NULL ? RMQ_NEEDS_PYTHON : read_stored(core, offset, rmq_load_int(head), stored);
}

static int is_in_topic(const stored_message *stored, const rmq_topic *topic)
{
    return stored->places.topic_length == (size_t)topic->name_length
           && memcmp(stored->record + stored->places.topic, topic->name, stored->places.topic_length) == 0;
}

/* Return the topic of this name, or NULL. */
static const rmq_topic *find_topic(const rmq_core *core, const uint8_t *name, size_t length)
{
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, name, length);

    return slot->key == NULL ? NULL : &core->topics[slot->item];
}

static int has_queue(const rmq_topic *topic, int64_t queue_id)
{
    return queue_id < topic->queue_count && topic->cells[queue_id] >= 0;
}

/* Find the queue that REAL_TOPIC and REAL_QID name. */
static int find_real_queue(const rmq_core *core, const rmq_properties *found, copy_target *to)
{
    const rmq_property *const name = rmq_find_property(found, "REAL_TOPIC");
    const rmq_property *const number = rmq_find_property(found, "REAL_QID");

    if (name == NULL || number == NULL || number->value_length > QUEUE_ID_DIGITS
        || (number->value[0] == '0' && number->value_length > 1))
        return RMQ_NEEDS_PYTHON;
    to->queue_id = 0;
    for (uint32_t i = 0; i < number->value_length; i++) {
        if (number->value[i] < '0' || number->value[i] > '9')
            return RMQ_NEEDS_PYTHON;
        to->queue_id = to->queue_id * 10 + number->value[i] - '0';
    }
    to->topic = find_topic(core, name->value, name->value_length);
    return to->topic != NULL && to->topic - core->topics != core->half_topic && has_queue(to->topic, to->queue_id);
}

/* Encode the copy of a message. Returns its end, or NULL if it is damaged or may be too large. */
static uint8_t *put_copy(const rmq_core *core, stored_message *stored, const copy_target *to, uint8_t *out)
{
    const rmq_record_places *const places = &stored->places;
    const uint8_t *const record = stored->record, *const body = record + places->head_size;
    const size_t born = (stored->sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u;

    const uint32_t crc = places->body_length ? rmq_crc32(body, places->body_length) : 0u;
    if (places->body_length && (int32_t)crc != rmq_load_int(record + 8))
        return NULL; /* damaged: the copy would have a valid CRC */

    memcpy(out, record, places->head_size);
    rmq_store32(out + 8, crc);
    rmq_store32(out + QUEUE_ID_POSITION, (uint32_t)to->queue_id);
    rmq_store_long(out + QUEUE_OFFSET_POSITION, core->tails[to->topic->cells[to->queue_id]]);
    rmq_store32(out + SYS_FLAG_POSITION, (uint32_t)to->sys_flag);
    rmq_store_long(out + STORE_TIMESTAMP_POSITION + born, core->now_ms);
    rmq_store32(out + places->head_size - 16, (uint32_t)to->reconsume_times);
    rmq_store_long(out + places->head_size - 12, to->prepared_offset);
    uint8_t *at = out + places->head_size;
    memcpy(at, body, places->body_length);
    at += places->body_length;
    *at++ = (uint8_t)to->topic->name_length;
    memcpy(at, to->topic->name, (size_t)to->topic->name_length);
    at += to->topic->name_length + 2;
    rmq_order_properties(&stored->properties);
    uint8_t *const end = rmq_put_properties(at, &stored->properties, 1);
    const int64_t length = end - at, size = end - out;
    if (length > PROPERTIES_BYTES_MAX || size > core->message_max
        || (rmq_lost_pages() > 0 && rmq_is_lost(record, (int64_t)places->size)))
        return NULL;
    at[-2] = (uint8_t)(length >> 8);
    at[-1] = (uint8_t)length;
    rmq_store32(out, (uint32_t)size);
    return end;
}

static int64_t frame_size(const rmq_core *core)
{
    return core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
}

static uint8_t *next_record(const rmq_core *core)
{
    return core->staging + core->log[RMQ_LOG_STAGED] + frame_size(core);
}

/* Append the record of `size` bytes that is next in staging. */
static void append_record(rmq_core *core, const rmq_topic *topic, int64_t queue_id, int64_t size)
{
    int64_t stored_at;

    rmq_append(core, &size, 1, &stored_at);
    core->tails[topic->cells[queue_id]]++;
}

static int deliver(rmq_core *core, int64_t offset, int64_t size)
{
    const int64_t frame = frame_size(core);
    stored_message stored;
    copy_target to;

    if (core->delay_topic < 0 || !read_stored(core, offset, size, &stored)
        || !is_in_topic(&stored, &core->topics[core->delay_topic]))
        return RMQ_NEEDS_PYTHON;
    const int32_t kind = stored.sys_flag & RMQ_TRANSACTION_MASK;
    if ((kind != 0 && kind != RMQ_TRANSACTION_COMMIT) || !find_real_queue(core, &stored.properties, &to)
        || !rmq_has_staging_space(core, frame + size + to.topic->name_length + 1, 1))
        return RMQ_NEEDS_PYTHON;
    to.sys_flag = stored.sys_flag;
    to.reconsume_times = stored.reconsume_times;
    to.prepared_offset = 0;
    uint8_t *const out = next_record(core);
    const uint8_t *const end = put_copy(core, &stored, &to, out);
    if (end == NULL || rmq_check_fit(core, end - out + frame, end - out + frame, 1) != RMQ_OK)
        return RMQ_NEEDS_PYTHON;
    append_record(core, to.topic, to.queue_id, end - out);
    return RMQ_OK;
}

int64_t rmq_deliver(rmq_core *core, const int64_t *messages, int64_t count)
{
    int64_t done = 0;

    while (done < count && deliver(core, messages[2 * done], messages[2 * done + 1]) == RMQ_OK)
        done++;
    return done;
}

/* Encode the op message that records the end of the transaction of a half message (op_message of
 * rmqpy/broker/services/half_messages.py). Returns its end, or NULL. */
static uint8_t *put_op_message(const rmq_core *core, const stored_message *half, uint8_t *out)
{
    const rmq_topic *const topic = &core->topics[core->op_topic];
    rmq_peer self = {.port = core->store_port, .ip_length = core->store_ip_length};
    uint8_t digits[NUMBER_DIGITS_MAX];
    rmq_properties properties;

    const rmq_slice body =
        rmq_put_number(digits + sizeof digits, rmq_load_long(half->record + QUEUE_OFFSET_POSITION));
    properties.count = 0;
    rmq_set_property(&properties, "TAGS", (rmq_slice){(const uint8_t *)"d", 1});
    rmq_set_property(&properties, "WAIT", (rmq_slice){(const uint8_t *)"true", 4});
    rmq_order_properties(&properties);
    memcpy(self.ip, core->store_ip, sizeof self.ip);
    const rmq_draft message = {
        .topic = topic->name,
        .topic_length = topic->name_length,
        .body = body.at,
        .body_length = (int64_t)body.length,
        .item_properties = body.at, /* none */
        .properties = &properties,
        .born_timestamp = core->now_ms,
        .queue_offset = core->tails[topic->cells[0]],
        .sys_flag = core->store_ip_length == 16 ? RMQ_BORN_HOST_V6 | RMQ_STORE_HOST_V6 : 0,
        .keeps_wait = 1,
    };
    return rmq_put_record(core, &self, &message, out);
}

/* Store the final message if the transaction is committed, and the op message. */
static int store_end(rmq_core *core, stored_message *half, const copy_target *final)
{
    const int64_t frame = frame_size(core);
    uint8_t *const first = next_record(core), *next = first;
    int64_t final_size = 0, largest = 0;

    if (final != NULL) {
        const uint8_t *const end = put_copy(core, half, final, first);
        if (end == NULL)
            return RMQ_NEEDS_PYTHON;
        largest = final_size = end - first + frame;
        next = first + final_size;
    }
    const uint8_t *const end = put_op_message(core, half, next);
    if (end == NULL)
        return RMQ_NEEDS_PYTHON;
    const int64_t op_size = end - next + frame;
    const int64_t total = final_size + op_size;
    const int place = rmq_check_fit(core, total, largest > op_size ? largest : op_size, final != NULL ? 2 : 1);
    if (place != RMQ_OK) /* the file may have space for the first one */
        return final != NULL ? RMQ_NEEDS_PYTHON : place;
    if (final != NULL)
        append_record(core, final->topic, final->queue_id, final_size - frame);
    append_record(core, &core->topics[core->op_topic], 0, op_size - frame);
    return RMQ_OK;
}

static int end_transaction(rmq_core *core, const rmq_text *texts)
{
    enum { QUEUE_OFFSET, OFFSET, KIND, COUNT };
    static const rmq_number_rule RULES[COUNT] = {
        {END_QUEUE_OFFSET, 1, INT64_MAX}, {END_OFFSET, 1, INT64_MAX}, {END_KIND, 1, INT32_MAX}};
    int64_t numbers[COUNT];
    stored_message half;
    copy_target final;

    if (core->half_topic < 0 || core->op_topic < 0 || texts[END_GROUP].at == NULL || texts[END_MSG_ID].at == NULL
        || !rmq_read_numbers(texts, RULES, COUNT, numbers) || numbers[QUEUE_OFFSET] < 0
        || (numbers[KIND] != RMQ_TRANSACTION_COMMIT && numbers[KIND] != RMQ_TRANSACTION_ROLLBACK)
        || !read_named(core, numbers[OFFSET], &half) || !is_in_topic(&half, &core->topics[core->half_topic])
        || rmq_load_int(half.record + QUEUE_ID_POSITION) != 0
        || rmq_load_long(half.record + QUEUE_OFFSET_POSITION) != numbers[QUEUE_OFFSET])
        return RMQ_NEEDS_PYTHON;
    const rmq_property *const group = rmq_find_property(&half.properties, "PGROUP");
    if (group == NULL || group->value_length != texts[END_GROUP].length
        || memcmp(group->value, texts[END_GROUP].at, group->value_length) != 0)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_staging_space(core,
                               2 * frame_size(core) + (int64_t)half.places.size + TOPIC_BYTES_MAX + OP_MESSAGE_BYTES, 2))
        return core->log[RMQ_LOG_STAGED] > 0 ? -RMQ_COMMIT : RMQ_NEEDS_PYTHON;
    if (numbers[KIND] == RMQ_TRANSACTION_ROLLBACK) {
        const uint8_t *const body = half.record + half.places.head_size;
        if (half.places.body_length
            && (int32_t)rmq_crc32(body, half.places.body_length) != rmq_load_int(half.record + 8))
            return RMQ_NEEDS_PYTHON; /* damaged */
        return store_end(core, &half, NULL);
    }
    if (rmq_find_property(&half.properties, "DELAY") != NULL || !find_real_queue(core, &half.properties, &final)
        || final.topic - core->topics == core->op_topic)
        return RMQ_NEEDS_PYTHON;
    final.sys_flag = (half.sys_flag & ~RMQ_TRANSACTION_MASK) | RMQ_TRANSACTION_COMMIT;
    final.reconsume_times = half.reconsume_times;
    final.prepared_offset = numbers[OFFSET];
    return store_end(core, &half, &final);
}

/* Count a message that a group has sent back. Returns 0 if there is no space for the count. */
static int count_returned(rmq_core *core, const rmq_topic *retry, const rmq_topic *topic)
{
    const int64_t numbers[2] = {retry - core->topics, topic - core->topics};
    rmq_returned *const last = core->returned_count > 0 ? &core->returned[core->returned_count - 1] : NULL;

    if (last != NULL && last->retry_topic == numbers[0] && last->topic == numbers[1])
        last->count++;
    else if (core->returned_count < core->returned_capacity)
        core->returned[core->returned_count++] = (rmq_returned){numbers[0], numbers[1], 1};
    else
        return 0;
    return 1;
}

/* Add the properties of a message that is sent back. `text` has space for their texts. */
static int add_return_properties(stored_message *stored, const rmq_topic *retry, int64_t level, uint8_t *text)
{
    rmq_properties *const properties = &stored->properties;
    const rmq_property *const origin = rmq_find_property(properties, "ORIGIN_MESSAGE_ID");

    if (properties->count > RMQ_PROPERTIES_MAX - RETURN_PROPERTIES
        || (origin != NULL && (origin->value[0] <= ' ' || origin->value[origin->value_length - 1] <= ' ')))
        return RMQ_NEEDS_PYTHON;
    if (rmq_find_property(properties, "RETRY_TOPIC") == NULL)
        rmq_set_property(properties, "RETRY_TOPIC",
                         (rmq_slice){stored->record + stored->places.topic, stored->places.topic_length});
    rmq_set_property(properties, "WAIT", (rmq_slice){(const uint8_t *)"false", 5});
    rmq_set_property(properties, "DELAY", rmq_put_number(text + NUMBER_DIGITS_MAX, level));
    if (origin == NULL) {
        const size_t born = (stored->sys_flag & RMQ_BORN_HOST_V6) ? 8u + RMQ_HOST_V6_EXTRA : 8u;
        const uint8_t *const host = stored->record + BORN_HOST_POSITION + born + 8;
        const int32_t ip_length = (stored->sys_flag & RMQ_STORE_HOST_V6) ? 16 : 4;
        uint8_t *const id = text + NUMBER_DIGITS_MAX;
        const uint8_t *const end = rmq_put_msg_id(id, host, ip_length, rmq_load32(host + ip_length),
                                                  rmq_load_long(stored->record + PHYSICAL_OFFSET_POSITION));
        rmq_set_property(properties, "ORIGIN_MESSAGE_ID", (rmq_slice){id, (size_t)(end - id)});
    }
    rmq_set_property(properties, "REAL_TOPIC", (rmq_slice){retry->name, (size_t)retry->name_length});
    rmq_set_property(properties, "REAL_QID", (rmq_slice){(const uint8_t *)"0", 1});
    return RMQ_OK;
}

static const rmq_topic *find_retry_topic(const rmq_core *core, rmq_text group)
{
    const size_t prefix = sizeof RETRY_PREFIX - 1;
    uint8_t name[TOPIC_BYTES_MAX];

    if (group.at == NULL || group.length > TOPIC_BYTES_MAX - prefix)
        return NULL;
    memcpy(name, RETRY_PREFIX, prefix);
    memcpy(name + prefix, group.at, group.length);
    return find_topic(core, name, prefix + group.length);
}

static int send_back(rmq_core *core, const rmq_request *request)
{
    enum { OFFSET, LEVEL, TIMES_MAX, COUNT };
    static const rmq_number_rule RULES[COUNT] = {
        {RETURN_OFFSET, 1, INT64_MAX}, {RETURN_LEVEL, 1, INT32_MAX}, {RETURN_TIMES_MAX, 0, INT32_MAX}};
    const int64_t frame = frame_size(core);
    uint8_t text[NUMBER_DIGITS_MAX + MSG_ID_MAX];
    int64_t numbers[COUNT];
    stored_message stored;

    const rmq_topic *const retry = find_retry_topic(core, request->texts[RETURN_GROUP]);
    if (retry == NULL || !retry->accepts_returns || core->delay_topic < 0
        || !rmq_read_numbers(request->texts, RULES, COUNT, numbers) || numbers[LEVEL] < 0
        || !read_named(core, numbers[OFFSET], &stored) || !rmq_has_queue_unit(stored.sys_flag))
        return RMQ_NEEDS_PYTHON;
    const rmq_property *const first = rmq_find_property(&stored.properties, "RETRY_TOPIC");
    const rmq_topic *const origin =
        first != NULL ? find_topic(core, first->value, first->value_length)
                      : find_topic(core, stored.record + stored.places.topic, stored.places.topic_length);
    const int64_t times = stored.reconsume_times;
    const int is_own = request->version >= OWN_MAXIMUM_SINCE_VERSION && request->texts[RETURN_TIMES_MAX].at != NULL;
    if (origin == NULL || times < 0 || times >= (is_own ? numbers[TIMES_MAX] : retry->retry_times_max))
        return RMQ_NEEDS_PYTHON;
    int64_t level = numbers[LEVEL] > 0 ? numbers[LEVEL] : FIRST_RETRY_LEVEL + times;
    level = level < core->delay_count ? level : core->delay_count;
    const copy_target to = {.topic = &core->topics[core->delay_topic], .queue_id = level - 1,
                            .sys_flag = stored.sys_flag, .reconsume_times = (int32_t)times + 1};
    if (level <= 0 || !has_queue(to.topic, to.queue_id) || !add_return_properties(&stored, retry, level, text))
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_staging_space(core, frame + (int64_t)stored.places.size + TOPIC_BYTES_MAX + RETURN_PROPERTIES_BYTES, 1))
        return core->log[RMQ_LOG_STAGED] > 0 ? -RMQ_COMMIT : RMQ_NEEDS_PYTHON;
    uint8_t *const out = next_record(core);
    const uint8_t *const end = put_copy(core, &stored, &to, out);
    if (end == NULL)
        return RMQ_NEEDS_PYTHON;
    const int place = rmq_check_fit(core, end - out + frame, end - out + frame, 1);
    if (place != RMQ_OK)
        return place;
    if (!count_returned(core, retry, origin))
        return -RMQ_OUT_FULL;
    append_record(core, to.topic, to.queue_id, end - out);
    return RMQ_OK;
}

int rmq_copy_message(rmq_core *core, int64_t peer, const rmq_request *request)
{
    const int32_t kind = request->binary ? RMQ_COPY_BINARY : RMQ_COPY_JSON;
    rmq_answer answer = {.opaque = request->opaque};

    if (!core->copy_enabled || core->acl_enabled)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    const int result = request->code == 37 ? end_transaction(core, request->texts) : send_back(core, request);
    if (result != RMQ_OK)
        return result;
    core->answered++;
    if (!(request->flag & RMQ_FLAG_ONEWAY)) {
        uint8_t *const out = core->out + core->out_used;
        const int64_t length = rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out;
        rmq_add_outgoing(core, peer, length, core->log[RMQ_LOG_END], 1);
    }
    return RMQ_OK;
}
