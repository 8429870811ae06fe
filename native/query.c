/* Answers requests for the first and the next offset of a queue, for that of a time, and for messages by
 * their offset or key, as rmqpy/broker/processors/query.py does. Stores the offsets that consumers report,
 * and answers requests for them, as rmqpy/broker/state/consumer_offsets.py. */
#include <string.h>

#include "rmqpy_native.h"

#define UNIT_SIZE 20

#define PHYSICAL_OFFSET_POSITION 28
#define SYS_FLAG_POSITION 36
#define STORE_TIMESTAMP_POSITION 56 /* with a born host of 4 bytes */

enum {
    QUERY_MESSAGE = 12,
    QUERY_CONSUMER_OFFSET = 14,
    UPDATE_CONSUMER_OFFSET = 15,
    SEARCH_OFFSET_BY_TIMESTAMP = 29,
    GET_MAX_OFFSET = 30,
    GET_MIN_OFFSET = 31,
    VIEW_MESSAGE_BY_ID = 33
};

enum { QUEUE_ID, VALUE, COUNT }; /* VALUE: a time, or the offset to commit */

typedef struct {
    const rmq_core *core;
    const rmq_queue *queue;
    rmq_text topic;
    int64_t queue_id, timestamp;
} time_search;

/* Read the store time of the message at a queue offset. */
static int read_time(const time_search *search, int64_t queue_offset, int64_t *stored_at)
{
    const uint8_t *const unit = rmq_locate(&search->queue->files, queue_offset * UNIT_SIZE, UNIT_SIZE);
    rmq_record_places places;

    if (unit == NULL)
        return RMQ_NEEDS_PYTHON;
    const int64_t size = rmq_load_int(unit + 8);
    const uint8_t *const record = rmq_read_log(search->core, rmq_load_long(unit), size);
    if (record == NULL || size < (int64_t)RMQ_RECORD_SIZE_MIN
        || !rmq_is_message(record, size, search->topic, search->queue_id, queue_offset, &places)
        || (rmq_lost_pages() > 0 && rmq_is_lost(record, size)))
        return RMQ_NEEDS_PYTHON;
    const size_t born = (rmq_load_int(record + SYS_FLAG_POSITION) & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u;
    *stored_at = rmq_load_long(record + STORE_TIMESTAMP_POSITION + born);
    return *stored_at >= 0;
}

/* Find the message stored at a time, or else the nearest one (offset_by_time of rmqpy/store/reader.py). */
static int find_time(const time_search *search, int64_t *found)
{
    const int64_t first = search->queue->state[RMQ_QUEUE_MIN] / UNIT_SIZE;
    const int64_t end = search->queue->state[RMQ_QUEUE_END] / UNIT_SIZE;
    int64_t low = first, high = end, later = 0, earlier = 0;

    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (!read_time(search, middle, &later))
            return RMQ_NEEDS_PYTHON;
        if (later < search->timestamp)
            low = middle + 1;
        else
            high = middle;
    }
    *found = first < end ? low : 0;
    if (first >= end)
        return RMQ_OK;
    if (low == end) {
        *found = end - 1;
        return RMQ_OK;
    }
    if (!read_time(search, low, &later))
        return RMQ_NEEDS_PYTHON;
    if (later == search->timestamp || low == first)
        return RMQ_OK;
    if (!read_time(search, low - 1, &earlier))
        return RMQ_NEEDS_PYTHON;
    *found = search->timestamp - earlier <= later - search->timestamp ? low - 1 : low;
    return RMQ_OK;
}

static int show_offset(const rmq_core *core, const rmq_request *request, const int64_t *numbers, int64_t *shown)
{
    const int64_t queue_id = numbers[QUEUE_ID];
    const rmq_text name = request->texts[OFFSET_TOPIC];
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, name.at, name.length);

    if (slot->key == NULL)
        return RMQ_NEEDS_PYTHON;
    const rmq_topic *const topic = &core->topics[slot->item];
    if (!topic->shows_offsets || queue_id >= topic->queue_count || topic->queues[queue_id] < 0)
        return RMQ_NEEDS_PYTHON;
    const rmq_queue *const queue = &core->queues[topic->queues[queue_id]];
    if (request->code == SEARCH_OFFSET_BY_TIMESTAMP)
        return find_time(&(time_search){core, queue, name, queue_id, numbers[VALUE]}, shown);
    *shown = queue->state[request->code == GET_MAX_OFFSET ? RMQ_QUEUE_END : RMQ_QUEUE_MIN] / UNIT_SIZE;
    return RMQ_OK;
}

