/* The fuzz target: passes one input through the core, with every buffer exactly as long as its usable part.
 *
 * Byte 0 selects what the rest is:
 *
 *   bits 0-1   0, 1  frames of one connection, for a classic or a DLedger log
 *              2, 3  a piece of a classic or a DLedger log to scan; 3 also encodes a batch push from it, 2 also
 *                    applies it as an SQL92 program: number of steps, three bytes for each, properties
 *   bit 2            0, 1  buffers so small that they are always full
 *                    2     also the list of a batch push
 *                    3     little space for the text of a push
 *   bits 3-6         frames: the bytes per read, divided by 16; 0: all at once
 *   bit 7            frames: access control is on; run.py signs for the two accounts
 *
 * A read is a turn as in rmqpy/broker/fastpath/engine.py: feed, commit, dispatch, and a few of the delayed messages and
 * of the held pulls that are due. Time passes from turn to turn, and the connection changes now and then. Everything that was appended must be
 * readable.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../rmqpy_native.h"

#define TOPICS 3
#define ACCOUNTS 2 /* account i may do everything with topic i */
#define QUEUES 2
#define SLOTS 8
#define LOG_BYTES 49152
#define QUEUE_BYTES (20 * 160)
#define INDEX_SLOTS 16
#define INDEX_ENTRIES 200
#define GATHERED_BYTES (20 * 40)
#define ROWS 256
#define HELD 16
#define WORK_OF_SLICE 12
#define DELIVERED 4
#define CLUSTER_NAME "DefaultCluster"
#define REPLY_TEXT "{\"code\":0,\"opaque\":,\"extFields\":{\"a\":\"\",\"b\":\"\"}}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const int64_t DELAYS[QUEUES] = {1000, 7200000};
static const char *const TOPIC_NAMES[TOPICS] = {"fuzz", "TopicTest", "%RETRY%group"};
static const char GROUP[] = "group";
static const char *const ACCOUNT_KEYS[ACCOUNTS] = {"one", "other"};
static const char *const SECRETS[ACCOUNTS] = {
    "short", "a secret of more than one block, which is hashed before it is used as a key"};

/* a > 1 AND b = 'x', and constants of all kinds for other programs */
static const char EXPRESSION[] = "a > 1 AND b = 'x'";
static const rmq_sql_step STEPS[] = {
    {RMQ_STEP_PROPERTY, 0, 0}, {RMQ_STEP_SKIP_NULL, 0, 2}, {RMQ_STEP_CONSTANT, 0, 0},
    {RMQ_STEP_ORDER, RMQ_ORDER_GREATER, 0}, {RMQ_STEP_SKIP, 0, 4}, {RMQ_STEP_PROPERTY, 1, 0},
    {RMQ_STEP_CONSTANT, 1, 0}, {RMQ_STEP_EQUAL, 0, 0}, {RMQ_STEP_COMBINE, 0, 0},
};
static const rmq_sql_value CONSTANTS[] = {
    {.kind = RMQ_VALUE_INT, .number = 1},
    {.kind = RMQ_VALUE_TEXT, .text = (const uint8_t *)"x", .length = 1},
    {.kind = RMQ_VALUE_TEXT, .text = (const uint8_t *)"\xC3\xBC", .length = 2},
    {.kind = RMQ_VALUE_LONG, .number = INT64_MAX},
    {.kind = RMQ_VALUE_DOUBLE, .real = -1.5},
    {.kind = RMQ_VALUE_TRUTH, .number = 1},
    {.kind = RMQ_VALUE_NULL},
};
static const rmq_sql_value NAMES_OF_PROGRAM[] = {
    {.kind = RMQ_VALUE_TEXT, .text = (const uint8_t *)"a", .length = 1},
    {.kind = RMQ_VALUE_TEXT, .text = (const uint8_t *)"b", .length = 1},
};
static rmq_sql_program PROGRAM = {STEPS, CONSTANTS, NAMES_OF_PROGRAM, sizeof STEPS / sizeof *STEPS,
                                        sizeof CONSTANTS / sizeof *CONSTANTS, 2, 40, 0, 0};

static void *allocate(size_t size)
{
    void *const memory = calloc(size ? size : 1, 1);

    if (memory == NULL)
        abort();
    return memory;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken invariant: %s\n", what);
        abort();
    }
}

/* Instead of socket.c: another connection is ready now and then. */
int rmq_is_another_ready(const rmq_core *core, int64_t peer)
{
    return (core->answered + peer) % 2 != 0;
}

/* The memory of a broker that C works on. */
typedef struct {
    rmq_core core;
    rmq_dispatch_state dispatch;
    int32_t cells[TOPICS][QUEUES], places[TOPICS][QUEUES], codes[1];
    int64_t state[TOPICS * QUEUES][4];
    uint8_t *queue_files[TOPICS * QUEUES];
    const uint8_t *queue_views[TOPICS * QUEUES], *log_views[1], *index_views[1];
    int64_t offsets[TOPICS][QUEUES];
    uint8_t *log_file, reader_keys[TOPICS][32];
    int64_t log[6], dispatched;
    rmq_account accounts[ACCOUNTS];
    uint64_t stored;
    rmq_hold hold;
    int64_t turns, delivered;
} test_broker;

static void add_name(const rmq_table *table, const void *key, size_t length, int64_t item)
{
    rmq_slot *const slot = rmq_find_slot(table, key, length);

    slot->key = key;
    slot->key_length = (uint32_t)length;
    slot->item = item;
}

