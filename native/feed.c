/* The frames of a receive buffer: sends are stored and answered here, pulls in pull.c, the rest is listed for Python.
 * The checks are those of rmqpy/broker/processors/send_request.py and rmqpy/store; any that would refuse makes the frame cold instead. */
#include <string.h>

#include "rmqpy_native.h"

#define BATCH_ITEM_SIZE_MIN 22
#define BATCH_HEADER_SIZE 20
#define BATCH_COUNT_MAX 512
#define MSG_ID_MAX 57 /* of two IPv6 hosts, with the comma */

typedef struct {
    const rmq_request *request;
    const rmq_topic *topic;
    int64_t *tail; /* the queue's next offset */
    rmq_draft message;
    rmq_properties properties;
    const uint8_t *raw;
    int64_t raw_length; /* of the properties as they came */
    int is_batch;
    int places[RMQ_SPLIT_MAX]; /* where `properties` has those of the model; -1: nowhere */
} sending;

/* Where the message goes, and what is in no other one. */
static int place_send(const rmq_core *core, sending *now, int64_t queue_id, int64_t born_timestamp)
{
    rmq_draft *const message = &now->message;

    if (queue_id < 0 || queue_id >= now->topic->send_queues)
        return RMQ_IS_COLD;
    const int32_t cell = now->topic->cells[queue_id];
    if (cell < 0)
        return RMQ_IS_COLD;
    now->tail = &core->tails[cell];
    message->body = message->own = now->request->body; /* no properties of its own */
    message->body_length = now->request->body_length;
    message->born_timestamp = born_timestamp;
    message->queue_offset = *now->tail;
    message->queue_id = (int32_t)queue_id;
    return message->body_length <= core->message_max ? RMQ_IS_HOT : RMQ_IS_COLD;
}

/* Header fields into the draft, in the order of send.py's checks. */
static int read_send(const rmq_core *core, const rmq_peer *peer, sending *now)
{
    enum { DEFAULT_QUEUES, QUEUE_ID, SYS_FLAG, BORN, FLAG, RECONSUME, MAX_RECONSUME, COUNT };
    static const rmq_wanted WANTED[COUNT] = {
        {SEND_DEFAULT_QUEUES, 1, INT32_MAX}, {SEND_QUEUE_ID, 1, INT32_MAX},  {SEND_SYS_FLAG, 1, INT32_MAX},
        {SEND_BORN, 1, INT64_MAX},           {SEND_FLAG, 1, INT32_MAX},      {SEND_RECONSUME, 0, INT32_MAX},
        {SEND_MAX_RECONSUME, 0, INT32_MAX},
    };
    const rmq_text *const texts = now->request->texts;
    rmq_draft *const message = &now->message;
    int64_t numbers[COUNT];

    if (texts[SEND_GROUP].at == NULL || texts[SEND_TOPIC].at == NULL || texts[SEND_DEFAULT_TOPIC].at == NULL
        || !rmq_numbers(texts, WANTED, COUNT, numbers))
        return RMQ_IS_COLD;
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, texts[SEND_TOPIC].at, texts[SEND_TOPIC].length);
    if (slot->key == NULL || (numbers[SYS_FLAG] & RMQ_TRANSACTION_MASK) != 0)
        return RMQ_IS_COLD;
    now->topic = &core->topics[slot->item];
    *message = (rmq_draft){
        .topic = slot->key,
        .topic_length = slot->key_length,
        .properties = &now->properties,
        .flag = (int32_t)numbers[FLAG],
        .reconsume_times = (int32_t)numbers[RECONSUME],
        .sys_flag = ((int32_t)numbers[SYS_FLAG] & ~(RMQ_BORN_HOST_V6 | RMQ_STORE_HOST_V6)) | now->topic->sys_flag
                    | (peer->ip_length == 16 ? RMQ_BORN_HOST_V6 : 0)
                    | (core->store_ip_length == 16 ? RMQ_STORE_HOST_V6 : 0),
    };
    return place_send(core, now, numbers[QUEUE_ID], numbers[BORN]);
}

/* The same of a request that is like the one before it. */
static int read_next_send(const rmq_core *core, sending *now)
{
    static const rmq_wanted WANTED[2] = {{SEND_QUEUE_ID, 1, INT32_MAX}, {SEND_BORN, 1, INT64_MAX}};
    int64_t numbers[2];

    return rmq_numbers(now->request->texts, WANTED, 2, numbers) ? place_send(core, now, numbers[0], numbers[1])
                                                                : RMQ_IS_COLD;
}

/* Transactions, delays and multi dispatch are Python's; so is a WAIT that is neither true nor false. */
static int check_properties(const rmq_core *core, const rmq_properties *found)
{
    for (int i = 0; i < found->count; i++) {
        const rmq_property *const item = &found->list[i];
        if (rmq_is_named(item, "DELAY") || rmq_is_named(item, "TRAN_MSG") || rmq_is_named(item, "INNER_MULTI_DISPATCH"))
            return RMQ_IS_COLD;
        if (!rmq_is_named(item, "WAIT"))
            continue;
        const rmq_text value = {item->value, item->value_length, 0, 0};
        if (!rmq_is_text(value, "true") && !(rmq_is_text(value, "false") && core->wait_false_is_hot))
            return RMQ_IS_COLD;
    }
    return RMQ_IS_HOT;
}

