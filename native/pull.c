/* Answers pulls with the checks of rmqpy/broker/processors/pull.py and the page of
 * rmqpy/store/reader.py: those that find messages, those whose window has none with their tags, and
 * those at the end of the queue. The last ones may wait (hold.c), and are answered here once they are due. */
#include <string.h>

#include "rmqpy_native.h"

#define UNIT_SIZE 20
#define FILLER_SIZE 0x7FFFFFFF
#define WINDOW_UNITS 800 /* SCAN_WINDOW_BYTES of rmqpy/store/reader.py, in units */
#define AHEAD 8          /* how many units before its turn a message is fetched */
#define PAGE_MAX 256
#define QUEUE_ID_POSITION 12
#define QUEUE_OFFSET_POSITION 20
#define NAMES_MAX 512
#define TAGS_MAX 32 /* in an expression that C reads */
#define CACHE_LINE 64
#define PREFETCH_BYTES 1024 /* per message: the processor fetches the rest during the copy */
#define FLAG_COMMIT 1
#define FLAG_SUSPEND 2
#define FLAG_SUBSCRIPTION 4

enum { QUEUE_ID, OFFSET, COUNT, SYS_FLAG, COMMIT_OFFSET, SUSPEND, VERSION, NUMBER_COUNT };

static const rmq_number_rule RULES[NUMBER_COUNT] = {
    {PULL_QUEUE_ID, 1, INT32_MAX}, {PULL_OFFSET, 1, INT64_MAX},  {PULL_COUNT, 1, INT32_MAX},
    {PULL_SYS_FLAG, 1, INT32_MAX}, {PULL_COMMIT, 1, INT64_MAX},  {PULL_SUSPEND, 1, INT64_MAX},
    {PULL_VERSION, 1, INT64_MAX},
};

/* What a reader wants: tags, as hash codes (none: every message), or the messages that match a program. */
typedef struct {
    const int32_t *codes;
    int32_t count;
    int32_t of_request[TAGS_MAX];
    rmq_sql_program *program; /* NULL: the tags decide */
} pull_filter;

typedef struct {
    const uint8_t *messages[PAGE_MAX];
    int64_t sizes[PAGE_MAX], offsets[PAGE_MAX]; /* in bytes; queue offsets */
    int64_t bytes, count;
    int64_t next_offset;
} page;

rmq_reader *rmq_find_reader(const rmq_core *core, rmq_text group, rmq_text topic)
{
    uint8_t key[NAMES_MAX];

    if (group.at == NULL || topic.at == NULL || (size_t)group.length + topic.length + 1 > sizeof key)
        return NULL;
    memcpy(key, group.at, group.length);
    key[group.length] = 0;
    memcpy(key + group.length + 1, topic.at, topic.length);
    const rmq_slot *const slot = rmq_find_slot(&core->reader_table, key, (size_t)group.length + topic.length + 1);
    return slot->key == NULL ? NULL : &core->readers[slot->item];
}

/* Add one tag of an expression, without the blanks around it. */
static int add_tag(const uint8_t *at, const uint8_t *end, pull_filter *filter)
{
    while (at < end && *at == ' ')
        at++;
    while (at < end && end[-1] == ' ')
        end--;
    if (at == end)
        return RMQ_OK;
    if (filter->count == TAGS_MAX)
        return RMQ_NEEDS_PYTHON;
    filter->of_request[filter->count++] = (int32_t)rmq_java_hash(0, at, (size_t)(end - at));
    return RMQ_OK;
}

/* Read an expression of plain tags separated by || (rmqpy/broker/filter/tags.py). */
static int read_tags(rmq_text expression, pull_filter *filter)
{
    const uint8_t *at = expression.at, *const end = at + expression.length;

    if (expression.length == 0 || rmq_is_text(expression, "*"))
        return RMQ_OK;
    if (expression.escaped || expression.non_ascii)
        return RMQ_NEEDS_PYTHON;
    for (const uint8_t *next = at; next < end; next++) {
        if (*next < ' ')
            return RMQ_NEEDS_PYTHON;
        if (*next != '|' || end - next < 2 || next[1] != '|')
            continue;
        if (!add_tag(at, next, filter))
            return RMQ_NEEDS_PYTHON;
        at = ++next + 1;
    }
    return add_tag(at, end, filter) && filter->count > 0;
}

