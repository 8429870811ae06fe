/* The C core: buffer in, buffer out. Rules and files: README.md beside this header.
 *
 * The lines between the two cffi marks are both this header's body and the cdef of build_native.py.
 */
#ifndef RMQPY_NATIVE_H
#define RMQPY_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* cffi: begin */

/* CRC-32 (IEEE) with the sign bit cleared, as RocketMQ stores it. */
uint32_t rmq_crc32(const uint8_t *data, size_t length);

/* CRC-32 by the table code only, whatever the processor can do; for comparing the two. */
uint32_t rmq_crc32_portable(const uint8_t *data, size_t length);

/* Whether rmq_crc32 uses the carry-less multiplication of this processor. */
int rmq_crc32_is_accelerated(void);

/* Columns of one row of a scan: the fields of rmqpy.codec.scan.Scan before `topic`, in that order. */
enum rmq_column {
    RMQ_FRAME_OFFSET,
    RMQ_OFFSET,
    RMQ_SIZE,
    RMQ_QUEUE_ID,
    RMQ_QUEUE_OFFSET,
    RMQ_PHYSICAL_OFFSET,
    RMQ_SYS_FLAG,
    RMQ_FLAG,
    RMQ_BORN_TIMESTAMP,
    RMQ_STORE_TIMESTAMP,
    RMQ_RECONSUME_TIMES,
    RMQ_PREPARED_TRANSACTION_OFFSET,
    RMQ_TAGS_CODE,
    RMQ_DELAY_LEVEL,
    RMQ_TOPIC_POSITION,
    RMQ_TOPIC_LENGTH,
    RMQ_PROPERTIES_POSITION,
    RMQ_PROPERTIES_LENGTH,
    RMQ_UNIQ_KEY_HASH,
    RMQ_KEYS_POSITION,
    RMQ_KEYS_LENGTH,
    RMQ_ENTRY_INDEX,
    RMQ_TERM,
    RMQ_COLUMN_COUNT
};

/* Why a scan ended: rmqpy.codec.scan.StopReason. */
enum rmq_stop {
    RMQ_END,
    RMQ_BLANK,
    RMQ_ZERO,
    RMQ_BAD_MAGIC,
    RMQ_BAD_SIZE,
    RMQ_TRUNCATED,
    RMQ_BAD_FIELDS,
    RMQ_BAD_CRC,
    RMQ_LIMIT,
    RMQ_NEW_QUEUE /* of rmq_tally only */
};

/* A walk over the records of `view`, which begins at offset `base_offset` of the log.
 * The caller sets the first seven fields; `cells` has room for max_records rows. rmq_scan sets the rest. */
typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset;
    int32_t dledger;
    int32_t check_crc;
    int64_t *cells;
    size_t max_records;
    size_t count;      /* rows filled */
    size_t position;   /* behind the last good record and its framing */
} rmq_scan_state;

enum rmq_stop rmq_scan(rmq_scan_state *state);

/* Where the magic code of a record begins, between `start` and before `stop`; -1: nowhere. */
int64_t rmq_find_magic(const uint8_t *view, size_t length, size_t start, size_t stop);

/* Behind the last byte that is not zero, at least `position`. */
int64_t rmq_content_end(const uint8_t *view, size_t length, size_t position);

/* Where parts of a record stand in the view: the fields of rmqpy.codec.columns.Parts, in that order. */
enum rmq_part {
    RMQ_PART_BODY,
    RMQ_PART_BODY_LENGTH,
    RMQ_PART_BODY_CRC,
    RMQ_PART_CRC_AGREES,
    RMQ_PART_BORN_HOST,
    RMQ_PART_BORN_HOST_LENGTH,
    RMQ_PART_STORE_HOST,
    RMQ_PART_STORE_HOST_LENGTH,
    RMQ_PART_TAGS,
    RMQ_PART_TAGS_LENGTH,
    RMQ_PART_COUNT
};

/* Of the records `shift` behind `frames`, a row of RMQ_PART_COUNT cells each. 0: one of them is no record. */
int rmq_record_parts(const uint8_t *view, size_t length, const int64_t *frames, size_t count, int64_t shift,
                     int32_t check_crc, int64_t *cells);

/* Parts of the view back to back. 0: one is not within the view, or `room` is too small. */
int rmq_gather(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
               uint8_t *data, size_t room);

/* Parts of the view as views of Arrow's layout, of 16 bytes each, into one buffer that is the view. 0: one is not within
 * the view, or begins behind what 31 bits can say. */
enum { RMQ_VIEW_SIZE = 16 };
int rmq_part_views(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
                   uint8_t *data);

