/* The frames of a receive buffer: sends are stored and answered here, pulls in pull.c, the rest is listed for Python.
 * The checks are those of rmqpy/broker/send.py and rmqpy/store; any that would refuse makes the frame cold instead. */
#include <string.h>

#include "rmqpy_native.h"

#define PROPERTIES_MAX 24
#define PROPERTIES_BYTES_MAX 32767
#define BATCH_ITEM_SIZE_MIN 22
#define BATCH_HEADER_SIZE 20
#define BATCH_COUNT_MAX 512
#define BLANK_SIZE 8 /* also the size of an entry filler */
#define ENTRY_SIZE_MAX (4 * 1024 * 1024)
#define INDEX_UNIT_SIZE 32
#define TRANSACTION_MASK 0xC
#define FLAG_ONEWAY 2
#define COLD 0
#define HOT 1

static const uint8_t CLUSTER[] = "CLUSTER";

typedef struct {
    const uint8_t *name, *value;
    uint32_t name_length, value_length;
    uint32_t hash;
} property;

typedef struct {
    property list[PROPERTIES_MAX];
    int count;
    int wait; /* 1: the sender waits for the log's mode, or said nothing */
} properties;

/* One message on its way into the log. */
typedef struct {
    const uint8_t *topic;
    int64_t topic_length;
    const uint8_t *body;
    int64_t body_length;
    int64_t born_timestamp, queue_offset;
    int32_t queue_id, flag, sys_flag, reconsume_times;
} draft;

static int is_text(rmq_text text, const char *wanted, size_t length)
{
    return text.length == length && memcmp(text.at, wanted, length) == 0;
}

rmq_slot *rmq_find_slot(const rmq_table *table, const uint8_t *key, size_t length)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ key[i]) * 16777619u;
    for (uint32_t place = hash & table->mask;; place = (place + 1) & table->mask) {
        rmq_slot *const slot = &table->slots[place];
        if (slot->key == NULL) {
            slot->hash = hash;
            return slot;
        }
        if (slot->hash == hash && slot->key_length == length && memcmp(slot->key, key, length) == 0)
            return slot;
    }
}

/* ---- replies */