/* Return the program of an SQL92 expression if the group's last one was the same, or NULL. */
static rmq_sql_program *find_program(const rmq_core *core, const rmq_reader *reader, rmq_text expression)
{
    const uint8_t *at = expression.at;
    int64_t length = expression.length;

    if (expression.escaped) {
        if (length > core->scratch_capacity)
            return NULL;
        at = core->scratch;
        length = rmq_unescape(expression, core->scratch);
    }
    return length == reader->expression_length && memcmp(at, reader->expression, (size_t)length) == 0
             ? reader->expression_program
             : NULL;
}

/* Choose the filter of the request, or that of the subscription. */
static int choose_filter(const rmq_core *core, const rmq_text *texts, const int64_t *numbers, const rmq_reader *reader,
                         pull_filter *filter)
{
    const rmq_text type = texts[PULL_TYPE];

    *filter = (pull_filter){.codes = filter->of_request};
    if (numbers[SYS_FLAG] & FLAG_SUBSCRIPTION) {
        if (type.length == 0 || rmq_is_text(type, "TAG"))
            return read_tags(texts[PULL_EXPRESSION], filter);
        if (rmq_is_text(type, "SQL92") && reader->expression_program != NULL)
            filter->program = find_program(core, reader, texts[PULL_EXPRESSION]);
        return filter->program != NULL;
    }
    filter->program = reader->program;
    filter->codes = reader->codes;
    filter->count = reader->code_count;
    return reader->subscribed && reader->sub_version >= numbers[VERSION];
}

static int has_wanted_tags(const pull_filter *filter, int64_t tags_code)
{
    if (filter->count == 0)
        return 1;
    for (int32_t i = 0; i < filter->count; i++)
        if (filter->codes[i] == tags_code)
            return 1;
    return 0;
}

static int is_full(const rmq_core *core, const page *found, int64_t count_max, int64_t size, int is_far)
{
    if (found->count == 0)
        return 0;
    if (found->count >= count_max)
        return 1;
    if (is_far)
        return found->bytes + size > core->far_bytes || found->count >= core->far_count;
    return found->bytes + size > core->near_bytes || found->count >= core->near_count;
}

/* The file of the log that the last message was in: the next one is usually there, too. */
typedef struct {
    const uint8_t *view;
    int64_t begin, end; /* offsets in the log */
} log_piece;

static const uint8_t *read_log(const rmq_core *core, int64_t offset, int64_t size, log_piece *last)
{
    if (offset < core->log_min || size <= 0 || size > core->confirm_offset - offset)
        return NULL;
    for (int i = 0; i < 2 && (offset < last->begin || size > last->end - offset); i++) {
        const rmq_files *const files = &core->logs[i];
        const uint8_t *const found = rmq_locate(files, offset, size);
        if (found == NULL)
            continue;
        const int64_t position = (offset - files->first_offset) % files->file_size;
        *last = (log_piece){found - position, offset - position, offset - position + files->file_size};
    }
    return offset < last->begin || size > last->end - offset ? NULL : last->view + (offset - last->begin);
}

int rmq_is_message(const uint8_t *record, int64_t size, rmq_text topic, int64_t queue_id, int64_t queue_offset,
                   rmq_record_places *places)
{
    return rmq_load_int(record) == size && rmq_load_int(record + QUEUE_ID_POSITION) == queue_id
        && rmq_load_long(record + QUEUE_OFFSET_POSITION) == queue_offset
        && rmq_measure_record(record, 0, (size_t)size, places) == RMQ_END
        && places->topic_length == (size_t)topic.length
        && memcmp(record + places->topic, topic.at, places->topic_length) == 0;
}

/* Return whether a message matches the program, or RMQ_MATCH_PYTHON if Python must decide. */
static int match_record(const rmq_sql_program *program, const uint8_t *record, int64_t size, rmq_text topic,
                        int64_t queue_id, int64_t queue_offset)
{
    rmq_record_places places;

    if (!rmq_is_message(record, size, topic, queue_id, queue_offset, &places))
        return RMQ_MATCH_PYTHON;
    const int result = rmq_sql_match(program, record + places.properties, (int64_t)places.properties_length);
    return rmq_lost_pages() > 0 && rmq_is_lost(record, size) ? RMQ_MATCH_PYTHON : result;
}