/* Equal parts of the view get equal numbers, from 0 in the order of first appearance; firsts[number] is the row of that.
 * `table` has mask + 1 cells, a power of two of at least twice the count. Returns how many different ones there are; -1:
 * one is not within the view, or too many fall on one place of the table. */
int64_t rmq_number_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                         size_t count, int32_t *table, size_t mask, int32_t *numbers, int32_t *firsts);

/* The properties in property strings: where name and value stand, four cells each; those of string i begin at
 * starts[i], which has count + 1 cells. Room for RMQ_PROPERTIES_ROOM properties a string. Returns how many there
 * are; -1 where a string is not for C. */
enum { RMQ_PROPERTIES_ROOM = 24 };
int64_t rmq_property_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                           size_t count, int32_t *starts, int64_t *cells);

/* The fast path: rmqpy/broker/fastpath/engine.py owns all of this memory, docs/explanation/fast-path.md explains it. */

/* Tables by name: open addressing, a key of NULL is free. Keys are kept alive by the owner. */
typedef struct {
    const uint8_t *key;
    uint32_t key_length;
    uint32_t hash;
    int64_t item;
} rmq_slot;

typedef struct {
    rmq_slot *slots;
    uint32_t mask; /* slots - 1, slots a power of two, never all used */
    uint32_t reserved;
} rmq_table;

/* The slot of a key, or the free one where it belongs. */
rmq_slot *rmq_find_slot(const rmq_table *table, const uint8_t *key, size_t length);

/* A row of mapped files of one size; a view of NULL is not mapped. */
typedef struct {
    const uint8_t **views;
    int64_t first_offset;
    int64_t file_size;
    int64_t count;
} rmq_files;

typedef struct {
    const int32_t *cells; /* a queue's place in rmq_core.tails; -1: not known */
    int32_t *queues;      /* its place in rmq_core.queues; -1: not known */
    int32_t send_queues;  /* a queue id below may be sent to; 0: C takes no sends */
    int32_t queue_count;  /* length of `queues` */
    int32_t sys_flag;     /* added to that of every message */
    int32_t reserved;
    uint64_t accounts; /* who may send to it: a bit for each of rmq_core.accounts */
} rmq_topic;

/* state: what store/consume_queue.py keeps of the queue, shared. */
enum rmq_queue_state { RMQ_QUEUE_END, RMQ_QUEUE_MIN, RMQ_QUEUE_MAX_PHYSICAL, RMQ_QUEUE_WATCHED };

typedef struct {
    int64_t *state;
    uint8_t *tail;      /* the file that takes the next unit, writable; NULL: not known */
    int64_t tail_first; /* its first byte's place in the queue */
    int64_t tail_room;  /* how many of its bytes may be written */
    rmq_files files;    /* for reading */
} rmq_queue;

/* What a consumer group may read of a topic. */
typedef struct {
    int64_t topic;       /* in rmq_core.topics */
    int64_t sub_version; /* of the subscription that its heartbeat made */
    const int32_t *codes; /* hashes of its tags; code_count 0: every message */
    int32_t code_count;
    int32_t subscribed;  /* 0: only with an expression in the request */
    int32_t read_queues;
    int32_t commits;     /* the group has an offset table for the topic: it may commit */
    int64_t found;       /* answers with messages, and the messages, since Python last took them */
    int64_t messages;
    uint64_t accounts; /* who may read as this group */
} rmq_reader;

/* Of access control: the key that names an account, and HMAC-SHA1 behind the first block of each of its hashes. */
typedef struct {
    const uint8_t *key;
    uint32_t key_length;
    uint32_t inner[5], outer[5];
} rmq_account;

/* sha1.c: what whole blocks make of the state of a hash; the second one only without special instructions. */
void rmq_take_blocks(uint32_t *state, const uint8_t *at, size_t count);
void rmq_take_blocks_portable(uint32_t *state, const uint8_t *at, size_t count);

void rmq_set_secret(rmq_account *account, const uint8_t *secret, size_t length);

typedef struct {
    int32_t fd; /* -1: closed */
    int32_t port;
    int32_t ip_length;
    int32_t no_pull; /* a port where pulling is no request */
    int32_t queued;  /* bytes wait for it outside: nothing may overtake them */
    int32_t apart;   /* rmq_receive_ready leaves it to Python: something is kept for its next read */
    uint8_t ip[16];
} rmq_peer;

/* A reply: literal i ends at ends[i] of `text`, then comes field[i]. `text` begins with the header.
 * Fields are texts, in binary headers with their length in front (the opaque is 4 bytes there). */
