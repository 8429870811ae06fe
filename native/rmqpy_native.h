/* The C core: buffer in, buffer out. README.md in this folder has the rules and the list of files.
 * The lines between the two cffi marks are the public part of this header and the cdef of
 * build_native.py. */
#ifndef RMQPY_NATIVE_H
#define RMQPY_NATIVE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* cffi: begin */

/* Return the CRC-32 (IEEE) of `data` with the sign bit cleared, as RocketMQ stores it. */
uint32_t rmq_crc32(const uint8_t *data, size_t length);

/* The same, computed with tables only whatever the processor supports; for comparing the two. */
uint32_t rmq_crc32_portable(const uint8_t *data, size_t length);

/* Return whether rmq_crc32 uses carry-less multiplication on this processor. */
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

/* Why a scan ended; the values of rmqpy.codec.scan.StopReason. */
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
    RMQ_NEW_QUEUE /* rmq_tally only */
};

/* A scan of the records of `view`, which starts at offset `base_offset` of the log. The caller sets
 * the first eight fields, and rmq_scan the rest. `cells` holds max_records rows. */
typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset;
    int32_t dledger;
    int32_t check_crc;
    int32_t skip_properties; /* the columns that are found in properties stay empty */
    int64_t *cells;
    size_t max_records;
    size_t count;    /* rows filled */
    size_t position; /* end of the last valid record, including its framing */
} rmq_scan_state;

enum rmq_stop rmq_scan(rmq_scan_state *state);

/* Measure the records that follow each other from `position` of a response body, up to the first one that is not of
 * version 1 with IPv4 hosts, or is invalid. A row has the size and queue offset of a record, 1 if its body is
 * compressed, and the end of the body in the record. Returns how many rows are filled. */
enum { RMQ_RECEIVED_COLUMNS = 4 };
size_t rmq_received(const uint8_t *data, size_t length, size_t position, int64_t *cells, size_t max_records);

/* Return the first position in [start, stop) at which a record's magic code starts, or -1. */
int64_t rmq_find_magic(const uint8_t *view, size_t length, size_t start, size_t stop);

/* Return the end of the last non-zero byte, but at least `position`. */
int64_t rmq_content_end(const uint8_t *view, size_t length, size_t position);

/* Positions and lengths of the parts of a record; the fields of rmqpy.codec.columns.Parts, in that order. */
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

/* Fill one row of RMQ_PART_COUNT cells per record; record i starts at frames[i] + shift. Returns 0
 * if one of them is not a valid record. */
int rmq_record_parts(const uint8_t *view, size_t length, const int64_t *frames, size_t count, int64_t shift,
                     int32_t check_crc, int64_t *cells);

/* Copy parts of the view into `data`, one directly after the other. Returns 0 if a part is outside
 * the view or they exceed `data_capacity` bytes. */
int rmq_gather(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
               uint8_t *data, size_t data_capacity);

/* Write parts of the view as Arrow string views of 16 bytes each, which refer to the view as their
 * only buffer. Returns 0 if a part is outside the view, or starts beyond the 31 bits of an Arrow
 * offset. */
enum { RMQ_VIEW_SIZE = 16 };
int rmq_part_views(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
                   uint8_t *data);

/* Give equal parts of the view equal numbers, counted from 0 in the order of first appearance;
 * firsts[number] is the row in which it appears first. `table` has mask + 1 cells, a power of two
 * that is at least twice `count`. Returns how many different parts there are, or -1 if a part is
 * outside the view or too many collide in the table. */
int64_t rmq_number_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                         size_t count, int32_t *table, size_t mask, int32_t *numbers, int32_t *firsts);

/* Write position and length of each name and value in the property strings, four cells per
 * property. The properties of string i start at starts[i]; `starts` has count + 1 cells, and
 * `cells` space for RMQ_PROPERTIES_MAX properties per string. Returns how many properties there
 * are, or -1 if only Python can read one of the strings. */
enum { RMQ_PROPERTIES_MAX = 24, RMQ_PROPERTIES_ADDED = 3 }; /* those that a broker may add */
int64_t rmq_property_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                           size_t count, int32_t *starts, int64_t *cells);

/* The fast path. rmqpy/broker/fastpath/engine.py owns all of this memory;
 * docs/explanation/fast-path.md explains it. */

/* A hash table by name with open addressing. A slot with a NULL key is free; the owner keeps the keys alive. */
typedef struct {
    const uint8_t *key;
    uint32_t key_length;
    uint32_t hash;
    int64_t item;
} rmq_slot;

typedef struct {
    rmq_slot *slots;
    uint32_t mask; /* number of slots - 1; a power of two slots, never all used */
    uint32_t reserved;
} rmq_table;

/* Return the slot of `key`, or the free slot where it can be inserted. */
rmq_slot *rmq_find_slot(const rmq_table *table, const uint8_t *key, size_t length);

/* Move the slots in use, except those of removed names, to a larger table. */
void rmq_move_slots(const rmq_slot *slots, size_t count, rmq_table *table);

/* Segments of one size; a view of NULL is not mapped. */
typedef struct {
    const uint8_t **views;
    int64_t first_offset;
    int64_t file_size;
    int64_t count;
} rmq_files;

typedef struct {
    const int32_t *cells; /* by queue id: the index in rmq_core.tails, or -1 if unknown */
    int32_t *queues;      /* by queue id: the index in rmq_core.queues, or -1 if unknown */
    int32_t send_queues;  /* queue ids below this accept sends; 0: C handles no sends */
    int32_t queue_count;  /* length of `queues` */
    int32_t sys_flag;     /* added to the flags of every message */
    int32_t name_length;
    uint64_t accounts; /* the accounts that may send to it, a bit for each of rmq_core.accounts */
    const uint8_t *name;
    int32_t is_retry;        /* a retry topic; the fields below are those of its group */
    int32_t retry_times_max; /* a message that was retried this often becomes a dead letter */
    int32_t accepts_returns; /* C accepts messages that the group sends back */
    int32_t shows_offsets;   /* C answers requests for offsets of its queues */
} rmq_topic;

/* Cells of `state`, which is shared with rmqpy/store/queues/consume_queue.py. */
enum rmq_queue_state { RMQ_QUEUE_END, RMQ_QUEUE_MIN, RMQ_QUEUE_MAX_PHYSICAL, RMQ_QUEUE_WATCHED };

/* Bits of RMQ_QUEUE_WATCHED: whom the arrival of a message in the queue is reported to. The second
 * may be set although nothing waits; the next arrival clears it. */
enum rmq_watcher { RMQ_WATCHED_BY_PYTHON = 1, RMQ_WATCHED_BY_HOLD = 2 };

typedef struct {
    int64_t *state;
    uint8_t *tail;         /* the writable file for the next unit; NULL if unknown */
    int64_t tail_first;    /* offset of its first byte in the queue */
    int64_t tail_capacity; /* how many of its bytes may be written */
    int64_t tail_size;     /* if it is not mapped: how many of its bytes may be written through a descriptor */
    rmq_files files;       /* for reading */
} rmq_queue;

