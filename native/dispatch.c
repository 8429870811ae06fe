/* Dispatches records from the log to consume queues and key index, like rmqpy/store/dispatcher.py,
 * rmqpy/store/queues/consume_queue.py, and rmqpy/store/index/index_file.py. */
#include <string.h>

#include "rmqpy_native.h"

#define ROWS_PER_SCAN 64
#define UNIT_SIZE 20

/* The topic that was looked up last; the next record mostly has the same one. */
typedef struct {
    const uint8_t *name;
    size_t length;
    const rmq_topic *topic; /* NULL: unknown */
} last_topic;

static const rmq_topic *find_topic(const rmq_core *core, const uint8_t *name, size_t length, last_topic *last)
{
    if (last->name == NULL || last->length != length || !rmq_bytes_equal(last->name, name, length)) {
        const rmq_slot *const slot = rmq_find_slot(&core->topic_table, name, length);
        *last = (last_topic){name, length, slot->key == NULL ? NULL : &core->topics[slot->item]};
    }
    return last->topic;
}

/* Return the queue of a record, or NULL if Python must write its next unit. */
static const rmq_queue *find_queue(const rmq_core *core, const uint8_t *view, const int64_t *row, last_topic *last)
{
    const int64_t id = row[RMQ_QUEUE_ID];
    const rmq_topic *const topic =
        find_topic(core, view + row[RMQ_TOPIC_POSITION], (size_t)row[RMQ_TOPIC_LENGTH], last);

    if (topic == NULL || id < 0 || id >= topic->queue_count || topic->queues[id] < 0)
        return NULL;
    return &core->queues[topic->queues[id]];
}

/* Let the processor load what the units of these records need all at once. If the records are of many queues, nothing
 * of it is in its caches, and one step after the other would wait for the memory. */
static void prefetch_queues(const rmq_core *core, const uint8_t *view, const int64_t *cells, size_t count)
{
    const rmq_queue *found[ROWS_PER_SCAN];
    last_topic last = {NULL, 0, NULL};
    size_t found_count = 0;

    for (size_t i = 0; i < count; i++) {
        const rmq_queue *const queue = find_queue(core, view, cells + i * RMQ_COLUMN_COUNT, &last);
        if (queue == NULL)
            continue;
        __builtin_prefetch(queue);
        found[found_count++] = queue;
    }
    for (size_t i = 0; i < found_count; i++)
        __builtin_prefetch(found[i]->state, 1);
    for (size_t i = 0; i < found_count; i++)
        if (found[i]->tail != NULL)
            __builtin_prefetch(found[i]->tail + (found[i]->state[RMQ_QUEUE_END] - found[i]->tail_first), 1);
}

static int is_of_one_topic(const uint8_t *view, const int64_t *cells, size_t count)
{
    const int64_t *const last = cells + (count - 1) * RMQ_COLUMN_COUNT;

    return cells[RMQ_TOPIC_LENGTH] == last[RMQ_TOPIC_LENGTH]
        && rmq_bytes_equal(view + cells[RMQ_TOPIC_POSITION], view + last[RMQ_TOPIC_POSITION],
                           (size_t)last[RMQ_TOPIC_LENGTH]);
}

static void store_unit(uint8_t *unit, const int64_t *row)
{
    rmq_store_long(unit, row[RMQ_OFFSET]);
    rmq_store32(unit + 8, (uint32_t)row[RMQ_SIZE]);
    rmq_store_long(unit + 12, row[RMQ_TAGS_CODE]);
}

/* Append a unit to a queue that is not mapped. Returns 0 if Python must do it. */
static int write_unit(const rmq_core *core, rmq_dispatch_state *state, const rmq_queue *queue, int64_t position,
                      const int64_t *row)
{
    uint8_t unit[UNIT_SIZE];

    if (core->queue_folder < 0 || state->written_count == state->written_capacity)
        return 0;
    store_unit(unit, row);
    if (!rmq_write_unit(core->queue_folder, state->view + row[RMQ_TOPIC_POSITION], (size_t)row[RMQ_TOPIC_LENGTH],
                        row[RMQ_QUEUE_ID], queue->tail_first, position, unit))
        return 0;
    state->written[state->written_count++] = queue - core->queues;
    return 1;
}

/* Return the gathered units of a queue, perhaps none yet, or NULL if they belong to another queue, or if the units of
 * this one are reported and therefore written at once. */
