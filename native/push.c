/* Reads entries of a data file for a batch push, converts them to JSON and back, like
 * rmqpy/codec/entry_batch.py, and stages a push that a follower has granted. */
#include <string.h>

#include "rmqpy_native.h"

#define BODY_MAX (4 * 1024 * 1024 - (int64_t)RMQ_ENTRY_HEADER_SIZE)
#define TEXT_MAX 200 /* an entry without its body */
#define DIGITS_MAX 18
#define FILLER_SIZE 8
#define UNIT_SIZE 32
#define PUSH_HEAD_SIZE 40 /* a binary push before the names of its members: protocol/push_binary.py */

typedef struct {
    int64_t size, index, term, position;
} entry;

static uint8_t *put_text(uint8_t *out, const char *text)
{
    const size_t length = strlen(text);

    memcpy(out, text, length);
    return out + length;
}

static uint8_t *put_number(uint8_t *out, int64_t value)
{
    uint8_t digits[20];
    int count = 0;

    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while ((value /= 10) > 0);
    while (count > 0)
        *out++ = digits[--count];
    return out;
}

/* Return whether the lengths of a record add up and its body has the stated CRC (check_record of
 * rmqpy/codec/message.py). */
static int is_valid_record(const uint8_t *record, int64_t length)
{
    rmq_record_places places;

    if (length < RMQ_RECORD_SIZE_MIN || rmq_load_int(record) != length
        || rmq_measure_record(record, 0, (size_t)length, &places) != RMQ_END)
        return 0;
    return places.body_length == 0 || rmq_crc32(record + places.head_size, places.body_length) == rmq_load32(record + 8);
}

/* Read the entry of `source` that is next in the run. Returns 0 unless it directly follows the entries before
 * it, its term is not smaller, and its reserved fields are 0. */
static int read_entry(const rmq_run *run, entry *found)
{
    static const uint8_t zeros[12];
    const uint8_t *const at = run->source + run->size;
    const int64_t rest = run->source_length - run->size;

    if (rest < RMQ_ENTRY_HEADER_SIZE || rmq_load_int(at) != 1)
        return 0;
    *found = (entry){rmq_load_int(at + 4), rmq_load_long(at + 8), rmq_load_long(at + 16), rmq_load_long(at + 24)};
    return found->size >= RMQ_ENTRY_HEADER_SIZE && found->size <= rest && found->index == run->first_index + run->count
           && found->position == run->first_position + run->size && found->term >= run->last_term
           && memcmp(at + 32, zeros, 12) == 0 && rmq_load_int(at + 44) == found->size - RMQ_ENTRY_HEADER_SIZE
           && found->size - RMQ_ENTRY_HEADER_SIZE <= BODY_MAX;
}

static void count_entry(rmq_run *run, const entry *found)
{
    if (run->count++ == 0) {
        run->first_index = found->index;
        run->first_term = found->term;
        run->first_size = found->size;
        run->first_position = found->position;
    }
    run->last_term = found->term;
    run->size += found->size;
}

static void put_unit(uint8_t *unit, const entry *found)
{
    rmq_store32(unit, 1);
    rmq_store_long(unit + 4, found->position);
    rmq_store32(unit + 12, (uint32_t)found->size);
    rmq_store_long(unit + 16, found->index);
    rmq_store_long(unit + 24, found->term);
}

void rmq_run_read(rmq_run *run, int checks_records)
{
    entry found;

    run->count = run->size = run->last_term = 0;
    while (run->count < run->count_max && run->size < run->size_max && read_entry(run, &found)) {
        const uint8_t *const record = run->source + run->size + RMQ_ENTRY_HEADER_SIZE;
        if (checks_records && !is_valid_record(record, found.size - RMQ_ENTRY_HEADER_SIZE))
            return;
        if (run->units != NULL)
            put_unit(run->units + run->count * UNIT_SIZE, &found);
        count_entry(run, &found);
    }
}