/* An SQL92 expression (sql.c) as steps for a stack of values. Texts are UTF-8. */
enum rmq_sql_step_kind {
    RMQ_STEP_CONSTANT,  /* push the constant `argument` */
    RMQ_STEP_PROPERTY,  /* push the value of the property `argument`, or null */
    RMQ_STEP_TRUTH,     /* replace a value that is not null by false */
    RMQ_STEP_NOT,
    RMQ_STEP_NEGATE,    /* of a number; anything else becomes null */
    RMQ_STEP_IS_NULL,
    RMQ_STEP_EQUAL,     /* compare the last two values */
    RMQ_STEP_IN,        /* among `count` constants from `argument` on */
    RMQ_STEP_ORDER,     /* compare the last two values by the rmq_sql_order `argument` */
    RMQ_STEP_LOW,       /* the same, and put the result below the first value; if it decides a BETWEEN, drop that
                         * value and skip `count` steps */
    RMQ_STEP_SKIP_NULL, /* skip `count` steps if the last value is null */
    RMQ_STEP_SKIP,      /* skip `count` steps if the last value is the truth `argument` */
    RMQ_STEP_COMBINE,   /* the last two truths by AND (argument 0) or OR (1) */
    RMQ_STEP_COUNT
};
enum rmq_sql_order { RMQ_ORDER_GREATER, RMQ_ORDER_GREATER_EQUAL, RMQ_ORDER_LESS, RMQ_ORDER_LESS_EQUAL };
enum rmq_sql_kind {
    RMQ_VALUE_NULL, RMQ_VALUE_TRUTH, RMQ_VALUE_INT, RMQ_VALUE_LONG, RMQ_VALUE_DOUBLE, RMQ_VALUE_TEXT
};
enum rmq_sql_result {
    RMQ_MATCH_UNKNOWN = 2, /* 0 and 1 are those of a check */
    RMQ_MATCH_FALSE,
    RMQ_MATCH_TRUE,
    RMQ_MATCH_FAILED, /* a value cannot be converted: the message does not match */
    RMQ_MATCH_PYTHON  /* only Python can convert a value: digits of other scripts, hexadecimal or long doubles */
};
/* RMQ_SQL_WORK_MAX: the work of one pull, in steps (WORK_MAX of rmqpy/broker/filter/sql_program.py). */
enum { RMQ_SQL_STEPS_MAX = 1024, RMQ_SQL_NAMES_MAX = 32, RMQ_SQL_WORK_MAX = 51200 };

typedef struct {
    int32_t op, argument, count;
} rmq_sql_step;

typedef struct {
    int32_t kind;
    uint32_t length; /* of the text */
    union {
        int64_t number; /* a truth, an int, or a long */
        double real;
        const uint8_t *text;
    };
} rmq_sql_value;

typedef struct {
    const rmq_sql_step *steps;
    const rmq_sql_value *constants, *names;
    int32_t step_count, constant_count, name_count;
    int32_t unit_cost; /* the work to examine one message, in steps; 1 to RMQ_SQL_WORK_MAX */
    int32_t held;      /* how many pulls that wait, or are due, refer to it; it must exist as long as there is one */
    int32_t reserved;
} rmq_sql_program;

/* Return whether a program is valid: jumps go forward, and the stack is deep enough for each step. */
int rmq_sql_check(const rmq_sql_program *program);

/* Apply a valid program to the properties of a message. */
int rmq_sql_match(const rmq_sql_program *program, const uint8_t *properties, int64_t length);

/* What a consumer group may read from a topic. */
typedef struct {
    int64_t topic;        /* index in rmq_core.topics */
    int64_t sub_version;  /* version of the subscription in the group's last heartbeat */
    const int32_t *codes; /* hash codes of its tags; none: every message */
    int32_t code_count;
    int32_t subscribed; /* 0: pulls must carry a subscription expression */
    int32_t read_queues;
    int32_t commits; /* the group has offsets for the topic, so it may commit */
    int64_t found;   /* replies with messages since Python last collected the counts */
    int64_t messages;
    uint64_t accounts; /* the accounts that may read as this group */
    rmq_sql_program *program; /* of its subscription; NULL: `codes` */
    /* The last SQL92 expression that a pull of this group carried, and its program, or NULL. */
    const uint8_t *expression;
    int64_t expression_length;
    rmq_sql_program *expression_program;
    int64_t *offsets; /* the committed offsets by queue id; negative: none */
    int64_t offset_count;
} rmq_reader;

/* An account of access control: the access key, and the states of the two hashes of HMAC-SHA1 after
 * their first block. */
typedef struct {
    const uint8_t *key;
    uint32_t key_length;
    uint32_t inner[5], outer[5];
} rmq_account;

/* sha1.c: update the state of a SHA-1 with whole blocks. The second function uses no special instructions. */
void rmq_sha1_blocks(uint32_t *state, const uint8_t *at, size_t count);
void rmq_sha1_blocks_portable(uint32_t *state, const uint8_t *at, size_t count);

void rmq_set_secret(rmq_account *account, const uint8_t *secret, size_t length);

typedef struct {
    int32_t fd; /* -1: closed */
    int32_t port;
    int32_t ip_length;
    int32_t no_pull;  /* the port does not serve pulls */
    int32_t queued;   /* Python has bytes queued for it, which no reply may overtake */
    int32_t excluded; /* rmq_receive_ready leaves it to Python, which keeps bytes for its next read */
    int32_t filters;  /* its last request was a pull with an SQL92 filter */
    int32_t passed_over; /* how often rmq_receive_ready has left it unread since it was read */
    uint8_t ip[16];
    int32_t generation; /* differs for each connection that has had this number */
    int32_t last_outgoing; /* in rmq_send: the last entry for it so far, counted from 1; 0: none */
    int64_t resumed_in; /* the last slice in which a pull of it was resumed (rmq_hold.slice) */
} rmq_peer;

/* The template of a reply. Literal i ends at ends[i] of `text` and is followed by field[i]; `text`
 * starts with the header. Fields are texts; in binary headers each is preceded by its length,
 * except the opaque, which is 4 bytes. */
enum rmq_field {
    RMQ_OPAQUE,
    RMQ_MSG_ID,
    RMQ_QUEUE_NUMBER,
    RMQ_QUEUE_START,
    RMQ_NEXT_OFFSET,
    RMQ_LOW_OFFSET,
    RMQ_HIGH_OFFSET,
    RMQ_INDEX_TIME, /* of the last message in the key index */
    RMQ_INDEX_OFFSET
};

typedef struct {
    const uint8_t *text;
    int32_t ends[8];
    int32_t field[8];
    int32_t field_count;
    int32_t text_length;
    int32_t ext_length_at; /* binary: position of the length of the ext fields */
    int32_t binary;
} rmq_reply;

typedef struct {
    int64_t peer;
    int64_t start, length; /* in rmq_core.out */
    int64_t log_end;       /* the offset that must be acknowledged before it is sent; 0: none */
    int64_t sent;          /* set by rmq_send: bytes sent, or -errno */
    int64_t replies;
    int32_t next;    /* in rmq_send: the next entry for the same peer, counted from 1; 0: none */
    int32_t is_next; /* another entry for the same peer precedes it */
    int32_t is_copy; /* it answers requests for copies, which wait for less than a send */
    int32_t reserved;
} rmq_outgoing;

typedef struct {
    int64_t start, length; /* a frame in rmq_core.in, without its length word */
} rmq_span;

typedef struct {
    int64_t reader, queue_id, offset;
} rmq_offset_commit;

/* Consecutive messages of one topic that one group has sent back. */
typedef struct {
    int64_t retry_topic, topic; /* index in rmq_core.topics */
    int64_t count;
} rmq_returned;

/* Pulls that wait for messages (hold.c; rmqpy/broker/fastpath/hold.py owns the memory). Pulls have
 * numbers from 1 on, so that zeroed memory is empty. */
typedef struct {
    int32_t first, last; /* 0: none */
} rmq_held_list;

enum rmq_held_state { RMQ_HELD_FREE, RMQ_HELD_WAITING, RMQ_HELD_DUE };

typedef struct {
    int64_t offset; /* in its queue */
    int64_t deadline_ms;
    rmq_sql_program *program; /* which decides about arrivals; NULL: tags do */
    uint32_t hash; /* of topic and queue id */
    int32_t queue_id;
    int32_t peer, generation;
    int32_t next, previous; /* in the list of its bucket, of those that are due, or (next) of the free ones */
    int32_t tags_length, topic_length, frame_length;
    uint8_t state;
    uint8_t passed; /* messages at or after `offset` have arrived, but none that it wants */
    uint8_t reserved[2];
} rmq_held;