enum rmq_field { RMQ_OPAQUE, RMQ_MSG_ID, RMQ_QUEUE_NUMBER, RMQ_QUEUE_START, RMQ_NEXT_OFFSET, RMQ_LOW_OFFSET, RMQ_HIGH_OFFSET };

typedef struct {
    const uint8_t *text;
    int32_t ends[8];
    int32_t field[8];
    int32_t field_count;
    int32_t text_length;
    int32_t ext_length_at; /* binary: where the length of the ext fields stands */
    int32_t binary;
} rmq_reply;

typedef struct {
    int64_t peer;
    int64_t start, length; /* in rmq_core.out */
    int64_t log_end;       /* the log must be acknowledged up to here; 0: nothing to wait for */
    int64_t sent;          /* by rmq_send; negative: -errno */
    int64_t replies;
} rmq_outgoing;

typedef struct {
    int64_t start, length; /* of a frame without its length word, in rmq_core.in */
} rmq_span;

typedef struct {
    int64_t reader, queue_id, offset;
} rmq_offset_commit;

/* log: what the log keeps of its end, shared (store/staging.py). */
enum rmq_log_state { RMQ_LOG_END, RMQ_LOG_STAGED, RMQ_LOG_FILE_END, RMQ_LOG_INDEX, RMQ_LOG_UNITS, RMQ_LOG_TERM };

enum rmq_kind { RMQ_SEND_JSON, RMQ_SEND_BINARY, RMQ_PULL_JSON, RMQ_PULL_BINARY, RMQ_REPLY_COUNT };

typedef struct {
    /* input: frames stand in [in_position, in_length) */
    uint8_t *in;
    int64_t in_capacity, in_length, in_position;
    int64_t frame_max; /* without the length word */
    rmq_span *cold;
    int64_t cold_capacity, cold_count;
    /* output, collected over a turn */
    uint8_t *out;
    int64_t out_capacity, out_used;
    rmq_outgoing *outgoing;
    int64_t outgoing_capacity, outgoing_count;
    rmq_peer *peers;
    /* connections that can be read, of this turn (the others have the next one): those before ready_next have been seen to */
    int32_t ready[1024];
    int32_t ready_count, ready_next;
    int32_t ready_fd; /* an epoll descriptor; -1: none */
    rmq_reply replies[4]; /* by rmq_kind */
    /* names */
    rmq_table topic_table, reader_table;
    rmq_topic *topics;
    rmq_reader *readers;
    rmq_queue *queues;
    /* writing */
    int64_t *tails;
    uint8_t *staging;
    int64_t staging_capacity;
    int64_t *log;
    int64_t wanted; /* RMQ_ROLL: bytes that did not fit the file */
    int64_t file_size;
    int64_t message_max;
    int64_t now_ms;
    int64_t dledger;
    int64_t term, entries_left;
    uint8_t *units;
    int64_t units_capacity;
    const uint8_t *cluster; /* the name, and the hash of "CLUSTER" is ours */
    int64_t cluster_length;
    uint8_t store_ip[16];
    int32_t store_ip_length, store_port;
    int32_t send_enabled, pull_enabled;
    int32_t wait_false_is_hot; /* a reply that need not wait waits for nothing else either */
    int32_t reserved;
    int64_t put_messages, put_bytes; /* since Python last took them */
    int64_t answered;                /* requests, one-way ones too; likewise */
    uint8_t *scratch;
    int64_t scratch_capacity;
    /* reading */
    rmq_files logs[2];
    int64_t log_min, confirm_offset, memory_distance;
    int64_t near_bytes, near_count, far_bytes, far_count;
    rmq_offset_commit *commits;
    int64_t commit_capacity, commit_count;
    int64_t *touched; /* readers with counts that Python has not taken; room for every reader */
    int64_t touched_count;
    /* access control */
    const rmq_account *accounts; /* at most 64 */
    int32_t account_count;
    int32_t guarded; /* only what an account has signed that may do it is hot */
} rmq_core;

enum rmq_status {
    RMQ_DONE,     /* everything was used */
    RMQ_PARTIAL,  /* no complete frame is left, but the begin of one */
    RMQ_COLD,     /* frames are listed in `cold` for Python; then go on */
    RMQ_ROLL,     /* the log's file cannot take `wanted` bytes: make room, then go on */
    RMQ_COMMIT,   /* staging is full: write it, then go on */
    RMQ_OUT_FULL, /* end the turn, then go on */
    RMQ_BAD_FRAME, /* the length at in_position is against the rule */
    RMQ_CLOSED,   /* rmq_receive: the peer has ended the stream */
    RMQ_AGAIN,    /* rmq_receive: nothing there */
    RMQ_FAILED,   /* rmq_receive: an error; `wanted` is errno */
    RMQ_APART,    /* rmq_receive_ready: Python has to read this one */
    RMQ_NONE_LEFT /* rmq_receive_ready: all have been seen to */
};

