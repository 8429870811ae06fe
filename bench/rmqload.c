/*
 * rmqload - put load on a RocketMQ broker and measure what it costs.
 *
 * One thread and one epoll set drive all connections with frames that were built beforehand, so that the broker is the
 * bottleneck and not the client. Every message has the properties UNIQ_KEY and WAIT, like those of real clients.
 *
 *   --mode send        SEND_MESSAGE_V2 (310), one message per request
 *   --mode send-batch  SEND_BATCH_MESSAGE (320), --batch messages per request
 *   --mode pull        PULL_MESSAGE (11), up to --max-messages per request, from offset 0, and again from 0 at the end
 *   --mode replay      the requests of --frames FILE in their order, again and again; each request counts as a message
 *   --mode tail        --groups consumer groups, each with its own connection and a waiting pull for each queue; sends on
 *                      the other connections. Each delivery counts as a message, and its latency from the moment at
 *                      which its send was due
 *
 * Closed loop (default): each connection keeps --window requests in flight; tail: --window messages are under way to
 * all groups. Open loop (--rate R): R requests per second
 * over all connections; the latency of a request counts from the moment at which it was due, so that a stalled broker
 * is visible. --pid names the processes of the server: their CPU seconds and memory are read from /proc.
 * --access-key and --secret-key sign sends for access control 1.0.
 *
 * FILE holds whole frames with JSON headers and opaque 1000000. The 32 characters of UNIQUE_KEY and thirteen digits 1
 * stand for a unique key and the time of birth. --accept C[,C] names further codes of answers that count as success.
 *
 * The last line of standard output is one JSON object. Exit code: 0 measured, 1 bad usage or no connection, 2 the
 * broker answered no request with success or sent something unreadable.
 *
 * Build: cc -O2 -Wall -Wextra -I../native -o rmqload rmqload.c ../native/access.c ../native/base64.c ../native/sha1.c -lm
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "rmqpy_native.h"

#define CODE_SEND 310
#define CODE_SEND_BATCH 320
#define CODE_PULL 11
#define CODE_PULL_NOT_FOUND 19
#define CODE_PULL_RETRY 20
#define CODE_PULL_OFFSET_MOVED 21
#define MESSAGE_MAGIC 0xDAA320A7u
#define CLIENT_VERSION 407

#define OPAQUE_FIRST 1000000u /* always seven digits, so that it can be patched in place */
#define OPAQUE_COUNT (1u << 22)
#define SLOTS (1u << 16) /* limit of the requests in flight on one connection */
#define UNIQUE_KEY_CHARS 32
#define UNIQUE_KEY_DIGITS 12 /* the part that counts up */
#define UNIQUE_KEY "7F000001ABCD18B4AAC2#KEY-OF-TEST"
#define BORN "1111111111111"
#define BORN_CHARS 13
#define DUE_CHARS 19 /* tail: bodies begin with the time in ns at which they were due */
#define BODY_POSITION 88 /* in a record with two IPv4 hosts */
#define READ_CHUNK (256 * 1024)
#define MAX_PIDS 16
#define MAX_CODES 16
#define MAX_FIELDS 16
#define SIGNATURE "Signature+Signature+Signatu=" /* as long as a signature; each copy gets the real one */

enum mode { MODE_SEND, MODE_SEND_BATCH, MODE_PULL, MODE_REPLAY, MODE_TAIL };
enum header { JSON, BINARY };