/* The bytes kept for each: its tags as hash codes, its topic, and its frame. */
#define RMQ_HELD_BYTES 768

/* The work of a system call, which sends the replies of a slice to one connection, beside that of a pull. */
#define RMQ_REPLY_WORK 5

typedef struct {
    rmq_held *pulls; /* capacity + 1; the first is not used */
    uint8_t *data;   /* RMQ_HELD_BYTES for each number */
    rmq_held_list *buckets;
    uint32_t bucket_mask; /* number of buckets - 1; a power of two */
    int32_t capacity;
    int64_t limit; /* how many may wait */
    int64_t count; /* how many wait */
    int32_t used;  /* the highest number that was ever used */
    int32_t free;  /* the first free number of those; 0: none */
    rmq_held_list due;
    int64_t due_count;
    int64_t now_ms;  /* monotonic */
    int64_t wait_ms; /* the time that pulls wait; -1: what each requests */
    int64_t slice;   /* the number of this slice of the pulls that are due */
    int64_t work_left; /* of the slice: a pull is 1, and RMQ_REPLY_WORK more if it is the first of its connection */
    const uint8_t *taken; /* the frame that Python must handle; valid until the next pull is held */
    int64_t taken_length, taken_peer;
} rmq_hold;

/* Cells of `log`, the end of the log, which is shared with rmqpy/store/files/staging.py. */
enum rmq_log_state { RMQ_LOG_END, RMQ_LOG_STAGED, RMQ_LOG_FILE_END, RMQ_LOG_INDEX, RMQ_LOG_UNITS, RMQ_LOG_TERM };

/* Replies, each with a JSON and then a binary header. A pull finds messages, misses (none of the
 * messages that it passed had its tags), or is at the end of its queue. A copy is the end of a
 * transaction, or a message that was sent back; a message that is requested by its offset has the
 * same header. An offset is the first or the next one of a queue, that of a time, or a committed one.
 * A query by key finds messages, or none. */
enum rmq_kind {
    RMQ_SEND_JSON,
    RMQ_SEND_BINARY,
    RMQ_COPY_JSON,
    RMQ_COPY_BINARY,
    RMQ_OFFSET_JSON,
    RMQ_OFFSET_BINARY,
    RMQ_COMMIT_JSON,
    RMQ_COMMIT_BINARY,
    RMQ_PULL_JSON,
    RMQ_PULL_BINARY,
    RMQ_MISS_JSON,
    RMQ_MISS_BINARY,
    RMQ_END_JSON,
    RMQ_END_BINARY,
    RMQ_KEY_JSON,
    RMQ_KEY_BINARY,
    RMQ_NO_KEY_JSON,
    RMQ_NO_KEY_BINARY,
    RMQ_REPLY_COUNT
};

/* The files of the key index, oldest first, and how many messages a query finds at most. */
enum { RMQ_FOUND_MAX = 64 };

typedef struct {
    const uint8_t **files;
    int64_t count; /* 0: Python answers queries by key */
    int64_t slots, entries;
    int64_t found_max, unique_found_max; /* at most RMQ_FOUND_MAX; the second one for unique keys */
} rmq_key_index;

typedef struct {
    /* Input: unread frames are in [in_position, in_length). */
    uint8_t *in;
    int64_t in_capacity, in_length, in_position;
    int64_t frame_max; /* without the length word */
    rmq_span *fallback;
    int64_t fallback_capacity, fallback_count;
    /* Output, collected over a turn. */
    uint8_t *out;
    int64_t out_capacity, out_used;
    int64_t out_share; /* the bytes of replies after which a call handles no further frame */
    rmq_outgoing *outgoing;
    int64_t outgoing_capacity, outgoing_count;
    rmq_peer *peers;
    /* Connections that were readable at the start of the turn, those that filter last. Those before ready_next have
     * been handled; one that becomes readable later waits for the next turn. */
    int32_t ready[1024];
    int32_t ready_count, ready_next;
    int32_t ready_fd;     /* the epoll descriptor; -1: none */
    rmq_reply replies[18]; /* by rmq_kind */
    /* Topics, readers, and queues. */
    rmq_table topic_table, reader_table;
    rmq_topic *topics;
    rmq_reader *readers;
    rmq_queue *queues;
    int32_t queue_folder; /* a descriptor of the folder of the consume queues; -1: every tail must be mapped */
    /* Writing. */
    int64_t *tails;
    uint8_t *staging;
    int64_t staging_capacity;
    int64_t *log;
    int64_t status_detail; /* RMQ_ROLL: the bytes that did not fit; RMQ_FAILED: errno */
    int64_t file_size;
    int64_t message_max;
    int64_t now_ms;
    int64_t dledger;
    int64_t term, entries_left;
    uint8_t *units;
    int64_t units_capacity;
    const uint8_t *cluster; /* the value of the property CLUSTER */
    int64_t cluster_length;
    uint8_t store_ip[16];
    int32_t store_ip_length, store_port;
    int32_t send_enabled, pull_enabled;
    int32_t allows_wait_false; /* replies to WAIT=false wait for the same watermarks as all others */
    int32_t copy_enabled;      /* clients may have stored messages copied */
    int32_t offsets_enabled;   /* requests for offsets and messages, and commits of offsets */
    int32_t reserved;
    int64_t put_messages, put_bytes; /* since Python last collected them */
    int64_t answered;                /* requests, including one-way ones, since Python last collected them */
    uint8_t *scratch;
    int64_t scratch_capacity;
    /* Reading. */
    rmq_files logs[2];
    int64_t log_min, confirm_offset, memory_distance;
    int64_t near_bytes, near_count, far_bytes, far_count;
    /* Messages that wait in another topic until they are due or their transaction ends, and the topic
     * that records its end. */
    int64_t delay_topic, half_topic, op_topic; /* index in `topics`; -1: Python handles such messages */
    const int64_t *delays;           /* of the levels from 1 on, in ms */
    int64_t delay_count;
    int64_t queues_complete; /* 0: queues may lack messages that they had before the last start */
    int64_t misses;          /* replies to pulls without messages since Python last collected them */
    rmq_offset_commit *commits;
    int64_t commit_capacity, commit_count;
    rmq_returned *returned; /* since Python last collected them */
    int64_t returned_capacity, returned_count;
    /* The work of SQL92 filters in this turn, in steps. Pulls beyond the limit wait; a pull ends after so much work
     * if messages are staged, or another connection is ready. */
    int64_t scan_work, scan_work_max;
    int64_t *touched; /* readers with counts that Python has not collected yet; capacity for every reader */
    int64_t touched_count;
    /* Access control. */
    const rmq_account *accounts; /* at most 64 */
    int32_t account_count;
    int32_t acl_enabled; /* C answers only requests that a permitted account has signed */
    rmq_hold *hold;
    rmq_key_index index;
} rmq_core;

enum rmq_status {
    RMQ_DONE,      /* all input was consumed */
    RMQ_PARTIAL,   /* the rest of the input is the start of a frame */
    RMQ_FALLBACK,  /* Python must handle the frames listed in `fallback`; then call again */
    RMQ_ROLL,      /* the log's file cannot hold `status_detail` more bytes: roll it, then call again */
    RMQ_COMMIT,    /* staging is full: commit it, then call again */
    RMQ_OUT_FULL,  /* the reply buffer is full: end the turn, then call again */
    RMQ_OUT_SHARE, /* this connection has its share of the replies of a turn, or filters have theirs of its work:
                    * call again in the next turn, or once scan_work is reset */
    RMQ_BAD_FRAME, /* the length at in_position is invalid */
    RMQ_CLOSED,    /* rmq_receive: the peer closed the stream */
    RMQ_AGAIN,     /* rmq_receive: nothing to read */
    RMQ_FAILED,    /* rmq_receive: an error, errno in `status_detail` */
    RMQ_EXCLUDED,  /* rmq_receive_ready: Python must read this connection */
    RMQ_NONE_LEFT  /* rmq_receive_ready: all ready connections have been handled */
};

