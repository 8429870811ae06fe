/* Long polling: holds pulls that are at the end of their queue, like
 * rmqpy/broker/services/pull_hold.py, which keeps those that this file refuses.
 *
 *   rmq_pull ──hold──► waiting ──► due ──rmq_resume──► rmq_pull again, or Python (pull.c)
 *                          │        ▲
 *                          │        ├── rmq_hold_arrival: a message that it wants, at or after its offset
 *                          └────────┴── rmq_hold_sweep: its time is over, other messages have arrived, or its
 *                                       connection is closed
 *
 * A held pull is its frame. It is answered by handling that frame again, with all checks, except that
 * it may not wait, does not commit, and is not authenticated a second time; a frame that rmq_pull does
 * not accept any more (the tables were discarded, the role has changed) is left to Python. So nothing
 * here depends on the entries of topics, readers, and queues, which may be discarded at any time: a
 * pull waits in the list of a bucket chosen by the name of its topic and its queue id, with a copy of
 * the tags that its group had, or with its SQL92 program, which exists as long as a pull holds it.
 *
 * The caller sets the limits: how many pulls wait, how long, and how much work one call does. Pulls are
 * resumed in the order in which they became due, so no group overtakes another. */
#include <string.h>

#include "rmqpy_native.h"

#define CACHE_LINE 64
#define PREFETCH_BYTES 448 /* of tags, topic, and frame; the processor fetches the rest */
#define WAIT_MAX ((int64_t)1 << 40) /* ms; Python adds longer times */

/* Append a pull to a list. */
static void append(rmq_hold *hold, rmq_held_list *list, int32_t number)
{
    rmq_held *const pull = &hold->pulls[number];

    pull->next = 0;
    pull->previous = list->last;
    if (list->last != 0)
        hold->pulls[list->last].next = number;
    else
        list->first = number;
    list->last = number;
}

static void remove_from(rmq_hold *hold, rmq_held_list *list, int32_t number)
{
    const rmq_held *const pull = &hold->pulls[number];

    if (pull->previous != 0)
        hold->pulls[pull->previous].next = pull->next;
    else
        list->first = pull->next;
    if (pull->next != 0)
        hold->pulls[pull->next].previous = pull->previous;
    else
        list->last = pull->previous;
}

static uint32_t hash_of(const uint8_t *topic, size_t length, int32_t queue_id)
{
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ topic[i]) * 16777619u;
    hash = (hash ^ (uint32_t)queue_id) * 16777619u;
    return hash ^ hash >> 15;
}

static rmq_held_list *bucket_of(const rmq_hold *hold, uint32_t hash)
{
    return &hold->buckets[hash & hold->bucket_mask];
}

/* The tags of a pull, its topic, and its frame. */
static uint8_t *data_of(const rmq_hold *hold, int32_t number)
{
    return hold->data + (int64_t)(number - 1) * RMQ_HELD_BYTES;
}

/* Fetch a pull and the first bytes of its data while the one before is examined: it has waited, and
 * is not in a cache any more. */
static void prefetch_data(const rmq_hold *hold, int32_t number, size_t length)
{
    const uint8_t *const data = data_of(hold, number);

    __builtin_prefetch(&hold->pulls[number]);
    for (size_t i = 0; i < length; i += CACHE_LINE)
        __builtin_prefetch(data + i);
}

static int waits_for(const rmq_hold *hold, int32_t number, uint32_t hash, const uint8_t *topic, size_t length,
                     int32_t queue_id)
{
    const rmq_held *const pull = &hold->pulls[number];

    return pull->hash == hash && pull->queue_id == queue_id && (size_t)pull->topic_length == length
        && memcmp(data_of(hold, number) + pull->tags_length, topic, length) == 0;
}

/* Apply a program to a message. A value that only Python can convert counts as a match: the pull is
 * answered by Python then. */
static int matches(const rmq_sql_program *program, const rmq_arrived *message)
{
    rmq_record_places places;

    if (message->record == NULL
        || rmq_measure_record(message->record, 0, (size_t)message->size, &places) != RMQ_END)
        return 0;
    const int result = rmq_sql_match(program, message->record + places.properties, (int64_t)places.properties_length);
    return result == RMQ_MATCH_TRUE || result == RMQ_MATCH_PYTHON;
}

static int wants(const rmq_hold *hold, int32_t number, const rmq_arrived *message)
{
    const rmq_held *const pull = &hold->pulls[number];
    const uint8_t *const tags = data_of(hold, number);

    if (pull->program != NULL)
        return matches(pull->program, message);
    if (pull->tags_length == 0)
        return 1;
    for (int32_t at = 0; at < pull->tags_length; at += 4) {
        int32_t code;
        memcpy(&code, tags + at, sizeof code);
        if (code == message->tags_code)
            return 1;
    }
    return 0;
}