static struct {
    const char *host, *topic, *group, *access_key, *secret_key, *frames;
    enum mode mode;
    enum header header;
    int port, queues, groups, size, connections, window, batch, max_messages, pids[MAX_PIDS], pid_count,
        accepted[MAX_CODES], accepted_count;
    double seconds, warmup, rate;
    uint64_t count;
    bool verify;
} opt = {.host = "127.0.0.1", .topic = "bench", .group = "rmqload", .port = 10911, .queues = 4, .groups = 1, .size = 128,
         .connections = 4, .window = 64, .batch = 16, .max_messages = 32, .seconds = 5, .warmup = 1};

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("rmqload: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static uint64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- growing byte buffers, big-endian numbers ---- */

struct bytes { uint8_t *at; size_t used, capacity; };

static uint8_t *grow(struct bytes *b, size_t more) {
    if (b->used + more > b->capacity) {
        b->capacity = (b->used + more) * 2;
        if (!(b->at = realloc(b->at, b->capacity))) fail("cannot allocate %zu bytes", b->capacity);
    }
    b->used += more;
    return b->at + b->used - more;
}
static void add(struct bytes *b, const void *data, size_t size) { memcpy(grow(b, size), data, size); }
static void set16(uint8_t *p, unsigned v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
static void set32(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static void add16(struct bytes *b, unsigned v) { set16(grow(b, 2), v); }
static void add32(struct bytes *b, uint32_t v) { set32(grow(b, 4), v); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

__attribute__((format(printf, 2, 3))) static void add_text(struct bytes *b, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add(b, text, (size_t)length);
}

/* ---- frames ---- */

struct ext { const char *name, *value; };

/* Write a JSON string as the Java client does: control characters, which occur in properties,
 * become \u00XX. */
static void add_json_string(struct bytes *b, const char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < ' ') add_text(b, "\\u%04x", *text);
        else add(b, text, 1);
    }
}

/* Append a complete frame. *opaque_at is the position of the opaque in the frame. */
static void add_frame(struct bytes *b, int code, const struct ext *ext, int count, const struct bytes *body,
                      size_t *opaque_at) {
    size_t start = b->used;
    grow(b, 8);
    if (opt.header == JSON) {
        add_text(b, "{\"code\":%d,\"extFields\":{", code);
        for (int i = 0; i < count; i++) {
            add_text(b, "%s\"%s\":\"", i ? "," : "", ext[i].name);
            add_json_string(b, ext[i].value);
            add(b, "\"", 1);
        }
        add_text(b, "},\"flag\":0,\"language\":\"JAVA\",\"opaque\":");
        *opaque_at = b->used - start;
        add_text(b, "%u,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":%d}", OPAQUE_FIRST, CLIENT_VERSION);
    } else {
        add16(b, (unsigned)code);
        add(b, "\0", 1); /* language JAVA */
        add16(b, CLIENT_VERSION);
        *opaque_at = b->used - start;
        add32(b, OPAQUE_FIRST);
        add32(b, 0); /* flag */
        add32(b, 0); /* no remark */
        size_t length_at = b->used;
        add32(b, 0);
        for (int i = 0; i < count; i++) {
            add16(b, (unsigned)strlen(ext[i].name));
            add(b, ext[i].name, strlen(ext[i].name));
            add32(b, (uint32_t)strlen(ext[i].value));
            add(b, ext[i].value, strlen(ext[i].value));
        }
        set32(b->at + length_at, (uint32_t)(b->used - length_at - 4));
    }
    size_t header = b->used - start - 8;
    if (body) add(b, body->at, body->used);
    set32(b->at + start, (uint32_t)(b->used - start - 4));
    set32(b->at + start + 4, (uint32_t)header | (opt.header == BINARY ? 1u << 24 : 0));
}

static void set_digits(uint8_t *p, uint64_t value, int digits) {
    while (digits--) { p[digits] = (uint8_t)('0' + value % 10); value /= 10; }
}
static void set_opaque(uint8_t *p, uint32_t opaque) {
    if (opt.header == JSON) set_digits(p, opaque, 7);
    else set32(p, opaque);
}

#define NOWHERE SIZE_MAX
/* A send request of one queue, or a request of --frames. Opaque, born time, and unique keys are set in each copy. */
struct variable_frame { struct bytes text; size_t born_at, *keys_at; int keys; };
/* content: the signed bytes */
struct template { struct variable_frame frame, content; size_t opaque_at, signature_at; };

static struct template *templates;
static int template_count;
static rmq_account account;

static void add_batch(struct bytes *out, const struct bytes *body, const char *properties) {
    for (int i = 0; i < opt.batch; i++) {
        size_t length = strlen(properties);
        add32(out, (uint32_t)(22 + body->used + length));
        add32(out, 0); /* magic and CRC, which the broker sets */
        add32(out, 0);
        add32(out, 0); /* flag */
        add32(out, (uint32_t)body->used);
        add(out, body->at, body->used);
        add16(out, (unsigned)length);
        add(out, properties, length);
    }
}

static void find_variable_parts(struct variable_frame *c) {
    uint8_t *begin = c->text.at, *end = begin + c->text.used, *found = memmem(begin, c->text.used, BORN, BORN_CHARS);
    c->born_at = found ? (size_t)(found - begin) : NOWHERE;
    for (found = begin; (found = memmem(found, (size_t)(end - found), UNIQUE_KEY, UNIQUE_KEY_CHARS)); c->keys++) {
        c->keys_at = realloc(c->keys_at, ((size_t)c->keys + 1) * sizeof *c->keys_at);
        c->keys_at[c->keys] = (size_t)(found - begin);
        found += UNIQUE_KEY_CHARS;
    }
}

static void set_variable_parts(const struct variable_frame *c, uint8_t *at, uint64_t born, uint64_t first_key) {
    static const char hex[] = "0123456789ABCDEF";
    if (c->born_at != NOWHERE) set_digits(at + c->born_at, born, BORN_CHARS);
    for (int i = 0; i < c->keys; i++) {
        uint64_t key = first_key + (uint64_t)i;
        uint8_t *end = at + c->keys_at[i] + UNIQUE_KEY_CHARS;
        for (int digit = 1; digit <= UNIQUE_KEY_DIGITS; digit++, key >>= 4) end[-digit] = (uint8_t)hex[key & 15];
    }
}

static void build_template(struct template *t, int queue) {
    const char *properties = "UNIQ_KEY\001" UNIQUE_KEY "\002WAIT\001true\002";
    char queue_text[16];
    snprintf(queue_text, sizeof queue_text, "%d", queue);
    struct bytes body = {0}, batch = {0};
    for (int i = 0; i < opt.size; i++) *grow(&body, 1) = (uint8_t)('a' + (i * 7 + i / 26) % 26);
    bool is_batch = opt.mode == MODE_SEND_BATCH;
    if (is_batch) add_batch(&batch, &body, properties);
    struct ext ext[] = {{"a", opt.group}, {"b", opt.topic}, {"c", "TBW102"}, {"d", "4"}, {"e", queue_text},
                        {"f", "0"}, {"g", BORN}, {"h", "0"}, {"i", is_batch ? "WAIT\001true\002" : properties},
                        {"j", "0"}, {"k", "false"}, {"m", is_batch ? "true" : "false"},
                        {"AccessKey", opt.access_key}, {"Signature", SIGNATURE}};
    int count = sizeof ext / sizeof *ext - (opt.access_key ? 0 : 2);
    const struct bytes *whole_body = is_batch ? &batch : &body;
    add_frame(&t->frame.text, is_batch ? CODE_SEND_BATCH : CODE_SEND, ext, count, whole_body, &t->opaque_at);
    find_variable_parts(&t->frame);
    if (opt.access_key) {
        struct bytes *content = &t->content.text;
        add(content, opt.access_key, strlen(opt.access_key));
        for (int i = 0; i < count - 2; i++) add(content, ext[i].value, strlen(ext[i].value));
        add(content, whole_body->at, whole_body->used);
        find_variable_parts(&t->content);
        uint8_t *found = memmem(t->frame.text.at, t->frame.text.used, SIGNATURE, RMQ_SIGNATURE_LENGTH);
        t->signature_at = (size_t)(found - t->frame.text.at);
    }
    free(body.at);
    free(batch.at);
}

static void read_frames(void) {
    FILE *file = fopen(opt.frames, "rb");
    if (!file) fail("cannot read %s: %s", opt.frames, strerror(errno));
    uint8_t length[4];
    while (fread(length, 1, sizeof length, file) == sizeof length) {
        static const char opaque[] = "\"opaque\":1000000";
        templates = realloc(templates, ((size_t)template_count + 1) * sizeof *templates);
        struct template *t = &templates[template_count++];
        *t = (struct template){0};
        add(&t->frame.text, length, sizeof length);
        size_t size = get32(length);
        if (size < 4 || fread(grow(&t->frame.text, size), 1, size, file) != size)
            fail("%s: frame %d is cut off", opt.frames, template_count);
        const uint8_t *begin = t->frame.text.at, *found = memmem(begin, t->frame.text.used, opaque, strlen(opaque));
        if (!found) fail("%s: frame %d has no opaque 1000000 in a JSON header", opt.frames, template_count);
        t->opaque_at = (size_t)(found - begin) + strlen("\"opaque\":");
        find_variable_parts(&t->frame);
    }
    fclose(file);
    if (!template_count) fail("%s holds no frame", opt.frames);
}

/* ---- latency histogram: 64 equal steps between two powers of two, in nanoseconds ---- */

#define STEPS 64
static uint64_t histogram[64 * STEPS], latencies, latency_max;
static double latency_sum;

static void record_latency(uint64_t ns) {
    int power = 63 - __builtin_clzll(ns | STEPS);
    histogram[(power - 6) * STEPS + (int)((ns >> (power - 6)) & (STEPS - 1))]++;
    latencies++;
    latency_sum += (double)ns;
    if (ns > latency_max) latency_max = ns;
}

static double quantile_ms(double q) {
    uint64_t wanted = (uint64_t)ceil(q * (double)latencies), seen = 0;
    for (int i = 0; i < 64 * STEPS && latencies; i++) {
        seen += histogram[i];
        if (seen >= wanted && histogram[i]) {
            double upper = ldexp(STEPS + i % STEPS + 1, i / STEPS);
            return (upper < (double)latency_max ? upper : (double)latency_max) / 1e6;
        }
    }
    return (double)latency_max / 1e6;
}

/* ---- the server's usage ---- */

static double server_cpu_seconds(void) {
    double sum = 0;
    for (int i = 0; i < opt.pid_count; i++) {
        char path[64], text[1024];
        snprintf(path, sizeof path, "/proc/%d/stat", opt.pids[i]);
        FILE *file = fopen(path, "r");
        if (!file) fail("cannot read %s: %s", path, strerror(errno));
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        unsigned long user = 0, system = 0;
        char *rest = strrchr(text, ')'); /* the name before it may contain anything */
        if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
            fail("cannot parse %s", path);
        sum += (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    }
    return sum;
}

static long server_kb(const char *name) {
    long sum = 0;
    for (int i = 0; i < opt.pid_count; i++) {
        char path[64], line[256];
        snprintf(path, sizeof path, "/proc/%d/status", opt.pids[i]);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') sum += atol(line + strlen(name) + 1);
        if (file) fclose(file);
    }
    return sum;
}

static double generator_cpu_seconds(void) {
    return (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9;
}

/* ---- connections ---- */

struct cursor { int queue; uint64_t offset; bool is_at_end; }; /* the next position to pull */

struct connection {
    int socket;
    bool waits_for_writable;
    uint32_t sequence;
    int in_flight;
    struct bytes out, in;
    size_t out_done;
    uint64_t due[SLOTS]; /* by opaque; 0: none in flight */
    int cursor_of[SLOTS];
    struct cursor *cursors;
    int *free_cursors, free_count;
    int next_queue;
    int group; /* -1: does not pull */
};

static struct connection **connections;
static int connection_count; /* the last opt.groups of them pull in mode tail */
static int epoll_fd;
static bool measuring;
static uint64_t now_ns, now_ms, issued, answered, refused, messages, message_bytes, bytes_in, empty_pulls, unreadable;
static uint64_t key_counter, delivered, at_end; /* tail: deliveries, and cursors that have reached the end */
static struct { int code; uint64_t count; } codes[MAX_CODES];

static void add_pull(struct connection *c, uint32_t slot, size_t *opaque_at) {
    int number = c->free_cursors[--c->free_count];
    struct cursor *cursor = &c->cursors[number];
    c->cursor_of[slot] = number;
    char queue[16], offset[24], most[16], group[64];
    const bool tails = opt.mode == MODE_TAIL;
    snprintf(group, sizeof group, tails ? "%s-%d" : "%s", opt.group, c->group);
    snprintf(queue, sizeof queue, "%d", cursor->queue);
    snprintf(offset, sizeof offset, "%llu", (unsigned long long)cursor->offset);
    snprintf(most, sizeof most, "%d", opt.max_messages);
    struct ext ext[] = {{"consumerGroup", group}, {"topic", opt.topic}, {"queueId", queue}, {"queueOffset", offset},
                        {"maxMsgNums", most}, {"sysFlag", cursor->is_at_end ? "6" : "4"}, {"commitOffset", "0"},
                        {"suspendTimeoutMillis", tails ? "15000" : "0"},
                        {"subscription", "*"}, {"subVersion", "0"}, {"expressionType", "TAG"}};
    add_frame(&c->out, CODE_PULL, ext, sizeof ext / sizeof *ext, NULL, opaque_at);
}

static void add_send(struct connection *c, uint64_t due, size_t *opaque_at) {
    struct template *t = &templates[opt.mode == MODE_REPLAY ? (int)(issued % (uint64_t)template_count) : c->next_queue];
    c->next_queue = (c->next_queue + 1) % opt.queues;
    uint8_t *copy = grow(&c->out, t->frame.text.used);
    memcpy(copy, t->frame.text.at, t->frame.text.used);
    set_variable_parts(&t->frame, copy, now_ms, key_counter + 1);
    if (opt.mode == MODE_TAIL) set_digits(copy + t->frame.text.used - (size_t)opt.size, due, DUE_CHARS);
    if (opt.access_key) {
        const rmq_slice content = {t->content.text.at, t->content.text.used};
        set_variable_parts(&t->content, t->content.text.at, now_ms, key_counter + 1);
        rmq_sign(&account, &content, 1, copy + t->signature_at);
    }
    key_counter += (uint64_t)t->frame.keys;
    *opaque_at = t->opaque_at;
}

static bool pulls(const struct connection *c) { return opt.mode == MODE_PULL || c->group >= 0; }

/* Return whether all consumers of mode tail wait at the ends of their queues. */
static bool has_begun(void) { return opt.mode != MODE_TAIL || at_end >= (uint64_t)opt.groups * (uint64_t)opt.queues; }

static bool can_issue(const struct connection *c) {
    if (opt.mode == MODE_TAIL) {
        const uint64_t groups = (uint64_t)opt.groups;
        if (pulls(c)) return c->free_count > 0;
        if (!has_begun()) return false;
        if (opt.rate == 0 && issued * groups >= delivered + (uint64_t)opt.window * groups) return false;
    }
    return c->in_flight < (int)SLOTS - 1 && (opt.mode != MODE_PULL || c->free_count > 0) && (!opt.count || issued < opt.count);
}

static void issue(struct connection *c, uint64_t due) {
    uint32_t slot = c->sequence & (SLOTS - 1), opaque = OPAQUE_FIRST + (c->sequence & (OPAQUE_COUNT - 1));
    size_t start = c->out.used, opaque_at;
    c->sequence++;
    c->due[slot] = due;
    if (pulls(c)) add_pull(c, slot, &opaque_at);
    else add_send(c, due, &opaque_at);
    set_opaque(c->out.at + start + opaque_at, opaque);
    c->in_flight++;
    issued += opt.mode != MODE_TAIL || !pulls(c);
}

static void flush_requests(struct connection *c) {
    while (c->out_done < c->out.used) {
        ssize_t n = send(c->socket, c->out.at + c->out_done, c->out.used - c->out_done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) fail("send: %s", strerror(errno));
        c->out_done += (size_t)n;
    }
    bool rest = c->out_done < c->out.used;
    if (!rest) {
        c->out.used = c->out_done = 0;
    } else if (c->out_done > READ_CHUNK) {
        memmove(c->out.at, c->out.at + c->out_done, c->out.used - c->out_done);
        c->out.used -= c->out_done;
        c->out_done = 0;
    }
    if (rest != c->waits_for_writable) {
        struct epoll_event event = {.events = EPOLLIN | (rest ? EPOLLOUT : 0u), .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->socket, &event);
        c->waits_for_writable = rest;
    }
}

/* ---- replies ---- */

static bool find_number(const uint8_t *header, size_t size, const char *name, uint32_t *value) {
    const uint8_t *found = memmem(header, size, name, strlen(name));
    if (!found) return false;
    *value = (uint32_t)strtoul((const char *)found + strlen(name), NULL, 10);
    return true;
}

static void record_delivery(const uint8_t *record) {
    uint64_t due = 0;
    for (int i = 0; i < DUE_CHARS; i++) due = due * 10 + (uint64_t)(record[BODY_POSITION + i] - '0');
    delivered++;
    if (measuring) record_latency(now_ns - due);
}

/* Advance the cursor past the records of one pull reply. */
static void read_records(struct cursor *cursor, const uint8_t *at, const uint8_t *end) {
    uint64_t record_count = 0;
    while (at + 92 <= end) {
        uint32_t size = get32(at);
        if (size < 92 || at + size > end) break;
        if (opt.verify && (get32(at + 4) != MESSAGE_MAGIC || get32(at + 12) != (uint32_t)cursor->queue ||
                           get64(at + 20) != cursor->offset + record_count))
            unreadable++;
        record_count++;
        if (cursor->is_at_end) record_delivery(at);
        if (measuring) message_bytes += size;
        at += size;
    }
    if (at != end || !record_count) unreadable++;
    cursor->offset += record_count;
    if (measuring) messages += record_count;
}

static bool handle_pull_reply(struct connection *c, uint32_t slot, uint32_t code, const uint8_t *body, const uint8_t *end) {
    int number = c->cursor_of[slot];
    struct cursor *cursor = &c->cursors[number];
    c->free_cursors[c->free_count++] = number;
    if (code == 0) {
        read_records(cursor, body, end);
        return true;
    }
    cursor->offset = 0;
    if (measuring) empty_pulls++;
    return code == CODE_PULL_NOT_FOUND || code == CODE_PULL_RETRY || code == CODE_PULL_OFFSET_MOVED;
}

static uint64_t number_in(const uint8_t *header, size_t size, const char *name) {
    const uint8_t *found = memmem(header, size, name, strlen(name));
    return found ? strtoull((const char *)found + strlen(name), NULL, 10) : 0;
}

/* A cursor goes to the end of its queue first; from there on its pulls wait. */
static bool handle_tail_reply(struct connection *c, uint32_t slot, uint32_t code, const uint8_t *header, const uint8_t *body,
                              const uint8_t *end) {
    struct cursor *cursor = &c->cursors[c->cursor_of[slot]];
    const size_t header_size = (size_t)(body - header);
    c->free_cursors[c->free_count++] = c->cursor_of[slot];
    if (code == 0 && cursor->is_at_end) {
        read_records(cursor, body, end);
        return true;
    }
    at_end += code != 0 && !cursor->is_at_end;
    cursor->is_at_end |= code != 0;
    cursor->offset = number_in(header, header_size, code == 0 ? "\"maxOffset\":\"" : "\"nextBeginOffset\":\"");
    return code == 0 || code == CODE_PULL_NOT_FOUND || code == CODE_PULL_RETRY || code == CODE_PULL_OFFSET_MOVED;
}

static bool is_accepted(uint32_t code) {
    for (int i = 0; i < opt.accepted_count; i++)
        if (opt.accepted[i] == (int)code) return true;
    return code == 0;
}

static void count_refusal(uint32_t code, const uint8_t *header, size_t size) {
    static bool was_reported;
    if (!was_reported)
        fprintf(stderr, "rmqload: first refused request, code %u: %.*s\n", code, (int)(size < 400 ? size : 400), header);
    was_reported = true;
    if (!measuring) return;
    refused++;
    for (int i = 0; i < MAX_CODES; i++) {
        if (codes[i].count == 0 || codes[i].code == (int)code) {
            codes[i].code = (int)code;
            codes[i].count++;
            return;
        }
    }
}

static void handle_reply(struct connection *c, const uint8_t *frame, size_t size) {
    uint32_t word = get32(frame + 4), code, opaque, flag;
    size_t header_size = word & 0xFFFFFF;
    const uint8_t *header = frame + 8;
    if (header_size > size - 8) { unreadable++; return; }
    if (word >> 24 == 0) {
        if (!find_number(header, header_size, "\"code\":", &code) ||
            !find_number(header, header_size, "\"opaque\":", &opaque) ||
            !find_number(header, header_size, "\"flag\":", &flag)) { unreadable++; return; }
    } else {
        code = (uint32_t)(header[0] << 8 | header[1]);
        opaque = get32(header + 5);
        flag = get32(header + 9);
    }
    if (!(flag & 1)) return; /* a request: a broker tells the members of a group about a new one */
    uint32_t slot = (opaque - OPAQUE_FIRST) & (SLOTS - 1);
    if (opaque < OPAQUE_FIRST || opaque >= OPAQUE_FIRST + OPAQUE_COUNT || !c->due[slot]) { unreadable++; return; }
    bool good = is_accepted(code);
    if (opt.mode == MODE_TAIL && pulls(c))
        good = handle_tail_reply(c, slot, code, header, header + header_size, frame + size);
    else if (opt.mode == MODE_PULL) good = handle_pull_reply(c, slot, code, header + header_size, frame + size);
    else if (good && measuring && opt.mode != MODE_TAIL) messages += opt.mode == MODE_SEND_BATCH ? (uint64_t)opt.batch : 1;
    if (!good) count_refusal(code, header, header_size);
    if (!good && opt.mode == MODE_TAIL && !pulls(c)) delivered += (uint64_t)opt.groups; /* it never will be */
    if (measuring) {
        if (good) answered++;
        if (opt.mode != MODE_TAIL) record_latency(now_ns - c->due[slot]);
    }
    c->due[slot] = 0;
    c->in_flight--;
}

static void receive_replies(struct connection *c) {
    for (;;) {
        uint8_t *capacity = grow(&c->in, READ_CHUNK);
        ssize_t n = recv(c->socket, capacity, READ_CHUNK, 0);
        c->in.used -= READ_CHUNK - (n > 0 ? (size_t)n : 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) fail(n ? "recv: %s" : "the broker closed a connection", strerror(errno));
        if (measuring) bytes_in += (uint64_t)n;
        now_ns = clock_ns(CLOCK_MONOTONIC);
        size_t at = 0;
        while (c->in.used - at >= 8 && c->in.used - at >= (size_t)get32(c->in.at + at) + 4) {
            size_t size = (size_t)get32(c->in.at + at) + 4;
            handle_reply(c, c->in.at + at, size);
            at += size;
        }
        memmove(c->in.at, c->in.at + at, c->in.used - at);
        c->in.used -= at;
        if (n < READ_CHUNK) break;
    }
}

/* ---- the run ---- */

static struct connection *open_connection(int number) {
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    if (inet_pton(AF_INET, opt.host, &peer.sin_addr) != 1) fail("--host %s is not an IPv4 address", opt.host);
    struct connection *c = calloc(1, sizeof *c);
    c->socket = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->socket, (struct sockaddr *)&peer, sizeof peer)) fail("%s:%d: %s", opt.host, opt.port, strerror(errno));
    int one = 1;
    setsockopt(c->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->socket, F_SETFL, O_NONBLOCK);
    c->next_queue = number % opt.queues;
    c->group = opt.mode == MODE_TAIL ? number - opt.connections : -1;
    const int cursors = opt.mode == MODE_TAIL ? opt.queues : opt.window;
    c->cursors = calloc((size_t)cursors, sizeof *c->cursors);
    c->free_cursors = calloc((size_t)cursors, sizeof *c->free_cursors);
    for (int i = 0; i < cursors; i++) {
        c->cursors[i].queue = (number * cursors + i) % opt.queues;
        c->free_cursors[c->free_count++] = i;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->socket, &event);
    return c;
}

static void fill_windows(struct connection *c) {
    while ((opt.mode == MODE_TAIL || c->in_flight < opt.window) && can_issue(c)) issue(c, now_ns);
    if (c->out.used > c->out_done && !c->waits_for_writable) flush_requests(c);
}

/* Issue the requests that are due. A broker that is late receives them all the same, until the
 * slots are used up. */
static void issue_due(uint64_t start, uint64_t *issued_count) {
    static int turn;
    while (start + (uint64_t)((double)*issued_count * 1e9 / opt.rate) <= now_ns) {
        struct connection *c = connections[turn];
        turn = (turn + 1) % opt.connections;
        if (!can_issue(c)) return;
        issue(c, start + (uint64_t)((double)*issued_count * 1e9 / opt.rate));
        ++*issued_count;
    }
}

static void wait_and_handle(void) {
    struct epoll_event events[256];
    int timeout_ms = opt.rate > 0 ? 0 : 20;
    int n = epoll_wait(epoll_fd, events, 256, timeout_ms);
    now_ns = clock_ns(CLOCK_MONOTONIC);
    now_ms = clock_ns(CLOCK_REALTIME) / 1000000;
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) flush_requests(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive_replies(c);
        if (opt.rate == 0 || pulls(c)) fill_windows(c);
    }
    if (opt.mode == MODE_TAIL && opt.rate == 0)
        for (int i = 0; i < opt.connections; i++) fill_windows(connections[i]);
}

static bool all_answered(void) {
    for (int i = 0; i < connection_count; i++)
        if (connections[i]->in_flight) return false;
    return true;
}

struct usage { uint64_t at_ns; double server, generator; };

static struct usage measure_usage(void) {
    return (struct usage){clock_ns(CLOCK_MONOTONIC), opt.pid_count ? server_cpu_seconds() : 0, generator_cpu_seconds()};
}

static struct usage run(struct usage *begin) {
    now_ns = clock_ns(CLOCK_MONOTONIC);
    now_ms = clock_ns(CLOCK_REALTIME) / 1000000;
    uint64_t start = now_ns, issued_count = 0;
    uint64_t measure_from = start + (uint64_t)(opt.warmup * 1e9), end = measure_from + (uint64_t)(opt.seconds * 1e9);
    for (int i = 0; i < connection_count; i++)
        if (opt.rate == 0 || pulls(connections[i])) fill_windows(connections[i]);
    for (; !has_begun(); wait_and_handle())
        if (now_ns - start > 120 * 1000000000ull) fail("the consumers did not reach the ends of their queues");
    measure_from += now_ns - start;
    end += now_ns - start;
    start = now_ns;
    for (;;) {
        if (!measuring && now_ns >= measure_from) {
            *begin = measure_usage();
            measuring = true;
        }
        if (opt.rate > 0) {
            issue_due(start, &issued_count);
            for (int i = 0; i < opt.connections; i++)
                if (connections[i]->out.used > connections[i]->out_done && !connections[i]->waits_for_writable)
                    flush_requests(connections[i]);
        }
        wait_and_handle();
        if (opt.count ? issued >= opt.count && all_answered() : now_ns >= end) break;
    }
    measuring = false;
    return measure_usage();
}

static void print_result(struct usage begin, struct usage end) {
    static const char *const modes[] = {"send", "send-batch", "pull", "replay", "tail"};
    double seconds = (double)(end.at_ns - begin.at_ns) / 1e9, server = end.server - begin.server;
    printf("{\"mode\":\"%s\",\"header\":\"%s\",\"size\":%d,\"connections\":%d,\"window\":%d,\"queues\":%d,\"groups\":%d,", modes[opt.mode],
           opt.header == JSON ? "json" : "rocketmq", opt.size, opt.connections, opt.window, opt.queues, opt.groups);
    printf("\"batch\":%d,\"max_messages\":%d,\"rate\":%.0f,\"seconds\":%.4f,\"requests\":%llu,\"refused\":%llu,",
           opt.batch, opt.max_messages, opt.rate, seconds, (unsigned long long)answered, (unsigned long long)refused);
    printf("\"unreadable\":%llu,\"empty_pulls\":%llu,\"messages\":%llu,\"messages_per_s\":%.1f,",
           (unsigned long long)unreadable, (unsigned long long)empty_pulls, (unsigned long long)messages,
           (double)messages / seconds);
    printf("\"message_bytes_per_s\":%.0f,\"received_bytes_per_s\":%.0f,\"refusals\":{", (double)message_bytes / seconds,
           (double)bytes_in / seconds);
    for (int i = 0; i < MAX_CODES && codes[i].count; i++)
        printf("%s\"%d\":%llu", i ? "," : "", codes[i].code, (unsigned long long)codes[i].count);
    printf("},\"latency_ms\":{\"mean\":%.4f,\"p50\":%.4f,\"p90\":%.4f,\"p99\":%.4f,\"p99_9\":%.4f,\"max\":%.4f},",
           latencies ? latency_sum / (double)latencies / 1e6 : 0, quantile_ms(.5), quantile_ms(.9), quantile_ms(.99),
           quantile_ms(.999), (double)latency_max / 1e6);
    printf("\"generator_cpu_s\":%.3f,\"server_cpu_s\":%.3f,\"server_cpu_share\":%.3f,\"messages_per_server_cpu_s\":%.1f,",
           end.generator - begin.generator, server, server / seconds, server > 0 ? (double)messages / server : 0);
    printf("\"server_rss_kb\":%ld,\"server_anon_kb\":%ld,\"server_file_kb\":%ld}\n", server_kb("VmRSS"),
           server_kb("RssAnon"), server_kb("RssFile"));
}

static int at_least(const char *name, const char *text, int least) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < least || value > 1 << 24)
        fail("--%s %s: expected a whole number from %d to %d", name, text, least, 1 << 24);
    return (int)value;
}

