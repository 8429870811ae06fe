/* Packs records as units of consume queues, consecutive for each queue, and as keys of the index, and
 * finds the ends of their queues. Same results as rmqpy/codec/packing.py. */
#include <string.h>

#include "rmqpy_native.h"

#define UNIT_SIZE 20
#define KEY_SIZE 20
#define ROWS_PER_SCAN 64

static uint32_t hash_queue(const uint8_t *topic, size_t length, int64_t queue_id)
{
    return (rmq_java_hash((uint32_t)queue_id, topic, length) * 0x9E3779B1u) >> 7;
}

static int is_same_queue(const rmq_pack_state *state, const int64_t *row, size_t other)
{
    const int64_t *const *const columns = state->columns;

    return columns[RMQ_QUEUE_ID][other] == row[RMQ_QUEUE_ID]
        && columns[RMQ_TOPIC_LENGTH][other] == row[RMQ_TOPIC_LENGTH]
        && memcmp(state->view + columns[RMQ_TOPIC_POSITION][other], state->view + row[RMQ_TOPIC_POSITION],
                  (size_t)row[RMQ_TOPIC_LENGTH]) == 0;
}

/* Return the table cell of a row's queue: the number of its last run, or -1 if it has none. */
static int32_t *find_queue(const rmq_pack_state *state, const int64_t *row)
{
    const uint8_t *const topic = state->view + row[RMQ_TOPIC_POSITION];

    for (uint32_t at = hash_queue(topic, (size_t)row[RMQ_TOPIC_LENGTH], row[RMQ_QUEUE_ID]);; at++) {
        int32_t *const place = &state->table[at & state->table_mask];
        if (*place < 0 || is_same_queue(state, row, (size_t)state->runs[*place].row))
            return place;
    }
}

static int32_t run_of(rmq_pack_state *state, const int64_t *row, size_t number)
{
    int32_t *const place = find_queue(state, row);
    const int64_t offset = row[RMQ_QUEUE_OFFSET];

    if (*place < 0 || offset == INT64_MIN
        || state->runs[*place].first + (state->runs[*place].count - 1) != offset - 1) {
        *place = (int32_t)state->run_count;
        state->runs[state->run_count++] = (rmq_pack_run){(int64_t)number, offset, 0, 0};
    }
    state->runs[*place].count++;
    return *place;
}

/* Returns 0 if Python must pack them. */
static int pack_keys(rmq_pack_state *state, const int64_t *row)
{
    int64_t hashes[RMQ_KEYS_MAX];
    const int count = rmq_find_keys(state->view, row, hashes);

    if (count < 0 || (size_t)count > state->key_capacity - state->key_count)
        return 0;
    for (int i = 0; i < count; i++) {
        uint8_t *const key = state->keys + state->key_count++ * KEY_SIZE;
        rmq_store32(key, (uint32_t)hashes[i]);
        rmq_store_long(key + 4, row[RMQ_OFFSET]);
        rmq_store_long(key + 12, row[RMQ_STORE_TIMESTAMP]);
    }
    return 1;
}

static void put_units(const rmq_pack_state *state)
{
    const int64_t *const *const columns = state->columns;

    for (size_t i = 0; i < state->count; i++) {
        if (state->run_of[i] < 0)
            continue;
        const rmq_pack_run *const run = &state->runs[state->run_of[i]];
        const int64_t number = run->position + (columns[RMQ_QUEUE_OFFSET][i] - run->first);
        uint8_t *const unit = state->units + UNIT_SIZE * number;
        rmq_store_long(unit, columns[RMQ_OFFSET][i]);
        rmq_store32(unit + 8, (uint32_t)columns[RMQ_SIZE][i]);
        rmq_store_long(unit + 12, columns[RMQ_TAGS_CODE][i]);
    }
}

int rmq_pack(rmq_pack_state *state)
{
    int64_t row[RMQ_COLUMN_COUNT], position = 0;

    state->run_count = state->key_count = 0;
    memset(state->table, 0xFF, sizeof *state->table * ((size_t)state->table_mask + 1));
    for (size_t i = 0; i < state->count; i++) {
        for (size_t column = 0; column < RMQ_COLUMN_COUNT; column++)
            row[column] = state->columns[column][i];
        if (!rmq_is_within(state->length, row[RMQ_TOPIC_POSITION], row[RMQ_TOPIC_LENGTH])
            || !rmq_is_within(state->length, row[RMQ_KEYS_POSITION], row[RMQ_KEYS_LENGTH]))
            return 0;
        state->run_of[i] = rmq_has_queue_unit(row[RMQ_SYS_FLAG]) ? run_of(state, row, i) : -1;
        if (state->keys != NULL && rmq_has_keys(row[RMQ_SYS_FLAG]) && !pack_keys(state, row))
            return 0;
    }
    for (size_t i = 0; i < state->run_count; i++) {
        state->runs[i].position = position;
        position += state->runs[i].count;
    }
    put_units(state);
    return 1;
}

static int is_end_of(const rmq_ends_state *state, const rmq_queue_end *end, const int64_t *row)
{
    return end->queue_id == row[RMQ_QUEUE_ID] && end->topic_length == row[RMQ_TOPIC_LENGTH]
        && rmq_bytes_equal(state->view + end->topic_position, state->view + row[RMQ_TOPIC_POSITION],
                           (size_t)row[RMQ_TOPIC_LENGTH]);
}

/* Move the end of a row's queue. Returns 0 if there is no room for a new queue. */
static int move_end(rmq_ends_state *state, const int64_t *row)
{
    const uint8_t *const topic = state->view + row[RMQ_TOPIC_POSITION];

    for (uint32_t at = hash_queue(topic, (size_t)row[RMQ_TOPIC_LENGTH], row[RMQ_QUEUE_ID]);; at++) {
        int32_t *const place = &state->table[at & state->table_mask];
        if (*place < 0) {
            if (state->end_count == state->end_capacity)
                return 0;
            *place = (int32_t)state->end_count;
            state->ends[state->end_count++] = (rmq_queue_end){row[RMQ_TOPIC_POSITION], row[RMQ_TOPIC_LENGTH],
                                                              row[RMQ_QUEUE_ID], row[RMQ_QUEUE_OFFSET]};
        }
        if (is_end_of(state, &state->ends[*place], row)) {
            state->ends[*place].last = row[RMQ_QUEUE_OFFSET];
            return 1;
        }
    }
}

enum rmq_stop rmq_find_ends(rmq_ends_state *state)
{
    int64_t cells[ROWS_PER_SCAN * RMQ_COLUMN_COUNT];
    enum rmq_stop stop = RMQ_LIMIT;

    state->position = state->end_count = 0;
    memset(state->table, 0xFF, sizeof *state->table * (state->table_mask + 1));
    while (stop == RMQ_LIMIT) {
        const size_t start = state->position;
        rmq_scan_state scan = {.view = state->view + start, .length = state->length - start,
                               .base_offset = state->base_offset + (int64_t)start, .dledger = state->dledger,
                               .skip_properties = 1, .cells = cells, .max_records = ROWS_PER_SCAN};
        stop = rmq_scan(&scan);
        for (size_t i = 0; i < scan.count; i++) {
            int64_t *const row = cells + i * RMQ_COLUMN_COUNT;
            row[RMQ_TOPIC_POSITION] += (int64_t)start;
            if (rmq_has_queue_unit(row[RMQ_SYS_FLAG]) && !move_end(state, row)) {
                state->position = (size_t)(row[RMQ_FRAME_OFFSET] - state->base_offset);
                return RMQ_LIMIT;
            }
        }
        state->position = start + scan.position;
    }
    return stop;
}
