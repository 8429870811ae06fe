/* Scans the records of one log file: the checks of rmqpy/codec/scan.py, in the same order. They are
 * explained there. */
#include <string.h>

#include "rmqpy_native.h"

#define CACHE_LINE 64u
#define PREFETCH_DISTANCE 2048u
#define PREFETCH_FRAME_MAX 1024u /* of larger frames, most is never read */
#define FRAME_HEAD 8u /* size and magic, the same for records, entries, and fillers */

#define OTHER_FORMS_MAX 4 /* records of the same lengths but other properties, after which a scan compares no more */

/* The record before, and what follows from it for one of the same lengths, topic, and names of properties. */
typedef struct {
    rmq_record_places places; /* size 0: none yet */
    rmq_known_properties found;
    rmq_properties_form form;
    int has_form, other_forms;
    uint32_t topic_hash;
} last_record;

/* Integer.parseInt for ASCII digits; 0 if Java would throw. */
static int64_t parse_int(rmq_slice text)
{
    size_t i = 0;
    int negative = 0;
    int64_t value = 0;

    if (text.length > 0 && (text.at[0] == '-' || text.at[0] == '+')) {
        negative = text.at[0] == '-';
        i = 1;
    }
    if (i == text.length)
        return 0;
    for (; i < text.length; i++) {
        if (text.at[i] < '0' || text.at[i] > '9')
            return 0;
        value = value * 10 + (text.at[i] - '0');
        if (value > (int64_t)INT32_MAX + negative)
            return 0;
    }
    return negative ? -value : value;
}

enum rmq_stop rmq_measure_record(const uint8_t *view, size_t start, size_t rest, rmq_record_places *places)
{
    const uint8_t *const record = view + start;
    const int32_t size = rmq_load_int(record);
    const uint32_t magic = rmq_load32(record + 4);
    const size_t length_bytes = magic == RMQ_MESSAGE_MAGIC_V1 ? 1u : 2u;

    if (magic != RMQ_MESSAGE_MAGIC_V1 && magic != RMQ_MESSAGE_MAGIC_V2)
        return RMQ_BAD_MAGIC;
    if (size < (int32_t)RMQ_RECORD_SIZE_MIN)
        return RMQ_BAD_SIZE;
    if ((size_t)size > rest)
        return RMQ_TRUNCATED;
    places->start = start;
    places->size = (size_t)size;
    places->head_size = rmq_head_size(rmq_load_int(record + 36));
    if (places->size < places->head_size + length_bytes + 2)
        return RMQ_BAD_FIELDS;
    /* From here on, `left` is the length of the record after the last part read. */
    size_t left = places->size - places->head_size - length_bytes - 2;
    const int32_t body_length = rmq_load_int(record + places->head_size - 4);
    if (body_length < 0 || (size_t)body_length > left)
        return RMQ_BAD_FIELDS;
    places->body_length = (size_t)body_length;
    left -= places->body_length;
    const uint8_t *at = record + places->head_size + places->body_length;
    const uint32_t topic_length = length_bytes == 1 ? at[0] : ((uint32_t)at[0] << 8) | at[1];
    if (topic_length >= (length_bytes == 1 ? 0x80u : 0x8000u) || topic_length > left)
        return RMQ_BAD_FIELDS;
    places->topic_length = topic_length;
    left -= topic_length;
    at += length_bytes + topic_length;
    const uint32_t properties_length = ((uint32_t)at[0] << 8) | at[1];
    if (properties_length >= 0x8000u || properties_length != left)
        return RMQ_BAD_FIELDS;
    places->properties_length = properties_length;
    places->properties = start + places->size - properties_length;
    places->topic = places->properties - 2 - topic_length;
    return RMQ_END;
}

static rmq_slice properties_of(const rmq_scan_state *state, const rmq_record_places *places)
{
    return (rmq_slice){state->view + places->properties, places->properties_length};
}

static void shift(rmq_slice *found, size_t step)
{
    if (found->at != NULL)
        found->at += step;
}

/* If the record at `start` has the lengths, the topic, and the names of properties of the one before, so that all checks
 * have the same results, take its places and properties from there. */