/* Messages of a queue are scattered over the log; this fetches all of a page while the first is read. */
static void prefetch_message(const uint8_t *message, int64_t size)
{
    for (int64_t i = 0; i < size && i < PREFETCH_BYTES; i += CACHE_LINE)
        __builtin_prefetch(message + i);
}

/* Fetch the head and the properties of a message that a program will examine. */
static void prefetch_properties(const rmq_core *core, const uint8_t *unit, log_piece *last)
{
    const int64_t size = rmq_load_int(unit + 8);
    const uint8_t *const message = read_log(core, rmq_load_long(unit), size, last);

    if (message == NULL)
        return;
    __builtin_prefetch(message);
    __builtin_prefetch(message + CACHE_LINE);
    __builtin_prefetch(message + size - CACHE_LINE);
    __builtin_prefetch(message + size - 1);
}

/* Collect the page that starts at numbers[OFFSET], using only its units, or the properties of their
 * messages if a program decides. Falls back if a unit does not describe a message. */
static int collect(const rmq_core *core, int64_t peer, const int64_t *numbers, const pull_filter *filter,
                   const rmq_queue *queue, rmq_text topic, page *found)
{
    const int64_t end = queue->state[RMQ_QUEUE_END], position = numbers[OFFSET] * UNIT_SIZE;
    int64_t window = numbers[COUNT] > WINDOW_UNITS ? numbers[COUNT] : WINDOW_UNITS;
    const int64_t left_in_file = (queue->files.file_size - position % queue->files.file_size) / UNIT_SIZE;
    int64_t units = (end - position) / UNIT_SIZE;

    if (filter->program != NULL && window > RMQ_SQL_WORK_MAX / filter->program->unit_cost)
        window = RMQ_SQL_WORK_MAX / filter->program->unit_cost;
    units = units < window ? units : window;
    units = units < left_in_file ? units : left_in_file;
    const uint8_t *unit = rmq_locate(&queue->files, position, units * UNIT_SIZE);
    if (unit == NULL)
        return RMQ_NEEDS_PYTHON;
    found->bytes = found->count = 0;
    const int64_t share = filter->program == NULL ? units : 1 + core->scan_work_max / filter->program->unit_cost;
    int64_t scanned = 0, share_end = share;
    log_piece last = {NULL, 0, 0};
    for (; scanned < units; scanned++, unit += UNIT_SIZE) {
        if (scanned == share_end) {
            if (core->log[RMQ_LOG_STAGED] > 0 || rmq_is_another_ready(core, peer))
                break;
            share_end += share;
        }
        const int64_t offset = rmq_load_long(unit), size = rmq_load_int(unit + 8);
        if (is_full(core, found, numbers[COUNT], size, offset < core->confirm_offset - core->memory_distance))
            break;
        if (size == FILLER_SIZE)
            continue;
        if (offset < 0 || size < (int32_t)RMQ_RECORD_SIZE_MIN || size > core->confirm_offset - offset)
            return RMQ_NEEDS_PYTHON;
        if (!has_wanted_tags(filter, rmq_load_long(unit + 12)))
            continue;
        const uint8_t *const message = read_log(core, offset, size, &last);
        if (message == NULL)
            return RMQ_NEEDS_PYTHON;
        if (filter->program != NULL) {
            if (scanned + AHEAD < units)
                prefetch_properties(core, unit + AHEAD * UNIT_SIZE, &last);
            const int result = match_record(filter->program, message, size, topic, numbers[QUEUE_ID],
                                            numbers[OFFSET] + scanned);
            if (result == RMQ_MATCH_PYTHON)
                return RMQ_NEEDS_PYTHON;
            if (result != RMQ_MATCH_TRUE)
                continue;
        }
        if (found->count == PAGE_MAX)
            return RMQ_NEEDS_PYTHON;
        prefetch_message(message, size);
        found->messages[found->count] = message;
        found->offsets[found->count] = numbers[OFFSET] + scanned;
        found->sizes[found->count++] = size;
        found->bytes += size;
    }
    found->next_offset = numbers[OFFSET] + scanned;
    return RMQ_OK;
}

static int all_match_units(const page *found, rmq_text topic, int64_t queue_id)
{
    rmq_record_places places;

    for (int64_t i = 0; i < found->count; i++)
        if (!rmq_is_message(found->messages[i], found->sizes[i], topic, queue_id, found->offsets[i], &places))
            return 0;
    return 1;
}

