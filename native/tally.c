/* Checks and counts the frames of a range of a log file: the checks of rmqpy/codec/tally/kernel.py,
 * in the same order. They are explained there. */
#include <string.h>

#include "rmqpy_native.h"

#define UNIT_SIZE 20
#define ENTRY_UNIT_SIZE 32
#define UNITS_MAX ((int64_t)1 << 56) /* limit of queue offsets and indexes that can have a unit */
#define EXT_ADDRESS_MAX (-(int64_t)0x80000001)
#define BLOCK_SHIFT 16
#define BUCKET_SHIFT 10
#define EVENTS_PER_FRAME 12
#define CHECKSUM_SIZE 20u
#define CHECKSUM_DIGITS 10u
#define FRAME_HEAD 8u
#define CACHE_LINE 64u
#define PREFETCH_DISTANCE 2048u
#define PROPERTY_SEPARATOR 2
#define INNER_BATCH 0x80

static const uint8_t SCHEDULE_TOPIC[] = "SCHEDULE_TOPIC_XXXX";
static const uint8_t CHECKSUM_HEAD[] = "__CRC32#\1";
static const uint8_t COVER_HEAD[] = "__RMQPY_ENTRY\1";

/* The frame that is being checked. `places` measures its record, which in an entry follows the header. */
typedef struct {
    rmq_tally_state *state;
    rmq_tally_queue *queue;
    rmq_record_places places;
    size_t start;
    int64_t frame_offset, record_offset;
    int32_t queue_number;
    int32_t sys_flag;
    int64_t queue_offset;
    rmq_slice properties;
} frame_info;

static void add_event(const frame_info *info, enum rmq_event kind, int32_t queue, int64_t found,
                      int64_t expected, int64_t previous)
{
    int64_t *const row = info->state->events + 6 * info->state->event_count++;

    row[0] = kind;
    row[1] = info->frame_offset;
    row[2] = queue;
    row[3] = found;
    row[4] = expected;
    row[5] = previous;
}

/* Sets of ASCII characters, one bit each: the second has letters, '_', and '|', the first the others. */
#define LETTERS (UINT64_C(0x3FFFFFF) << 1)
static const uint64_t TOPIC_CHARACTERS[4] = {
    UINT64_C(0x3FF) << '0' | UINT64_C(1) << '%' | UINT64_C(1) << '-',
    LETTERS | LETTERS << 32 | UINT64_C(1) << ('_' - 64) | UINT64_C(1) << ('|' - 64),
};

static int is_topic(const uint8_t *name, size_t length)
{
    uint64_t all = 1;

    for (size_t i = 0; i < length; i++)
        all &= TOPIC_CHARACTERS[name[i] >> 6] >> (name[i] & 63u);
    return length > 0 && all;
}

static int is_utf8(rmq_slice text)
{
    size_t i = 0;

    while (i < text.length) {
        uint32_t code;
        if (text.length - i >= 8 && rmq_is_ascii_word(text.at + i)) {
            i += 8;
            continue;
        }
        if (text.at[i] < 0x80u) {
            i++;
            continue;
        }
        const size_t consumed = rmq_decode_utf8(text.at + i, text.length - i, &code);
        const int is_literal = consumed == 3 && memcmp(text.at + i, "\xEF\xBF\xBD", 3) == 0;
        if (code == 0xFFFDu && !is_literal)
            return 0;
        i += consumed;
    }
    return 1;
}

static int has_head(const uint8_t *piece, size_t length, const uint8_t *head, size_t head_length)
{
    return length >= head_length && memcmp(piece, head, head_length) == 0;
}

/* Return whether properties of this form can be read by all: each has a name and a separator after it, and all is UTF-8. */
static int is_well_formed(rmq_slice raw, int form)
{
    if (!(form & RMQ_WELL_FORMED) || (raw.length > 0 && raw.at[raw.length - 1] == 0))
        return 0;
    return form & RMQ_ASCII || is_utf8(raw);
}