static int take_properties(const rmq_core *core, sending *now)
{
    const rmq_text text = now->request->texts[SEND_PROPERTIES];

    now->raw = text.at;
    now->raw_length = text.length;
    if (now->raw_length > core->scratch_capacity)
        return RMQ_IS_COLD;
    if (text.escaped || text.high) {
        now->raw_length = rmq_unescape(text, core->scratch);
        now->raw = core->scratch;
        if (now->raw_length < 0)
            return RMQ_IS_COLD;
    }
    if (!rmq_read_properties(now->raw, now->raw_length, &now->properties) || !check_properties(core, &now->properties))
        return RMQ_IS_COLD;
    rmq_order_properties(core, &now->properties);
    return RMQ_IS_HOT;
}

/* Find those of the model among them. */
static void link_properties(const rmq_core *core, const rmq_model *model, sending *now)
{
    for (int i = 0; i < model->property_count; i++) {
        const rmq_property *const item = &model->properties[i];
        now->places[i] = -1;
        for (int place = 0; place < now->properties.count; place++) {
            rmq_property *const found = &now->properties.list[place];
            if (found->value == core->cluster || found->name_length != item->name_length
                || memcmp(found->name, item->name, item->name_length) != 0)
                continue;
            found->name = item->name; /* scratch is used again */
            found->value = item->value;
            now->places[i] = place;
        }
    }
}

/* Those of a request that is like the one before it: other values. */
static int take_next_properties(const rmq_model *model, sending *now)
{
    now->raw_length = 0;
    for (int i = 0; i < model->property_count; i++) {
        const rmq_property *const item = &model->properties[i];
        now->raw_length += (int64_t)item->name_length + item->value_length + 2;
        if (now->places[i] >= 0) {
            now->properties.list[now->places[i]].value = item->value;
            now->properties.list[now->places[i]].value_length = item->value_length;
        }
    }
    return RMQ_IS_HOT;
}

static int take_all_properties(const rmq_core *core, const rmq_model *model, sending *now)
{
    if (now->request->like && model->property_count > 0)
        return take_next_properties(model, now);
    if (!take_properties(core, now))
        return RMQ_IS_COLD;
    link_properties(core, model, now);
    return RMQ_IS_HOT;
}

/* Messages of a request, room in the log without what all of them share, and bytes of all bodies. */
typedef struct {
    int64_t count, room, bodies;
} measure;

/* Is the body a batch that can be stored whole? */
static int measure_batch(const sending *now, measure *found)
{
    const uint8_t *at = now->request->body;
    int64_t rest = now->request->body_length;

    while (rest > 0) {
        if (rest < BATCH_ITEM_SIZE_MIN || found->count == BATCH_COUNT_MAX)
            return RMQ_IS_COLD;
        const int64_t size = rmq_load_int(at);
        const int64_t body_length = rmq_load_int(at + 16);
        if (size < BATCH_ITEM_SIZE_MIN || size > rest || body_length < 0 || body_length > size - BATCH_ITEM_SIZE_MIN)
            return RMQ_IS_COLD;
        const uint8_t *const length_at = at + BATCH_HEADER_SIZE + body_length;
        const int64_t own = (int16_t)(uint16_t)(((uint32_t)length_at[0] << 8) | length_at[1]);
        if (own != size - BATCH_ITEM_SIZE_MIN - body_length)
            return RMQ_IS_COLD;
        found->count++;
        found->room += body_length + own;
        found->bodies += body_length;
        at += size;
        rest -= size;
    }
    return found->count > 0 ? RMQ_IS_HOT : RMQ_IS_COLD;
}

/* The message of a batch that stands at `item`; returns what follows it. */
static const uint8_t *take_item(const uint8_t *item, rmq_draft *message)
{
    message->flag = rmq_load_int(item + 12);
    message->body_length = rmq_load_int(item + 16);
    message->body = item + BATCH_HEADER_SIZE;
    message->own = message->body + message->body_length + 2;
    message->own_length = rmq_load_int(item) - BATCH_ITEM_SIZE_MIN - message->body_length;
    message->with_wait = 1;
    return item + rmq_load_int(item);
}

static void answer_send(rmq_core *core, int64_t peer, const sending *now, const int64_t *offsets, int64_t count)
{
    const int32_t kind = now->request->binary ? RMQ_SEND_BINARY : RMQ_SEND_JSON;
    rmq_answer answer = {.opaque = now->request->opaque, .offsets = offsets, .offset_count = count};
    uint8_t *const out = core->out + core->out_used;

    core->answered++;
    if (now->request->flag & RMQ_FLAG_ONEWAY)
        return;
    answer.numbers[RMQ_QUEUE_NUMBER] = now->message.queue_id;
    answer.numbers[RMQ_QUEUE_START] = now->message.queue_offset;
    rmq_note_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out,
                      core->log[RMQ_LOG_END]);
}

