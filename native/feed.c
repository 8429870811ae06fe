/* Handles the frames of a receive buffer: stores and answers sends, leaves pulls to pull.c, and
 * lists the other frames for Python. The checks are those of
 * rmqpy/broker/processors/send_request.py and rmqpy/store; if one of them would refuse a request,
 * Python handles it instead. */
#include <string.h>

#include "rmqpy_native.h"

#define BATCH_ITEM_SIZE_MIN 22
#define BATCH_HEADER_SIZE 20
#define BATCH_COUNT_MAX 512
#define MSG_ID_MAX 57 /* with two IPv6 hosts, including the comma */

typedef struct {
    const rmq_request *request;
    const rmq_topic *topic;
    int64_t *tail; /* next offset of the queue */
    rmq_draft message;
    rmq_properties properties;
    const uint8_t *raw;
    int64_t raw_length; /* the properties as received */
    int is_batch;
    int places[RMQ_SPLIT_MAX]; /* index in `properties` of each property of the model; -1: none */
} pending_send;

/* Set the queue of the message, and the fields that differ in every message. */
static int set_destination(const rmq_core *core, pending_send *send, int64_t queue_id, int64_t born_timestamp)
{
    rmq_draft *const message = &send->message;

    if (queue_id < 0 || queue_id >= send->topic->send_queues)
        return RMQ_NEEDS_PYTHON;
    const int32_t cell = send->topic->cells[queue_id];
    if (cell < 0)
        return RMQ_NEEDS_PYTHON;
    send->tail = &core->tails[cell];
    message->body = message->item_properties = send->request->body; /* no item properties */
    message->body_length = send->request->body_length;
    message->born_timestamp = born_timestamp;
    message->queue_offset = *send->tail;
    message->queue_id = (int32_t)queue_id;
    return message->body_length <= core->message_max ? RMQ_OK : RMQ_NEEDS_PYTHON;
}

/* Read the header fields into the draft, in the order of the checks in send_request.py. */
static int draft_send(const rmq_core *core, const rmq_peer *peer, pending_send *send)
{
    enum { DEFAULT_QUEUES, QUEUE_ID, SYS_FLAG, BORN, FLAG, RECONSUME, MAX_RECONSUME, COUNT };
    static const rmq_number_rule RULES[COUNT] = {
        {SEND_DEFAULT_QUEUES, 1, INT32_MAX}, {SEND_QUEUE_ID, 1, INT32_MAX},  {SEND_SYS_FLAG, 1, INT32_MAX},
        {SEND_BORN, 1, INT64_MAX},           {SEND_FLAG, 1, INT32_MAX},      {SEND_RECONSUME, 0, INT32_MAX},
        {SEND_MAX_RECONSUME, 0, INT32_MAX},
    };
    const rmq_text *const texts = send->request->texts;
    rmq_draft *const message = &send->message;
    int64_t numbers[COUNT];

    if (texts[SEND_GROUP].at == NULL || texts[SEND_TOPIC].at == NULL || texts[SEND_DEFAULT_TOPIC].at == NULL
        || !rmq_read_numbers(texts, RULES, COUNT, numbers))
        return RMQ_NEEDS_PYTHON;
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, texts[SEND_TOPIC].at, texts[SEND_TOPIC].length);
    if (slot->key == NULL || (numbers[SYS_FLAG] & RMQ_TRANSACTION_MASK) != 0)
        return RMQ_NEEDS_PYTHON;
    send->topic = &core->topics[slot->item];
    *message = (rmq_draft){
        .topic = slot->key,
        .topic_length = slot->key_length,
        .properties = &send->properties,
        .flag = (int32_t)numbers[FLAG],
        .reconsume_times = (int32_t)numbers[RECONSUME],
        .sys_flag = ((int32_t)numbers[SYS_FLAG] & ~(RMQ_BORN_HOST_V6 | RMQ_STORE_HOST_V6)) | send->topic->sys_flag
                    | (peer->ip_length == 16 ? RMQ_BORN_HOST_V6 : 0)
                    | (core->store_ip_length == 16 ? RMQ_STORE_HOST_V6 : 0),
    };
    return set_destination(core, send, numbers[QUEUE_ID], numbers[BORN]);
}