/* Return the sum of the CRCs of all properties that do not depend on the position of the record. */
static uint64_t sum_properties(rmq_slice raw)
{
    const uint8_t *piece = raw.at;
    const uint8_t *const end = raw.at + raw.length;
    uint64_t sum = 0;

    while (piece < end) {
        const uint8_t *stop = memchr(piece, PROPERTY_SEPARATOR, (size_t)(end - piece));
        if (stop == NULL)
            stop = end;
        const size_t length = (size_t)(stop - piece);
        if (length > 0 && !has_head(piece, length, CHECKSUM_HEAD, sizeof CHECKSUM_HEAD - 1)
            && !has_head(piece, length, COVER_HEAD, sizeof COVER_HEAD - 1))
            sum += rmq_crc32(piece, length);
        piece = stop + 1;
    }
    return sum;
}

static void check_checksum(const frame_info *info)
{
    const size_t size = info->places.size;
    const uint8_t *const record = info->state->view + info->places.start;
    const uint8_t *const digits = record + size - CHECKSUM_DIGITS - 1;

    if (info->properties.length < CHECKSUM_SIZE
        || memcmp(record + size - CHECKSUM_SIZE, CHECKSUM_HEAD, sizeof CHECKSUM_HEAD - 1) != 0)
        return;
    const uint32_t crc = rmq_crc32(record, size - CHECKSUM_SIZE);
    uint32_t rest = crc;
    int is_correct = digits[CHECKSUM_DIGITS] == PROPERTY_SEPARATOR;
    for (size_t i = 0; i < CHECKSUM_DIGITS; i++, rest /= 10u)
        is_correct &= digits[i] == '0' + rest % 10u;
    if (!is_correct)
        add_event(info, RMQ_EVENT_CHECKSUM, info->queue_number, 0, crc, 0);
}

static void add_key(rmq_tally_state *state, int64_t place, int64_t hash)
{
    state->key_count++;
    state->key_sum += rmq_key_digest(place, hash);
}

static void count_keys(const frame_info *info, const rmq_known_properties *known)
{
    rmq_tally_state *const state = info->state;

    if (info->record_offset < state->key_low || info->record_offset >= state->key_high
        || !rmq_has_keys(info->sys_flag))
        return;
    const uint32_t topic_hash = rmq_java_hash(0, state->view + info->places.topic, info->places.topic_length);
    if (known->uniq_key.at != NULL)
        add_key(state, info->record_offset, rmq_index_key_hash(topic_hash, known->uniq_key.at, known->uniq_key.length));
    const uint8_t *word = known->keys.at;
    const uint8_t *const end = word == NULL ? NULL : word + known->keys.length;
    while (word < end) {
        const uint8_t *stop = memchr(word, ' ', (size_t)(end - word));
        if (stop == NULL)
            stop = end;
        if (stop > word)
            add_key(state, info->record_offset, rmq_index_key_hash(topic_hash, word, (size_t)(stop - word)));
        word = stop + 1;
    }
}

/* Return the unit at byte `position`, or NULL if no mapped file holds it. */
static const uint8_t *find_unit(const rmq_files *units, int64_t position, int64_t size)
{
    const int64_t place = position - units->first_offset;

    if (place < 0 || units->file_size <= 0)
        return NULL;
    const int64_t number = place / units->file_size, inside = place % units->file_size;
    if (number >= units->count || units->views[number] == NULL || inside + size > units->file_size)
        return NULL;
    return units->views[number] + inside;
}