/* Return whether the copy of a page has zeros in the place of bytes that the disk did not deliver. */
static int has_lost_bytes(const page *found)
{
    if (rmq_lost_pages() == 0)
        return 0;
    for (int64_t i = 0; i < found->count; i++)
        if (rmq_is_lost(found->messages[i], found->sizes[i]))
            return 1;
    return 0;
}

/* Write the reply behind the others; `kind` is that of a JSON header. Returns its length. */
static int64_t write_page(const rmq_core *core, const rmq_request *request, int kind, const page *found,
                          const rmq_queue *queue)
{
    uint8_t *const out = core->out + core->out_used;
    rmq_answer answer = {.opaque = request->opaque};

    answer.numbers[RMQ_NEXT_OFFSET] = found->next_offset;
    answer.numbers[RMQ_LOW_OFFSET] = queue->state[RMQ_QUEUE_MIN] / UNIT_SIZE;
    answer.numbers[RMQ_HIGH_OFFSET] = queue->state[RMQ_QUEUE_END] / UNIT_SIZE;
    uint8_t *at = rmq_put_reply(core, &core->replies[kind + request->binary], &answer, found->bytes, out);
    for (int64_t i = 0; i < found->count; i++) {
        memcpy(at, found->messages[i], (size_t)found->sizes[i]);
        at += found->sizes[i];
    }
    return at - out;
}

void rmq_record_commit(rmq_core *core, const rmq_reader *reader, int64_t queue_id, int64_t offset)
{
    const rmq_offset_commit commit = {reader - core->readers, queue_id, offset};

    if (queue_id < reader->offset_count)
        reader->offsets[queue_id] = offset;
    for (int64_t i = core->commit_count - 1; i >= 0 && i >= core->commit_count - 8; i--)
        if (core->commits[i].reader == commit.reader && core->commits[i].queue_id == commit.queue_id) {
            core->commits[i] = commit;
            return;
        }
    core->commits[core->commit_count++] = commit;
}

/* Let a pull at the end of its queue wait. */
static int hold(rmq_core *core, int64_t peer, const rmq_reader *reader, const int64_t *numbers, const pull_filter *filter,
                rmq_slice frame)
{
    const rmq_topic *const topic = &core->topics[reader->topic];
    const rmq_pull_to_hold pull = {
        .peer = peer,
        .topic = topic,
        .program = filter->program,
        .tags = filter->codes,
        .tag_count = filter->count,
        .queue_id = (int32_t)numbers[QUEUE_ID],
        .offset = numbers[OFFSET],
        .wait_ms = numbers[SUSPEND],
        .frame = frame,
    };
    const int commits = (numbers[SYS_FLAG] & FLAG_COMMIT) != 0;

    if (commits && core->commit_count == core->commit_capacity)
        return -RMQ_OUT_FULL;
    if (!rmq_hold_pull(core, &pull))
        return RMQ_NEEDS_PYTHON;
    core->queues[topic->queues[numbers[QUEUE_ID]]].state[RMQ_QUEUE_WATCHED] |= RMQ_WATCHED_BY_HOLD;
    if (commits)
        rmq_record_commit(core, reader, numbers[QUEUE_ID], numbers[COMMIT_OFFSET]);
    core->answered++;
    core->misses++;
    return RMQ_OK;
}