static void add_names(test_broker *broker)
{
    rmq_core *const core = &broker->core;

    core->topic_table = (rmq_table){allocate(SLOTS * sizeof(rmq_slot)), SLOTS - 1, 0};
    core->reader_table = (rmq_table){allocate(SLOTS * sizeof(rmq_slot)), SLOTS - 1, 0};
    core->topics = allocate(TOPICS * sizeof(rmq_topic));
    core->readers = allocate(TOPICS * sizeof(rmq_reader));
    core->queues = allocate(TOPICS * QUEUES * sizeof(rmq_queue));
    core->tails = allocate(TOPICS * QUEUES * sizeof(int64_t));
    core->touched = allocate(TOPICS * sizeof(int64_t));
    broker->codes[0] = 2598919; /* of TagA */
    for (int topic = 0; topic < TOPICS; topic++) {
        const size_t length = strlen(TOPIC_NAMES[topic]);
        for (int queue = 0; queue < QUEUES; queue++) {
            const int place = topic * QUEUES + queue;
            broker->cells[topic][queue] = broker->places[topic][queue] = place;
            broker->queue_files[place] = allocate(QUEUE_BYTES);
            broker->queue_views[place] = broker->queue_files[place];
            broker->state[place][RMQ_QUEUE_WATCHED] = queue;
            core->queues[place] = (rmq_queue){.state = broker->state[place], .tail = broker->queue_files[place],
                                              .tail_capacity = QUEUE_BYTES, .tail_size = QUEUE_BYTES,
                                              .files = {&broker->queue_views[place], 0, QUEUE_BYTES, 1}};
        }
        core->topics[topic] = (rmq_topic){broker->cells[topic], broker->places[topic], QUEUES, QUEUES, 0,
                                          (int32_t)length, UINT64_C(1) << topic, (const uint8_t *)TOPIC_NAMES[topic],
                                          topic == 2, 3, topic == 2, topic != 2};
        core->readers[topic] = (rmq_reader){.topic = topic, .codes = broker->codes, .code_count = topic == 1,
                                            .subscribed = 1, .read_queues = QUEUES, .commits = 1,
                                            .accounts = UINT64_C(1) << topic,
                                            .program = topic == 0 ? &PROGRAM : NULL,
                                            .expression = (const uint8_t *)EXPRESSION,
                                            .expression_length = sizeof EXPRESSION - 1,
                                            .expression_program = &PROGRAM,
                                            .offsets = broker->offsets[topic], .offset_count = topic};
        memcpy(broker->reader_keys[topic], GROUP, sizeof GROUP); /* including its zero byte */
        memcpy(broker->reader_keys[topic] + sizeof GROUP, TOPIC_NAMES[topic], length);
        add_name(&core->topic_table, TOPIC_NAMES[topic], length, topic);
        add_name(&core->reader_table, broker->reader_keys[topic], sizeof GROUP + length, topic);
    }
}

static void set_reply_templates(rmq_core *core)
{
    static const int32_t ENDS[] = {19, 38, 46};

    for (int kind = 0; kind < RMQ_REPLY_COUNT; kind++) {
        const int sends = kind == RMQ_SEND_JSON || kind == RMQ_SEND_BINARY;
        rmq_reply *const reply = &core->replies[kind];
        *reply = (rmq_reply){.text = (const uint8_t *)REPLY_TEXT, .field_count = 3,
                             .text_length = (int32_t)strlen(REPLY_TEXT), .ext_length_at = 17,
                             .binary = kind % 2};
        memcpy(reply->ends, ENDS, sizeof ENDS);
        reply->field[0] = RMQ_OPAQUE;
        reply->field[1] = sends ? RMQ_MSG_ID : RMQ_NEXT_OFFSET;
        reply->field[2] = sends ? RMQ_QUEUE_START : RMQ_HIGH_OFFSET;
    }
}

static void add_accounts(test_broker *broker)
{
    for (int i = 0; i < ACCOUNTS; i++) {
        rmq_account *const account = &broker->accounts[i];
        account->key = (const uint8_t *)ACCOUNT_KEYS[i];
        account->key_length = (uint32_t)strlen(ACCOUNT_KEYS[i]);
        rmq_set_secret(account, (const uint8_t *)SECRETS[i], strlen(SECRETS[i]));
    }
    broker->core.accounts = broker->accounts;
    broker->core.account_count = ACCOUNTS;
}