static uint8_t *put_decimal(uint8_t *out, int64_t value)
{
    uint8_t digits[20];
    size_t count = 0;
    uint64_t rest = value < 0 ? 0u - (uint64_t)value : (uint64_t)value;

    do {
        digits[count++] = (uint8_t)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    if (value < 0)
        *out++ = '-';
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

static uint8_t *put_hex(uint8_t *out, const uint8_t *bytes, size_t length)
{
    static const char HEX[] = "0123456789ABCDEF";

    for (size_t i = 0; i < length; i++) {
        *out++ = (uint8_t)HEX[bytes[i] >> 4];
        *out++ = (uint8_t)HEX[bytes[i] & 15];
    }
    return out;
}

static uint8_t *put_msg_ids(uint8_t *out, const rmq_core *core, const rmq_answer *answer)
{
    uint8_t numbers[12];

    rmq_store32(numbers, (uint32_t)core->store_port);
    for (int64_t i = 0; i < answer->offset_count; i++) {
        if (i > 0)
            *out++ = ',';
        out = put_hex(out, core->store_ip, (size_t)core->store_ip_length);
        rmq_store_long(numbers + 4, answer->offsets[i]);
        out = put_hex(out, numbers, sizeof numbers);
    }
    return out;
}

uint8_t *rmq_put_reply(const rmq_core *core, const rmq_reply *reply, const rmq_answer *answer, int64_t body_length,
                       uint8_t *out)
{
    uint8_t *const header = out + 8;
    uint8_t *at = header;
    int32_t taken = 0;

    for (int32_t i = 0; i < reply->field_count; i++) {
        memcpy(at, reply->text + taken, (size_t)(reply->ends[i] - taken));
        at += reply->ends[i] - taken;
        taken = reply->ends[i];
        if (reply->binary && reply->field[i] == RMQ_OPAQUE) {
            rmq_store32(at, (uint32_t)answer->opaque);
            at += 4;
            continue;
        }
        uint8_t *const length_at = at;
        at += reply->binary ? 4 : 0;
        uint8_t *const start = at;
        if (reply->field[i] == RMQ_MSG_ID)
            at = put_msg_ids(at, core, answer);
        else
            at = put_decimal(at, reply->field[i] == RMQ_OPAQUE ? answer->opaque : answer->numbers[reply->field[i]]);
        if (reply->binary)
            rmq_store32(length_at, (uint32_t)(at - start));
    }
    memcpy(at, reply->text + taken, (size_t)(reply->text_length - taken));
    at += reply->text_length - taken;
    if (reply->binary)
        rmq_store32(header + reply->ext_length_at, (uint32_t)(at - header - reply->ext_length_at - 4));
    rmq_store32(out, (uint32_t)(4 + (at - header) + body_length));
    rmq_store32(out + 4, (reply->binary ? 1u << 24 : 0u) | (uint32_t)(at - header));
    return at;
}

void rmq_note_outgoing(rmq_core *core, int64_t peer, int64_t length, int64_t log_end)
{
    rmq_outgoing *last = core->outgoing_count > 0 ? &core->outgoing[core->outgoing_count - 1] : NULL;

    if (last == NULL || last->peer != peer || (last->log_end == 0) != (log_end == 0)) {
        last = &core->outgoing[core->outgoing_count++];
        *last = (rmq_outgoing){.peer = peer, .start = core->out_used};
    }
    last->length += length;
    last->replies++;
    last->log_end = log_end;
    core->out_used += length;
}

static int out_has_room(const rmq_core *core, int64_t length)
{
    return core->out_capacity - core->out_used >= length && core->outgoing_count < core->outgoing_capacity;
}

/* ---- properties */

/* As codec.properties reads them: of equal names the first place and the last value. */
static int read_properties(const uint8_t *raw, int64_t length, properties *found)
{
    const uint8_t *piece = raw;
    const uint8_t *const end = raw + length;

    found->count = 0;
    found->wait = 1;
    while (piece < end) {
        const uint8_t *stop = memchr(piece, 2, (size_t)(end - piece));
        if (stop == NULL)
            stop = end;
        uint32_t hash = 0;
        const uint8_t *middle = piece;
        for (; middle < stop && *middle != 1; middle++) {
            if (*middle >= 0x80u)
                return COLD;
            hash = hash * 31u + *middle;
        }
        if (middle > piece && middle + 1 < stop) {
            const property now = {piece, middle + 1, (uint32_t)(middle - piece), (uint32_t)(stop - middle - 1), hash};
            int place = 0;
            while (place < found->count
                   && (found->list[place].hash != hash || found->list[place].name_length != now.name_length
                       || memcmp(found->list[place].name, piece, now.name_length) != 0))
                place++;
            if (place == PROPERTIES_MAX - 1)
                return COLD;
            if (place == found->count)
                found->list[found->count++] = now;
            else {
                found->list[place].value = now.value;
                found->list[place].value_length = now.value_length;
            }
        }
        piece = stop + 1;
    }
    return HOT;
}

static int has_name(const property *item, const char *name, size_t length)
{
    return item->name_length == length && memcmp(item->name, name, length) == 0;
}

/* Transactions, delays and multi dispatch are Python's; so is a WAIT that is neither true nor false. */
static int check_properties(properties *found)
{
    for (int i = 0; i < found->count; i++) {
        const property *const item = &found->list[i];
        if (has_name(item, "DELAY", 5) || has_name(item, "TRAN_MSG", 8) || has_name(item, "INNER_MULTI_DISPATCH", 20))
            return COLD;
        if (has_name(item, "WAIT", 4)) {
            found->wait = item->value_length == 4 && memcmp(item->value, "true", 4) == 0;
            if (!found->wait && !(item->value_length == 5 && memcmp(item->value, "false", 5) == 0))
                return COLD;
        }
    }
    return HOT;
}

/* CLUSTER put in, in the order of Java's map (remoting/java_map.py). There is room for one more. */
static void order_properties(const rmq_core *core, properties *found)
{
    const property cluster = {CLUSTER, core->cluster, sizeof CLUSTER - 1, (uint32_t)core->cluster_length,
                              rmq_java_hash(0, CLUSTER, sizeof CLUSTER - 1)};
    int place = 0;
    uint32_t buckets = 16;

    while (place < found->count && !has_name(&found->list[place], "CLUSTER", 7))
        place++;
    if (place == found->count)
        found->count++;
    found->list[place] = cluster;
    while ((uint32_t)found->count * 4 > buckets * 3)
        buckets *= 2;
    for (int i = 1; i < found->count; i++) {
        const property now = found->list[i];
        const uint32_t bucket = (now.hash ^ now.hash >> 16) & (buckets - 1);
        int to = i;
        for (; to > 0; to--) {
            const uint32_t other = found->list[to - 1].hash;
            if (((other ^ other >> 16) & (buckets - 1)) <= bucket)
                break;
            found->list[to] = found->list[to - 1];
        }
        found->list[to] = now;
    }
}

static uint8_t *put_properties(uint8_t *out, const properties *found, int with_wait)
{
    uint8_t *const start = out;

    for (int i = 0; i < found->count; i++) {
        const property *const item = &found->list[i];
        if (!with_wait && has_name(item, "WAIT", 4))
            continue;
        if (out > start)
            *out++ = 2;
        memcpy(out, item->name, item->name_length);
        out += item->name_length;
        *out++ = 1;
        memcpy(out, item->value, item->value_length);
        out += item->value_length;
    }
    return out;
}

/* What put_properties may need. */
static int64_t properties_room(const rmq_core *core, int64_t raw_length)
{
    return raw_length + core->cluster_length + (int64_t)sizeof CLUSTER + 2;
}

/* ---- records */

/* Head, body and topic of a record; returns where PROPERTIESLENGTH goes. TOTALSIZE and PHYSICALOFFSET come later. */
static uint8_t *put_head(const rmq_core *core, const rmq_peer *peer, const draft *message, uint8_t *out)
{
    uint8_t *at = out + 48;

    rmq_store32(out + 4, RMQ_MESSAGE_MAGIC_V1);
    rmq_store32(out + 8, message->body_length ? rmq_crc32(message->body, (size_t)message->body_length) : 0u);
    rmq_store32(out + 12, (uint32_t)message->queue_id);
    rmq_store32(out + 16, (uint32_t)message->flag);
    rmq_store_long(out + 20, message->queue_offset);
    rmq_store32(out + 36, (uint32_t)message->sys_flag);
    rmq_store_long(out + 40, message->born_timestamp);
    memcpy(at, peer->ip, (size_t)peer->ip_length);
    rmq_store32(at + peer->ip_length, (uint32_t)peer->port);
    at += peer->ip_length + 4;
    rmq_store_long(at, core->now_ms);
    memcpy(at + 8, core->store_ip, (size_t)core->store_ip_length);
    at += 8 + core->store_ip_length;
    rmq_store32(at, (uint32_t)core->store_port);
    rmq_store32(at + 4, (uint32_t)message->reconsume_times);
    rmq_store_long(at + 8, 0); /* no prepared transaction */
    rmq_store32(at + 16, (uint32_t)message->body_length);
    memcpy(at + 20, message->body, (size_t)message->body_length);
    at += 20 + message->body_length;
    *at++ = (uint8_t)message->topic_length;
    memcpy(at, message->topic, (size_t)message->topic_length);
    return at + message->topic_length;
}

/* Length fields of a record that begins at `out`, its properties ending at `end`; 0: over a limit. */
static int close_record(const rmq_core *core, uint8_t *out, uint8_t *properties_at, const uint8_t *end)
{
    const int64_t properties_length = end - properties_at - 2;
    const int64_t size = end - out;

    if (properties_length > PROPERTIES_BYTES_MAX || size > core->message_max)
        return 0;
    properties_at[0] = (uint8_t)(properties_length >> 8);
    properties_at[1] = (uint8_t)properties_length;
    rmq_store32(out, (uint32_t)size);
    return 1;
}

/* The entry around a record, and its index unit. */
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

/* May `total` bytes of `count` records, largest `largest`, follow the end of the log in its file? */
static int check_place(rmq_core *core, int64_t total, int64_t largest, int64_t count)
{
    const int64_t rest = core->log[RMQ_LOG_FILE_END] - core->log[RMQ_LOG_END];

    if (total + BLANK_SIZE > core->file_size || (core->dledger && largest > ENTRY_SIZE_MAX))
        return COLD;
    if (core->dledger && count > core->entries_left)
        return COLD;
    if (total + BLANK_SIZE > rest) {
        if (core->dledger && count > 1)
            return COLD; /* a batch of entries may go over two files */
        core->wanted = total;
        return -RMQ_ROLL;
    }
    return HOT;
}

/* The records stand in staging, framed as the log wants them: make them part of the log. */
static void append(rmq_core *core, const int64_t *sizes, int64_t count, int64_t *offsets)
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

static int staging_has_room(const rmq_core *core, int64_t length, int64_t count)
{
    return core->staging_capacity - core->log[RMQ_LOG_STAGED] >= length
           && (!core->dledger || core->units_capacity - core->log[RMQ_LOG_UNITS] >= count);
}

/* ---- sending */

typedef struct {
    const rmq_request *request;
    const rmq_topic *topic;
    int64_t *tail; /* the queue's next offset */
    draft message;
    properties properties;
    int64_t raw_length; /* of the properties as they came */
} sending;

/* Header fields into the draft, in the order of send.py's checks. */
static int read_send(const rmq_core *core, const rmq_peer *peer, sending *now)
{
    const rmq_text *const texts = now->request->texts;
    draft *const message = &now->message;
    int64_t numbers[4], ignored;

    if (texts[SEND_GROUP].at == NULL || texts[SEND_TOPIC].at == NULL || texts[SEND_DEFAULT_TOPIC].at == NULL
        || !rmq_number(texts[SEND_DEFAULT_QUEUES], INT32_MAX, &ignored)
        || !rmq_number(texts[SEND_QUEUE_ID], INT32_MAX, &numbers[0])
        || !rmq_number(texts[SEND_SYS_FLAG], INT32_MAX, &numbers[1])
        || !rmq_number(texts[SEND_BORN], INT64_MAX, &message->born_timestamp)
        || !rmq_number(texts[SEND_FLAG], INT32_MAX, &numbers[2]))
        return COLD;
    numbers[3] = 0;
    if (texts[SEND_RECONSUME].at != NULL && !rmq_number(texts[SEND_RECONSUME], INT32_MAX, &numbers[3]))
        return COLD;
    if (texts[SEND_MAX_RECONSUME].at != NULL && !rmq_number(texts[SEND_MAX_RECONSUME], INT32_MAX, &ignored))
        return COLD;
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, texts[SEND_TOPIC].at, texts[SEND_TOPIC].length);
    if (slot->key == NULL)
        return COLD;
    now->topic = &core->topics[slot->item];
    message->queue_id = (int32_t)numbers[0];
    if (message->queue_id < 0 || message->queue_id >= now->topic->send_queues)
        return COLD;
    const int32_t cell = now->topic->cells[message->queue_id];
    if (cell < 0 || (numbers[1] & TRANSACTION_MASK) != 0)
        return COLD;
    now->tail = &core->tails[cell];
    message->topic = slot->key;
    message->topic_length = slot->key_length;
    message->body = now->request->body;
    message->body_length = now->request->body_length;
    message->flag = (int32_t)numbers[2];
    message->reconsume_times = (int32_t)numbers[3];
    message->queue_offset = *now->tail;
    message->sys_flag = ((int32_t)numbers[1] & ~(RMQ_BORN_HOST_V6 | RMQ_STORE_HOST_V6)) | now->topic->sys_flag
                        | (peer->ip_length == 16 ? RMQ_BORN_HOST_V6 : 0)
                        | (core->store_ip_length == 16 ? RMQ_STORE_HOST_V6 : 0);
    return message->body_length <= core->message_max ? HOT : COLD;
}

static int take_properties(const rmq_core *core, sending *now)
{
    const rmq_text text = now->request->texts[SEND_PROPERTIES];
    const uint8_t *raw = text.at;

    now->raw_length = text.length;
    if (now->raw_length > core->scratch_capacity)
        return COLD;
    if (text.escaped || text.high) {
        now->raw_length = rmq_unescape(text, core->scratch);
        raw = core->scratch;
        if (now->raw_length < 0)
            return COLD;
    }
    if (!read_properties(raw, now->raw_length, &now->properties) || !check_properties(&now->properties))
        return COLD;
    if (!now->properties.wait && !core->wait_false_is_hot)
        return COLD;
    order_properties(core, &now->properties);
    return HOT;
}

static void answer_send(rmq_core *core, int64_t peer, const sending *now, const int64_t *offsets, int64_t count)
{
    const int32_t kind = now->request->binary ? RMQ_SEND_BINARY : RMQ_SEND_JSON;
    rmq_answer answer = {.opaque = now->request->opaque, .offsets = offsets, .offset_count = count};
    uint8_t *const out = core->out + core->out_used;

    if (now->request->flag & FLAG_ONEWAY)
        return;
    answer.numbers[RMQ_QUEUE_NUMBER] = now->message.queue_id;
    answer.numbers[RMQ_QUEUE_START] = now->message.queue_offset;
    rmq_note_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out,
                      core->log[RMQ_LOG_END]);
}