static rmq_gathered *gathered_of(const rmq_core *core, const rmq_dispatch_state *state, const rmq_queue *queue)
{
    const int64_t number = queue - core->queues;

    if (state->gathered_count == 0 || queue->state[RMQ_QUEUE_WATCHED])
        return NULL;
    rmq_gathered *const place = &state->gathered[number & (state->gathered_count - 1)];
    if (place->length == 0)
        *place = (rmq_gathered){number, queue->tail_first, queue->state[RMQ_QUEUE_END],
                                queue->state[RMQ_QUEUE_MAX_PHYSICAL], 0};
    return place->queue == number ? place : NULL;
}

static uint8_t *gathered_units(const rmq_dispatch_state *state, const rmq_gathered *place)
{
    return state->gathered_units + (place - state->gathered) * state->gathered_capacity;
}

/* Write small parts in place: a page fault costs less than the calls of a write. Python writes the others. */
static void settle_gathered(const rmq_core *core, const rmq_dispatch_state *state)
{
    for (int64_t i = 0; i < state->gathered_count; i++) {
        rmq_gathered *const place = &state->gathered[i];
        const rmq_queue *const queue = &core->queues[place->length > 0 ? place->queue : 0];
        const int64_t position = place->end - place->tail_first;
        if (place->length > 0 && place->length < RMQ_GATHERED_MIN && queue->tail != NULL
            && queue->tail_capacity - position >= place->length) {
            memcpy(queue->tail + position, gathered_units(state, place), (size_t)place->length);
            place->length = 0;
        }
    }
}

/* Append the unit of a record. Returns 0 if Python must do it. */
static int put_unit(const rmq_core *core, rmq_dispatch_state *dispatch, const rmq_queue *queue, const int64_t *row)
{
    int64_t *const state = queue->state;
    const int64_t position = state[RMQ_QUEUE_END] - queue->tail_first;
    const int64_t offset = row[RMQ_OFFSET], physical_end = offset + row[RMQ_SIZE];
    rmq_gathered *const gathered = gathered_of(core, dispatch, queue);
    const int64_t capacity =
        gathered != NULL || queue->tail == NULL ? queue->tail_size : queue->tail_capacity;

    if (row[RMQ_QUEUE_OFFSET] < 0 || row[RMQ_QUEUE_OFFSET] > INT64_MAX / UNIT_SIZE
        || row[RMQ_QUEUE_OFFSET] * UNIT_SIZE != state[RMQ_QUEUE_END] || offset < state[RMQ_QUEUE_MAX_PHYSICAL]
        || position < 0 || capacity - position < UNIT_SIZE)
        return 0;
    if (gathered != NULL) {
        if (dispatch->gathered_capacity - gathered->length < UNIT_SIZE)
            return 0;
        store_unit(gathered_units(dispatch, gathered) + gathered->length, row);
        gathered->length += UNIT_SIZE;
    } else if (queue->tail != NULL)
        store_unit(queue->tail + position, row);
    else if (!write_unit(core, dispatch, queue, position, row))
        return 0;
    state[RMQ_QUEUE_END] += UNIT_SIZE;
    state[RMQ_QUEUE_MAX_PHYSICAL] = physical_end;
    return 1;
}

/* Report a message of a watched queue. */
static void add_arrival(const rmq_core *core, rmq_dispatch_state *state, const rmq_queue *queue, const int64_t *row)
{
    int64_t *const watched = &queue->state[RMQ_QUEUE_WATCHED];

    if (*watched & RMQ_WATCHED_BY_PYTHON)
        state->arrivals[state->arrival_count++] = (rmq_arrival){
            queue - core->queues, row[RMQ_QUEUE_OFFSET], row[RMQ_TAGS_CODE], row[RMQ_OFFSET], row[RMQ_STORE_TIMESTAMP]};
    if (*watched & RMQ_WATCHED_BY_HOLD) {
        const rmq_arrived message = {
            row[RMQ_QUEUE_OFFSET], row[RMQ_TAGS_CODE], state->view + (row[RMQ_OFFSET] - state->base_offset),
            row[RMQ_SIZE], (int32_t)row[RMQ_QUEUE_ID], 0};
        if (!rmq_hold_arrival(core->hold, state->view + row[RMQ_TOPIC_POSITION], (size_t)row[RMQ_TOPIC_LENGTH], &message))
            *watched &= ~(int64_t)RMQ_WATCHED_BY_HOLD;
    }
}