static int is_closed(const rmq_core *core, const rmq_held *pull)
{
    return core->peers[pull->peer].generation != pull->generation;
}

static void set_due(rmq_hold *hold, int32_t number)
{
    remove_from(hold, bucket_of(hold, hold->pulls[number].hash), number);
    append(hold, &hold->due, number);
    hold->pulls[number].state = RMQ_HELD_DUE;
    hold->count--;
    hold->due_count++;
}

int rmq_hold_pull(rmq_core *core, const rmq_pull_to_hold *given)
{
    rmq_hold *const hold = core->hold;
    const int64_t tags_length = (int64_t)given->tag_count * 4, topic_length = given->topic->name_length;
    const int64_t wait_ms = hold->wait_ms >= 0 ? hold->wait_ms : given->wait_ms;
    int32_t number = hold->free;

    if (hold->count >= hold->limit || wait_ms > WAIT_MAX
        || tags_length + topic_length + (int64_t)given->frame.length > RMQ_HELD_BYTES)
        return RMQ_NEEDS_PYTHON;
    if (number != 0)
        hold->free = hold->pulls[number].next;
    else if (hold->used < hold->capacity)
        number = ++hold->used;
    else
        return RMQ_NEEDS_PYTHON;
    const uint32_t hash = hash_of(given->topic->name, (size_t)topic_length, given->queue_id);
    uint8_t *const data = data_of(hold, number);
    hold->pulls[number] = (rmq_held){
        .offset = given->offset,
        .deadline_ms = hold->now_ms + wait_ms,
        .program = given->program,
        .hash = hash,
        .queue_id = given->queue_id,
        .peer = (int32_t)given->peer,
        .generation = core->peers[given->peer].generation,
        .tags_length = (int32_t)tags_length,
        .topic_length = (int32_t)topic_length,
        .frame_length = (int32_t)given->frame.length,
        .state = RMQ_HELD_WAITING,
    };
    if (tags_length > 0)
        memcpy(data, given->tags, (size_t)tags_length);
    memcpy(data + tags_length, given->topic->name, (size_t)topic_length);
    memcpy(data + tags_length + topic_length, given->frame.at, given->frame.length);
    append(hold, bucket_of(hold, hash), number);
    hold->count++;
    if (given->program != NULL)
        given->program->held++;
    return RMQ_OK;
}

int rmq_hold_arrival(rmq_hold *hold, const uint8_t *topic, size_t length, const rmq_arrived *message)
{
    const uint32_t hash = hash_of(topic, length, message->queue_id);
    int waiting = 0;

    for (int32_t number = bucket_of(hold, hash)->first, next; number != 0; number = next) {
        rmq_held *const pull = &hold->pulls[number];
        next = pull->next;
        if (next != 0)
            prefetch_data(hold, next, CACHE_LINE);
        if (!waits_for(hold, number, hash, topic, length, message->queue_id))
            continue;
        if (message->queue_offset >= pull->offset) {
            if (wants(hold, number, message)) {
                set_due(hold, number);
                continue;
            }
            pull->passed = 1;
        }
        waiting = 1;
    }
    return waiting;
}

void rmq_hold_sweep(rmq_core *core)
{
    rmq_hold *const hold = core->hold;

    for (int32_t number = 1; number <= hold->used; number++) {
        const rmq_held *const pull = &hold->pulls[number];
        if (pull->state == RMQ_HELD_WAITING
            && (pull->passed || pull->deadline_ms <= hold->now_ms || is_closed(core, pull)))
            set_due(hold, number);
    }
}

void rmq_release_due(rmq_hold *hold)
{
    const int32_t number = hold->due.first;

    remove_from(hold, &hold->due, number);
    if (hold->pulls[number].program != NULL)
        hold->pulls[number].program->held--;
    hold->pulls[number].state = RMQ_HELD_FREE;
    hold->pulls[number].next = hold->free;
    hold->free = number;
    hold->due_count--;
}

const rmq_held *rmq_first_due(rmq_core *core)
{
    const rmq_hold *const hold = core->hold;

    while (hold->due.first != 0 && is_closed(core, &hold->pulls[hold->due.first]))
        rmq_release_due(core->hold);
    if (hold->due.first == 0)
        return NULL;
    const rmq_held *const pull = &hold->pulls[hold->due.first];
    if (pull->next != 0)
        prefetch_data(hold, pull->next, PREFETCH_BYTES);
    return pull;
}

rmq_slice rmq_held_frame(const rmq_hold *hold, const rmq_held *pull)
{
    const uint8_t *const data = data_of(hold, (int32_t)(pull - hold->pulls));

    return (rmq_slice){data + pull->tags_length + pull->topic_length, (size_t)pull->frame_length};
}