static void check_unit(const frame_info *info, int64_t expected_tags)
{
    const rmq_tally_queue *const queue = info->queue;
    const uint8_t *unit = NULL;

    if (info->queue_offset >= 0 && info->queue_offset < UNITS_MAX)
        unit = find_unit(&queue->units, info->queue_offset * UNIT_SIZE, UNIT_SIZE);
    if (unit == NULL) {
        add_event(info, RMQ_EVENT_UNIT, info->queue_number, -1, info->record_offset, 0);
        return;
    }
    const int64_t place = rmq_load_long(unit), tags = rmq_load_long(unit + 12);
    const int32_t size = rmq_load_int(unit + 8);
    const int tags_match = queue->any_tags || tags <= EXT_ADDRESS_MAX || tags == expected_tags;
    if (place == info->record_offset && size == (int32_t)info->places.size && tags_match)
        info->queue->right_units++;
    else
        add_event(info, RMQ_EVENT_UNIT, info->queue_number, place == 0 && size == 0 ? -1 : place,
                  info->record_offset, 0);
}

static void count_in_queue(const frame_info *info, const rmq_known_properties *known)
{
    rmq_tally_queue *const queue = info->queue;

    if (!rmq_has_queue_unit(info->sys_flag)) {
        queue->unqueued++;
        return;
    }
    if (queue->next_queue_offset >= 0 && info->queue_offset != queue->next_queue_offset)
        add_event(info, RMQ_EVENT_QUEUE_STEP, info->queue_number, info->queue_offset, queue->next_queue_offset,
                  queue->last_frame);
    if (queue->count == 0) {
        queue->first_queue_offset = info->queue_offset;
        queue->first_frame = info->frame_offset;
    }
    queue->count++;
    queue->last_queue_offset = info->queue_offset;
    queue->last_frame = info->frame_offset;
    queue->next_queue_offset = -1;
    if (info->sys_flag & INNER_BATCH)
        return;
    queue->next_queue_offset = info->queue_offset == INT64_MAX ? -1 : info->queue_offset + 1;
    if (!info->state->sums && queue->units.views == NULL)
        return;
    const int64_t tags = (int32_t)rmq_java_hash(0, known->tags.at, known->tags.length);
    if (info->state->sums) {
        queue->unit_count++;
        queue->unit_sum += rmq_unit_digest(info->queue_offset, info->record_offset, (int64_t)info->places.size);
        queue->tags_sum += rmq_tags_digest(info->queue_offset, tags);
    }
    if (queue->units.views != NULL)
        check_unit(info, tags);
}

static void flush_bucket(rmq_tally_state *state, const rmq_tally_queue *queue, int32_t number)
{
    int64_t *const row = state->buckets + 6 * state->bucket_count++;

    row[0] = number;
    row[1] = queue->bucket;
    row[2] = queue->bucket_messages;
    row[3] = (int64_t)queue->bucket_content;
    row[4] = (int64_t)queue->bucket_place;
    row[5] = (int64_t)queue->bucket_mapped;
}

static uint64_t mix_place(int64_t queue_offset, int64_t offset, int64_t prepared)
{
    return rmq_mix64((uint64_t)queue_offset * RMQ_QUEUE_FACTOR + (uint64_t)offset) + rmq_mix64((uint64_t)prepared + RMQ_PROPERTY_FACTOR);
}

static void add_digest(const frame_info *info)
{
    const uint64_t properties = sum_properties(info->properties);
    rmq_tally_queue *const queue = info->queue;
    const uint8_t *const record = info->state->view + info->places.start;
    const size_t head = info->places.head_size;
    const uint64_t first = rmq_crc32(record + 8, 20), second = rmq_crc32(record + 36, head - 12 - 36);
    const int64_t bucket = rmq_has_queue_unit(info->sys_flag) ? info->queue_offset >> BUCKET_SHIFT : -1;

    if (queue->bucket_messages > 0 && bucket != queue->bucket) {
        flush_bucket(info->state, queue, info->queue_number);
        queue->bucket_messages = 0;
    }
    if (queue->bucket_messages == 0) {
        queue->bucket = bucket;
        queue->bucket_content = queue->bucket_place = queue->bucket_mapped = 0;
    }
    queue->bucket_messages++;
    queue->bucket_content += rmq_mix64((first << 32 | second) + properties * RMQ_PROPERTY_FACTOR
                                   + (uint64_t)info->places.body_length * RMQ_LENGTH_FACTOR);
    const int64_t file_size = info->state->file_size, prepared = rmq_load_long(record + head - 12);
    const int leads_to_first = prepared > 0 && file_size > 0 && prepared % file_size == RMQ_ENTRY_HEADER_SIZE;
    const int is_first = info->places.start == RMQ_ENTRY_HEADER_SIZE;
    const uint64_t place = mix_place(info->queue_offset, info->record_offset, prepared);
    queue->bucket_place += place;
    queue->bucket_mapped += !is_first && !leads_to_first ? place
        : mix_place(info->queue_offset, info->record_offset - (is_first ? RMQ_ENTRY_HEADER_SIZE : 0),
                    prepared - (leads_to_first ? RMQ_ENTRY_HEADER_SIZE : 0));
}