static test_broker *new_broker(int dledger, int small)
{
    test_broker *const broker = allocate(sizeof *broker);
    rmq_core *const core = &broker->core;

    add_names(broker);
    set_reply_templates(core);
    add_accounts(broker);
    core->frame_max = 1 << 24;
    core->fallback_capacity = small ? 1 : 4;
    core->fallback = allocate((size_t)core->fallback_capacity * sizeof(rmq_span));
    core->out_capacity = small ? RMQ_REPLY_MAX + 1500 : 1 << 16;
    core->out_share = small ? 600 : 1 << 14;
    core->out = allocate((size_t)core->out_capacity);
    core->outgoing_capacity = small ? 2 : 64;
    core->outgoing = allocate((size_t)core->outgoing_capacity * sizeof(rmq_outgoing));
    core->peers = allocate(sizeof(rmq_peer));
    core->peers[0] = (rmq_peer){.fd = -1, .port = 12345, .ip_length = small ? 16 : 4};
    core->staging_capacity = small ? 1200 : 1 << 15;
    core->staging = allocate((size_t)core->staging_capacity);
    core->log = broker->log;
    broker->log[RMQ_LOG_FILE_END] = LOG_BYTES;
    core->file_size = LOG_BYTES;
    core->message_max = small ? 1000 : 1 << 14;
    core->now_ms = 1700000000000;
    core->dledger = dledger;
    core->entries_left = 100;
    core->units_capacity = small ? 2 : 64;
    core->units = allocate((size_t)core->units_capacity * 32);
    core->cluster = (const uint8_t *)CLUSTER_NAME;
    core->cluster_length = (int64_t)strlen(CLUSTER_NAME);
    core->store_ip_length = small ? 16 : 4;
    core->store_port = 10911;
    core->send_enabled = core->pull_enabled = core->copy_enabled = core->offsets_enabled = 1;
    core->queues_complete = 1;
    core->delay_topic = 0;
    core->half_topic = 1;
    core->op_topic = 2;
    core->delays = DELAYS;
    core->delay_count = QUEUES;
    core->allows_wait_false = !small;
    core->scratch_capacity = small ? 64 : 4096;
    core->scratch = allocate((size_t)core->scratch_capacity);
    broker->log_file = allocate(LOG_BYTES);
    broker->log_views[0] = broker->log_file;
    core->logs[0] = (rmq_files){broker->log_views, 0, LOG_BYTES, 1};
    core->memory_distance = small ? 600 : LOG_BYTES;
    core->near_bytes = 1 << 14;
    core->near_count = 32;
    core->far_bytes = 2000;
    core->far_count = 3;
    core->scan_work_max = small ? 100 : 4000;
    core->commit_capacity = small ? 1 : 8;
    core->commits = allocate((size_t)core->commit_capacity * sizeof(rmq_offset_commit));
    core->returned_capacity = small ? 1 : 4;
    core->returned = allocate((size_t)core->returned_capacity * sizeof(rmq_returned));
    broker->hold = (rmq_hold){.pulls = allocate((HELD + 1) * sizeof(rmq_held)), .data = allocate(HELD * RMQ_HELD_BYTES),
                              .buckets = allocate(2 * sizeof(rmq_held_list)), .bucket_mask = 1, .capacity = HELD,
                              .limit = small ? 3 : HELD + 1, .wait_ms = small ? 3000 : -1};
    core->hold = &broker->hold;
    broker->dispatch.index = allocate(40 + INDEX_SLOTS * 4 + INDEX_ENTRIES * 20);
    broker->index_views[0] = broker->dispatch.index;
    core->index = (rmq_key_index){broker->index_views, 1, INDEX_SLOTS, INDEX_ENTRIES, small ? 1 : 8, 2};
    broker->dispatch.index_slots = INDEX_SLOTS;
    broker->dispatch.index_entries = INDEX_ENTRIES;
    broker->dispatch.arrival_capacity = small ? 1 : 16;
    broker->dispatch.arrivals = allocate((size_t)broker->dispatch.arrival_capacity * sizeof(rmq_arrival));
    broker->dispatch.gathered_count = small ? 2 : 0;
    broker->dispatch.gathered_capacity = GATHERED_BYTES;
    broker->dispatch.gathered = allocate(2 * sizeof(rmq_gathered));
    broker->dispatch.gathered_units = allocate(2 * GATHERED_BYTES);
    broker->dispatch.gathered_entries = small ? allocate(INDEX_ENTRIES * 20) : NULL;
    return broker;
}

static void free_broker(test_broker *broker)
{
    rmq_core *const core = &broker->core;
    void *const owned[] = {core->topic_table.slots, core->reader_table.slots, core->topics, core->readers, core->queues,
                           core->tails, core->touched, core->fallback, core->out, core->outgoing, core->peers,
                           core->staging, core->units, core->scratch, broker->log_file, core->commits,
                           core->returned,
                           broker->dispatch.gathered, broker->dispatch.gathered_units,
                           broker->dispatch.gathered_entries,
                           broker->dispatch.index, broker->dispatch.arrivals, broker->hold.pulls, broker->hold.data,
                           broker->hold.buckets};

    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    for (int place = 0; place < TOPICS * QUEUES; place++)
        free(broker->queue_files[place]);
    free(broker);
}

/* Write the staged bytes to the file. */
static void commit(test_broker *broker)
{
    rmq_core *const core = &broker->core;
    const int64_t staged = broker->log[RMQ_LOG_STAGED], from = broker->log[RMQ_LOG_END] - staged;

    check(staged >= 0 && staged <= core->staging_capacity && broker->log[RMQ_LOG_END] <= LOG_BYTES - 8,
          "more staged than the buffer or the file holds");
    memcpy(broker->log_file + from, core->staging, (size_t)staged);
    broker->log[RMQ_LOG_STAGED] = broker->log[RMQ_LOG_UNITS] = 0;
    core->confirm_offset = broker->log[RMQ_LOG_END];
}