/* Answer the frames of `in` up to the first one that needs Python. Uses no file, and of the sockets only
 * whether one is readable. */
int rmq_feed(rmq_core *core, int64_t peer);

/* Receive into `in` after the `buffered` bytes that it already holds, then feed. */
int rmq_receive(rmq_core *core, int64_t peer, int64_t buffered);

/* Call rmq_receive once for each readable connection of `ready_fd`, as long as it returns RMQ_DONE;
 * any other status is returned, and belongs to the connection before ready_next. Then call again.
 * Connections are polled only if `is_start` is set, so each has one turn; some that filter are passed over. */
int rmq_receive_ready(rmq_core *core, int is_start);

/* Return whether a watched connection other than `peer` is readable, or still has to be handled. Those that
 * filter do not count. */
int rmq_is_another_ready(const rmq_core *core, int64_t peer);

/* Add a connection to `ready_fd`, which the first call opens, or remove it. Returns 0 or errno;
 * ENOSYS without epoll. */
int rmq_watch(rmq_core *core, int64_t peer, int enable);
void rmq_watch_none(rmq_core *core);

/* A message that has become readable. */
typedef struct {
    int64_t queue_offset, tags_code;
    const uint8_t *record; /* NULL: not readable */
    int64_t size;
    int32_t queue_id;
    int32_t reserved;
} rmq_arrived;

/* Mark as due the held pulls that the message matches. Returns 0 if no pull waits for its queue any more. */
int rmq_hold_arrival(rmq_hold *hold, const uint8_t *topic, size_t length, const rmq_arrived *message);

/* Mark as due the held pulls whose time is over, for which only messages with other tags have
 * arrived, or whose connection is closed. */
void rmq_hold_sweep(rmq_core *core);

/* Answer the held pulls that are due, as long as `work_left` is positive and the SQL92 filters of this
 * turn have a share left. Returns RMQ_DONE if none is
 * due any more, RMQ_AGAIN if some are, RMQ_OUT_FULL, or RMQ_FALLBACK if Python must answer the pull in
 * `taken`; after the last two, call again. */
int rmq_resume(rmq_core *core);

/* Append copies of delayed messages to the queues that they name. `messages` has the offset and size
 * of each. Returns how many were appended, from the first one on; Python delivers the next. */
int64_t rmq_deliver(rmq_core *core, const int64_t *messages, int64_t count);

/* Send the collected replies. Returns how many entries were not sent completely. */
int64_t rmq_send(rmq_core *core);

/* Dispatch of the records of `view` from the log to consume queues and key index, as
 * rmqpy/store/dispatcher.py does it. */
typedef struct {
    int64_t queue, queue_offset, tags_code, physical_offset, store_timestamp;
} rmq_arrival;

/* Units of one queue that were dispatched and are not in its file yet. */
typedef struct {
    int64_t queue, tail_first; /* the position of the file in the queue */
    int64_t end, max_physical; /* RMQ_QUEUE_END and RMQ_QUEUE_MAX_PHYSICAL before the first of them */
    int64_t length;            /* in bytes; 0: none */
} rmq_gathered;

enum { RMQ_GATHERED_MIN = 4096, RMQ_INDEX_ENTRY_SIZE = 20 };

typedef struct {
    const uint8_t *view;
    int64_t length;
    int64_t base_offset;
    int64_t dledger;
    /* Where much is dispatched, writing in place costs a page fault for each page. Then units are gathered here, up to
     * gathered_capacity bytes of each queue, and Python writes them. A queue has one of the places, or none.
     * gathered_count is a power of two. */
    rmq_gathered *gathered;
    uint8_t *gathered_units;
    int64_t gathered_count, gathered_capacity;
    uint8_t *gathered_entries; /* the same for the entries of the index; NULL: write them in place */
    int64_t gathered_first_entry;
    uint8_t *index; /* the file for the next entries; NULL: no index is kept */
    int64_t index_slots, index_entries;
    rmq_arrival *arrivals; /* records of watched queues */
    int64_t arrival_capacity, arrival_count;
    int64_t *written; /* the queues to which units were written through descriptors */
    int64_t written_capacity, written_count;
    int64_t position;        /* end of the last record that was dispatched */
    int64_t store_timestamp; /* store time of that record; -1 if there is none */
} rmq_dispatch_state;

/* Dispatch records up to the first one that needs Python. */
void rmq_dispatch(const rmq_core *core, rmq_dispatch_state *state);

/* A run of rmqpy.codec.packing. `row` is its first row in the scan, `first` its first queue offset,
 * `position` its place in `units`, counted in units. */
typedef struct {
    int64_t row, first, count, position;
} rmq_pack_run;

typedef struct {
    const uint8_t *view;
    size_t length;
    const int64_t **columns; /* of a scan of `view`, by rmq_column */
    size_t count;
    int32_t *table; /* table_mask + 1 cells, more than `count` */
    size_t table_mask;
    int32_t *run_of; /* the run of each row; `count` cells, like `runs` and `units` */
    rmq_pack_run *runs;
    size_t run_count;
    uint8_t *units;
    uint8_t *keys; /* NULL: keys are not packed */
    size_t key_capacity, key_count;
} rmq_pack_state;

/* Pack the units and keys of the rows of a scan. Returns 0 if only Python can pack them (non-ASCII
 * keys, too many keys). */
int rmq_pack(rmq_pack_state *state);

/* The queue offset of the last record of a queue. The topic is a part of the view. */
typedef struct {
    int64_t topic_position, topic_length, queue_id, last;
} rmq_queue_end;

typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset;
    int32_t dledger;
    int32_t *table; /* table_mask + 1 cells, more than end_capacity */
    size_t table_mask;
    rmq_queue_end *ends;
    size_t end_capacity, end_count;
    size_t position; /* end of the last record that was read, including its framing */
} rmq_ends_state;

/* Find the ends of the queues of the records of `view`. RMQ_LIMIT: at `position` is a record of one more
 * queue than there is room for. */
enum rmq_stop rmq_find_ends(rmq_ends_state *state);

/* Write packed keys into an index file while it has space. Returns how many were written. */
size_t rmq_put_keys(uint8_t *index, size_t length, int64_t slots, const uint8_t *keys, size_t count);

/* A run is a sequence of consecutive entries in one data file; its text is the JSON list of a batch
 * push (push.c). The caller sets `source` and everything named *_max or *_capacity; for rmq_run_read
 * and rmq_run_encode also first_index and first_position, for the others `target`. */
typedef struct {
    const uint8_t *source;
    int64_t source_length;
    uint8_t *target;
    int64_t target_capacity;
    uint8_t *units; /* the index units, capacity for count_max; rmq_run_read: may be NULL */
    int64_t count_max, size_max;
    int64_t first_index, first_position, first_size, first_term;
    int64_t last_term, count, size; /* size: all entries, including their headers */
    int64_t target_length;          /* rmq_run_encode: length of the text */
    int64_t used;                   /* rmq_run_decode: bytes of `source` read, including the brackets */
} rmq_run;

/* Read entries from the start of `source` until one is invalid or size_max bytes are reached. The
 * records in them are examined, too, if `checks_records` is not 0. */
void rmq_run_read(rmq_run *run, int checks_records);

/* Encode the entries of a run that was read, until one is invalid or does not fit. */
void rmq_run_encode(rmq_run *run);

/* Decode a list of consecutive entries. Returns 0 if it does not have the form that DLedger writes. */
int rmq_run_decode(rmq_run *run);

/* A follower's decision about the next batch push, and the memory for its entries:
 * rmqpy/dledger/follower.py, rmqpy/store/files/staging.py. */