/* The same for a request that matches the model. */
static int draft_similar_send(const rmq_core *core, pending_send *send)
{
    static const rmq_number_rule RULES[2] = {{SEND_QUEUE_ID, 1, INT32_MAX}, {SEND_BORN, 1, INT64_MAX}};
    int64_t numbers[2];

    if (!rmq_read_numbers(send->request->texts, RULES, 2, numbers))
        return RMQ_NEEDS_PYTHON;
    return set_destination(core, send, numbers[0], numbers[1]);
}

/* Leave transactions, delays, multi dispatch, and a WAIT other than true and false to Python. */
static int check_properties(const rmq_core *core, const rmq_properties *found)
{
    for (int i = 0; i < found->count; i++) {
        const rmq_property *const item = &found->list[i];
        if (rmq_is_named(item, "DELAY") || rmq_is_named(item, "TRAN_MSG") || rmq_is_named(item, "INNER_MULTI_DISPATCH"))
            return RMQ_NEEDS_PYTHON;
        if (!rmq_is_named(item, "WAIT"))
            continue;
        const rmq_text value = {item->value, item->value_length, 0, 0};
        if (!rmq_is_text(value, "true") && !(rmq_is_text(value, "false") && core->allows_wait_false))
            return RMQ_NEEDS_PYTHON;
    }
    return RMQ_OK;
}

static int read_properties(const rmq_core *core, pending_send *send)
{
    const rmq_text text = send->request->texts[SEND_PROPERTIES];

    send->raw = text.at;
    send->raw_length = text.length;
    if (send->raw_length > core->scratch_capacity)
        return RMQ_NEEDS_PYTHON;
    if (text.escaped || text.non_ascii) {
        send->raw_length = rmq_unescape(text, core->scratch);
        send->raw = core->scratch;
        if (send->raw_length < 0)
            return RMQ_NEEDS_PYTHON;
    }
    if (!rmq_read_properties(send->raw, send->raw_length, &send->properties)
        || !check_properties(core, &send->properties))
        return RMQ_NEEDS_PYTHON;
    rmq_order_properties(core, &send->properties);
    return RMQ_OK;
}

/* Find the properties of the model among the stored ones. */
static void map_model_properties(const rmq_core *core, const rmq_model *model, pending_send *send)
{
    for (int i = 0; i < model->property_count; i++) {
        const rmq_property *const item = &model->properties[i];
        send->places[i] = -1;
        for (int place = 0; place < send->properties.count; place++) {
            rmq_property *const found = &send->properties.list[place];
            if (found->value == core->cluster || found->name_length != item->name_length
                || memcmp(found->name, item->name, item->name_length) != 0)
                continue;
            found->name = item->name; /* scratch will be overwritten */
            found->value = item->value;
            send->places[i] = place;
        }
    }
}

/* Update the values of the properties for a request that matches the model. */
static int update_property_values(const rmq_model *model, pending_send *send)
{
    send->raw_length = 0;
    for (int i = 0; i < model->property_count; i++) {
        const rmq_property *const item = &model->properties[i];
        send->raw_length += (int64_t)item->name_length + item->value_length + 2;
        if (send->places[i] >= 0) {
            send->properties.list[send->places[i]].value = item->value;
            send->properties.list[send->places[i]].value_length = item->value_length;
        }
    }
    return RMQ_OK;
}

static int load_properties(const rmq_core *core, const rmq_model *model, pending_send *send)
{
    if (send->request->matches_model && model->property_count > 0)
        return update_property_values(model, send);
    if (!read_properties(core, send))
        return RMQ_NEEDS_PYTHON;
    map_model_properties(core, model, send);
    return RMQ_OK;
}