static double positive(const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || value < 0) fail("--%s %s: expected a number of at least 0", name, text);
    return value;
}

static int read_numbers(const char *name, char *text, int *numbers, int most) {
    int count = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        if (count == most) fail("--%s: at most %d numbers", name, most);
        numbers[count++] = at_least(name, word, 1);
    }
    return count;
}

static int read_choice(const char *name, const char *text, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (!strcmp(text, words[i])) return i;
    fail("--%s %s: not one of the allowed values", name, text);
    return 0;
}

static void read_options(int argc, char **argv) {
    static const char *const modes[] = {"send", "send-batch", "pull", "replay", "tail", NULL}, *const headers[] = {"json", "rocketmq", NULL};
    enum { HOST, PORT, TOPIC, GROUP, MODE, HEADER, QUEUES, SIZE, CONNECTIONS, WINDOW, BATCH, MAX_MESSAGES, SECONDS, WARMUP,
           RATE, COUNT, PID, ACCESS_KEY, SECRET_KEY, FRAMES, ACCEPT, GROUPS, VERIFY };
    static const char *const names[] = {"host", "port", "topic", "group", "mode", "header", "queues", "size", "connections",
                                        "window", "batch", "max-messages", "seconds", "warmup", "rate", "count", "pid",
                                        "access-key", "secret-key", "frames", "accept", "groups", "verify"};
    struct option options[VERIFY + 2] = {0};
    for (int i = 0; i <= VERIFY; i++) options[i] = (struct option){names[i], i < VERIFY, NULL, i + 1};
    for (int got; (got = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (got == '?') exit(1);
        int which = got - 1;
        const char *name = names[which];
        switch (which) {
            case HOST: opt.host = optarg; break;
            case PORT: opt.port = at_least(name, optarg, 1); break;
            case TOPIC: opt.topic = optarg; break;
            case GROUP: opt.group = optarg; break;
            case MODE: opt.mode = (enum mode)read_choice(name, optarg, modes); break;
            case HEADER: opt.header = (enum header)read_choice(name, optarg, headers); break;
            case QUEUES: opt.queues = at_least(name, optarg, 1); break;
            case SIZE: opt.size = at_least(name, optarg, 1); break;
            case CONNECTIONS: opt.connections = at_least(name, optarg, 1); break;
            case WINDOW: opt.window = at_least(name, optarg, 1); break;
            case BATCH: opt.batch = at_least(name, optarg, 1); break;
            case MAX_MESSAGES: opt.max_messages = at_least(name, optarg, 1); break;
            case SECONDS: opt.seconds = positive(name, optarg); break;
            case WARMUP: opt.warmup = positive(name, optarg); break;
            case RATE: opt.rate = positive(name, optarg); break;
            case COUNT: opt.count = (uint64_t)positive(name, optarg); break;
            case PID: opt.pid_count = read_numbers(name, optarg, opt.pids, MAX_PIDS); break;
            case ACCESS_KEY: opt.access_key = optarg; break;
            case SECRET_KEY: opt.secret_key = optarg; break;
            case FRAMES: opt.frames = optarg; break;
            case ACCEPT: opt.accepted_count = read_numbers(name, optarg, opt.accepted, MAX_CODES); break;
            case GROUPS: opt.groups = at_least(name, optarg, 1); break;
            case VERIFY: opt.verify = true; break;
        }
    }
    if (optind < argc) fail("unexpected argument %s", argv[optind]);
    if (opt.window >= (int)SLOTS) fail("--window: must be less than %u", SLOTS);
    if (opt.count) opt.warmup = 0;
    if (opt.mode == MODE_TAIL && (opt.count || opt.size < DUE_CHARS || opt.header != JSON || opt.queues >= (int)SLOTS))
        fail("--mode tail: JSON headers, --size of at least %d, and no --count", DUE_CHARS);
    if (!opt.frames != (opt.mode != MODE_REPLAY)) fail("--mode replay and --frames need each other");
    if (!opt.access_key != !opt.secret_key) fail("--access-key and --secret-key must be given together");
    if (opt.access_key) rmq_set_secret(&account, (const uint8_t *)opt.secret_key, strlen(opt.secret_key));
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    key_counter = clock_ns(CLOCK_REALTIME) >> 20 << 24; /* no keys of an earlier run */
    if (opt.mode == MODE_REPLAY) {
        read_frames();
    } else {
        templates = calloc((size_t)opt.queues, sizeof *templates);
        for (int i = 0; i < opt.queues && opt.mode != MODE_PULL; i++) build_template(&templates[i], i);
    }
    epoll_fd = epoll_create1(0);
    connection_count = opt.connections + (opt.mode == MODE_TAIL ? opt.groups : 0);
    connections = calloc((size_t)connection_count, sizeof *connections);
    for (int i = 0; i < connection_count; i++) connections[i] = open_connection(i);
    struct usage begin = {0}, end = run(&begin);
    print_result(begin, end);
    return unreadable || !answered ? 2 : 0;
}