static int show_committed(const rmq_core *core, const rmq_request *request, int64_t queue_id, int64_t *shown)
{
    const rmq_reader *const reader = rmq_find_reader(core, request->texts[OFFSET_GROUP], request->texts[OFFSET_TOPIC]);

    if (reader == NULL || queue_id >= reader->read_queues || queue_id >= reader->offset_count
        || reader->offsets[queue_id] < 0)
        return RMQ_NEEDS_PYTHON;
    *shown = reader->offsets[queue_id];
    return RMQ_OK;
}

static int commit_offset(rmq_core *core, const rmq_request *request, int64_t queue_id, int64_t offset)
{
    const rmq_reader *const reader = rmq_find_reader(core, request->texts[OFFSET_GROUP], request->texts[OFFSET_TOPIC]);

    if (reader == NULL || !reader->commits || queue_id >= reader->read_queues)
        return RMQ_NEEDS_PYTHON;
    if (core->commit_count == core->commit_capacity)
        return -RMQ_OUT_FULL;
    rmq_record_commit(core, reader, queue_id, offset);
    return RMQ_OK;
}

/* Return the record that starts at an offset of the log, or NULL if there is none that C can show (record_at
 * of rmqpy/store/reader.py). */
static const uint8_t *find_record(const rmq_core *core, int64_t offset, int64_t *size)
{
    const uint8_t *const head = rmq_read_log(core, offset, RMQ_RECORD_SIZE_MIN);

    *size = head != NULL ? rmq_load_int(head) : 0;
    const uint8_t *const record = rmq_read_log(core, offset, *size);
    if (record == NULL || *size < (int64_t)RMQ_RECORD_SIZE_MIN || rmq_load32(record + 4) != RMQ_MESSAGE_MAGIC_V1
        || rmq_load_long(record + PHYSICAL_OFFSET_POSITION) != offset)
        return NULL;
    return record;
}

/* Answer with records, one directly after the other. */
static int show_records(rmq_core *core, int64_t peer, const rmq_request *request, rmq_answer *answer, int kind,
                        const rmq_slice *records, int64_t count)
{
    int64_t size = 0;

    answer->opaque = request->opaque;
    for (int64_t i = 0; i < count; i++)
        size += (int64_t)records[i].length;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX + size))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    uint8_t *const out = core->out + core->out_used;
    uint8_t *at = rmq_put_reply(core, &core->replies[kind + (request->binary != 0)], answer, size, out);
    for (int64_t i = 0; i < count; i++) {
        memcpy(at, records[i].at, records[i].length);
        at += records[i].length;
        if (rmq_lost_pages() > 0 && rmq_is_lost(records[i].at, (int64_t)records[i].length))
            return RMQ_NEEDS_PYTHON;
    }
    core->answered++;
    if (!(request->flag & RMQ_FLAG_ONEWAY))
        rmq_add_outgoing(core, peer, at - out, 0, 0);
    return RMQ_OK;
}

static int show_message(rmq_core *core, int64_t peer, const rmq_request *request)
{
    static const rmq_number_rule RULE = {VIEW_OFFSET, 1, INT64_MAX};
    rmq_answer answer = {0};
    int64_t offset, size;

    if (!rmq_read_numbers(request->texts, &RULE, 1, &offset))
        return RMQ_NEEDS_PYTHON;
    const uint8_t *const record = find_record(core, offset, &size);
    return record == NULL
             ? RMQ_NEEDS_PYTHON
             : show_records(core, peer, request, &answer, RMQ_COPY_JSON, &(rmq_slice){record, (size_t)size}, 1);
}

enum { KEYS_MAX, KEYS_BEGIN, KEYS_END, KEY_NUMBERS };

static int read_key_numbers(const rmq_core *core, const rmq_text *texts, int64_t *numbers)
{
    static const rmq_number_rule RULES[KEY_NUMBERS] = {
        {KEY_COUNT, 1, INT32_MAX}, {KEY_BEGIN, 1, INT64_MAX}, {KEY_END, 1, INT64_MAX}};
    const rmq_text unique = texts[KEY_IS_UNIQUE];
    const int is_open = texts[KEY_END].at != NULL && rmq_is_text(texts[KEY_END], "9223372036854775807");

    if (!rmq_read_numbers(texts, RULES, is_open ? KEYS_END : KEY_NUMBERS, numbers))
        return RMQ_NEEDS_PYTHON;
    if (is_open)
        numbers[KEYS_END] = INT64_MAX;
    if (unique.at != NULL && rmq_is_text(unique, "true"))
        numbers[KEYS_MAX] = core->index.unique_found_max;
    else if (unique.at != NULL && !rmq_is_text(unique, "false"))
        return RMQ_NEEDS_PYTHON;
    else if (numbers[KEYS_MAX] > core->index.found_max)
        numbers[KEYS_MAX] = core->index.found_max;
    return numbers[KEYS_MAX] > 0;
}

