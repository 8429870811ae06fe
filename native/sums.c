/* Sums over the units of derived files: the functions of rmqpy/codec/tally/derived_sums.py and pooled.py. */
#include <string.h>

#include "rmqpy_native.h"

#define QUEUE_UNIT 20
#define QUEUE_FILLER 0x7FFFFFFF
#define INDEX_HEADER 40
#define INDEX_SLOT 4
#define INDEX_ENTRY 20
#define WALK_AHEAD 16 /* entries; slots are at random places of a table larger than the caches */

/* Return the row of a log file, a new one if the last row is another file's. NULL: no row is left. */
static int64_t *find_row(int64_t *rows, int64_t *count, int64_t capacity, int64_t columns, int64_t number)
{
    if (*count > 0 && rows[columns * (*count - 1)] == number)
        return rows + columns * (*count - 1);
    if (*count == capacity)
        return NULL;
    int64_t *const row = rows + columns * (*count)++;
    row[0] = number;
    for (int64_t i = 1; i < columns; i++)
        row[i] = 0;
    return row;
}

static int64_t file_number(int64_t offset, int64_t file_size)
{
    return offset < 0 ? -1 : offset / file_size;
}

int rmq_sum_units(rmq_unit_sums *state)
{
    const int64_t size = state->unit_size;

    for (; state->position + size <= state->length; state->position += size) {
        const uint8_t *const unit = state->view + state->position;
        const int64_t number = state->first + state->position / size;
        const int is_queue = size == QUEUE_UNIT;
        const int64_t place = rmq_load_long(is_queue ? unit : unit + 4);
        const int32_t length = rmq_load_int(is_queue ? unit + 8 : unit + 12);
        if ((place == 0 && length == 0) || (is_queue && length == QUEUE_FILLER))
            continue;
        int64_t *const row = find_row(state->rows, &state->row_count, state->row_capacity, RMQ_SUM_COLUMNS,
                                      file_number(place, state->log_file_size));
        if (row == NULL)
            return 0;
        row[1]++;
        row[2] = (int64_t)((uint64_t)row[2] + rmq_unit_digest(number, place, length));
        row[3] = (int64_t)((uint64_t)row[3]
                           + (is_queue ? rmq_tags_digest(number, rmq_load_long(unit + 12))
                                       : rmq_entry_digest(number, rmq_load_int(unit), rmq_load_long(unit + 16),
                                                          rmq_load_long(unit + 24))));
    }
    return 1;
}

static uint64_t add_word(uint64_t hash, const uint8_t *at, size_t length)
{
    uint64_t word = 0;

    memcpy(&word, at, length);
    hash = (hash ^ word) * RMQ_QUEUE_FACTOR;
    return hash ^ hash >> 32;
}

uint64_t rmq_queue_digest(const uint8_t *topic, size_t length, int32_t queue_id)
{
    uint64_t hash = (uint64_t)length << 32 ^ (uint32_t)queue_id;

    for (; length >= 8; topic += 8, length -= 8)
        hash = add_word(hash, topic, 8);
    return add_word(hash, topic, length);
}

void rmq_pool_units(rmq_pooled_units *state)
{
    for (; state->position + QUEUE_UNIT <= state->length; state->position += QUEUE_UNIT, state->number++) {
        const uint8_t *const unit = state->view + state->position;
        const int64_t place = rmq_load_long(unit);
        const int32_t size = rmq_load_int(unit + 8);
        const int is_filler = size == QUEUE_FILLER;
        if (place == 0 && size == 0 && rmq_load_long(unit + 12) == 0)
            return;
        if (!is_filler && place >= state->high)
            return;
        if (is_filler || place < state->low) {
            state->irregular |= state->first >= 0;
            continue;
        }
        state->irregular |= place <= state->place;
        if (state->first < 0)
            state->first = state->number;
        state->place = place;
        state->count++;
        state->sum += rmq_pooled_digest(state->queue, state->number, place, size,
                                        state->any_tags ? 0 : rmq_load_long(unit + 12));
    }
}

static void compare_slots(rmq_index_walk *state)
{
    const uint8_t *const slots = state->view + INDEX_HEADER;

    for (int64_t slot = 0; slot < state->slot_count; slot++) {
        const int32_t head = rmq_load_int(slots + INDEX_SLOT * slot);
        state->used_slots += head != 0;
        state->wrong_slots += head != state->newest[slot];
    }
}

int rmq_rewind_index(rmq_index_walk *state)
{
    const uint8_t *const slots = state->view + INDEX_HEADER;
    const uint8_t *const entries = slots + INDEX_SLOT * state->slot_count;

    for (int64_t slot = 0; slot < state->slot_count; slot++)
        state->newest[slot] = rmq_load_int(slots + INDEX_SLOT * slot);
    for (int64_t number = state->entry_end - 1; number >= state->entry; number--) {
        const uint8_t *const entry = entries + INDEX_ENTRY * number;
        const int32_t hash = rmq_load_int(entry);
        if (hash < 0 || state->newest[hash % state->slot_count] != number)
            return 0;
        state->newest[hash % state->slot_count] = rmq_load_int(entry + 16);
    }
    return 1;
}

/* Return the newest entry of the slot of a hash that is not negative. */
static int32_t *newest_of(const rmq_index_walk *state, int32_t hash)
{
    return state->newest + (uint32_t)hash % (uint32_t)state->slot_count;
}

int rmq_walk_index(rmq_index_walk *state)
{
    const uint8_t *const entries = state->view + INDEX_HEADER + INDEX_SLOT * state->slot_count;

    for (; state->entry < state->entry_end; state->entry++) {
        const uint8_t *const entry = entries + INDEX_ENTRY * state->entry;
        const int32_t hash = rmq_load_int(entry);
        if (state->entry + WALK_AHEAD < state->entry_end)
            __builtin_prefetch(newest_of(state, rmq_load_int(entry + INDEX_ENTRY * WALK_AHEAD) & INT32_MAX), 1);
        const int64_t offset = rmq_load_long(entry + 4);
        if (offset >= state->low && offset < state->high) {
            int64_t *const row = find_row(state->rows, &state->row_count, state->row_capacity, RMQ_KEY_COLUMNS,
                                          file_number(offset, state->log_file_size));
            if (row == NULL)
                return 0;
            row[1]++;
            row[2] = (int64_t)((uint64_t)row[2] + rmq_key_digest(offset, hash));
        }
        if (offset > state->max_offset)
            state->max_offset = offset;
        if (hash < 0) {
            state->wrong++;
            continue;
        }
        int32_t *const newest = newest_of(state, hash);
        state->wrong += rmq_load_int(entry + 16) != *newest;
        *newest = (int32_t)state->entry;
    }
    compare_slots(state);
    return 1;
}
