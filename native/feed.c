/* Handles the frames of a receive buffer: stores and answers sends, leaves pulls to pull.c,
 * requests for copies to copy.c, and queries to query.c, and lists the other frames for
 * Python. The checks are those of
 * rmqpy/broker/processors/send_request.py and rmqpy/store; if one of them would refuse a request,
 * Python handles it instead. */
#include <string.h>

#include "rmqpy_native.h"

#define BATCH_ITEM_SIZE_MIN 22
#define BATCH_HEADER_SIZE 20
#define BATCH_COUNT_MAX 512
#define MSG_ID_MAX 57 /* with two IPv6 hosts, including the comma */

#define LEVEL_DIGITS_MAX 4
#define PREPARED 4
/* REAL_TOPIC, REAL_QID, their separators, and the largest queue id */
#define REROUTED_SIZE_MAX 40

/* Where a message is stored: in its own queue, or in one where it waits. */
enum route { OWN_QUEUE, DELAYED, HALF };

typedef struct {
    const rmq_request *request;
    const rmq_topic *topic;
    int64_t *tail; /* next offset of the queue */
    rmq_draft message;
    rmq_properties properties;
    const uint8_t *raw;
    int64_t raw_length; /* the properties as received */
    int is_batch;
    enum route route;
    int32_t queue_id; /* that the reply names */
    uint8_t level[LEVEL_DIGITS_MAX], real_queue_id[12];
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
    message->queue_id = send->queue_id = (int32_t)queue_id;
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
    if (slot->key == NULL)
        return RMQ_NEEDS_PYTHON;
    send->topic = &core->topics[slot->item];
    const int64_t times_max = texts[SEND_MAX_RECONSUME].at ? numbers[MAX_RECONSUME] : send->topic->retry_times_max;
    if (send->topic->is_retry && numbers[RECONSUME] >= times_max)
        return RMQ_NEEDS_PYTHON; /* a dead letter */
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

/* The same for a request that matches the model and has its topic. */
static int draft_similar_send(const rmq_core *core, pending_send *send)
{
    static const rmq_number_rule RULES[2] = {{SEND_QUEUE_ID, 1, INT32_MAX}, {SEND_BORN, 1, INT64_MAX}};
    int64_t numbers[2];

    if (!rmq_read_numbers(send->request->texts, RULES, 2, numbers))
        return RMQ_NEEDS_PYTHON;
    return set_destination(core, send, numbers[0], numbers[1]);
}

static int is_value(const rmq_property *item, const char *expected)
{
    const rmq_text value = {item->value, item->value_length, 0, 0};

    return rmq_is_text(value, expected);
}

/* Find out where the message is stored. Leaves multi dispatch, a WAIT other than true and false,
 * and unusual transactions to Python. */
static int choose_route(const rmq_core *core, const rmq_properties *found, enum route *route)
{
    *route = OWN_QUEUE;
    for (int i = 0; i < found->count; i++) {
        const rmq_property *const item = &found->list[i];
        const int delays = rmq_is_named(item, "DELAY"), prepares = rmq_is_named(item, "TRAN_MSG");
        if (delays || prepares) {
            if (*route != OWN_QUEUE || (prepares && !is_value(item, "true")))
                return RMQ_NEEDS_PYTHON;
            *route = delays ? DELAYED : HALF;
        }
        if (rmq_is_named(item, "INNER_MULTI_DISPATCH"))
            return RMQ_NEEDS_PYTHON;
        if (rmq_is_named(item, "WAIT") && !is_value(item, "true")
            && !(is_value(item, "false") && core->allows_wait_false))
            return RMQ_NEEDS_PYTHON;
    }
    return RMQ_OK;
}

/* Read DELAY, a number of levels above 0, of which those above the last one count as the last. */
static int read_level(const rmq_core *core, const rmq_properties *found, int64_t *level)
{
    const rmq_property *item = found->list;

    while (!rmq_is_named(item, "DELAY"))
        item++;
    if (item->value_length > LEVEL_DIGITS_MAX)
        return RMQ_NEEDS_PYTHON;
    *level = 0;
    for (uint32_t i = 0; i < item->value_length; i++) {
        if (item->value[i] < '0' || item->value[i] > '9')
            return RMQ_NEEDS_PYTHON;
        *level = *level * 10 + item->value[i] - '0';
    }
    *level = *level < core->delay_count ? *level : core->delay_count;
    return *level > 0;
}

/* Let WAIT be the last property, as Java does by removing it and putting it back. */
static void move_wait(rmq_properties *found)
{
    for (int i = 0; i < found->count; i++) {
        if (!rmq_is_named(&found->list[i], "WAIT"))
            continue;
        const rmq_property wait = found->list[i];
        memmove(&found->list[i], &found->list[i + 1], (size_t)(found->count - i - 1) * sizeof wait);
        found->list[found->count - 1] = wait;
        return;
    }
}

/* Send a delayed message or a half message to the queue where it waits, with its own topic and
 * queue as properties (redirect of rmqpy/broker/state/delay_levels.py, make_half of
 * rmqpy/broker/services/half_messages.py). */
static int reroute(const rmq_core *core, pending_send *send)
{
    rmq_draft *const message = &send->message;
    const int64_t number = send->route == DELAYED ? core->delay_topic : core->half_topic;
    int64_t queue_id = 0;

    if (number < 0 || (send->route == DELAYED && !read_level(core, &send->properties, &queue_id)))
        return RMQ_NEEDS_PYTHON;
    const rmq_topic *const topic = &core->topics[number];
    if (send->route == DELAYED)
        rmq_set_property(&send->properties, "DELAY", rmq_put_number(send->level + sizeof send->level, queue_id--));
    if (queue_id >= topic->queue_count || topic->cells[queue_id] < 0)
        return RMQ_NEEDS_PYTHON;
    move_wait(&send->properties);
    rmq_set_property(&send->properties, "REAL_TOPIC", (rmq_slice){message->topic, (size_t)message->topic_length});
    rmq_set_property(&send->properties, "REAL_QID",
                     rmq_put_number(send->real_queue_id + sizeof send->real_queue_id, message->queue_id));
    message->topic = topic->name;
    message->topic_length = topic->name_length;
    message->queue_id = (int32_t)queue_id;
    message->keeps_wait = 1;
    send->tail = &core->tails[topic->cells[queue_id]];
    message->queue_offset = *send->tail;
    return RMQ_OK;
}

/* Set the transaction bits of SYSFLAG: a half message has none, and no other message may claim to be one. */
static int set_transaction_bits(pending_send *send)
{
    int32_t *const sys_flag = &send->message.sys_flag;

    if ((*sys_flag & RMQ_TRANSACTION_MASK) != 0
        && (send->route != HALF || (*sys_flag & RMQ_TRANSACTION_MASK) != PREPARED))
        return RMQ_NEEDS_PYTHON;
    *sys_flag &= ~RMQ_TRANSACTION_MASK;
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
        || !choose_route(core, &send->properties, &send->route) || !set_transaction_bits(send))
        return RMQ_NEEDS_PYTHON;
    rmq_set_property(&send->properties, "CLUSTER", (rmq_slice){core->cluster, (size_t)core->cluster_length});
    if (send->route != OWN_QUEUE && !reroute(core, send))
        return RMQ_NEEDS_PYTHON;
    rmq_order_properties(&send->properties);
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
    if (send->route == OWN_QUEUE)
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
    answer.numbers[RMQ_QUEUE_NUMBER] = send->queue_id;
    answer.numbers[RMQ_QUEUE_START] = send->message.queue_offset;
    rmq_add_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out,
                     core->log[RMQ_LOG_END], 0);
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
        uint8_t *const end = rmq_put_record(core, &core->peers[peer], &message, out + frame);
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