/* Return whether a message has been deleted with its file. */
static int is_deleted(const rmq_core *core, int64_t offset)
{
    const rmq_files *const oldest = &core->logs[core->logs[0].count == 0];

    return oldest->count > 0 && offset >= 0 && offset < oldest->first_offset;
}

/* Answer with the messages of a key (query_message of rmqpy/store/reader.py). */
static int show_messages_of_key(rmq_core *core, int64_t peer, const rmq_request *request)
{
    const rmq_key_index *const index = &core->index;
    const rmq_text topic = request->texts[KEY_TOPIC], key = request->texts[KEY_TEXT];
    rmq_slice records[RMQ_FOUND_MAX];
    int64_t numbers[KEY_NUMBERS], count = 0;
    rmq_answer answer = {0};
    rmq_found found;

    if (index->count == 0 || topic.at == NULL || key.at == NULL || topic.non_ascii || key.non_ascii
        || !read_key_numbers(core, request->texts, numbers))
        return RMQ_NEEDS_PYTHON;
    found.maximum = numbers[KEYS_MAX];
    const int64_t hash = rmq_index_key_hash(rmq_java_hash(0, topic.at, topic.length), key.at, key.length);
    if (!rmq_find_messages(index, hash, &numbers[KEYS_BEGIN], &found) || rmq_lost_pages() > 0)
        return RMQ_NEEDS_PYTHON;
    for (int64_t i = 0; i < found.count; i++) {
        int64_t size;
        if (is_deleted(core, found.offsets[i]))
            continue;
        const uint8_t *const record = find_record(core, found.offsets[i], &size);
        if (record == NULL)
            return RMQ_NEEDS_PYTHON;
        records[count++] = (rmq_slice){record, (size_t)size};
    }
    if (count > 0) {
        rmq_index_header newest;
        rmq_load_index_header(index->files[index->count - 1], &newest);
        answer.numbers[RMQ_INDEX_TIME] = newest.end_timestamp;
        answer.numbers[RMQ_INDEX_OFFSET] = newest.end_offset;
    }
    return show_records(core, peer, request, &answer, count > 0 ? RMQ_KEY_JSON : RMQ_NO_KEY_JSON, records, count);
}

int rmq_answer_query(rmq_core *core, int64_t peer, const rmq_request *request)
{
    const int code = request->code, shows = code != UPDATE_CONSUMER_OFFSET;
    const int has_value = !shows || code == SEARCH_OFFSET_BY_TIMESTAMP;
    const rmq_number_rule rules[COUNT] = {{OFFSET_QUEUE_ID, 1, INT32_MAX},
                                          {shows ? OFFSET_TIMESTAMP : OFFSET_COMMIT, 1, INT64_MAX}};
    const int kind = (shows ? RMQ_OFFSET_JSON : RMQ_COMMIT_JSON) + (request->binary != 0);
    rmq_answer answer = {.opaque = request->opaque};
    int64_t numbers[COUNT];

    if (!core->offsets_enabled || core->acl_enabled)
        return RMQ_NEEDS_PYTHON;
    if (code == VIEW_MESSAGE_BY_ID || code == QUERY_MESSAGE)
        return code == QUERY_MESSAGE ? show_messages_of_key(core, peer, request) : show_message(core, peer, request);
    if (request->texts[OFFSET_TOPIC].at == NULL
        || !rmq_read_numbers(request->texts, rules, has_value ? COUNT : 1, numbers) || numbers[QUEUE_ID] < 0)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    int64_t *const shown = &answer.numbers[RMQ_NEXT_OFFSET];
    const int result = code == QUERY_CONSUMER_OFFSET ? show_committed(core, request, numbers[QUEUE_ID], shown)
                       : shows                       ? show_offset(core, request, numbers, shown)
                                                     : commit_offset(core, request, numbers[QUEUE_ID], numbers[VALUE]);
    if (result != RMQ_OK)
        return result;
    core->answered++;
    if (!(request->flag & RMQ_FLAG_ONEWAY)) {
        uint8_t *const out = core->out + core->out_used;
        rmq_add_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out, 0, 0);
    }
    return RMQ_OK;
}