/* The messages of a request, their bytes in the log except what all of them share, and the bytes of
 * all bodies. */
typedef struct {
    int64_t count, log_bytes, body_bytes;
} batch_totals;

/* Check that the body is a complete batch, and add up its messages. */
static int measure_batch(const pending_send *send, batch_totals *found)
{
    const uint8_t *at = send->request->body;
    int64_t rest = send->request->body_length;

    while (rest > 0) {
        if (rest < BATCH_ITEM_SIZE_MIN || found->count == BATCH_COUNT_MAX)
            return RMQ_NEEDS_PYTHON;
        const int64_t size = rmq_load_int(at);
        const int64_t body_length = rmq_load_int(at + 16);
        if (size < BATCH_ITEM_SIZE_MIN || size > rest || body_length < 0 || body_length > size - BATCH_ITEM_SIZE_MIN)
            return RMQ_NEEDS_PYTHON;
        const uint8_t *const length_at = at + BATCH_HEADER_SIZE + body_length;
        const int64_t properties_length = (int16_t)(uint16_t)(((uint32_t)length_at[0] << 8) | length_at[1]);
        if (properties_length != size - BATCH_ITEM_SIZE_MIN - body_length)
            return RMQ_NEEDS_PYTHON;
        found->count++;
        found->log_bytes += body_length + properties_length;
        found->body_bytes += body_length;
        at += size;
        rest -= size;
    }
    return found->count > 0 ? RMQ_OK : RMQ_NEEDS_PYTHON;
}

/* Read the batch message at `item`. Returns the position after it. */
static const uint8_t *read_batch_item(const uint8_t *item, rmq_draft *message)
{
    message->flag = rmq_load_int(item + 12);
    message->body_length = rmq_load_int(item + 16);
    message->body = item + BATCH_HEADER_SIZE;
    message->item_properties = message->body + message->body_length + 2;
    message->item_properties_length = rmq_load_int(item) - BATCH_ITEM_SIZE_MIN - message->body_length;
    message->keeps_wait = 1;
    return item + rmq_load_int(item);
}

static void write_send_reply(rmq_core *core, int64_t peer, const pending_send *send, const int64_t *offsets,
                             int64_t count)
{
    const int32_t kind = send->request->binary ? RMQ_SEND_BINARY : RMQ_SEND_JSON;
    rmq_answer answer = {.opaque = send->request->opaque, .offsets = offsets, .offset_count = count};
    uint8_t *const out = core->out + core->out_used;

    core->answered++;
    if (send->request->flag & RMQ_FLAG_ONEWAY)
        return;
    answer.numbers[RMQ_QUEUE_NUMBER] = send->message.queue_id;
    answer.numbers[RMQ_QUEUE_START] = send->message.queue_offset;
    rmq_add_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out,
                     core->log[RMQ_LOG_END]);
}

/* Encode the messages after the staged ones, and append them to the log if all of them fit. */
static int store_messages(rmq_core *core, int64_t peer, pending_send *send, int64_t count)
{
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
    int64_t sizes[BATCH_COUNT_MAX], offsets[BATCH_COUNT_MAX], total = 0, largest = 0;
    uint8_t *out = core->staging + core->log[RMQ_LOG_STAGED];
    const uint8_t *item = send->request->body;
    rmq_draft message = send->message;

    for (int64_t i = 0; i < count; i++, message.queue_offset++) {
        if (send->is_batch)
            item = read_batch_item(item, &message);
        uint8_t *const end = rmq_put_record(core, peer, &message, out + frame);
        if (end == NULL)
            return RMQ_NEEDS_PYTHON;
        sizes[i] = end - out - frame;
        total += sizes[i] + frame;
        largest = sizes[i] + frame > largest ? sizes[i] + frame : largest;
        out = end;
    }
    const int place = rmq_check_fit(core, total, largest, count);
    if (place != RMQ_OK)
        return place;
    rmq_append(core, sizes, count, offsets);
    *send->tail += count;
    write_send_reply(core, peer, send, offsets, count);
    return RMQ_OK;
}