/* Answer the hot frames of `in` up to the first that is not. No sockets, no files. */
int rmq_feed(rmq_core *core, int64_t peer);

/* The shims around it: receive behind `have` bytes that stand in `in` already, then feed. */
int rmq_receive(rmq_core *core, int64_t peer, int64_t have);

/* All connections of `ready_fd` that can be read, one rmq_receive each, as long as they end with RMQ_DONE. Any other end is
   returned, of the last one before ready_next; then go on. Nobody is looked for but at the begin: each has one turn. */
int rmq_receive_ready(rmq_core *core, int begin);

/* Whether a connection is among those of `ready_fd`; ready_fd is opened by the first one, where the system can. 0, or errno. */
int rmq_watch(rmq_core *core, int64_t peer, int wanted);
void rmq_watch_none(rmq_core *core);

/* Send what was collected; returns how many entries did not leave whole. */
int64_t rmq_send(rmq_core *core);

/* From the log to consume queues and key index: the records of `view`, as store/dispatch.py does it. */
typedef struct {
    int64_t queue, queue_offset, tags_code, physical_offset, store_timestamp;
} rmq_arrival;

typedef struct {
    const uint8_t *view;
    int64_t length;
    int64_t base_offset;
    int64_t dledger;
    uint8_t *index; /* the file that takes the next entry; NULL: none is kept */
    int64_t index_slots, index_entries;
    rmq_arrival *arrivals; /* of watched queues */
    int64_t arrival_capacity, arrival_count;
    int64_t position;       /* behind the last record that was taken */
    int64_t store_timestamp; /* its time */
} rmq_dispatch_state;

/* Stops in front of the first record that it does not know how to take. */
void rmq_dispatch(const rmq_core *core, rmq_dispatch_state *state);

/* Units and keys of the rows of a scan, rmqpy.codec.packing. `row`: of the scan, the run's first; `position`: in units. */
typedef struct {
    int64_t row, first, count, position;
} rmq_pack_run;

typedef struct {
    const uint8_t *view;
    size_t length;
    const int64_t **columns; /* by rmq_column, of a scan of `view` */
    size_t count;
    int32_t *table;          /* more than `count` places, table_mask + 1 */
    size_t table_mask;
    int32_t *run_of;         /* room for count, as in `runs` and `units` */
    rmq_pack_run *runs;
    size_t run_count;
    uint8_t *units;
    uint8_t *keys;           /* NULL: none are wanted */
    size_t key_room, key_count;
} rmq_pack_state;

/* 0: rows that are not for C (keys beyond ASCII, too many). */
int rmq_pack(rmq_pack_state *state);

/* Packed keys into an index file, as many as there is room for; returns how many. */
size_t rmq_put_keys(uint8_t *index, size_t length, int64_t slots, const uint8_t *keys, size_t count);

/* A run: entries one right behind the other in one data file, and the JSON list of a batch push (push.c).
 * `source`, `target` and what is *_max or *_capacity are the caller's; so are the first two places for rmq_run_encode. */
typedef struct {
    const uint8_t *source;
    int64_t source_length;
    uint8_t *target;
    int64_t target_capacity;
    uint8_t *units; /* rmq_run_decode: the index units, room for count_max */
    int64_t count_max, size_max;
    int64_t first_index, first_position, first_size, first_term;
    int64_t last_term, count, size; /* size: of all entries, with their headers */
    int64_t target_length; /* rmq_run_encode: of the text */
    int64_t used;       /* rmq_run_decode: of `source`, the brackets included */
} rmq_run;

/* Entries from the begin of `source` on, as long as they are whole and fit, until they have size_max bytes. */
void rmq_run_encode(rmq_run *run);

/* 0: not a list of entries as DLedger writes them, one right behind the other. */
int rmq_run_decode(rmq_run *run);

/* What a follower has decided of the next batch push, and where it goes: rmqpy/dledger/follower.py, store/staging.py. */
typedef struct {
    const char *group; /* the push's text from its first index to its last one, with the group's name */
    const char *names; /* from there to its size: members and term */
    int64_t term;      /* of the leader */
    int64_t file_size;
    uint8_t *staging;
    int64_t staging_capacity;
    uint8_t *units;
    int64_t units_capacity;
    int64_t *log; /* by rmq_log_state */
    int64_t first_index, count, commit_index; /* of the push that was taken */
} rmq_grant;