void rmq_run_encode(rmq_run *run)
{
    uint8_t *out = run->target;
    entry found;

    run->count = run->size = run->last_term = 0;
    while (run->count < run->count_max && read_entry(run, &found)) {
        const uint8_t *const body = run->source + run->size + RMQ_ENTRY_HEADER_SIZE;
        const int64_t length = found.size - RMQ_ENTRY_HEADER_SIZE;
        if (run->target_capacity - (out - run->target) < TEXT_MAX + (length + 2) / 3 * 4)
            break;
        out = put_text(out, run->count ? ",{\"body\":\"" : "{\"body\":\"");
        out = rmq_put_base64(out, body, length);
        out = put_text(out, "\",\"bodyCrc\":0,\"chainCrc\":0,\"channel\":0,\"index\":");
        out = put_number(out, found.index);
        out = put_number(put_text(out, ",\"magic\":1,\"pos\":"), found.position);
        out = put_number(put_text(out, ",\"size\":"), found.size);
        out = put_number(put_text(out, ",\"term\":"), found.term);
        *out++ = '}';
        count_entry(run, &found);
    }
    run->target_length = out - run->target;
}

/* The readers below pass NULL on, and return it for text that Python must read. */

static const uint8_t *skip_text(const uint8_t *at, const uint8_t *end, const char *text)
{
    const ptrdiff_t length = (ptrdiff_t)strlen(text);

    return at != NULL && end - at >= length && memcmp(at, text, (size_t)length) == 0 ? at + length : NULL;
}

static const uint8_t *read_number(const uint8_t *at, const uint8_t *end, int64_t *value)
{
    const uint8_t *const start = at;

    *value = 0;
    for (; at != NULL && at < end && *at >= '0' && *at <= '9'; at++) {
        if (at - start == DIGITS_MAX)
            return NULL;
        *value = *value * 10 + (*at - '0');
    }
    return at == start || (*start == '0' && at - start > 1) ? NULL : at;
}

static void put_head(uint8_t *out, const entry *found)
{
    rmq_store32(out, 1);
    rmq_store32(out + 4, (uint32_t)found->size);
    rmq_store_long(out + 8, found->index);
    rmq_store_long(out + 16, found->term);
    rmq_store_long(out + 24, found->position);
    memset(out + 32, 0, 12);
    rmq_store32(out + 44, (uint32_t)(found->size - RMQ_ENTRY_HEADER_SIZE));
}

int rmq_run_decode(rmq_run *run)
{
    const uint8_t *const end = run->source + run->source_length;
    const uint8_t *at = skip_text(run->source, end, "[");
    entry found;

    run->count = run->size = run->last_term = 0;
    while (run->count < run->count_max) {
        uint8_t *const start = run->target + run->size, *out = start + RMQ_ENTRY_HEADER_SIZE;
        at = skip_text(at, end, "{\"body\":\"");
        /* The text of a body is longer than the body, so space for the rest of the text is enough. */
        if (at == NULL || run->target_capacity - run->size < RMQ_ENTRY_HEADER_SIZE + (end - at))
            return 0;
        at = rmq_read_base64(at, end, &out);
        at = read_number(skip_text(at, end, "\",\"bodyCrc\":0,\"chainCrc\":0,\"channel\":0,\"index\":"), end, &found.index);
        at = read_number(skip_text(at, end, ",\"magic\":1,\"pos\":"), end, &found.position);
        at = read_number(skip_text(at, end, ",\"size\":"), end, &found.size);
        at = read_number(skip_text(at, end, ",\"term\":"), end, &found.term);
        at = skip_text(at, end, "}");
        if (at == NULL || found.size != out - start || found.size - RMQ_ENTRY_HEADER_SIZE > BODY_MAX
            || (run->count > 0
                && (found.index != run->first_index + run->count || found.term < run->last_term
                    || found.position != run->first_position + run->size)))
            return 0;
        put_head(start, &found);
        put_unit(run->units + run->count * UNIT_SIZE, &found);
        count_entry(run, &found);
        if (at < end && *at == ']') {
            run->used = at + 1 - run->source;
            return 1;
        }
        at = skip_text(at, end, ",");
    }
    return 0;
}

/* Return whether a decoded run starts at the end of the log and fits into its file, which already
 * has an entry. */