static int repeat_last(const rmq_scan_state *state, size_t start, size_t rest, last_record *last)
{
    rmq_record_places *const places = &last->places;
    const uint8_t *const record = state->view + start, *const model = state->view + places->start;

    /* The size and the magic, the flags that change the head, the length of the body, and what precedes the properties. */
    const size_t body_end = places->head_size + places->body_length;
    if (places->size == 0 || places->size > rest || !rmq_words_equal(record, model)
        || rmq_load32(record + 36) != rmq_load32(model + 36)
        || rmq_load32(record + places->head_size - 4) != rmq_load32(model + places->head_size - 4)
        || !rmq_bytes_equal(record + body_end, model + body_end, places->size - places->properties_length - body_end))
        return 0;
    if (!state->skip_properties) {
        if (last->other_forms == OTHER_FORMS_MAX)
            return 0;
        if (!last->has_form)
            rmq_note_form(properties_of(state, places), &last->form);
        last->has_form = 1;
        if (!rmq_has_form(record + places->size - places->properties_length, state->view + places->properties, &last->form,
                          state->view + state->length)) {
            last->other_forms++;
            return 0;
        }
    }
    const size_t step = start - places->start;
    places->start = start;
    places->topic += step;
    places->properties += step;
    shift(&last->found.tags, step);
    shift(&last->found.delay, step);
    shift(&last->found.uniq_key, step);
    shift(&last->found.keys, step);
    return 1;
}