static void update_sizes(const frame_info *info, int64_t store_timestamp)
{
    rmq_tally_state *const state = info->state;
    const int64_t size = (int64_t)info->places.size, properties = (int64_t)info->properties.length;

    state->body_bytes += (int64_t)info->places.body_length;
    state->version_2 += rmq_load32(state->view + info->places.start + 4) == RMQ_MESSAGE_MAGIC_V2;
    if (size > state->largest_record)
        state->largest_record = size;
    if (properties > state->longest_properties)
        state->longest_properties = properties;
    if (store_timestamp > state->max_store_ms)
        state->max_store_ms = store_timestamp;
    if (state->min_store_ms < 0 || store_timestamp < state->min_store_ms)
        state->min_store_ms = store_timestamp;
}

/* Add the unit that the record must have to the sum of all queues. */
static void pool_unit(const frame_info *info, const rmq_known_properties *known)
{
    rmq_tally_state *const state = info->state;
    const uint8_t *const topic = state->view + info->places.topic;
    const size_t length = info->places.topic_length;

    if (!rmq_has_queue_unit(info->sys_flag) || info->sys_flag & INNER_BATCH) {
        state->pooled_without++;
        return;
    }
    const int any_tags = length == sizeof SCHEDULE_TOPIC - 1 && memcmp(topic, SCHEDULE_TOPIC, length) == 0;
    const int64_t tags = any_tags ? 0 : (int32_t)rmq_java_hash(0, known->tags.at, known->tags.length);
    state->pooled_count++;
    state->pooled_sum += rmq_pooled_digest(
        rmq_queue_digest(topic, length, rmq_load_int(state->view + info->places.start + 12)), info->queue_offset,
        info->record_offset, (int64_t)info->places.size, tags);
}