/* Send the replies; each must be a frame of the right length. */
static void flush_replies(rmq_core *core)
{
    int64_t at = 0;

    check(core->outgoing_count <= core->outgoing_capacity && core->out_used <= core->out_capacity,
          "more replies than the buffer holds");
    for (int64_t i = 0; i < core->outgoing_count; i++) {
        const int64_t end = core->outgoing[i].start + core->outgoing[i].length;
        check(core->outgoing[i].start == at, "replies are not adjacent");
        for (int64_t left = core->outgoing[i].replies; left > 0; left--)
            at += 4 + (int64_t)rmq_load32(core->out + at);
        check(at == end, "a reply has the wrong length");
    }
    core->outgoing_count = core->out_used = core->commit_count = core->touched_count = core->scan_work = 0;
    core->returned_count = 0;
    for (int topic = 0; topic < TOPICS; topic++)
        core->readers[topic].found = core->readers[topic].messages = 0;
}

/* Write what was gathered, as Python does. */
static void write_gathered(test_broker *broker)
{
    const rmq_dispatch_state *const state = &broker->dispatch;
    rmq_index_header header;

    for (int64_t i = 0; i < state->gathered_count; i++) {
        const rmq_gathered *const place = &state->gathered[i];
        check(place->length <= GATHERED_BYTES && place->end + place->length <= QUEUE_BYTES, "more units than fit");
        if (place->length > 0)
            memcpy(broker->queue_files[place->queue] + place->end,
                   state->gathered_units + i * state->gathered_capacity, (size_t)place->length);
    }
    rmq_load_index_header(state->index, &header);
    check(header.index_count <= INDEX_ENTRIES, "more entries than fit");
    if (state->gathered_entries != NULL && header.index_count > state->gathered_first_entry)
        memcpy(rmq_index_entry(state->index, state->index_slots, state->gathered_first_entry), state->gathered_entries,
               (size_t)(header.index_count - state->gathered_first_entry) * RMQ_INDEX_ENTRY_SIZE);
}

static void dispatch(test_broker *broker)
{
    broker->dispatch.view = broker->log_file + broker->dispatched;
    broker->dispatch.length = broker->core.confirm_offset - broker->dispatched;
    broker->dispatch.base_offset = broker->dispatched;
    broker->dispatch.dledger = broker->core.dledger;
    rmq_dispatch(&broker->core, &broker->dispatch);
    write_gathered(broker);
    check(broker->dispatch.position <= broker->dispatch.length, "dispatched past the end of the log");
    broker->dispatched += broker->dispatch.position;
}

/* Deliver a few of the messages that wait in the first queue of the delay topic. */
static void deliver(test_broker *broker)
{
    const int64_t end = broker->state[0][RMQ_QUEUE_END] / 20;
    int64_t messages[2 * DELIVERED], count = 0;

    for (; count < DELIVERED && broker->delivered < end; count++, broker->delivered++) {
        const uint8_t *const unit = broker->queue_files[0] + 20 * broker->delivered;
        messages[2 * count] = rmq_load_long(unit);
        messages[2 * count + 1] = rmq_load_int(unit + 8);
    }
    check(rmq_deliver(&broker->core, messages, count) <= count, "more was delivered than given");
    commit(broker);
}

/* Check that each pull is in one list, and that the counts are right. */
static void check_hold(const rmq_hold *hold)
{
    int64_t states[3] = {0}, due = 0, waiting = 0;

    for (int32_t number = 1; number <= hold->used; number++)
        states[hold->pulls[number].state]++;
    for (int32_t number = hold->due.first; number != 0 && due <= HELD; number = hold->pulls[number].next)
        due++;
    for (uint32_t bucket = 0; bucket <= hold->bucket_mask; bucket++)
        for (int32_t number = hold->buckets[bucket].first; number != 0 && waiting <= HELD;
             number = hold->pulls[number].next)
            waiting++;
    check(hold->used <= HELD && hold->count <= hold->limit, "more pulls wait than may");
    check(due == hold->due_count && due == states[RMQ_HELD_DUE], "the pulls that are due are not all listed");
    check(waiting == hold->count && waiting == states[RMQ_HELD_WAITING], "the waiting pulls are not all listed");
}

/* Answer a few of the pulls that are due; the rest waits for the next turn. */
static void resume_held(test_broker *broker)
{
    rmq_core *const core = &broker->core;

    broker->turns++;
    broker->hold.now_ms += 1000;
    if (broker->turns % 5 == 0)
        rmq_hold_sweep(core);
    if (broker->turns % 11 == 0)
        core->peers[0].generation++;
    broker->hold.slice++;
    broker->hold.work_left = WORK_OF_SLICE;
    for (;;) {
        const int status = rmq_resume(core);
        check_hold(&broker->hold);
        check(core->hold->work_left > -1 - RMQ_REPLY_WORK, "more was resumed than allowed");
        if (status != RMQ_FALLBACK && status != RMQ_OUT_FULL) {
            check(status == RMQ_AGAIN || (status == RMQ_DONE && broker->hold.due_count == 0), "pulls were not resumed");
            break;
        }
        check(status == RMQ_FALLBACK || core->outgoing_count > 0 || core->commit_count > 0, "a full buffer without content");
        flush_replies(core);
    }
    flush_replies(core);
}

/* Check that recovery would accept everything that was appended. */
static void check_log(const test_broker *broker)
{
    int64_t *const cells = allocate(ROWS * RMQ_COLUMN_COUNT * sizeof(int64_t));
    uint8_t *const view = allocate((size_t)broker->core.confirm_offset);
    rmq_scan_state scan = {.view = view, .length = (size_t)broker->core.confirm_offset,
                           .dledger = (int32_t)broker->core.dledger, .check_crc = 1, .cells = cells, .max_records = ROWS};

    memcpy(view, broker->log_file, scan.length);
    const enum rmq_stop stop = rmq_scan(&scan);
    check(stop == RMQ_LIMIT || (stop == RMQ_END && (int64_t)scan.count == broker->core.put_messages),
          "an appended record is not readable");
    free(view);
    free(cells);
}