/* Read a record whose places are known. */
static void read_record(const rmq_scan_state *state, last_record *last)
{
    const rmq_record_places *const places = &last->places;

    last->has_form = 0;
    last->found = (rmq_known_properties){{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    if (!state->skip_properties)
        rmq_find_properties(properties_of(state, places), state->view + state->length, &last->found);
    if (last->found.uniq_key.at != NULL)
        last->topic_hash = rmq_java_hash(0, state->view + places->topic, places->topic_length);
}

static void fill_row(const rmq_scan_state *state, const last_record *last, int64_t *row)
{
    const rmq_record_places *const places = &last->places;
    const rmq_known_properties *const found = &last->found;
    const uint8_t *const record = state->view + places->start;
    const int32_t sys_flag = rmq_load_int(record + 36);
    const size_t store_timestamp = 56u + ((sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u);

    row[RMQ_OFFSET] = state->base_offset + (int64_t)places->start;
    row[RMQ_FRAME_OFFSET] = row[RMQ_OFFSET];
    row[RMQ_SIZE] = (int64_t)places->size;
    row[RMQ_QUEUE_ID] = rmq_load_int(record + 12);
    row[RMQ_FLAG] = rmq_load_int(record + 16);
    row[RMQ_QUEUE_OFFSET] = rmq_load_long(record + 20);
    row[RMQ_PHYSICAL_OFFSET] = rmq_load_long(record + 28);
    row[RMQ_SYS_FLAG] = sys_flag;
    row[RMQ_BORN_TIMESTAMP] = rmq_load_long(record + 40);
    row[RMQ_STORE_TIMESTAMP] = rmq_load_long(record + store_timestamp);
    row[RMQ_RECONSUME_TIMES] = rmq_load_int(record + places->head_size - 16);
    row[RMQ_PREPARED_TRANSACTION_OFFSET] = rmq_load_long(record + places->head_size - 12);
    row[RMQ_TAGS_CODE] = (int32_t)rmq_java_hash(0, found->tags.at, found->tags.length);
    row[RMQ_DELAY_LEVEL] = parse_int(found->delay);
    row[RMQ_TOPIC_POSITION] = (int64_t)places->topic;
    row[RMQ_TOPIC_LENGTH] = (int64_t)places->topic_length;
    row[RMQ_PROPERTIES_POSITION] = (int64_t)places->properties;
    row[RMQ_PROPERTIES_LENGTH] = (int64_t)places->properties_length;
    row[RMQ_UNIQ_KEY_HASH] = found->uniq_key.at
        ? rmq_index_key_hash(last->topic_hash, found->uniq_key.at, found->uniq_key.length) : -1;
    row[RMQ_KEYS_POSITION] = found->keys.at ? found->keys.at - state->view : 0;
    row[RMQ_KEYS_LENGTH] = (int64_t)found->keys.length;
    row[RMQ_ENTRY_INDEX] = -1;
    row[RMQ_TERM] = -1;
}

static enum rmq_stop scan_record(const rmq_scan_state *state, size_t start, size_t rest, last_record *last, int64_t *row)
{
    if (!repeat_last(state, start, rest, last)) {
        const enum rmq_stop stop = rmq_measure_record(state->view, start, rest, &last->places);
        if (stop != RMQ_END)
            return stop;
        read_record(state, last);
    }
    if (state->check_crc && last->places.body_length > 0) {
        const uint8_t *const record = state->view + start;
        if (rmq_crc32(record + last->places.head_size, last->places.body_length) != rmq_load32(record + 8))
            return RMQ_BAD_CRC;
    }
    fill_row(state, last, row);
    return RMQ_END;
}

static enum rmq_stop scan_classic_frame(const rmq_scan_state *state, last_record *last, int64_t *row, size_t *frame_size)
{
    const size_t rest = state->length - state->position;
    const uint8_t *const record = state->view + state->position;

    if (rest < FRAME_HEAD)
        return RMQ_TRUNCATED;
    *frame_size = rmq_load32(record);
    const uint32_t magic = rmq_load32(record + 4);
    if (magic == RMQ_BLANK_MAGIC)
        return RMQ_BLANK;
    if (*frame_size == 0 && magic == 0)
        return RMQ_ZERO;
    return scan_record(state, state->position, rest, last, row);
}

static enum rmq_stop scan_entry(const rmq_scan_state *state, last_record *last, int64_t *row, size_t *frame_size)
{
    const size_t rest = state->length - state->position;
    const uint8_t *const entry = state->view + state->position;

    if (rest < FRAME_HEAD)
        return RMQ_TRUNCATED;
    const int32_t magic = rmq_load_int(entry);
    const int32_t size = rmq_load_int(entry + 4);
    if (magic == -1)
        return RMQ_BLANK;
    if (size == 0 && magic == 0)
        return RMQ_ZERO;
    if (magic != 1)
        return RMQ_BAD_MAGIC;
    if (size < (int32_t)(RMQ_ENTRY_HEADER_SIZE + RMQ_RECORD_SIZE_MIN))
        return RMQ_BAD_SIZE;
    if ((size_t)size > rest)
        return RMQ_TRUNCATED;
    *frame_size = (size_t)size;
    const size_t body = state->position + RMQ_ENTRY_HEADER_SIZE;
    const size_t length = *frame_size - RMQ_ENTRY_HEADER_SIZE;
    const int64_t index = rmq_load_long(entry + 8);
    const int64_t term = rmq_load_long(entry + 16);
    if (rmq_load32(entry + 44) != length
        || rmq_load_long(entry + 24) != state->base_offset + (int64_t)state->position)
        return RMQ_BAD_FIELDS;
    if (state->count > 0) {
        const int64_t *const before = row - RMQ_COLUMN_COUNT;
        if (before[RMQ_ENTRY_INDEX] == INT64_MAX || index != before[RMQ_ENTRY_INDEX] + 1
            || term < before[RMQ_TERM])
            return RMQ_BAD_FIELDS;
    } else if (index < 0 || term < 0) {
        return RMQ_BAD_FIELDS;
    }
    const uint32_t record_magic = rmq_load32(state->view + body + 4);
    if ((record_magic == RMQ_MESSAGE_MAGIC_V1 || record_magic == RMQ_MESSAGE_MAGIC_V2)
        && rmq_load32(state->view + body) != length)
        return RMQ_BAD_FIELDS;
    const enum rmq_stop stop = scan_record(state, body, length, last, row);
    if (stop == RMQ_END) {
        row[RMQ_FRAME_OFFSET] -= (int64_t)RMQ_ENTRY_HEADER_SIZE;
        row[RMQ_ENTRY_INDEX] = index;
        row[RMQ_TERM] = term;
    }
    return stop;
}

/* Fetch as much as the last frame has, some frames ahead: processors do not look beyond a page. */
static void prefetch_ahead(const rmq_scan_state *state, size_t frame_size)
{
    if (frame_size > PREFETCH_FRAME_MAX || state->length - state->position < PREFETCH_DISTANCE + frame_size)
        return;
    for (size_t i = 0; i < frame_size; i += CACHE_LINE)
        __builtin_prefetch(state->view + state->position + PREFETCH_DISTANCE + i);
}

enum rmq_stop rmq_scan(rmq_scan_state *state)
{
    last_record last;

    last.places.size = 0;
    last.has_form = last.other_forms = 0;
    state->count = 0;
    state->position = 0;
    while (state->position < state->length) {
        int64_t *const row = state->cells + state->count * RMQ_COLUMN_COUNT;
        size_t frame_size = 0;
        if (state->count == state->max_records)
            return RMQ_LIMIT;
        const enum rmq_stop stop = state->dledger ? scan_entry(state, &last, row, &frame_size)
                                                  : scan_classic_frame(state, &last, row, &frame_size);
        if (stop != RMQ_END)
            return stop;
        prefetch_ahead(state, frame_size);
        state->position += frame_size;
        state->count++;
    }
    return RMQ_END;
}

size_t rmq_received(const uint8_t *data, size_t length, size_t position, int64_t *cells, size_t max_records)
{
    size_t count = 0;
    rmq_record_places places;

    while (count < max_records && length - position >= FRAME_HEAD) {
        const uint8_t *const record = data + position;
        if (rmq_measure_record(data, position, length - position, &places) != RMQ_END
            || rmq_load32(record + 4) != RMQ_MESSAGE_MAGIC_V1 || places.head_size != rmq_head_size(0))
            break;
        int64_t *const row = cells + count * RMQ_RECEIVED_COLUMNS;
        row[0] = (int64_t)places.size;
        row[1] = rmq_load_long(record + 20);
        row[2] = record[39] & RMQ_COMPRESSED;
        row[3] = (int64_t)(places.head_size + places.body_length);
        position += places.size;
        count++;
    }
    return count;
}