/* Stages the entries of a push that the grant lets in, behind the end of the log and in its file. 0: not such a push,
 * nothing has changed. */
int rmq_push_take(rmq_grant *grant, const uint8_t *body, int64_t length);

/* What rmq_tally finds wrong with a frame that can be walked over: rmqpy.codec.tally.kernel.EventKind. */
enum rmq_event {
    RMQ_EVENT_BODY_CRC,
    RMQ_EVENT_PLACE,
    RMQ_EVENT_PROPERTIES,
    RMQ_EVENT_TOPIC,
    RMQ_EVENT_CHECKSUM,
    RMQ_EVENT_QUEUE_STEP,
    RMQ_EVENT_UNIT,
    RMQ_EVENT_ENTRY_PLACE,
    RMQ_EVENT_ENTRY_INDEX,
    RMQ_EVENT_ENTRY_TERM,
    RMQ_EVENT_ENTRY_RESERVED,
    RMQ_EVENT_ENTRY_UNIT
};

/* rmqpy.codec.tally.kernel.QueueTally. `units`: its consume queue; views of NULL: not looked at. */
typedef struct {
    const uint8_t *topic;
    size_t topic_length;
    int32_t queue_id;
    int32_t any_tags;
    int32_t has_topic; /* it is one by the rule for names; rmq_tally_add_queue sets it */
    int32_t reserved;
    int64_t count, unqueued;
    int64_t first_queue_offset, first_frame, last_queue_offset, last_frame, next_queue_offset;
    int64_t right_units;
    rmq_files units;
    int64_t bucket, bucket_messages; /* digests not yet in rmq_tally_state.buckets */
    uint64_t bucket_content, bucket_place;
} rmq_tally_queue;

/* A walk that checks and counts, rmqpy.codec.tally.kernel: the caller sets all, rmq_tally goes on from there. */
typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset;
    size_t position, stop; /* frames that begin there, before here */
    int32_t dledger, check_crc, digests, check_keys;
    int64_t key_low, key_high;
    rmq_files entry_units;
    rmq_tally_queue *queues;
    int32_t *table; /* open addressing, queue numbers, -1 free; never all used */
    uint32_t table_mask;
    int64_t *events; /* rows of six numbers */
    size_t event_count, event_room;
    int64_t *buckets; /* rows of queue, bucket, messages, content, place */
    size_t bucket_count, bucket_room;
    int64_t *blocks; /* rows of first position and count, from block `first_block` on */
    size_t first_block;
    int64_t records, frame_bytes, body_bytes, version_2;
    int64_t min_store_ms, max_store_ms, largest_record, longest_properties;
    int64_t first_frame, last_frame;
    int64_t first_index, first_term, last_index, last_term;
    int64_t right_entry_units, key_count;
    uint64_t key_sum;
} rmq_tally_state;

/* LIMIT: take events and buckets; NEW_QUEUE: add the queue of the frame at `position`; then call again. */
enum rmq_stop rmq_tally(rmq_tally_state *state);
void rmq_tally_add_queue(rmq_tally_state *state, int32_t number);

/* cffi: end */

/* Shared by the C files only. */

/* Big endian, from and to any address. Said in so many words: left to itself the compiler puts stores that follow each
 * other together in memory first, and waits for that. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define RMQ_BIG32(value) (value)
#define RMQ_BIG64(value) (value)
#else
#define RMQ_BIG32(value) __builtin_bswap32(value)
#define RMQ_BIG64(value) __builtin_bswap64(value)
#endif

static inline uint32_t rmq_load32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return RMQ_BIG32(value);
}

static inline int32_t rmq_load_int(const uint8_t *at)
{
    return (int32_t)rmq_load32(at);
}

static inline int64_t rmq_load_long(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return (int64_t)RMQ_BIG64(value);
}

static inline void rmq_store32(uint8_t *at, uint32_t value)
{
    value = RMQ_BIG32(value);
    memcpy(at, &value, sizeof value);
}

static inline void rmq_store_long(uint8_t *at, int64_t value)
{
    const uint64_t big = RMQ_BIG64((uint64_t)value);

    memcpy(at, &big, sizeof big);
}

/* memcpy of what is mostly short, without a call. */
static inline void rmq_copy(uint8_t *to, const uint8_t *from, size_t length)
{
    if (length > 64) {
        memcpy(to, from, length);
    } else if (length >= 16) {
        for (size_t i = 0; i + 16 < length; i += 16)
            memcpy(to + i, from + i, 16);
        memcpy(to + length - 16, from + length - 16, 16);
    } else if (length >= 8) {
        uint64_t first, last;
        memcpy(&first, from, 8);
        memcpy(&last, from + length - 8, 8);
        memcpy(to, &first, 8);
        memcpy(to + length - 8, &last, 8);
    } else {
        for (size_t i = 0; i < length; i++)
            to[i] = from[i];
    }
}