/* Replace the tags code of a delayed message by the time at which it is due. */
static void set_deliver_time(const rmq_core *core, int64_t *row)
{
    int64_t level = row[RMQ_DELAY_LEVEL];

    level = level < core->delay_count ? level : core->delay_count;
    if (level > 0)
        row[RMQ_TAGS_CODE] = row[RMQ_STORE_TIMESTAMP] + core->delays[level - 1];
}

/* Dispatch one record. Returns 0 without any other change if Python must do it. */
static int dispatch_row(const rmq_core *core, rmq_dispatch_state *state, rmq_index_header *header, last_topic *last,
                        int64_t *row)
{
    int64_t hashes[RMQ_KEYS_MAX];
    int key_count = 0;

    if (!rmq_has_queue_unit(row[RMQ_SYS_FLAG]) || row[RMQ_STORE_TIMESTAMP] < 0)
        return 0;
    const rmq_queue *const queue = find_queue(core, state->view, row, last);
    if (queue == NULL
        || ((queue->state[RMQ_QUEUE_WATCHED] & RMQ_WATCHED_BY_PYTHON) && state->arrival_count == state->arrival_capacity))
        return 0;
    if (state->index != NULL) {
        key_count = rmq_find_keys(state->view, row, hashes);
        if (key_count < 0 || row[RMQ_OFFSET] <= header->end_offset
            || header->index_count + (int64_t)key_count > state->index_entries)
            return 0;
    }
    if (core->delay_topic >= 0 && last->topic == &core->topics[core->delay_topic])
        set_deliver_time(core, row);
    if (!put_unit(core, state, queue, row))
        return 0;
    for (int i = 0; i < key_count; i++) {
        const rmq_key key = {hashes[i], row[RMQ_OFFSET], row[RMQ_STORE_TIMESTAMP]};
        uint8_t *const entry = state->gathered_entries == NULL
            ? rmq_index_entry(state->index, state->index_slots, header->index_count)
            : state->gathered_entries + (header->index_count - state->gathered_first_entry) * RMQ_INDEX_ENTRY_SIZE;
        rmq_put_key(state->index, state->index_slots, header, &key, entry);
    }
    if (queue->state[RMQ_QUEUE_WATCHED])
        add_arrival(core, state, queue, row);
    return 1;
}

void rmq_dispatch(const rmq_core *core, rmq_dispatch_state *state)
{
    int64_t cells[ROWS_PER_SCAN * RMQ_COLUMN_COUNT];
    rmq_index_header header = {0, 0, 0, 0, 0, 0};
    last_topic last = {NULL, 0, NULL};
    enum rmq_stop stop = RMQ_LIMIT;

    state->position = state->arrival_count = state->written_count = 0;
    state->store_timestamp = -1;
    for (int64_t i = 0; i < state->gathered_count; i++)
        state->gathered[i].length = 0;
    if (state->index != NULL)
        rmq_load_index_header(state->index, &header);
    state->gathered_first_entry = header.index_count;
    while (stop == RMQ_LIMIT) {
        rmq_scan_state scan = {.view = state->view + state->position, .length = (size_t)(state->length - state->position),
                               .base_offset = state->base_offset + state->position, .dledger = (int32_t)state->dledger,
                               .cells = cells, .max_records = ROWS_PER_SCAN};
        const int64_t start = state->position;
        stop = rmq_scan(&scan);
        for (size_t i = 0; i < scan.count; i++) {
            int64_t *const row = cells + i * RMQ_COLUMN_COUNT;
            row[RMQ_TOPIC_POSITION] += start;
            row[RMQ_KEYS_POSITION] += start;
            if (state->index != NULL && row[RMQ_UNIQ_KEY_HASH] >= 0)
                __builtin_prefetch(rmq_index_slot(state->index, state->index_slots, row[RMQ_UNIQ_KEY_HASH]), 1);
        }
        if (scan.count > 1 && !is_of_one_topic(state->view, cells, scan.count))
            prefetch_queues(core, state->view, cells, scan.count);
        for (size_t i = 0; i < scan.count; i++) {
            int64_t *const row = cells + i * RMQ_COLUMN_COUNT;
            if (!dispatch_row(core, state, &header, &last, row)) {
                stop = RMQ_END;
                break;
            }
            state->position = row[RMQ_OFFSET] + row[RMQ_SIZE] - state->base_offset;
            state->store_timestamp = row[RMQ_STORE_TIMESTAMP];
        }
    }
    settle_gathered(core, state);
    if (state->index != NULL && state->store_timestamp >= 0)
        rmq_store_index_header(state->index, &header);
}