static int send_one(rmq_core *core, int64_t peer, sending *now)
{
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
    const int64_t room = frame + (int64_t)rmq_head_size(now->message.sys_flag) + 3 + now->message.body_length
                         + now->message.topic_length + properties_room(core, now->raw_length);
    int64_t offset = 0;

    if (!out_has_room(core, RMQ_REPLY_MAX))
        return -RMQ_OUT_FULL;
    if (!staging_has_room(core, room, 1))
        return room > core->staging_capacity ? COLD : -RMQ_COMMIT;
    uint8_t *const record = core->staging + core->log[RMQ_LOG_STAGED] + frame;
    uint8_t *const properties_at = put_head(core, &core->peers[peer], &now->message, record);
    const uint8_t *const end = put_properties(properties_at + 2, &now->properties, 0);
    if (!close_record(core, record, properties_at, end))
        return COLD;
    const int64_t size = end - record;
    const int place = check_place(core, size + frame, size + frame, 1);
    if (place != HOT)
        return place;
    append(core, &size, 1, &offset);
    ++*now->tail;
    answer_send(core, peer, now, &offset, 1);
    return HOT;
}

typedef struct {
    int64_t count, room, bodies;
} batch_measure;

/* Is the body a batch that can be stored whole? Room without the common properties. */
static int measure_batch(const sending *now, batch_measure *found)
{
    const uint8_t *at = now->request->body;
    int64_t rest = now->request->body_length;
    const int64_t fixed = (int64_t)rmq_head_size(now->message.sys_flag) + 4 + now->message.topic_length;

    *found = (batch_measure){0, 0, 0};
    while (rest > 0) {
        if (rest < BATCH_ITEM_SIZE_MIN || found->count == BATCH_COUNT_MAX)
            return COLD;
        const int64_t size = rmq_load_int(at);
        const int64_t body_length = rmq_load_int(at + 16);
        if (size < BATCH_ITEM_SIZE_MIN || size > rest || body_length < 0 || body_length > size - BATCH_ITEM_SIZE_MIN)
            return COLD;
        const uint8_t *const length_at = at + BATCH_HEADER_SIZE + body_length;
        const int64_t own = (int16_t)(uint16_t)(((uint32_t)length_at[0] << 8) | length_at[1]);
        if (own != size - BATCH_ITEM_SIZE_MIN - body_length)
            return COLD;
        found->count++;
        found->room += fixed + body_length + own;
        found->bodies += body_length;
        at += size;
        rest -= size;
    }
    return found->count > 0 ? HOT : COLD;
}