/* Whether eight bytes are the same. */
static inline int rmq_are_same(const uint8_t *one, const uint8_t *other)
{
    uint64_t first, second;

    memcpy(&first, one, sizeof first);
    memcpy(&second, other, sizeof second);
    return first == second;
}

/* memcmp() == 0 of what is mostly short and the same, without a call. */
static inline int rmq_is_same(const uint8_t *one, const uint8_t *other, size_t length)
{
    size_t i = 0;

    for (; length - i >= 8; i += 8)
        if (!rmq_are_same(one + i, other + i))
            return 0;
    if (length >= 8)
        return rmq_are_same(one + length - 8, other + length - 8);
    while (i < length && one[i] == other[i])
        i++;
    return i == length;
}

/* Whether the eight bytes are ASCII. */
static inline int rmq_are_ascii(const uint8_t *eight)
{
    uint64_t word;

    memcpy(&word, eight, sizeof word);
    return (word & 0x8080808080808080u) == 0;
}

static inline int rmq_is_within(size_t length, int64_t position, int64_t size)
{
    return position >= 0 && size >= 0 && (uint64_t)position <= length && (uint64_t)size <= length - (uint64_t)position;
}

/* Kinds of a transaction's messages: bits of a record's flags. */
#define RMQ_TRANSACTION_MASK 0xC
#define RMQ_TRANSACTION_PREPARED 0x4
#define RMQ_TRANSACTION_ROLLBACK 0xC

/* Whether a consume queue has a unit of such a record. */
static inline int rmq_has_queue_unit(int64_t sys_flag)
{
    const int64_t kind = sys_flag & RMQ_TRANSACTION_MASK;

    return kind != RMQ_TRANSACTION_PREPARED && kind != RMQ_TRANSACTION_ROLLBACK;
}

/* Whether the key index has its keys. */
static inline int rmq_has_keys(int64_t sys_flag)
{
    return (sys_flag & RMQ_TRANSACTION_MASK) != RMQ_TRANSACTION_ROLLBACK;
}

/* The bit of a request's flag that asks for no reply. */
#define RMQ_FLAG_ONEWAY 2

/* What a function says of a frame: Python's, or answered; a negative number is a status for rmq_feed to return. */
#define RMQ_IS_COLD 0
#define RMQ_IS_HOT 1

/* properties.c */

#define RMQ_PROPERTIES_MAX RMQ_PROPERTIES_ROOM

typedef struct {
    const uint8_t *name, *value;
    uint32_t name_length, value_length;
    uint32_t hash; /* of the name; rmq_read_properties sets it */
} rmq_property;

typedef struct {
    rmq_property list[RMQ_PROPERTIES_MAX];
    int count;
} rmq_properties;

/* The next property in [*at, end), which moves on; pieces without name or value are passed over. 0: none. */
int rmq_next_property(const uint8_t **at, const uint8_t *end, rmq_property *found);

static inline int rmq_is_named(const rmq_property *item, const char *name)
{
    return item->name_length == strlen(name) && memcmp(item->name, name, item->name_length) == 0;
}

/* 0: not for C (names beyond ASCII, too many). */
int rmq_read_properties(const uint8_t *raw, int64_t length, rmq_properties *found);
void rmq_order_properties(const rmq_core *core, rmq_properties *found);
uint8_t *rmq_put_properties(uint8_t *out, const rmq_properties *found, int with_wait);

/* What rmq_put_properties may need. */
int64_t rmq_properties_room(const rmq_core *core, int64_t raw_length);

/* Java's String.hashCode of UTF-8 bytes, continued from `hash`. */
uint32_t rmq_java_hash(uint32_t hash, const uint8_t *text, size_t length);

/* Hash of `topic#key` as the key index stores it. */
int64_t rmq_index_key_hash(uint32_t topic_hash, const uint8_t *key, size_t key_length);

/* One code point, or U+FFFD for as many malformed bytes as Java takes together; returns their count. */
size_t rmq_decode_utf8(const uint8_t *at, size_t length, uint32_t *code);

/* index.c */

enum { RMQ_KEYS_MAX = 32 };