typedef struct {
    const char *group; /* text of the push from its first to its last index, with the name of the group */
    const char *names; /* text from there to the size: members and term */
    const uint8_t *members; /* the names in a binary push: group, leader, receiver */
    int64_t members_length;
    int64_t term; /* of the leader */
    int64_t file_size;
    uint8_t *staging;
    int64_t staging_capacity;
    uint8_t *units;
    int64_t units_capacity;
    int64_t *log;                             /* by rmq_log_state */
    int64_t first_index, count, commit_index; /* of the accepted push */
} rmq_grant;

/* Stage the entries of a push that the grant covers, at the end of the log and within its file.
 * Returns 0 without any change if the push is a different one. */
int rmq_push_take(rmq_grant *grant, const uint8_t *body, int64_t length);

/* The same for a binary push. */
int rmq_push_take_run(rmq_grant *grant, const uint8_t *body, int64_t length);

/* Faults that rmq_tally finds in a frame whose length is valid; the values of
 * rmqpy.codec.tally.kernel.EventKind. */
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

/* A rmqpy.codec.tally.kernel.QueueTally. `units` is the consume queue; it is not checked if its
 * views are NULL. */
typedef struct {
    const uint8_t *topic;
    size_t topic_length;
    int32_t queue_id;
    int32_t any_tags;
    int32_t has_topic; /* the topic's name is valid; set by rmq_tally_add_queue */
    int32_t reserved;
    int64_t count, unqueued;
    int64_t first_queue_offset, first_frame, last_queue_offset, last_frame, next_queue_offset;
    int64_t right_units, unit_count;
    uint64_t unit_sum, tags_sum;
    rmq_files units;
    int64_t bucket, bucket_messages; /* digests that are not in rmq_tally_state.buckets yet */
    uint64_t bucket_content, bucket_place, bucket_mapped;
} rmq_tally_queue;

/* A scan that checks and counts: rmqpy.codec.tally.kernel. The caller sets every field, and
 * rmq_tally continues from there. */
typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset, file_size;
    size_t position, stop; /* frames that start in [position, stop) */
    int32_t dledger, check_crc, digests, check_keys;
    int32_t sums; /* add up the units that must exist */
    int32_t pooled; /* one sum for all queues, which are not told apart: `queues` and `table` are not used */
    int64_t key_low, key_high;
    rmq_files entry_units;
    rmq_tally_queue *queues;
    int32_t *table; /* open addressing, queue numbers, -1 is free; never all used */
    uint32_t table_mask;
    int64_t *events; /* rows of six numbers: kind, frame, queue, found, expected, previous */
    size_t event_count, event_capacity;
    int64_t *buckets; /* rows of queue, bucket, messages, content, place, mapped */
    size_t bucket_count, bucket_capacity;
    int64_t *blocks; /* rows of first position and count, from block `first_block` on */
    size_t first_block;
    int64_t records, frame_bytes, body_bytes, version_2;
    int64_t min_store_ms, max_store_ms, largest_record, longest_properties;
    int64_t first_frame, last_frame;
    int64_t first_index, first_term, last_index, last_term;
    int64_t right_entry_units, key_count;
    uint64_t key_sum, entry_sum, term_sum;
    int64_t pooled_count, pooled_without;
    uint64_t pooled_sum;
} rmq_tally_state;

/* Check and count the frames. After RMQ_LIMIT, collect events and buckets; after RMQ_NEW_QUEUE, add
 * the queue of the frame at `position`. Then call again. */
enum rmq_stop rmq_tally(rmq_tally_state *state);
void rmq_tally_add_queue(rmq_tally_state *state, int32_t number);

/* The units of one file of a consume queue: rmqpy.codec.tally.pooled. The caller sets every field. */
typedef struct {
    const uint8_t *view;
    int64_t length;
    int64_t position;    /* of the next unit; afterwards where the units end */
    int64_t number;      /* queue offset of the unit at `position` */
    uint64_t queue;      /* rmq_queue_digest */
    int32_t any_tags;
    int32_t irregular;   /* the units are not those of ascending messages without a gap */
    int64_t low, high;   /* units of messages in [low, high) count */
    int64_t first;       /* queue offset of the first unit that counts, -1: none yet */
    int64_t place;       /* offset of the message of the last unit, -1: none yet */
    int64_t count;
    uint64_t sum;
} rmq_pooled_units;

void rmq_pool_units(rmq_pooled_units *state);
uint64_t rmq_queue_digest(const uint8_t *topic, size_t length, int32_t queue_id);

/* The sums of the units of one file, per log file: rmqpy.codec.tally.derived_sums. The caller sets
 * every field; rows are log file number, count, and two sums. */
enum { RMQ_SUM_COLUMNS = 4 };
typedef struct {
    const uint8_t *view;
    int64_t length;
    int64_t unit_size;     /* 20: consume queue, 32: DLedger index */
    int64_t first;         /* queue offset or index of the first unit */
    int64_t log_file_size;
    int64_t position;
    int64_t *rows;
    int64_t row_count, row_capacity;
} rmq_unit_sums;

/* Returns 0 if the rows must be collected before the next call. */
int rmq_sum_units(rmq_unit_sums *state);

/* The entries of a key index file, checked against its slots, and their sums per log file. The
 * caller sets every field; `newest` has for each slot the number of its newest entry before
 * `entry`, zeros for the first one. Rows are log file number, count, sum. */
enum { RMQ_KEY_COLUMNS = 3 };
typedef struct {
    const uint8_t *view;
    int64_t slot_count, entry_end;
    int64_t log_file_size;
    int64_t low, high;     /* only entries with offsets in [low, high) are summed */
    int32_t *newest;
    int64_t entry;         /* the next entry, from 1 */
    int64_t *rows;
    int64_t row_count, row_capacity;
    int64_t wrong;         /* links that do not lead to the previous entry of the slot */
    int64_t wrong_slots;   /* slots that do not lead to their newest entry */
    int64_t used_slots, max_offset;
} rmq_index_walk;

/* Returns 0 if the rows must be collected before the next call. */
int rmq_walk_index(rmq_index_walk *state);
/* Set `newest` to what the slots were before the entries from `entry` on were added. Returns 0 if
 * these are not the newest entries of their slots. */
int rmq_rewind_index(rmq_index_walk *state);

/* Map a file from its start, shared (mapping.c). The mapping does not need the descriptor. Returns NULL
 * and sets errno if the system refuses it. */
uint8_t *rmq_map_file(int32_t descriptor, int64_t length, int writable);
void rmq_unmap_file(uint8_t *begin, int64_t length);

/* Return memory that is zero, and takes no time until it is used; NULL if there is none. rmq_unmap_file frees it. */
uint8_t *rmq_map_zeros(int64_t length);

/* Read only the pages of a mapping that are accessed, and none ahead. */
void rmq_advise_random(uint8_t *begin, int64_t length);

/* Take the pages of a mapping, from the start of a page on, out of the memory of the process. */
void rmq_release_pages(const uint8_t *begin, int64_t length);

/* A folder of a consume queue, named by its number (folders.c). Positions are bytes of the queue. */
typedef struct {
    int64_t id;
    int64_t first_offset; /* of the first file; 0 if there is none */
    int64_t file_count;
    int64_t end;            /* the position after the last unit */
    int64_t first_physical; /* the offset in the first unit, if the first file was read and begins with a message, or -1 */
    int64_t physical_end;   /* the end of the last message; 0 if there is none */
} rmq_unit_folder;

/* What was found in the folder of a topic. */
typedef struct {
    int64_t count;       /* rows of its queues */
    int64_t units;       /* those of messages from `low` on */
    uint64_t sum;
    int32_t is_complete; /* nothing was left out because it is not as usual */
    int32_t irregular;   /* the sum means nothing */
} rmq_topic_folder;

/* The queues of some topics. Of each queue the last `files_read` files are read, in pieces of `buffer_length`, a
 * multiple of the unit size. */
