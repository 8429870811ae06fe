/* Delivers delayed messages that are due: copies them to the queues that they name, as
 * rmqpy/broker/services/schedule.py does. */
#include <string.h>

#include "rmqpy_native.h"

#define QUEUE_ID_DIGITS 9
#define QUEUE_ID_POSITION 12
#define QUEUE_OFFSET_POSITION 20
#define SYS_FLAG_POSITION 36
#define STORE_TIMESTAMP_POSITION 56 /* with a born host of 4 bytes */
#define PROPERTIES_BYTES_MAX 32671  /* of append.c */

typedef struct {
    const uint8_t *record;
    rmq_record_places places;
    rmq_properties properties;
} stored_message;

static const uint8_t *read_log(const rmq_core *core, int64_t offset, int64_t size)
{
    if (offset < core->log_min || size <= 0 || size > core->confirm_offset - offset)
        return NULL;
    const uint8_t *const found = rmq_locate(&core->logs[0], offset, size);
    return found != NULL ? found : rmq_locate(&core->logs[1], offset, size);
}

/* Read a record of the version that brokers write, whose properties are plain ASCII. */
static int read_stored(const rmq_core *core, int64_t offset, int64_t size, stored_message *stored)
{
    const uint8_t *const record = stored->record = read_log(core, offset, size);

    if (record == NULL || size < (int32_t)RMQ_RECORD_SIZE_MIN || rmq_load_int(record) != size
        || rmq_load32(record + 4) != RMQ_MESSAGE_MAGIC_V1
        || rmq_measure_record(record, 0, (size_t)size, &stored->places) != RMQ_END)
        return RMQ_NEEDS_PYTHON;
    const uint8_t *const raw = record + stored->places.properties;
    for (size_t i = 0; i < stored->places.properties_length; i++)
        if (raw[i] >= 0x80u)
            return RMQ_NEEDS_PYTHON;
    return rmq_read_properties(raw, (int64_t)stored->places.properties_length, &stored->properties) ? RMQ_OK
                                                                                                    : RMQ_NEEDS_PYTHON;
}

static const rmq_property *find_property(const rmq_properties *found, const char *name)
{
    for (int i = 0; i < found->count; i++)
        if (rmq_is_named(&found->list[i], name))
            return &found->list[i];
    return NULL;
}

/* Find the queue that REAL_TOPIC and REAL_QID name. */
static const rmq_topic *find_real_queue(const rmq_core *core, const rmq_properties *found, int64_t *queue_id)
{
    const rmq_property *const name = find_property(found, "REAL_TOPIC"), *const number = find_property(found, "REAL_QID");

    if (name == NULL || number == NULL || number->value_length > QUEUE_ID_DIGITS
        || (number->value[0] == '0' && number->value_length > 1))
        return NULL;
    *queue_id = 0;
    for (uint32_t i = 0; i < number->value_length; i++) {
        if (number->value[i] < '0' || number->value[i] > '9')
            return NULL;
        *queue_id = *queue_id * 10 + number->value[i] - '0';
    }
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, name->value, name->value_length);
    if (slot->key == NULL || slot->item == core->half_topic)
        return NULL;
    const rmq_topic *const topic = &core->topics[slot->item];
    return *queue_id < topic->queue_count && topic->cells[*queue_id] >= 0 ? topic : NULL;
}

/* Encode the copy of a message. Returns its end, or NULL if it is damaged or may be too large. */
static uint8_t *put_copy(const rmq_core *core, stored_message *stored, const rmq_topic *topic, int64_t queue_id,
                         uint8_t *out)
{
    const rmq_record_places *const places = &stored->places;
    const uint8_t *const record = stored->record, *const body = record + places->head_size;
    const size_t born = (rmq_load_int(record + SYS_FLAG_POSITION) & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u;

    const uint32_t crc = places->body_length ? rmq_crc32(body, places->body_length) : 0u;
    if (places->body_length && (int32_t)crc != rmq_load_int(record + 8))
        return NULL; /* damaged: the copy would have a valid CRC */

    memcpy(out, record, places->head_size);
    rmq_store32(out + 8, crc);
    rmq_store32(out + QUEUE_ID_POSITION, (uint32_t)queue_id);
    rmq_store_long(out + QUEUE_OFFSET_POSITION, core->tails[topic->cells[queue_id]]);
    rmq_store_long(out + STORE_TIMESTAMP_POSITION + born, core->now_ms);
    rmq_store_long(out + places->head_size - 12, 0); /* prepared transaction offset: none */
    uint8_t *at = out + places->head_size;
    memcpy(at, body, places->body_length);
    at += places->body_length;
    *at++ = (uint8_t)topic->name_length;
    memcpy(at, topic->name, (size_t)topic->name_length);
    at += topic->name_length + 2;
    rmq_order_properties(&stored->properties);
    uint8_t *const end = rmq_put_properties(at, &stored->properties, 1);
    const int64_t length = end - at, size = end - out;
    if (length > PROPERTIES_BYTES_MAX || size > core->message_max)
        return NULL;
    at[-2] = (uint8_t)(length >> 8);
    at[-1] = (uint8_t)length;
    rmq_store32(out, (uint32_t)size);
    return end;
}

static int deliver(rmq_core *core, int64_t offset, int64_t size)
{
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
    stored_message stored;
    int64_t queue_id, stored_at;

    if (core->delay_topic < 0 || !read_stored(core, offset, size, &stored))
        return RMQ_NEEDS_PYTHON;
    const rmq_topic *const waits_in = &core->topics[core->delay_topic];
    const int32_t kind = rmq_load_int(stored.record + SYS_FLAG_POSITION) & RMQ_TRANSACTION_MASK;
    if (stored.places.topic_length != (size_t)waits_in->name_length
        || memcmp(stored.record + stored.places.topic, waits_in->name, stored.places.topic_length) != 0
        || (kind != 0 && kind != RMQ_TRANSACTION_COMMIT))
        return RMQ_NEEDS_PYTHON;
    const rmq_topic *const topic = find_real_queue(core, &stored.properties, &queue_id);
    if (topic == NULL || !rmq_has_staging_space(core, frame + size + topic->name_length + 1, 1))
        return RMQ_NEEDS_PYTHON;
    uint8_t *const out = core->staging + core->log[RMQ_LOG_STAGED] + frame;
    uint8_t *const end = put_copy(core, &stored, topic, queue_id, out);
    if (end == NULL || (rmq_lost_pages() > 0 && rmq_is_lost(stored.record, size)))
        return RMQ_NEEDS_PYTHON;
    const int64_t length = end - out;
    if (rmq_check_fit(core, length + frame, length + frame, 1) != RMQ_OK)
        return RMQ_NEEDS_PYTHON;
    rmq_append(core, &length, 1, &stored_at);
    core->tails[topic->cells[queue_id]]++;
    return RMQ_OK;
}

int64_t rmq_deliver(rmq_core *core, const int64_t *messages, int64_t count)
{
    int64_t done = 0;

    while (done < count && deliver(core, messages[2 * done], messages[2 * done + 1]) == RMQ_OK)
        done++;
    return done;
}