typedef struct {
    int64_t begin_timestamp, end_timestamp, begin_offset, end_offset;
    int32_t slot_count, index_count;
} rmq_index_header;

typedef struct {
    int64_t hash, offset, stored; /* of the key; offset and store time of the message */
} rmq_key;

void rmq_load_index_header(const uint8_t *index, rmq_index_header *header);
void rmq_store_index_header(uint8_t *index, const rmq_index_header *header);
uint8_t *rmq_index_slot(uint8_t *index, int64_t slots, int64_t hash);

/* There is room for it. */
void rmq_put_key(uint8_t *index, int64_t slots, rmq_index_header *header, const rmq_key *key);

/* The hashes of a record's keys, UNIQ_KEY first, at most RMQ_KEYS_MAX; -1: Python has to find them. */
int rmq_find_keys(const uint8_t *view, const int64_t *row, int64_t *hashes);

/* base64.c: the end of what was written, or read: up to the quote, *out moves on. There is room for the text. */
uint8_t *rmq_put_base64(uint8_t *out, const uint8_t *body, int64_t length);
const uint8_t *rmq_read_base64(const uint8_t *at, const uint8_t *end, uint8_t **out);

/* append.c */

typedef struct {
    const uint8_t *topic, *body, *own; /* own: properties in front of the others */
    const rmq_properties *properties;
    int64_t topic_length, body_length, own_length;
    int64_t born_timestamp, queue_offset;
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int32_t with_wait; /* WAIT is stored too */
    int32_t reserved;
} rmq_draft;

/* A record but for PHYSICALOFFSET; returns its end, NULL when it is over a limit. There is room. */
uint8_t *rmq_put_record(const rmq_core *core, int64_t peer, const rmq_draft *message, uint8_t *out);

int rmq_staging_has_room(const rmq_core *core, int64_t length, int64_t count);

/* May `total` bytes of `count` records, the largest of `largest`, follow the end of the log in its file? */
int rmq_check_place(rmq_core *core, int64_t total, int64_t largest, int64_t count);

/* The records stand in staging, with room for the framing in front of each: make them part of the log. */
void rmq_append(rmq_core *core, const int64_t *sizes, int64_t count, int64_t *offsets);

/* The bytes [offset, offset + size), NULL when they are not in one mapped file of the row. */
static inline const uint8_t *rmq_locate(const rmq_files *files, int64_t offset, int64_t size)
{
    const int64_t place = offset - files->first_offset;

    if (place < 0 || files->count == 0 || place / files->file_size >= files->count)
        return NULL;
    const uint8_t *const view = files->views[place / files->file_size];
    const int64_t position = place % files->file_size;
    if (view == NULL || size < 0 || size > files->file_size - position)
        return NULL;
    return view + position;
}

/* What the header of a request says; header.c reads it. */
typedef struct {
    const uint8_t *at; /* NULL: absent */
    uint32_t length;
    uint8_t escaped; /* has backslashes: still as in JSON */
    uint8_t high;    /* has bytes above 0x7F */
} rmq_text;

typedef struct {
    const uint8_t *at; /* NULL: not there */
    size_t length;
} rmq_slice;

typedef struct {
    rmq_slice tags, delay, uniq_key, keys;
} rmq_known_properties;

/* Of equal names the last wins; a piece without name or value does not count. */
rmq_known_properties rmq_find_properties(const uint8_t *raw, size_t length);

/* Where the variable parts of a record stand, from the begin of the view. */
typedef struct {
    size_t start, size, head_size, body_length;
    size_t topic, topic_length, properties, properties_length;
} rmq_record_places;

/* Is there a record at `start`, within `rest` bytes? RMQ_END says yes. */
enum rmq_stop rmq_measure(const uint8_t *view, size_t start, size_t rest, rmq_record_places *places);

#define RMQ_TEXTS 14

typedef struct {
    rmq_text texts[RMQ_TEXTS];
    rmq_text opaque_text; /* in JSON */
    rmq_text access_key, signature;
    int32_t other_fields; /* there are ext fields of other names */
    int32_t code, opaque, flag;
    int32_t like; /* says the same as the request before it in the buffer, but for what varies */
    int32_t binary; /* of the frame, like what follows */
    const uint8_t *body;
    int64_t body_length;
} rmq_request;

/* The JSON header that was read last in a buffer: the next one is compared with it before it is read. Properties of a
 * send are compared by name when all names and values are plain; of WAIT the value has to be the same too. */