static int follows_log(const rmq_grant *grant, const rmq_run *run)
{
    const int64_t *const log = grant->log;
    const int64_t end = log[RMQ_LOG_END], file_end = log[RMQ_LOG_FILE_END];

    return end > file_end - grant->file_size && run->first_index == log[RMQ_LOG_INDEX] && run->first_position == end
           && run->first_term >= log[RMQ_LOG_TERM] && run->last_term <= grant->term
           && run->size + FILLER_SIZE <= file_end - end;
}

static void accept_run(rmq_grant *grant, const rmq_run *run, int64_t commit_index)
{
    int64_t *const log = grant->log;

    log[RMQ_LOG_END] += run->size;
    log[RMQ_LOG_STAGED] += run->size;
    log[RMQ_LOG_INDEX] += run->count;
    log[RMQ_LOG_UNITS] += run->count;
    log[RMQ_LOG_TERM] = run->last_term;
    grant->first_index = run->first_index;
    grant->count = run->count;
    grant->commit_index = commit_index;
}

int rmq_push_take(rmq_grant *grant, const uint8_t *body, int64_t length)
{
    const int64_t *const log = grant->log;
    const uint8_t *const end = body + length, *at = skip_text(body, end, "{\"batch\":true,\"batchEntry\":");
    int64_t commit_index, count, first, last, size;
    rmq_run run = {.source = at,
                   .source_length = at == NULL ? 0 : end - at,
                   .target = grant->staging + log[RMQ_LOG_STAGED],
                   .target_capacity = grant->staging_capacity - log[RMQ_LOG_STAGED],
                   .units = grant->units + log[RMQ_LOG_UNITS] * UNIT_SIZE,
                   .count_max = grant->units_capacity - log[RMQ_LOG_UNITS]};

    if (at == NULL || !rmq_run_decode(&run) || !follows_log(grant, &run))
        return 0;
    at = read_number(skip_text(at + run.used, end, ",\"code\":200,\"commitIndex\":"), end, &commit_index);
    at = read_number(skip_text(at, end, ",\"count\":"), end, &count);
    at = read_number(skip_text(at, end, ",\"firstEntryIndex\":"), end, &first);
    at = read_number(skip_text(at, end, grant->group), end, &last);
    at = read_number(skip_text(at, end, grant->names), end, &size);
    at = skip_text(at, end, ",\"type\":\"APPEND\"}");
    if (at != end || count != run.count || first != run.first_index || last != first + count - 1 || size != run.size)
        return 0;
    accept_run(grant, &run, commit_index);
    return 1;
}

int rmq_push_take_run(rmq_grant *grant, const uint8_t *body, int64_t length)
{
    const int64_t *const log = grant->log;
    const int64_t head = PUSH_HEAD_SIZE + grant->members_length;

    if (grant->members_length == 0 || length <= head || memcmp(body, "RDP1", 4) != 0
        || rmq_load_int(body + 4) != grant->members_length || rmq_load_long(body + 8) != grant->term
        || memcmp(body + PUSH_HEAD_SIZE, grant->members, (size_t)grant->members_length) != 0)
        return 0;
    const int64_t commit_index = rmq_load_long(body + 16), first_index = rmq_load_long(body + 24);
    const int64_t count = rmq_load_int(body + 32), size = rmq_load_int(body + 36);
    uint8_t *const staged = grant->staging + log[RMQ_LOG_STAGED];
    rmq_run run = {.source = body + head,
                   .source_length = length - head,
                   .units = grant->units + log[RMQ_LOG_UNITS] * UNIT_SIZE,
                   .count_max = grant->units_capacity - log[RMQ_LOG_UNITS],
                   .size_max = length - head,
                   .first_index = log[RMQ_LOG_INDEX],
                   .first_position = log[RMQ_LOG_END]};

    if (size != run.source_length || size > grant->staging_capacity - log[RMQ_LOG_STAGED] || count > run.count_max
        || commit_index < 0 || first_index != run.first_index)
        return 0;
    rmq_run_read(&run, 0);
    if (run.size != size || run.count != count || !follows_log(grant, &run))
        return 0;
    memcpy(staged, run.source, (size_t)size);
    accept_run(grant, &run, commit_index);
    return 1;
}