static int is_of_same_topic(const pending_send *send)
{
    const rmq_text topic = send->request->texts[SEND_TOPIC];

    return topic.length == (uint32_t)send->message.topic_length
        && rmq_bytes_equal(topic.at, send->message.topic, topic.length);
}

/* Handle a send. If it matches the model, `send` still describes the previous request. */
static int handle_send(rmq_core *core, int64_t peer, const rmq_model *model, pending_send *send)
{
    const rmq_request *const request = send->request = &model->request;
    const rmq_text batch = request->texts[SEND_BATCH];
    batch_totals found = {1, request->body_length, 0};

    if (!core->send_enabled)
        return RMQ_NEEDS_PYTHON;
    if (!(request->matches_model && is_of_same_topic(send) ? draft_similar_send(core, send)
                                                           : draft_send(core, &core->peers[peer], send))
        || !load_properties(core, model, send)
        || !rmq_is_authorized(core, request, (rmq_slice){send->raw, (size_t)send->raw_length}, send->topic->accounts))
        return RMQ_NEEDS_PYTHON;
    send->is_batch = batch.at != NULL && !rmq_is_text(batch, "false");
    if (send->is_batch) {
        found = (batch_totals){0, 0, 0};
        if (send->route != OWN_QUEUE || !rmq_is_text(batch, "true") || !measure_batch(send, &found) || found.body_bytes > core->message_max)
            return RMQ_NEEDS_PYTHON;
    }
    const int64_t shared = (int64_t)RMQ_ENTRY_HEADER_SIZE + (int64_t)rmq_head_size(send->message.sys_flag) + 4
                           + send->message.topic_length + rmq_properties_size_max(core, send->raw_length)
                           + REROUTED_SIZE_MAX + (int64_t)request->texts[SEND_TOPIC].length;
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

    core->peers[peer].filters = 0;
    if (!rmq_read_request(frame, length, model) || (request->flag & ~RMQ_FLAG_ONEWAY) != 0)
        return RMQ_NEEDS_PYTHON;
    if (request->code == 11)
        return rmq_pull(core, peer, request, (rmq_slice){frame, (size_t)length});
    if (request->code < 100 && request->code != 10)
        return request->code == 36 || request->code == 37 ? rmq_copy_message(core, peer, request)
                                                          : rmq_answer_query(core, peer, request);
    const int verdict = handle_send(core, peer, model, send);
    if (send->route != OWN_QUEUE)
        model->begin = NULL; /* `send` describes another queue and other properties than the request */
    return verdict;
}

int rmq_feed(rmq_core *core, int64_t peer)
{
    rmq_model model;
    pending_send send; /* of the previous frame: after one that falls back, no frame is handled here */
    const int64_t out_begin = core->out_used;

    model.begin = NULL;
    model.property_count = 0;
    send.route = OWN_QUEUE;
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