/* Run one turn over `length` bytes. Returns how many of them belong to an incomplete frame, or -1
 * at the end of the stream. */
static int64_t run_turn(test_broker *broker, const uint8_t *data, int64_t length)
{
    rmq_core *const core = &broker->core;
    int64_t rest = -1;

    core->in = allocate((size_t)length);
    core->in_position = 0;
    core->in_length = core->in_capacity = length;
    memcpy(core->in, data, (size_t)length);
    for (;;) {
        const int status = rmq_feed(core, 0);
        check(core->in_position <= core->in_length && core->fallback_count <= core->fallback_capacity,
              "fed past the end of a buffer");
        if (status == RMQ_FALLBACK || (status == RMQ_OUT_SHARE && core->out_used >= core->out_share))
            continue;
        if (status == RMQ_OUT_SHARE && core->scan_work >= core->scan_work_max) {
            commit(broker);
            flush_replies(core);
            continue;
        }
        if (status == RMQ_COMMIT && broker->log[RMQ_LOG_STAGED] > 0)
            commit(broker);
        else if (status == RMQ_OUT_FULL
                 && (core->outgoing_count > 0 || core->commit_count > 0 || core->returned_count > 0))
            flush_replies(core);
        else {
            if (status == RMQ_DONE || status == RMQ_PARTIAL)
                rest = core->in_length - core->in_position;
            check(rest >= 0 || status == RMQ_BAD_FRAME || status == RMQ_ROLL, "a status without a cause");
            break;
        }
    }
    commit(broker);
    flush_replies(core);
    dispatch(broker);
    deliver(broker);
    resume_held(broker);
    free(core->in);
    return rest;
}

static int contains(const uint8_t *data, int64_t size, const char *text)
{
    const int64_t length = (int64_t)strlen(text);

    for (int64_t at = 0; at + length <= size; at++)
        if (memcmp(data + at, text, (size_t)length) == 0)
            return 1;
    return 0;
}

static void feed_stream(const uint8_t *data, int64_t size, uint8_t mode)
{
    const int small = mode >> 2 & 1;
    const int64_t step = (mode >> 3 & 15) * 16;
    test_broker *const broker = new_broker(mode & 1, small);
    int64_t start = 0, rest = 0;

    broker->core.acl_enabled = mode >> 7;
    while (rest >= 0 && start + rest < size) {
        const int64_t more = size - start - rest;
        const int64_t length = rest + (step == 0 || step > more ? more : step);
        rest = run_turn(broker, data + start, length);
        start += length - (rest > 0 ? rest : 0);
    }
    check(!broker->core.acl_enabled || broker->core.answered == 0
              || (contains(data, size, "AccessKey") && contains(data, size, "Signature")),
          "a request without a signature was answered");
    check_log(broker);
    free_broker(broker);
}

static void run_program(const uint8_t *data, size_t size)
{
    rmq_sql_program program = PROGRAM;
    const size_t count = size > 0 ? data[0] : 0, rest = size > 0 ? size - 1 : 0;

    if (count == 0 || rest / 3 < count)
        return;
    rmq_sql_step *const steps = allocate(count * sizeof *steps);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *const step = data + 1 + 3 * i;
        steps[i] = (rmq_sql_step){step[0] % (RMQ_STEP_COUNT + 1), (int8_t)step[1], (int8_t)step[2]};
    }
    uint8_t *const properties = allocate(rest - 3 * count);
    memcpy(properties, data + 1 + 3 * count, rest - 3 * count);
    program.steps = steps;
    program.step_count = (int32_t)count;
    if (rmq_sql_check(&program)) {
        const int result = rmq_sql_match(&program, properties, (int64_t)(rest - 3 * count));
        check(result >= RMQ_MATCH_UNKNOWN && result <= RMQ_MATCH_PYTHON, "a result that is none");
    }
    free(properties);
    free(steps);
}

/* Find the ends of queues with room for a few, and continue where it is used up. */
static void find_ends(const uint8_t *view, size_t size, int dledger)
{
    rmq_queue_end ends[3];
    int32_t table[8];
    rmq_ends_state state = {.dledger = dledger, .table = table, .table_mask = 7, .ends = ends, .end_capacity = 3};
    enum rmq_stop stop = RMQ_LIMIT;
    size_t position = 0;

    while (stop == RMQ_LIMIT) {
        state.view = view + position;
        state.length = size - position;
        state.base_offset = (int64_t)position;
        stop = rmq_find_ends(&state);
        check(stop != RMQ_LIMIT || state.position > 0, "ends are found without end");
        check(state.position <= state.length && state.end_count <= 3, "a search for ends went past its view");
        for (size_t i = 0; i < state.end_count; i++)
            check(rmq_is_within(state.length, ends[i].topic_position, ends[i].topic_length), "a topic is outside the view");
        position += state.position;
    }
    check(stop != RMQ_END || position == size, "a search for ends stopped before the end");
}