static int send_batch(rmq_core *core, int64_t peer, sending *now)
{
    const int64_t frame = core->dledger ? (int64_t)RMQ_ENTRY_HEADER_SIZE : 0;
    const int64_t common_room = properties_room(core, now->raw_length);
    int64_t sizes[BATCH_COUNT_MAX], offsets[BATCH_COUNT_MAX], total = 0, largest = 0;
    batch_measure batch;

    if (!measure_batch(now, &batch) || batch.bodies > core->message_max)
        return COLD;
    const int64_t room = batch.room + batch.count * (frame + common_room);
    if (!out_has_room(core, RMQ_REPLY_MAX + batch.count * 57))
        return core->out_used > 0 ? -RMQ_OUT_FULL : COLD;
    if (!staging_has_room(core, room, batch.count))
        return core->log[RMQ_LOG_STAGED] > 0 ? -RMQ_COMMIT : COLD;
    const uint8_t *item = now->request->body;
    uint8_t *out = core->staging + core->log[RMQ_LOG_STAGED];
    draft message = now->message;
    for (int64_t i = 0; i < batch.count; i++) {
        uint8_t *const record = out + frame;
        message.flag = rmq_load_int(item + 12);
        message.body_length = rmq_load_int(item + 16);
        message.body = item + BATCH_HEADER_SIZE;
        const int64_t own = rmq_load_int(item) - BATCH_ITEM_SIZE_MIN - message.body_length;
        uint8_t *const properties_at = put_head(core, &core->peers[peer], &message, record);
        uint8_t *at = properties_at + 2;
        memcpy(at, message.body + message.body_length + 2, (size_t)own);
        at += own;
        if (own > 0 && at[-1] != 2)
            *at++ = 2;
        at = put_properties(at, &now->properties, 1);
        if (!close_record(core, record, properties_at, at))
            return COLD;
        sizes[i] = at - record;
        total += sizes[i] + frame;
        largest = sizes[i] + frame > largest ? sizes[i] + frame : largest;
        message.queue_offset++;
        item += rmq_load_int(item);
        out = at;
    }
    const int place = check_place(core, total, largest, batch.count);
    if (place != HOT)
        return place;
    append(core, sizes, batch.count, offsets);
    *now->tail += batch.count;
    answer_send(core, peer, now, offsets, batch.count);
    return HOT;
}