static void check_record(frame_info *info)
{
    rmq_tally_state *const state = info->state;
    const rmq_record_places *const places = &info->places;
    const uint8_t *const record = state->view + places->start;
    const size_t store_position = 56u + ((info->sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u);
    const int64_t stated_offset = rmq_load_long(record + 28);

    update_sizes(info, rmq_load_long(record + store_position));
    if (state->check_crc && places->body_length > 0) {
        const uint32_t crc = rmq_crc32(record + places->head_size, places->body_length);
        if (crc != rmq_load32(record + 8))
            add_event(info, RMQ_EVENT_BODY_CRC, info->queue_number, crc, rmq_load_int(record + 8), 0);
    }
    if (stated_offset != info->record_offset)
        add_event(info, RMQ_EVENT_PLACE, info->queue_number, stated_offset, info->record_offset, 0);
    rmq_known_properties known;
    if (!is_well_formed(info->properties, rmq_find_properties(info->properties, state->view + state->length, &known)))
        add_event(info, RMQ_EVENT_PROPERTIES, info->queue_number, 0, 0, 0);
    if (info->queue != NULL ? !info->queue->has_topic
                            : !is_topic(state->view + places->topic, places->topic_length))
        add_event(info, RMQ_EVENT_TOPIC, info->queue_number, 0, 0, 0);
    check_checksum(info);
    if (state->check_keys)
        count_keys(info, &known);
    if (info->queue == NULL) {
        pool_unit(info, &known);
        return;
    }
    count_in_queue(info, &known);
    if (state->digests)
        add_digest(info);
}

static void check_entry_header(const frame_info *info, int64_t previous)
{
    rmq_tally_state *const state = info->state;
    const uint8_t *const entry = state->view + info->start;
    const int64_t index = rmq_load_long(entry + 8), term = rmq_load_long(entry + 16), pos = rmq_load_long(entry + 24);

    if (pos != info->frame_offset)
        add_event(info, RMQ_EVENT_ENTRY_PLACE, -1, pos, info->frame_offset, 0);
    if (previous >= 0) {
        if (state->last_index == INT64_MAX || index != state->last_index + 1)
            add_event(info, RMQ_EVENT_ENTRY_INDEX, -1, index, (int64_t)((uint64_t)state->last_index + 1u), previous);
        if (term < state->last_term)
            add_event(info, RMQ_EVENT_ENTRY_TERM, -1, term, state->last_term, 0);
    } else {
        state->first_index = index;
        state->first_term = term;
    }
    state->last_index = index;
    state->last_term = term;
    if (rmq_load32(entry + 32) | rmq_load32(entry + 36) | rmq_load32(entry + 40))
        add_event(info, RMQ_EVENT_ENTRY_RESERVED, -1, 0, 0, 0);
    if (state->sums) {
        state->entry_sum += rmq_unit_digest(index, info->frame_offset, rmq_load_int(entry + 4));
        state->term_sum += rmq_entry_digest(index, rmq_load_int(entry), index, term);
    }
    if (state->entry_units.views == NULL)
        return;
    uint8_t expected_unit[ENTRY_UNIT_SIZE];
    const uint8_t *unit = NULL;
    memcpy(expected_unit, entry, 4);
    rmq_store_long(expected_unit + 4, info->frame_offset);
    memcpy(expected_unit + 12, entry + 4, 20);
    if (index >= 0 && index < UNITS_MAX)
        unit = find_unit(&state->entry_units, index * ENTRY_UNIT_SIZE, ENTRY_UNIT_SIZE);
    if (unit != NULL && memcmp(unit, expected_unit, ENTRY_UNIT_SIZE) == 0)
        state->right_entry_units++;
    else
        add_event(info, RMQ_EVENT_ENTRY_UNIT, -1, unit == NULL ? -1 : rmq_load_long(unit + 4), info->frame_offset, 0);
}


/* Return the number of a record's queue, or -1 if the caller must add it. */
static int32_t find_queue(const rmq_tally_state *state, const uint8_t *topic, size_t length, int32_t queue_id)
{
    const uint32_t hash = (uint32_t)rmq_queue_digest(topic, length, queue_id);

    for (uint32_t place = hash & state->table_mask;; place = (place + 1) & state->table_mask) {
        const int32_t number = state->table[place];
        if (number < 0)
            return -1;
        const rmq_tally_queue *const queue = &state->queues[number];
        if (queue->queue_id == queue_id && queue->topic_length == length && memcmp(queue->topic, topic, length) == 0)
            return number;
    }
}

void rmq_tally_add_queue(rmq_tally_state *state, int32_t number)
{
    rmq_tally_queue *const queue = &state->queues[number];
    uint32_t place = (uint32_t)rmq_queue_digest(queue->topic, queue->topic_length, queue->queue_id) & state->table_mask;

    queue->has_topic = is_topic(queue->topic, queue->topic_length);
    while (state->table[place] >= 0)
        place = (place + 1) & state->table_mask;
    state->table[place] = number;
}

/* Measure the frame at `start`. Returns RMQ_END if it is valid. */
static enum rmq_stop measure_frame(const rmq_tally_state *state, size_t start, rmq_record_places *places, size_t *size)
{
    const size_t rest = state->length - start;
    const uint8_t *const frame = state->view + start;

    if (rest < FRAME_HEAD)
        return RMQ_TRUNCATED;
    if (!state->dledger) {
        const uint32_t magic = rmq_load32(frame + 4);
        if (magic == RMQ_BLANK_MAGIC)
            return RMQ_BLANK;
        if (rmq_load32(frame) == 0 && magic == 0)
            return RMQ_ZERO;
        const enum rmq_stop stop = rmq_measure_record(state->view, start, rest, places);
        *size = places->size;
        return stop;
    }
    const int32_t magic = rmq_load_int(frame), entry_size = rmq_load_int(frame + 4);
    if (magic == -1)
        return RMQ_BLANK;
    if (entry_size == 0 && magic == 0)
        return RMQ_ZERO;
    if (magic != 1)
        return RMQ_BAD_MAGIC;
    if (entry_size < (int32_t)(RMQ_ENTRY_HEADER_SIZE + RMQ_RECORD_SIZE_MIN))
        return RMQ_BAD_SIZE;
    if ((size_t)entry_size > rest)
        return RMQ_TRUNCATED;
    *size = (size_t)entry_size;
    const size_t body = *size - RMQ_ENTRY_HEADER_SIZE;
    if (rmq_load32(frame + 44) != body)
        return RMQ_BAD_FIELDS;
    const enum rmq_stop stop = rmq_measure_record(state->view, start + RMQ_ENTRY_HEADER_SIZE, body, places);
    if (stop != RMQ_END)
        return stop;
    return places->size == body ? RMQ_END : RMQ_BAD_FIELDS;
}

static void count_frame(const frame_info *info, size_t size)
{
    rmq_tally_state *const state = info->state;
    int64_t *const block = state->blocks + 2 * ((info->start >> BLOCK_SHIFT) - state->first_block);

    if (state->first_frame < 0)
        state->first_frame = info->frame_offset;
    state->last_frame = info->frame_offset;
    state->records++;
    state->frame_bytes += (int64_t)size;
    if (block[1]++ == 0)
        block[0] = (int64_t)info->start;
}

/* Every cache line will be read, and the hardware prefetcher stops at the end of a page. */
static void prefetch_ahead(const rmq_tally_state *state, size_t size)
{
    const size_t from = state->position + PREFETCH_DISTANCE;

    if (!state->check_crc || from >= state->length)
        return;
    const size_t count = size < state->length - from ? size : state->length - from;
    for (size_t i = 0; i < count; i += CACHE_LINE)
        __builtin_prefetch(state->view + from + i);
}

enum rmq_stop rmq_tally(rmq_tally_state *state)
{
    while (state->position < state->stop) {
        frame_info info; /* not initialized as a whole, which would take long for a small record */
        size_t size = 0;
        info.state = state;
        info.queue = NULL;
        info.start = state->position;
        if (state->event_count + EVENTS_PER_FRAME > state->event_capacity
            || state->bucket_count == state->bucket_capacity)
            return RMQ_LIMIT;
        const enum rmq_stop stop = measure_frame(state, info.start, &info.places, &size);
        if (stop != RMQ_END)
            return stop;
        prefetch_ahead(state, size);
        const uint8_t *const record = state->view + info.places.start;
        info.queue_number = -1;
        if (!state->pooled) {
            info.queue_number = find_queue(state, state->view + info.places.topic, info.places.topic_length,
                                           rmq_load_int(record + 12));
            if (info.queue_number < 0)
                return RMQ_NEW_QUEUE;
            info.queue = &state->queues[info.queue_number];
        }
        info.frame_offset = state->base_offset + (int64_t)info.start;
        info.record_offset = state->base_offset + (int64_t)info.places.start;
        info.sys_flag = rmq_load_int(record + 36);
        info.queue_offset = rmq_load_long(record + 20);
        info.properties.at = state->view + info.places.properties;
        info.properties.length = info.places.properties_length;
        const int64_t previous = state->last_frame;
        count_frame(&info, size);
        if (state->dledger)
            check_entry_header(&info, previous);
        check_record(&info);
        state->position += size;
    }
    return RMQ_END;
}