static void scan_piece(const uint8_t *data, size_t size, int dledger)
{
    uint8_t *const view = allocate(size);
    int64_t *const cells = allocate(ROWS * RMQ_COLUMN_COUNT * sizeof(int64_t));

    memcpy(view, data, size);
    for (int32_t check_crc = 0; check_crc < 2; check_crc++) {
        rmq_scan_state scan = {.view = view, .length = size, .dledger = dledger, .check_crc = check_crc, .cells = cells,
                               .max_records = ROWS};
        const enum rmq_stop stop = rmq_scan(&scan);
        check(scan.position <= size && scan.count <= ROWS, "a scan went past its view");
        check(stop != RMQ_END || scan.position == size, "a scan returned END before the end");
        for (size_t i = 0; i < scan.count; i++) {
            const int64_t *const row = cells + i * RMQ_COLUMN_COUNT;
            check((size_t)(row[RMQ_PROPERTIES_POSITION] + row[RMQ_PROPERTIES_LENGTH]) <= size,
                  "properties are outside the view");
            check((size_t)(row[RMQ_KEYS_POSITION] + row[RMQ_KEYS_LENGTH]) <= size, "keys are outside the view");
            check((size_t)(row[RMQ_TOPIC_POSITION] + row[RMQ_TOPIC_LENGTH]) <= size, "a topic is outside the view");
        }
    }
    find_ends(view, size, dledger);
    for (size_t position = 0, count = 1; count > 0;) {
        count = rmq_received(view, size, position, cells, ROWS);
        check(count <= ROWS, "more records than there is space for");
        for (size_t i = 0; i < count; i++) {
            const int64_t *const row = cells + i * RMQ_RECEIVED_COLUMNS;
            check(row[0] >= (int64_t)RMQ_RECORD_SIZE_MIN && (size_t)row[0] <= size - position,
                  "a record is outside the view");
            check(row[3] >= (int64_t)rmq_head_size(0) && row[3] < row[0], "a body is outside its record");
            position += (size_t)row[0];
        }
    }
    check(rmq_crc32(view, size) == rmq_crc32_portable(view, size), "the CRC implementations disagree");
    const int64_t magic = rmq_find_magic(view, size, size / 4, size), end = rmq_content_end(view, size, size / 4);
    check(magic < (int64_t)size && end >= (int64_t)(size / 4) && end <= (int64_t)size,
          "a search result is outside the view");
    free(cells);
    free(view);
}

/* Walk the same bytes without telling queues apart, then read them as the units of a queue. */
static void pool_piece(rmq_tally_state *state)
{
    rmq_pooled_units units = {.view = state->view, .length = (int64_t)state->length, .high = INT64_MAX, .first = -1, .place = -1};

    state->pooled = 1;
    state->digests = 0;
    state->queues = memset(state->queues, 0, sizeof(rmq_tally_queue));
    state->position = 0;
    while (state->position < state->length) {
        const enum rmq_stop stop = rmq_tally(state);
        check(stop != RMQ_NEW_QUEUE && state->position <= state->length, "a pooled tally went past its buffer");
        state->event_count = 0;
        if (stop != RMQ_LIMIT)
            state->position++;
    }
    rmq_pool_units(&units);
    check(units.position <= units.length && units.count * 20 <= units.position, "units went past their buffer");
}

static void tally_piece(const uint8_t *data, size_t size, int dledger)
{
    enum { CAPACITY = 64, TABLE = 128 };
    uint8_t *const view = allocate(size);
    rmq_tally_state state = {.view = view, .length = size, .stop = size, .dledger = dledger, .check_crc = 1, .digests = 1,
                             .check_keys = 1, .key_high = INT64_MAX, .queues = allocate(CAPACITY * sizeof(rmq_tally_queue)),
                             .table = allocate(TABLE * sizeof(int32_t)), .table_mask = TABLE - 1,
                             .events = allocate(CAPACITY * 6 * sizeof(int64_t)), .event_capacity = CAPACITY,
                             .buckets = allocate(CAPACITY * 6 * sizeof(int64_t)), .bucket_capacity = CAPACITY,
                             .blocks = allocate(2 * ((size >> 16) + 1) * sizeof(int64_t)), .first_frame = -1,
                             .first_index = -1, .last_index = -1, .min_store_ms = -1, .max_store_ms = -1};
    int32_t queues = 0;

    memcpy(view, data, size);
    memset(state.table, 0xFF, TABLE * sizeof(int32_t));
    while (state.position < size) {
        const enum rmq_stop stop = rmq_tally(&state);
        check(state.position <= size && state.event_count <= CAPACITY && state.bucket_count <= CAPACITY,
              "a tally went past its buffers");
        state.event_count = state.bucket_count = 0;
        if (stop == RMQ_NEW_QUEUE && queues < CAPACITY) {
            rmq_record_places places;
            const size_t record = state.position + (dledger ? RMQ_ENTRY_HEADER_SIZE : 0);
            check(rmq_measure_record(view, record, size - record, &places) == RMQ_END,
                  "NEW_QUEUE without a valid record");
            state.queues[queues] = (rmq_tally_queue){.topic = view + places.topic, .topic_length = places.topic_length,
                                                     .queue_id = rmq_load_int(view + record + 12), .next_queue_offset = -1};
            rmq_tally_add_queue(&state, queues++);
        } else if (stop == RMQ_NEW_QUEUE) {
            break;
        } else if (stop != RMQ_LIMIT) {
            state.position++;
        }
    }
    pool_piece(&state);
    free(state.queues);
    free(state.table);
    free(state.events);
    free(state.buckets);
    free(state.blocks);
    free(view);
}