/* Encode the messages behind what is staged; they become part of the log when all of them fit. */
static int store(rmq_core *core, int64_t peer, sending *now, int64_t count)
{
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
    int64_t sizes[BATCH_COUNT_MAX], offsets[BATCH_COUNT_MAX], total = 0, largest = 0;
    uint8_t *out = core->staging + core->log[RMQ_LOG_STAGED];
    const uint8_t *item = now->request->body;
    rmq_draft message = now->message;

    for (int64_t i = 0; i < count; i++, message.queue_offset++) {
        if (now->is_batch)
            item = take_item(item, &message);
        uint8_t *const end = rmq_put_record(core, peer, &message, out + frame);
        if (end == NULL)
            return RMQ_IS_COLD;
        sizes[i] = end - out - frame;
        total += sizes[i] + frame;
        largest = sizes[i] + frame > largest ? sizes[i] + frame : largest;
        out = end;
    }
    const int place = rmq_check_place(core, total, largest, count);
    if (place != RMQ_IS_HOT)
        return place;
    rmq_append(core, sizes, count, offsets);
    *now->tail += count;
    answer_send(core, peer, now, offsets, count);
    return RMQ_IS_HOT;
}

/* `now`: of the request before, where this one is like it. */
static int take_send(rmq_core *core, int64_t peer, const rmq_model *model, sending *now)
{
    const rmq_request *const request = now->request = &model->request;
    const rmq_text batch = request->texts[SEND_BATCH];
    measure found = {1, request->body_length, 0};

    if (!core->send_enabled)
        return RMQ_IS_COLD;
    if (!(request->like ? read_next_send(core, now) : read_send(core, &core->peers[peer], now))
        || !take_all_properties(core, model, now)
        || !rmq_may(core, request, (rmq_slice){now->raw, (size_t)now->raw_length}, now->topic->accounts))
        return RMQ_IS_COLD;
    now->is_batch = batch.at != NULL && !rmq_is_text(batch, "false");
    if (now->is_batch) {
        found = (measure){0, 0, 0};
        if (!rmq_is_text(batch, "true") || !measure_batch(now, &found) || found.bodies > core->message_max)
            return RMQ_IS_COLD;
    }
    const int64_t shared = (int64_t)RMQ_ENTRY_HEADER_SIZE + (int64_t)rmq_head_size(now->message.sys_flag) + 4
                           + now->message.topic_length + rmq_properties_room(core, now->raw_length);
    if (!rmq_out_has_room(core, RMQ_REPLY_MAX + found.count * MSG_ID_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_IS_COLD;
    if (!rmq_staging_has_room(core, found.room + found.count * shared, found.count))
        return core->log[RMQ_LOG_STAGED] > 0 ? -RMQ_COMMIT : RMQ_IS_COLD;
    return store(core, peer, now, found.count);
}

static int take_frame(rmq_core *core, int64_t peer, const uint8_t *frame, int64_t length, rmq_model *model, sending *now)
{
    const rmq_request *const request = &model->request;

    if (!rmq_read_request(frame, length, model) || (request->flag & ~RMQ_FLAG_ONEWAY) != 0)
        return RMQ_IS_COLD;
    return request->code == 11 ? rmq_pull(core, peer, request) : take_send(core, peer, model, now);
}

int rmq_feed(rmq_core *core, int64_t peer)
{
    rmq_model model; /* once a frame is cold none is taken: the last one that was like another followed a hot one */
    sending now;

    model.begin = NULL;
    model.property_count = 0;
    model.may_split = !core->guarded;
    core->cold_count = 0;
    for (;;) {
        const uint8_t *const at = core->in + core->in_position;
        const int64_t rest = core->in_length - core->in_position;
        if (rest < 4)
            break;
        const int64_t length = rmq_load32(at);
        if (length < 4 || length > core->frame_max)
            return core->cold_count > 0 ? RMQ_COLD : RMQ_BAD_FRAME;
        if (rest - 4 < length)
            break;
        /* What stands behind a cold frame is cold too: a sender's messages keep their order. */
        const int taken = core->cold_count > 0 ? RMQ_IS_COLD : take_frame(core, peer, at + 4, length, &model, &now);
        if (taken < 0)
            return -taken;
        if (taken == RMQ_IS_COLD)
            core->cold[core->cold_count++] = (rmq_span){core->in_position + 4, length};
        core->in_position += 4 + length;
        if (core->cold_count == core->cold_capacity)
            return RMQ_COLD;
    }
    if (core->cold_count > 0)
        return RMQ_COLD;
    return core->in_position == core->in_length ? RMQ_DONE : RMQ_PARTIAL;
}
