/* Answers requests for the first and the next offset of a queue, as rmqpy/broker/processors/query.py
 * does, and stores the offsets that consumers report, as rmqpy/broker/state/consumer_offsets.py. */
#include "rmqpy_native.h"

#define UNIT_SIZE 20

enum { GET_MAX_OFFSET = 30, GET_MIN_OFFSET = 31 };

static int show_offset(const rmq_core *core, const rmq_request *request, int64_t queue_id, rmq_answer *answer)
{
    const rmq_text name = request->texts[OFFSET_TOPIC];
    const rmq_slot *const slot = rmq_find_slot(&core->topic_table, name.at, name.length);

    if (slot->key == NULL)
        return RMQ_NEEDS_PYTHON;
    const rmq_topic *const topic = &core->topics[slot->item];
    if (!topic->shows_offsets || queue_id >= topic->queue_count || topic->queues[queue_id] < 0)
        return RMQ_NEEDS_PYTHON;
    const int64_t *const state = core->queues[topic->queues[queue_id]].state;
    answer->numbers[RMQ_NEXT_OFFSET] =
        state[request->code == GET_MAX_OFFSET ? RMQ_QUEUE_END : RMQ_QUEUE_MIN] / UNIT_SIZE;
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

int rmq_answer_offset(rmq_core *core, int64_t peer, const rmq_request *request)
{
    enum { QUEUE_ID, COMMIT, COUNT };
    static const rmq_number_rule RULES[COUNT] = {{OFFSET_QUEUE_ID, 1, INT32_MAX}, {OFFSET_COMMIT, 1, INT64_MAX}};
    const int shows = request->code == GET_MAX_OFFSET || request->code == GET_MIN_OFFSET;
    const int kind = (shows ? RMQ_OFFSET_JSON : RMQ_COMMIT_JSON) + (request->binary != 0);
    rmq_answer answer = {.opaque = request->opaque};
    int64_t numbers[COUNT];

    if (!core->offsets_enabled || core->acl_enabled || request->texts[OFFSET_TOPIC].at == NULL
        || !rmq_read_numbers(request->texts, RULES, shows ? 1 : COUNT, numbers) || numbers[QUEUE_ID] < 0)
        return RMQ_NEEDS_PYTHON;
    if (!rmq_has_reply_space(core, RMQ_REPLY_MAX))
        return core->out_used > 0 ? -RMQ_OUT_FULL : RMQ_NEEDS_PYTHON;
    const int result = shows ? show_offset(core, request, numbers[QUEUE_ID], &answer)
                             : commit_offset(core, request, numbers[QUEUE_ID], numbers[COMMIT]);
    if (result != RMQ_OK)
        return result;
    core->answered++;
    if (!(request->flag & RMQ_FLAG_ONEWAY)) {
        uint8_t *const out = core->out + core->out_used;
        rmq_add_outgoing(core, peer, rmq_put_reply(core, &core->replies[kind], &answer, 0, out) - out, 0, 0);
    }
    return RMQ_OK;
}