/* The same capacities as in rmqpy/codec/native/entry_batch.py. */
static int decode_list(rmq_run *run, const uint8_t *text, int64_t length)
{
    const int64_t count_max = length / 90 + 1;

    *run = (rmq_run){.source = text, .source_length = length, .target = allocate((size_t)length + 256),
                     .target_capacity = length + 256, .count_max = count_max < ROWS ? count_max : ROWS};
    run->units = allocate((size_t)run->count_max * 32);
    const int found = rmq_run_decode(run);
    check(run->count <= run->count_max && run->size <= run->target_capacity, "a run went past its buffers");
    return found;
}

static void free_run(rmq_run *run)
{
    free(run->target);
    free(run->units);
}

static void check_units(const rmq_run *run)
{
    int64_t position = run->first_position;

    for (int64_t i = 0; i < run->count; i++) {
        const uint8_t *const unit = run->units + i * 32;
        check(rmq_load_long(unit + 4) == position && rmq_load_long(unit + 16) == run->first_index + i,
              "an index unit does not match its entry");
        position += rmq_load_int(unit + 12);
    }
    check(position == run->first_position + run->size, "index units do not add up to the size of the run");
}

/* Check that a push was staged after the bytes that were staged already, or else has changed nothing. */
static void check_staged(const rmq_grant *grant, const int64_t *before, const rmq_run *run, int accepted)
{
    const int64_t *const log = grant->log;

    check(accepted || memcmp(before, log, sizeof(int64_t) * (RMQ_LOG_TERM + 1)) == 0,
          "a rejected push has moved the end of the log");
    if (!accepted)
        return;
    check(log[RMQ_LOG_STAGED] == before[RMQ_LOG_STAGED] + run->size && log[RMQ_LOG_STAGED] <= grant->staging_capacity,
          "a push staged past the buffer");
    check(log[RMQ_LOG_END] == before[RMQ_LOG_END] + run->size && log[RMQ_LOG_INDEX] == run->first_index + run->count
              && log[RMQ_LOG_UNITS] == before[RMQ_LOG_UNITS] + run->count && log[RMQ_LOG_TERM] == run->last_term,
          "the end of the log does not match the push");
    check(memcmp(grant->staging + before[RMQ_LOG_STAGED], run->target, (size_t)run->size) == 0,
          "the entries differ from those pushed");
    check(memcmp(grant->units + before[RMQ_LOG_UNITS] * 32, run->units, (size_t)run->count * 32) == 0,
          "the index units differ from those pushed");
}

/* Check a granted push of a run in binary, whole, cut, and with each byte of its head changed. */
static void check_binary(const rmq_run *run, rmq_grant *grant, const int64_t *before)
{
    enum { HEAD = 40, NAMES = 6 };
    const int64_t length = HEAD + NAMES + run->size;
    uint8_t *const body = allocate((size_t)length);
    const int64_t place = run->first_position % grant->file_size;
    int64_t *const log = grant->log;

    memcpy(body, "RDP1", 4);
    rmq_store32(body + 4, NAMES);
    rmq_store_long(body + 8, grant->term);
    rmq_store_long(body + 16, 7);
    rmq_store_long(body + 24, run->first_index);
    rmq_store32(body + 32, (uint32_t)run->count);
    rmq_store32(body + 36, (uint32_t)run->size);
    memcpy(body + HEAD, "\001g\001a\001b", NAMES);
    memcpy(body + HEAD + NAMES, run->target, (size_t)run->size);
    grant->members = (const uint8_t *)"\001g\001a\001b";
    grant->members_length = NAMES;
    for (int64_t short_of = 1; short_of < 60 && short_of < length; short_of++) {
        uint8_t *const piece = allocate((size_t)(length - short_of));
        memcpy(piece, body, (size_t)(length - short_of));
        check_staged(grant, before, run, 0 != rmq_push_take_run(grant, piece, length - short_of));
        check(memcmp(before, log, sizeof(int64_t) * (RMQ_LOG_TERM + 1)) == 0, "an incomplete push was accepted");
        free(piece);
    }
    for (int64_t at = 0; at < HEAD + NAMES; at++) {
        if (at >= 16 && at < 24)
            continue; /* any committed index will do */
        body[at] ^= 0x81;
        check(!rmq_push_take_run(grant, body, length), "a push with a changed head was accepted");
        check_staged(grant, before, run, 0);
        body[at] ^= 0x81;
    }
    const int accepted = rmq_push_take_run(grant, body, length);
    check_staged(grant, before, run, accepted);
    check(accepted || grant->staging_capacity - before[RMQ_LOG_STAGED] < run->size || place == 0
              || place + run->size + 8 > grant->file_size, "a granted push was rejected");
    memcpy(log, before, sizeof(int64_t) * (RMQ_LOG_TERM + 1));
    free(body);
}

/* Check that a granted push of a list is staged after the bytes that are staged already, or else
 * changes nothing. */