typedef struct {
    int32_t descriptor; /* of the folder of all topics */
    int32_t files_read;
    int64_t file_size;
    int64_t low;
    uint8_t *buffer;
    size_t buffer_length;
    const char *names; /* of each topic: a byte that is 1 if tags codes do not count in the sum, its name, and a zero */
    rmq_topic_folder *topics;
    size_t topic_count;
    rmq_unit_folder *rows;
    size_t capacity;
    size_t count; /* rows filled, those of one topic after those of the other */
} rmq_folders;

/* Find the ends of the queues, and change nothing. Returns 0 if there are more than `capacity` rows. */
int rmq_read_folders(rmq_folders *state);

/* The bounds of a queue that was read as a part of one sum (folders.c): QueueBounds of rmqpy.audit.scan.queue_units. */
typedef struct {
    int64_t id;
    int64_t min_offset, max_offset;
    int64_t end_physical;
} rmq_pooled_queue;

enum {
    RMQ_LOOK_AHEAD = 4096,   /* the bytes after the last unit that must be zeros */
    RMQ_POOLED_HEAD = 8180   /* what is read first of a file: most have a few units, and many have no more */
};

/* All queues of a store as one sum: rmqpy.audit.checks.pooled_check. `buffer_length` is a multiple of the unit size, and
 * at least RMQ_POOLED_HEAD. */
typedef struct {
    int32_t descriptor; /* of the folder of all topics */
    int64_t low;        /* units of messages from here on count */
    int64_t file_size;  /* that all files have; 0: none was read yet */
    uint8_t *buffer;
    size_t buffer_length;
    rmq_pooled_queue *rows;
    size_t capacity;
    size_t count; /* rows filled */
    int64_t units;
    uint64_t sum;
} rmq_pooled_queues;

/* Add the queues of a topic, whose folder is `name`; the rows are in the order of the names of their folders. Returns 0
 * if something is not as usual, is damaged perhaps, or if there are not enough rows: then the sum means nothing. */
int rmq_pool_topic(rmq_pooled_queues *state, const char *name, size_t length, int any_tags);

/* Mappings of files whose pages may be lost (lost_pages.c), numbered by the caller from 0. The first
 * call installs a handler of SIGBUS; returns 0 if the mapping is not guarded. */
enum { RMQ_MAPPINGS_MAX = 1 << 17 };
int rmq_guard_mapping(int32_t number, const uint8_t *begin, int64_t length);

/* Free the number of a mapping that no longer exists. */
void rmq_forget_mapping(int32_t number);

/* Return how many pages were lost since the start, of all mappings. */
int64_t rmq_lost_pages(void);

/* Set the range of a mapping that contains all its lost pages. Returns 0 if it has none. */
int rmq_lost_range(int32_t number, int64_t *from, int64_t *to);

/* cffi: end */

/* The part that only the C files share. */

/* Write a unit to a file of a queue that is not mapped. `folder` is a descriptor of the folder of all queues. Returns 0
 * if that is not possible: there is no such file, say, or no space on the disk. */
int rmq_write_unit(int32_t folder, const uint8_t *topic, size_t length, int64_t queue_id, int64_t first,
                   int64_t position, const uint8_t *unit);

/* Return whether a part of guarded memory was lost. Costs a search; ask rmq_lost_pages first. */
int rmq_is_lost(const uint8_t *data, int64_t length);

/* Big endian, at any address. The byte swap is written explicitly: otherwise the compiler collects
 * adjacent stores in memory first and waits for that. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define RMQ_BIG32(value) (value)
#define RMQ_BIG64(value) (value)
#else
#define RMQ_BIG32(value) __builtin_bswap32(value)
#define RMQ_BIG64(value) __builtin_bswap64(value)
#endif

/* Factors of the sums of audits: rmqpy.codec.tally.kernel. */
#define RMQ_QUEUE_FACTOR 0x9E3779B97F4A7C15u
#define RMQ_PROPERTY_FACTOR 0xC2B2AE3D27D4EB4Fu
#define RMQ_LENGTH_FACTOR 0x165667B19E3779F9u