static int take_send(rmq_core *core, int64_t peer, const rmq_request *request)
{
    const rmq_text batch = request->texts[SEND_BATCH];
    sending now;

    if (!core->send_enabled)
        return COLD;
    now.request = request;
    if (!read_send(core, &core->peers[peer], &now) || !take_properties(core, &now))
        return COLD;
    if (batch.at == NULL || is_text(batch, "false", 5))
        return send_one(core, peer, &now);
    return is_text(batch, "true", 4) ? send_batch(core, peer, &now) : COLD;
}

/* ---- frames */

static int take_frame(rmq_core *core, int64_t peer, const uint8_t *frame, int64_t length)
{
    rmq_request request;

    if (!rmq_read_request(frame, length, &request) || (request.flag & ~FLAG_ONEWAY) != 0)
        return COLD;
    return request.code == 11 ? rmq_pull(core, peer, &request) : take_send(core, peer, &request);
}

int rmq_feed(rmq_core *core, int64_t peer)
{
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
        const int taken = core->cold_count > 0 ? COLD : take_frame(core, peer, at + 4, length);
        if (taken < 0)
            return -taken;
        if (taken == COLD)
            core->cold[core->cold_count++] = (rmq_span){core->in_position + 4, length};
        core->in_position += 4 + length;
        if (core->cold_count == core->cold_capacity)
            return RMQ_COLD;
    }
    if (core->cold_count > 0)
        return RMQ_COLD;
    return core->in_position == core->in_length ? RMQ_DONE : RMQ_PARTIAL;
}