int rmq_pull(rmq_core *core, int64_t peer, const rmq_request *request, rmq_slice frame)
{
    const int is_first = frame.at != NULL;
    int64_t numbers[NUMBER_COUNT];
    page found;
    pull_filter filter;
    int kind = RMQ_PULL_JSON;

    if (!core->pull_enabled || core->peers[peer].no_pull
        || !rmq_read_numbers(request->texts, RULES, NUMBER_COUNT, numbers)
        || (numbers[SYS_FLAG] & ~(FLAG_COMMIT | FLAG_SUSPEND | FLAG_SUBSCRIPTION)) != 0)
        return RMQ_NEEDS_PYTHON;
    rmq_reader *const reader = rmq_find_reader(core, request->texts[PULL_GROUP], request->texts[PULL_TOPIC]);
    if (reader == NULL || numbers[QUEUE_ID] < 0 || numbers[QUEUE_ID] >= reader->read_queues
        || !choose_filter(core, request->texts, numbers, reader, &filter)
        || (is_first && !rmq_is_authorized(core, request, (rmq_slice){NULL, 0}, reader->accounts)))
        return RMQ_NEEDS_PYTHON;
    core->peers[peer].filters = filter.program != NULL;
    const rmq_topic *const topic = &core->topics[reader->topic];
    if (numbers[QUEUE_ID] >= topic->queue_count || topic->queues[numbers[QUEUE_ID]] < 0)
        return RMQ_NEEDS_PYTHON;
    const int commits = is_first && (numbers[SYS_FLAG] & FLAG_COMMIT) != 0;
    if (commits && !reader->commits)
        return RMQ_NEEDS_PYTHON;
    const rmq_queue *const queue = &core->queues[topic->queues[numbers[QUEUE_ID]]];
    const int64_t end = queue->state[RMQ_QUEUE_END] / UNIT_SIZE;
    if (numbers[OFFSET] < queue->state[RMQ_QUEUE_MIN] / UNIT_SIZE || numbers[OFFSET] > end)
        return RMQ_NEEDS_PYTHON;
    if (numbers[OFFSET] == end) {
        if (!core->queues_complete)
            return RMQ_NEEDS_PYTHON;
        if (is_first && (numbers[SYS_FLAG] & FLAG_SUSPEND))
            return hold(core, peer, reader, numbers, &filter, frame);
        if (end == 0)
            return RMQ_NEEDS_PYTHON;
        kind = RMQ_END_JSON;
        found.count = found.bytes = 0;
        found.next_offset = end;
    } else if (is_first && filter.program != NULL && core->scan_work >= core->scan_work_max) {
        return -RMQ_OUT_SHARE;
    } else if (!collect(core, peer, numbers, &filter, queue, request->texts[PULL_TOPIC], &found)
               || !all_match_units(&found, request->texts[PULL_TOPIC], numbers[QUEUE_ID])) {
        return RMQ_NEEDS_PYTHON;
    } else if (found.count == 0) {
        kind = RMQ_MISS_JSON;
    }
    if (filter.program != NULL)
        core->scan_work += (found.next_offset - numbers[OFFSET]) * filter.program->unit_cost;
    if (core->out_capacity < RMQ_REPLY_MAX + found.bytes)
        return RMQ_NEEDS_PYTHON;
    if (core->out_capacity - core->out_used < RMQ_REPLY_MAX + found.bytes
        || core->outgoing_count == core->outgoing_capacity || core->commit_count == core->commit_capacity)
        return -RMQ_OUT_FULL;
    const int64_t length = write_page(core, request, kind, &found, queue);
    if (has_lost_bytes(&found))
        return RMQ_NEEDS_PYTHON;
    if (commits)
        rmq_record_commit(core, reader, numbers[QUEUE_ID], numbers[COMMIT_OFFSET]);
    core->answered += is_first;
    if (found.count == 0) {
        core->misses++;
    } else {
        if (reader->found == 0)
            core->touched[core->touched_count++] = reader - core->readers;
        reader->found++;
        reader->messages += found.count;
    }
    if (!(request->flag & RMQ_FLAG_ONEWAY))
        rmq_add_outgoing(core, peer, length, 0, 0);
    return RMQ_OK;
}

int rmq_resume(rmq_core *core)
{
    const rmq_held *pull;
    rmq_model model;

    model.property_count = 0;
    model.can_split_properties = 0;
    while ((pull = rmq_first_due(core)) != NULL) {
        if (core->hold->work_left <= 0 || core->scan_work >= core->scan_work_max)
            return RMQ_AGAIN;
        const rmq_slice frame = rmq_held_frame(core->hold, pull);
        model.begin = NULL;
        const int verdict = rmq_read_request(frame.at, (int64_t)frame.length, &model)
                                ? rmq_pull(core, pull->peer, &model.request, (rmq_slice){NULL, 0})
                                : RMQ_NEEDS_PYTHON;
        if (verdict < 0)
            return -verdict;
        rmq_peer *const to = &core->peers[pull->peer];
        core->hold->work_left -= to->resumed_in == core->hold->slice ? 1 : 1 + RMQ_REPLY_WORK;
        to->resumed_in = core->hold->slice;
        rmq_release_due(core->hold);
        if (verdict == RMQ_NEEDS_PYTHON) {
            core->hold->taken = frame.at;
            core->hold->taken_length = (int64_t)frame.length;
            core->hold->taken_peer = pull->peer;
            return RMQ_FALLBACK;
        }
    }
    return RMQ_DONE;
}
