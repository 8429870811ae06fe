/* Answers requests for the first and the next offset of a queue, for that of a time, and for a message
 * by its offset, as rmqpy/broker/processors/query.py does, and stores the offsets that consumers report, as
 * rmqpy/broker/state/consumer_offsets.py. */
#include <string.h>

#include "rmqpy_native.h"

#define UNIT_SIZE 20

#define PHYSICAL_OFFSET_POSITION 28
#define SYS_FLAG_POSITION 36
#define STORE_TIMESTAMP_POSITION 56 /* with a born host of 4 bytes */

enum {
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

/* Answer with the record that starts at an offset of the log (record_at of rmqpy/store/reader.py). */
static int show_message(rmq_core *core, int64_t peer, const rmq_request *request)
{
    static const rmq_number_rule RULE = {VIEW_OFFSET, 1, INT64_MAX};
    rmq_answer answer = {.opaque = request->opaque};
    int64_t offset;

    if (!core->offsets_enabled || core->acl_enabled || !rmq_read_numbers(request->texts, &RULE, 1, &offset))
        return RMQ_NEEDS_PYTHON;
    const uint8_t *const head = rmq_read_log(core, offset, RMQ_RECORD_SIZE_MIN);
    const int64_t size = head != NULL ? rmq_load_int(head) : 0;
    const uint8_t *const record = rmq_read_log(core, offset, size);
    if (record == NULL || size < (int64_t)RMQ_RECORD_SIZE_MIN || rmq_load32(record + 4) != RMQ_MESSAGE_MAGIC_V1
        || rmq_load_long(record + PHYSICAL_OFFSET_POSITION) != offset)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX + size))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    uint8_t *const out = core->out + core->out_used;
    const int kind = request->binary ? RMQ_COPY_BINARY : RMQ_COPY_JSON;
    uint8_t *const body = rmq_put_reply(core, &core->replies[kind], &answer, size, out);
    memcpy(body, record, (size_t)size);
    if (rmq_lost_pages() > 0 && rmq_is_lost(record, size))
        return RMQ_NEEDS_PYTHON;
    core->answered++;
    if (!(request->flag & RMQ_FLAG_ONEWAY))
        rmq_add_outgoing(core, peer, body + size - out, 0, 0);
    return RMQ_OK;
}

int rmq_answer_query(rmq_core *core, int64_t peer, const rmq_request *request)
{
    const int shows = request->code != UPDATE_CONSUMER_OFFSET;
    const int has_value = !shows || request->code == SEARCH_OFFSET_BY_TIMESTAMP;
    const rmq_number_rule rules[COUNT] = {{OFFSET_QUEUE_ID, 1, INT32_MAX},
                                          {shows ? OFFSET_TIMESTAMP : OFFSET_COMMIT, 1, INT64_MAX}};
    const int kind = (shows ? RMQ_OFFSET_JSON : RMQ_COMMIT_JSON) + (request->binary != 0);
    rmq_answer answer = {.opaque = request->opaque};
    int64_t numbers[COUNT];

    if (request->code == VIEW_MESSAGE_BY_ID)
        return show_message(core, peer, request);
    if (!core->offsets_enabled || core->acl_enabled || request->texts[OFFSET_TOPIC].at == NULL
        || !rmq_read_numbers(request->texts, rules, has_value ? COUNT : 1, numbers) || numbers[QUEUE_ID] < 0)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    const int result = shows ? show_offset(core, request, numbers, &answer.numbers[RMQ_NEXT_OFFSET])
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