enum { RMQ_SPLIT_MAX = 12, RMQ_VARYING = 5 + RMQ_SPLIT_MAX, RMQ_SIGNATURE_TEXT = RMQ_TEXTS + 1, RMQ_VALUE };
typedef struct {
    const uint8_t *begin, *end; /* NULL: none yet */
    rmq_request request; /* the last one that was read */
    struct {
        int number; /* of a text; RMQ_TEXTS: the opaque; RMQ_SIGNATURE_TEXT; from RMQ_VALUE on: of a property */
        rmq_text text;
    } varying[RMQ_VARYING]; /* in the order of their places */
    int count;
    int may_split; /* the caller needs no text of all properties */
    int property_count; /* 0: they are one text, which varies */
    rmq_property properties[RMQ_SPLIT_MAX]; /* of `request`, in the order of the text */
} rmq_model;

enum rmq_send_text {
    SEND_GROUP, SEND_TOPIC, SEND_DEFAULT_TOPIC, SEND_DEFAULT_QUEUES, SEND_QUEUE_ID, SEND_SYS_FLAG, SEND_BORN,
    SEND_FLAG, SEND_PROPERTIES, SEND_RECONSUME, SEND_UNIT, SEND_MAX_RECONSUME, SEND_BATCH, SEND_BROKER
};

enum rmq_pull_text {
    PULL_GROUP, PULL_TOPIC, PULL_QUEUE_ID, PULL_OFFSET, PULL_COUNT, PULL_SYS_FLAG, PULL_COMMIT, PULL_SUSPEND,
    PULL_EXPRESSION, PULL_VERSION, PULL_TYPE
};

/* 1: `model->request` holds the frame; 0: it is not one for C. `model` belongs to the buffer; its begin is NULL at first. */
int rmq_read_request(const uint8_t *frame, int64_t length, rmq_model *model);

/* A number of the header: which text, whether it has to be there, the largest value that C takes. */
typedef struct {
    int32_t text, required;
    int64_t maximum;
} rmq_wanted;

/* 0: one is none that C takes. What may be absent is 0 then. */
int rmq_numbers(const rmq_text *texts, const rmq_wanted *wanted, int count, int64_t *values);

static inline int rmq_is_text(rmq_text text, const char *wanted)
{
    return text.length == strlen(wanted) && memcmp(text.at, wanted, text.length) == 0;
}

/* The text without JSON escapes, in `out` (room for text.length bytes); -1: not one for C. */
int64_t rmq_unescape(rmq_text text, uint8_t *out);

/* Room for a reply without its body, at the most. */
#define RMQ_REPLY_MAX 2048

typedef struct {
    int32_t opaque;
    int32_t reserved;
    int64_t numbers[7]; /* by rmq_field */
    const int64_t *offsets; /* of RMQ_MSG_ID */
    int64_t offset_count;
} rmq_answer;

/* Write a frame but for its body of `body_length` bytes; returns where the body goes. */
uint8_t *rmq_put_reply(const rmq_core *core, const rmq_reply *reply, rmq_answer *answer, int64_t body_length,
                       uint8_t *out);

int rmq_out_has_room(const rmq_core *core, int64_t length);

int rmq_pull(rmq_core *core, int64_t peer, const rmq_request *request);

/* access.c: the signature of an account for what the pieces are together. */
#define RMQ_SIGNATURE_LENGTH 28u
void rmq_sign(const rmq_account *account, const rmq_slice *pieces, size_t count, uint8_t *text);

/* Whether one of `accounts` has signed the request. `properties`: those of a send, without escapes. */
int rmq_may(const rmq_core *core, const rmq_request *request, rmq_slice properties, uint64_t accounts);

/* Note that [start, out_used + length) goes to `peer`. There is room for an entry. */
void rmq_note_outgoing(rmq_core *core, int64_t peer, int64_t length, int64_t log_end);

/* The record's numbers: rmqpy/codec/layout.py has the table. */
#define RMQ_MESSAGE_MAGIC_V1 0xDAA320A7u
#define RMQ_MESSAGE_MAGIC_V2 0xDAA320ABu
#define RMQ_BLANK_MAGIC 0xCBD43194u
#define RMQ_BORN_HOST_V6 0x10
#define RMQ_STORE_HOST_V6 0x20
#define RMQ_HOST_V6_EXTRA 12u
#define RMQ_HEAD_SIZE 88u       /* up to and with BODYLENGTH, two IPv4 hosts */
#define RMQ_RECORD_SIZE_MIN 91u
#define RMQ_ENTRY_HEADER_SIZE 48u

static inline size_t rmq_head_size(int32_t sys_flag)
{
    return RMQ_HEAD_SIZE + ((sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u)
           + ((sys_flag & RMQ_STORE_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u);
}

#endif