/* Handle a send. If it matches the model, `send` still describes the previous request. */
static int handle_send(rmq_core *core, int64_t peer, const rmq_model *model, pending_send *send)
{
    const rmq_request *const request = send->request = &model->request;
    const rmq_text batch = request->texts[SEND_BATCH];
    batch_totals found = {1, request->body_length, 0};

    if (!core->send_enabled)
        return RMQ_NEEDS_PYTHON;
    if (!(request->matches_model ? draft_similar_send(core, send) : draft_send(core, &core->peers[peer], send))
        || !load_properties(core, model, send)
        || !rmq_is_authorized(core, request, (rmq_slice){send->raw, (size_t)send->raw_length}, send->topic->accounts))
        return RMQ_NEEDS_PYTHON;
    send->is_batch = batch.at != NULL && !rmq_is_text(batch, "false");
    if (send->is_batch) {
        found = (batch_totals){0, 0, 0};
        if (!rmq_is_text(batch, "true") || !measure_batch(send, &found) || found.body_bytes > core->message_max)
            return RMQ_NEEDS_PYTHON;
    }
    const int64_t shared = (int64_t)RMQ_ENTRY_HEADER_SIZE + (int64_t)rmq_head_size(send->message.sys_flag) + 4
                           + send->message.topic_length + rmq_properties_size_max(core, send->raw_length);
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX + found.count * MSG_ID_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    if (!rmq_has_staging_space(core, found.log_bytes + found.count * shared, found.count))
        return core->log[RMQ_LOG_STAGED] > 0 ? -RMQ_COMMIT : RMQ_NEEDS_PYTHON;
    return store_messages(core, peer, send, found.count);
}

static int handle_frame(rmq_core *core, int64_t peer, const uint8_t *frame, int64_t length, rmq_model *model,
                        pending_send *send)
{
    const rmq_request *const request = &model->request;

    if (!rmq_read_request(frame, length, model) || (request->flag & ~RMQ_FLAG_ONEWAY) != 0)
        return RMQ_NEEDS_PYTHON;
    return request->code == 11 ? rmq_pull(core, peer, request) : handle_send(core, peer, model, send);
}

int rmq_feed(rmq_core *core, int64_t peer)
{
    rmq_model model;
    pending_send send; /* of the previous frame: after one that falls back, no frame is handled here */
    const int64_t out_begin = core->out_used;

    model.begin = NULL;
    model.property_count = 0;
    model.can_split_properties = !core->acl_enabled;
    core->fallback_count = 0;
    for (;;) {
        const uint8_t *const at = core->in + core->in_position;
        const int64_t rest = core->in_length - core->in_position;
        if (rest < 4)
            break;
        const int64_t length = rmq_load32(at);
        if (length < 4 || length > core->frame_max)
            return core->fallback_count > 0 ? RMQ_FALLBACK : RMQ_BAD_FRAME;
        if (rest - 4 < length)
            break;
        if (core->out_used - out_begin >= core->out_share)
            return core->fallback_count > 0 ? RMQ_FALLBACK : RMQ_OUT_SHARE;
        /* All frames after one that falls back fall back, too: the messages of a sender keep their order. */
        const int verdict = core->fallback_count > 0 ? RMQ_NEEDS_PYTHON
                                                     : handle_frame(core, peer, at + 4, length, &model, &send);
        if (verdict < 0)
            return -verdict;
        if (verdict == RMQ_NEEDS_PYTHON)
            core->fallback[core->fallback_count++] = (rmq_span){core->in_position + 4, length};
        core->in_position += 4 + length;
        if (core->fallback_count == core->fallback_capacity)
            return RMQ_FALLBACK;
    }
    if (core->fallback_count > 0)
        return RMQ_FALLBACK;
    return core->in_position == core->in_length ? RMQ_DONE : RMQ_PARTIAL;
}