static inline uint64_t rmq_mix64(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

static inline uint64_t rmq_key_digest(int64_t place, int64_t hash)
{
    return rmq_mix64((uint64_t)place * RMQ_QUEUE_FACTOR + (uint64_t)hash);
}

static inline uint64_t rmq_unit_digest(int64_t number, int64_t place, int64_t size)
{
    return rmq_mix64((uint64_t)number * RMQ_QUEUE_FACTOR + (uint64_t)place + (uint64_t)size * RMQ_LENGTH_FACTOR);
}

static inline uint64_t rmq_pooled_digest(uint64_t queue, int64_t number, int64_t place, int64_t size, int64_t tags)
{
    return rmq_mix64(queue + (uint64_t)number * RMQ_QUEUE_FACTOR + (uint64_t)place + (uint64_t)size * RMQ_LENGTH_FACTOR
                     + (uint64_t)tags * RMQ_PROPERTY_FACTOR);
}

static inline uint64_t rmq_tags_digest(int64_t number, int64_t tags)
{
    return rmq_mix64((uint64_t)number * RMQ_QUEUE_FACTOR + (uint64_t)tags + RMQ_PROPERTY_FACTOR);
}

static inline uint64_t rmq_entry_digest(int64_t number, int64_t magic, int64_t index, int64_t term)
{
    return rmq_mix64((uint64_t)number * RMQ_QUEUE_FACTOR + (uint64_t)magic * RMQ_PROPERTY_FACTOR
                     + (uint64_t)index * RMQ_LENGTH_FACTOR + (uint64_t)term);
}

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

/* memcpy for mostly short lengths, without a call. */
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

/* Return whether eight bytes are equal. */
static inline int rmq_words_equal(const uint8_t *one, const uint8_t *other)
{
    uint64_t first, second;

    memcpy(&first, one, sizeof first);
    memcpy(&second, other, sizeof second);
    return first == second;
}

/* memcmp() == 0 for mostly short and equal bytes, without a call. */
static inline int rmq_bytes_equal(const uint8_t *one, const uint8_t *other, size_t length)
{
    size_t i = 0;

    for (; length - i >= 8; i += 8)
        if (!rmq_words_equal(one + i, other + i))
            return 0;
    if (length >= 8)
        return rmq_words_equal(one + length - 8, other + length - 8);
    while (i < length && one[i] == other[i])
        i++;
    return i == length;
}

/* Return whether eight bytes are ASCII. */
static inline int rmq_is_ascii_word(const uint8_t *eight)
{
    uint64_t word;

    memcpy(&word, eight, sizeof word);
    return (word & 0x8080808080808080u) == 0;
}

static inline int rmq_is_within(size_t length, int64_t position, int64_t size)
{
    return position >= 0 && size >= 0 && (uint64_t)position <= length && (uint64_t)size <= length - (uint64_t)position;
}

/* The transaction bits of a record's flags. */
#define RMQ_TRANSACTION_MASK 0xC
#define RMQ_TRANSACTION_PREPARED 0x4
#define RMQ_TRANSACTION_COMMIT 0x8
#define RMQ_TRANSACTION_ROLLBACK 0xC

/* Return whether a record with these flags has a unit in its consume queue. */
static inline int rmq_has_queue_unit(int64_t sys_flag)
{
    const int64_t kind = sys_flag & RMQ_TRANSACTION_MASK;

    return kind != RMQ_TRANSACTION_PREPARED && kind != RMQ_TRANSACTION_ROLLBACK;
}

/* Return whether the keys of a record with these flags are in the key index. */
static inline int rmq_has_keys(int64_t sys_flag)
{
    return (sys_flag & RMQ_TRANSACTION_MASK) != RMQ_TRANSACTION_ROLLBACK;
}

/* The bit of a request's flag that asks for no reply. */
#define RMQ_FLAG_ONEWAY 2

/* The result of a check or of handling a frame: Python must handle it, or it passed. Negative
 * results are the negated status that rmq_feed returns. */
#define RMQ_NEEDS_PYTHON 0
#define RMQ_OK 1

/* properties.c */

typedef struct {
    const uint8_t *name, *value;
    uint32_t name_length, value_length;
    uint32_t hash; /* of the name; set by rmq_read_properties */
} rmq_property;

typedef struct {
    rmq_property list[RMQ_PROPERTIES_MAX];
    int count;
} rmq_properties;

/* Read the next property in [*at, end) and advance *at. Pieces without name or value are skipped.
 * Returns 0 at the end. */
int rmq_next_property(const uint8_t **at, const uint8_t *end, rmq_property *found);

static inline int rmq_is_named(const rmq_property *item, const char *name)
{
    return item->name_length == strlen(name) && memcmp(item->name, name, item->name_length) == 0;
}

typedef struct {
    const uint8_t *at; /* NULL: absent */
    size_t length;
} rmq_slice;

/* Returns 0 if only Python can read them (non-ASCII names, too many). */
int rmq_read_properties(const uint8_t *raw, int64_t length, rmq_properties *found);
void rmq_order_properties(rmq_properties *found);

const rmq_property *rmq_find_property(const rmq_properties *found, const char *name);

/* Replace the value of a property, or append the property. */
void rmq_set_property(rmq_properties *found, const char *name, rmq_slice value);

/* Write a number that is not negative before `end`. */
rmq_slice rmq_put_number(uint8_t *end, int64_t number);
uint8_t *rmq_put_properties(uint8_t *out, const rmq_properties *found, int keeps_wait);

/* Return the most bytes that rmq_put_properties can write. */
int64_t rmq_properties_size_max(const rmq_core *core, int64_t raw_length);

/* Continue Java's String.hashCode from `hash` with UTF-8 bytes. */
uint32_t rmq_java_hash(uint32_t hash, const uint8_t *text, size_t length);

/* Return the hash of `topic#key` as the key index stores it. */
int64_t rmq_index_key_hash(uint32_t topic_hash, const uint8_t *key, size_t key_length);

/* Decode one code point, or U+FFFD for as many malformed bytes as Java replaces by one. Returns the
 * number of bytes. */
size_t rmq_decode_utf8(const uint8_t *at, size_t length, uint32_t *code);

/* index.c */

enum { RMQ_KEYS_MAX = 32 };

typedef struct {
    int64_t begin_timestamp, end_timestamp, begin_offset, end_offset;
    int32_t slot_count, index_count;
} rmq_index_header;

typedef struct {
    int64_t hash, offset, stored; /* hash of the key; offset and store time of the message */
} rmq_key;

void rmq_load_index_header(const uint8_t *index, rmq_index_header *header);
void rmq_store_index_header(uint8_t *index, const rmq_index_header *header);

/* Return the place of the slot of a hash; neither the hash nor the number of slots exceeds INT32_MAX. */
uint8_t *rmq_index_slot(uint8_t *index, int64_t slots, int64_t hash);

/* Add a key to an index file that has space for it. */
void rmq_put_key(uint8_t *index, int64_t slots, rmq_index_header *header, const rmq_key *key, uint8_t *entry);

/* Return the place of an entry in an index file. */
uint8_t *rmq_index_entry(uint8_t *index, int64_t slots, int64_t number);

/* The offsets of messages, newest first, without duplicates. */
typedef struct {
    int64_t offsets[RMQ_FOUND_MAX];
    int64_t count, maximum;
} rmq_found;

/* Find the messages with this hash whose store time is in a range (KeyIndex.find of
 * rmqpy/store/index/index_file.py). Returns 0 if only Python can read one of the files. */
int rmq_find_messages(const rmq_key_index *index, int64_t hash, const int64_t *range_ms, rmq_found *found);

/* Write the hashes of a record's keys, UNIQ_KEY first, at most RMQ_KEYS_MAX. Returns their number,
 * or -1 if Python must find them. */
int rmq_find_keys(const uint8_t *view, const int64_t *row, int64_t *hashes);

/* base64.c. Both return the end of what they wrote or read; reading stops at the first byte that is
 * not Base64 and advances *out, and returns NULL for padding with non-zero bits. The caller provides
 * enough space. */
uint8_t *rmq_put_base64(uint8_t *out, const uint8_t *body, int64_t length);
const uint8_t *rmq_read_base64(const uint8_t *at, const uint8_t *end, uint8_t **out);

/* append.c */

typedef struct {
    /* item_properties: those of a batch item, before the others */
    const uint8_t *topic, *body, *item_properties;
    const rmq_properties *properties;
    int64_t topic_length, body_length, item_properties_length;
    int64_t born_timestamp, queue_offset;
    int32_t queue_id, flag, sys_flag, reconsume_times;
    int32_t keeps_wait; /* WAIT is stored too */
    int32_t reserved;
} rmq_draft;

/* Encode a record except for PHYSICALOFFSET. Returns its end, or NULL if it exceeds a limit. The
 * caller provides enough space. */
uint8_t *rmq_put_record(const rmq_core *core, const rmq_peer *from, const rmq_draft *message, uint8_t *out);

int rmq_has_staging_space(const rmq_core *core, int64_t length, int64_t count);

/* Check whether `count` records of `total` bytes, the largest with `largest` bytes, fit after the
 * end of the log in its file. */
int rmq_check_fit(rmq_core *core, int64_t total, int64_t largest, int64_t count);

/* Append records to the log. They are in staging already, each preceded by space for its framing. */
void rmq_append(rmq_core *core, const int64_t *sizes, int64_t count, int64_t *offsets);

/* Return the bytes [offset, offset + size), or NULL if they are not within one mapped file. */
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

/* A text of a request's header. */
typedef struct {
    const uint8_t *at; /* NULL: absent */
    uint32_t length;
    uint8_t escaped;   /* contains backslashes; escapes are not decoded */
    uint8_t non_ascii; /* contains bytes above 0x7F */
} rmq_text;

typedef struct {
    rmq_slice tags, delay, uniq_key, keys;
} rmq_known_properties;

/* The form of raw properties, as bits: each has a name and a separator after it; all bytes are ASCII. */
#define RMQ_WELL_FORMED 1
#define RMQ_ASCII 2

/* Find the properties that a scan uses. The last of equal names wins; pieces without name or value are skipped. Returns
 * the form. Bytes before `limit` may be read, whatever they are. */
int rmq_find_properties(rmq_slice raw, const uint8_t *limit, rmq_known_properties *known);

/* Which bytes of raw properties belong to names or are separators, and which are the others: 0xFF each. */
#define RMQ_FORM_BYTES_MAX 256
typedef struct {
    uint8_t fixed[RMQ_FORM_BYTES_MAX], free[RMQ_FORM_BYTES_MAX];
    size_t length;
} rmq_properties_form;

void rmq_note_form(rmq_slice raw, rmq_properties_form *form);

/* Return whether properties of the same length differ from `model`, which has the form, only in their values. If so,
 * rmq_find_properties finds the same ones at the same places. Bytes before `limit` may be read; the model comes first. */
int rmq_has_form(const uint8_t *raw, const uint8_t *model, const rmq_properties_form *form, const uint8_t *limit);

/* Positions and lengths of the variable parts of a record, counted from the start of the view. */
typedef struct {
    size_t start, size, head_size, body_length;
    size_t topic, topic_length, properties, properties_length;
} rmq_record_places;

/* Measure the record at `start`, which has at most `rest` bytes. Returns RMQ_END if it is valid. */
enum rmq_stop rmq_measure_record(const uint8_t *view, size_t start, size_t rest, rmq_record_places *places);

/* Return `size` readable bytes of the log, or NULL if they are not mapped. */
const uint8_t *rmq_read_log(const rmq_core *core, int64_t offset, int64_t size);

/* Return whether the record of `size` bytes is the one that a unit describes (is_message of
 * rmqpy/store/queues/unit_check.py). */
int rmq_is_message(const uint8_t *record, int64_t size, rmq_text topic, int64_t queue_id, int64_t queue_offset,
                   rmq_record_places *places);

#define RMQ_TEXT_COUNT 14

typedef struct {
    rmq_text texts[RMQ_TEXT_COUNT];
    rmq_text opaque_text; /* JSON only */
    rmq_text access_key, signature;
    int32_t other_fields; /* the ext fields contain other names */
    int32_t code, opaque, flag, version;
    int32_t matches_model; /* it differs from the previous request of the buffer only in the varying texts */
    int32_t binary;        /* the fields from here on belong to the frame */
    const uint8_t *body;
    int64_t body_length;
} rmq_request;

/* The JSON header that was read last in a buffer; the next one is compared with it before it is
 * parsed. The properties of a send are compared by name if all names and values are plain; the
 * value of WAIT must then be equal, too. */
enum { RMQ_SPLIT_MAX = 12, RMQ_VARYING_MAX = 6 + RMQ_SPLIT_MAX };
enum { RMQ_SIGNATURE_TEXT = RMQ_TEXT_COUNT + 1, RMQ_FIRST_VALUE };
typedef struct {
    const uint8_t *begin, *end; /* NULL: no header was read yet */
    rmq_request request;        /* the last request that was parsed */
    struct {
        /* index of a text; RMQ_TEXT_COUNT: the opaque; RMQ_SIGNATURE_TEXT; from RMQ_FIRST_VALUE
         * on: a property */
        int number;
        rmq_text text;
    } varying[RMQ_VARYING_MAX]; /* in the order of their positions */
    int count;
    int can_split_properties;               /* the caller does not need the properties as one text */
    int property_count;                     /* 0: the properties are one varying text */
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

enum rmq_end_text { END_GROUP, END_QUEUE_OFFSET, END_OFFSET, END_KIND, END_MSG_ID };

enum rmq_return_text { RETURN_OFFSET, RETURN_GROUP, RETURN_LEVEL, RETURN_TIMES_MAX };

enum rmq_offset_text { OFFSET_TOPIC, OFFSET_QUEUE_ID, OFFSET_GROUP, OFFSET_COMMIT, OFFSET_TIMESTAMP };

enum rmq_view_text { VIEW_OFFSET };

enum rmq_key_text { KEY_TOPIC, KEY_TEXT, KEY_COUNT, KEY_BEGIN, KEY_END, KEY_IS_UNIQUE };

/* Read the header of a frame into `model->request`. Returns 0 if Python must read it. A model
 * belongs to one buffer; its `begin` is NULL at first. */
int rmq_read_request(const uint8_t *frame, int64_t length, rmq_model *model);

/* A number of the header: its text, whether it must be present, and the largest value that C accepts. */
typedef struct {
    int32_t text, required;
    int64_t maximum;
} rmq_number_rule;

/* Read the numbers that `rules` describe; absent ones are 0. Returns 0 if C does not accept one of them. */
int rmq_read_numbers(const rmq_text *texts, const rmq_number_rule *rules, int count, int64_t *values);

static inline int rmq_is_text(rmq_text text, const char *expected)
{
    return text.length == strlen(expected) && memcmp(text.at, expected, text.length) == 0;
}

/* Decode JSON escapes into `out`, which has text.length bytes. Returns the length, or -1 if Python
 * must decode it. */
int64_t rmq_unescape(rmq_text text, uint8_t *out);

/* The size limit of a reply without its body. */
#define RMQ_REPLY_MAX 2048

typedef struct {
    int32_t opaque;
    int32_t reserved;
    int64_t numbers[9];     /* by rmq_field */
    const int64_t *offsets; /* for RMQ_MSG_ID */
    int64_t offset_count;
} rmq_answer;

/* Write a frame except for its body of `body_length` bytes. Returns the position of the body. */
uint8_t *rmq_put_reply(const rmq_core *core, const rmq_reply *reply, rmq_answer *answer, int64_t body_length,
                       uint8_t *out);

int rmq_has_reply_space(const rmq_core *core, int64_t length);

/* Write the id of a message: the host that stored it, and its offset. */
uint8_t *rmq_put_msg_id(uint8_t *out, const uint8_t *ip, int32_t ip_length, uint32_t port, int64_t offset);

/* Store the copies that the end of a transaction or a message sent back requires (copy.c), and answer it. */
int rmq_copy_message(rmq_core *core, int64_t peer, const rmq_request *request);

/* Answer or hold a pull. `frame` is the one that contains it, or NULL if the pull was held before: then
 * it is not held again, commits nothing, and need not be signed. */
int rmq_pull(rmq_core *core, int64_t peer, const rmq_request *request, rmq_slice frame);

/* Return the reader of this group and topic, or NULL. */
rmq_reader *rmq_find_reader(const rmq_core *core, rmq_text group, rmq_text topic);

/* Record an offset commit; a reader's last commit to a queue wins. There is space for one more. */
void rmq_record_commit(rmq_core *core, const rmq_reader *reader, int64_t queue_id, int64_t offset);

/* Answer a request for an offset or a message, or store the offset that a consumer reports (query.c). */
int rmq_answer_query(rmq_core *core, int64_t peer, const rmq_request *request);

typedef struct {
    int64_t peer;
    const rmq_topic *topic;
    rmq_sql_program *program; /* NULL: the tags decide */
    const int32_t *tags;      /* hash codes; none: every message */
    int32_t tag_count;
    int32_t queue_id;
    int64_t offset, wait_ms;
    rmq_slice frame;
} rmq_pull_to_hold;

/* Hold a pull, or leave it to Python if a limit is reached. */
int rmq_hold_pull(rmq_core *core, const rmq_pull_to_hold *given);

/* Return the first pull that is due, without those whose connection is closed, or NULL. */
const rmq_held *rmq_first_due(rmq_core *core);

/* Return the request that a held pull consists of. */
rmq_slice rmq_held_frame(const rmq_hold *hold, const rmq_held *pull);

/* Take the first pull that is due from its list. Its memory is used again by the next one that is held. */
void rmq_release_due(rmq_hold *hold);

/* access.c: compute the signature of an account over the concatenated pieces. */
#define RMQ_SIGNATURE_LENGTH 28u
void rmq_sign(const rmq_account *account, const rmq_slice *pieces, size_t count, uint8_t *text);

/* Return whether one of `accounts` has signed the request. `properties` are those of a send,
 * without escapes. */
int rmq_is_authorized(const rmq_core *core, const rmq_request *request, rmq_slice properties, uint64_t accounts);

/* Add the next `length` bytes of `out` to the replies of `peer`. The caller has checked that there
 * is space for an entry. */
void rmq_add_outgoing(rmq_core *core, int64_t peer, int64_t length, int64_t log_end, int is_copy);

/* Constants of the record; rmqpy/codec/layout.py has the table. */
#define RMQ_MESSAGE_MAGIC_V1 0xDAA320A7u
#define RMQ_MESSAGE_MAGIC_V2 0xDAA320ABu
#define RMQ_BLANK_MAGIC 0xCBD43194u
#define RMQ_COMPRESSED 0x1
#define RMQ_BORN_HOST_V6 0x10
#define RMQ_STORE_HOST_V6 0x20
#define RMQ_HOST_V6_EXTRA 12u
#define RMQ_HEAD_SIZE 88u /* up to and including BODYLENGTH, with two IPv4 hosts */
#define RMQ_RECORD_SIZE_MIN 91u
#define RMQ_ENTRY_HEADER_SIZE 48u

static inline size_t rmq_head_size(int32_t sys_flag)
{
    return RMQ_HEAD_SIZE + ((sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u)
           + ((sys_flag & RMQ_STORE_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u);
}

#endif