static void check_push(const rmq_run *run, const uint8_t *list, int64_t length, int64_t capacity)
{
    enum { BEFORE = 5, TEXT = 400 };
    const int64_t size = length + TEXT, file_size = INT64_C(1) << 40, place = run->first_position % file_size;
    char *const text = allocate((size_t)size);
    const int used = snprintf(text, (size_t)size, "{\"batch\":true,\"batchEntry\":%.*s,\"code\":200,\"commitIndex\":%lld,"
                              "\"count\":%lld,\"firstEntryIndex\":%lld,\"group\":\"g\",\"lastEntryIndex\":%lld,\"term\":%lld,"
                              "\"totalSize\":%lld,\"type\":\"APPEND\"}", (int)length, (const char *)list, 7LL,
                              (long long)run->count, (long long)run->first_index,
                              (long long)(run->first_index + run->count - 1), (long long)run->last_term, (long long)run->size);
    char names[40];
    const int64_t file_end = run->first_position - place + file_size;
    int64_t log[RMQ_LOG_TERM + 1] = {run->first_position, BEFORE, file_end, run->first_index, 1, run->first_term};
    int64_t before[RMQ_LOG_TERM + 1];
    rmq_grant grant = {.group = ",\"group\":\"g\",\"lastEntryIndex\":", .names = names, .term = run->last_term,
                       .file_size = file_size, .staging = allocate((size_t)capacity), .staging_capacity = capacity,
                       .units = allocate(((size_t)run->count + 1) * 32), .units_capacity = run->count + 1, .log = log};
    uint8_t *const body = allocate((size_t)used);

    check(used < size, "the text of a push was truncated");
    memcpy(body, text, (size_t)used);
    memcpy(before, log, sizeof log);
    snprintf(names, sizeof names, ",\"term\":%lld,\"totalSize\":", (long long)run->last_term);
    for (int64_t short_of = 1; short_of < 4 && short_of < used; short_of++) {
        check(!rmq_push_take(&grant, body, used - short_of), "an incomplete push was accepted");
        check(memcmp(before, log, sizeof log) == 0, "a rejected push has moved the end of the log");
    }
    check_binary(run, &grant, before);
    const int accepted = rmq_push_take(&grant, body, used);
    check_staged(&grant, before, run, accepted);
    check(accepted || capacity < 2 * length || place == 0 || place + run->size + 8 > file_size,
          "a granted push was rejected");
    free(grant.staging);
    free(grant.units);
    free(body);
    free(text);
}

/* Check that a list that is accepted as a run has index units that lead through it. */
static void read_list(const uint8_t *data, size_t size)
{
    uint8_t *const text = allocate(size);
    rmq_run run;

    memcpy(text, data, size);
    if (decode_list(&run, text, (int64_t)size)) {
        check(run.used <= (int64_t)size && text[run.used - 1] == ']', "a list has no closing bracket at its end");
        check_units(&run);
        check_push(&run, text, run.used, 2 * run.used + 512);
        check_push(&run, text, run.used, run.size + 5);
    }
    free_run(&run);
    free(text);
}

/* Return whether the numbers of a run have at most 18 digits, as in a log. */
static int is_short(const rmq_run *run)
{
    return run->last_term < 1000000000000000000;
}

/* Check that entries of a data file, encoded to a list and decoded again, are the same bytes. */
static void push_piece(const uint8_t *data, size_t size, int small)
{
    const int64_t limit = INT64_C(1) << 50, capacity = small ? 700 : (int64_t)size * 2 + 512;
    uint8_t *const view = allocate(size), *const text = allocate((size_t)capacity + 2);
    rmq_run run = {.source = view, .source_length = (int64_t)size, .target = text + 1, .target_capacity = capacity,
                   .units = allocate(ROWS * 32), .count_max = ROWS, .size_max = small ? 300 : (int64_t)size};

    memcpy(view, data, size);
    if (size >= RMQ_ENTRY_HEADER_SIZE) { /* a caller knows index and position of the first entry */
        run.first_index = rmq_load_long(view + 8) & (limit - 1);
        run.first_position = rmq_load_long(view + 24) & (limit - 1);
    }
    rmq_run_read(&run, 0);
    check(run.count <= ROWS && run.size <= (int64_t)size, "a run that was read is too long");
    if (run.count > 0)
        check_units(&run);
    const int64_t count_read = run.count, size_read = run.size;
    rmq_run_read(&run, 1);
    check(run.count <= count_read && run.size <= size_read, "a run is longer if its records are examined");
    run.count_max = run.count;
    rmq_run_encode(&run);
    check(run.count <= run.count_max && run.target_length <= capacity, "encoding went past its buffers");
    check(small || run.count == run.count_max, "a run that was read was not encoded");
    if (run.count > 0 && is_short(&run)) {
        rmq_run back;
        text[0] = '[';
        text[run.target_length + 1] = ']';
        check(decode_list(&back, text, run.target_length + 2), "an encoded list was not decoded");
        check(back.count == run.count && back.size == run.size && memcmp(back.target, view, (size_t)run.size) == 0,
              "the entries differ from those pushed");
        check_units(&back);
        check_push(&back, text, run.target_length + 2, 2 * run.target_length + 512);
        check_push(&back, text, run.target_length + 2, back.size + 5);
        free_run(&back);
    }
    free(run.units);
    free(text);
    free(view);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || size > 1 << 16)
        return 0;
    if (data[0] & 2) {
        scan_piece(data + 1, size - 1, data[0] & 1);
        tally_piece(data + 1, size - 1, data[0] & 1);
        if (data[0] & 1)
            push_piece(data + 1, size - 1, data[0] >> 2 & 1);
        else if (data[0] >> 2 & 1)
            read_list(data + 1, size - 1);
        else
            run_program(data + 1, size - 1);
    } else
        feed_stream(data + 1, (int64_t)size - 1, data[0]);
    return 0;
}
