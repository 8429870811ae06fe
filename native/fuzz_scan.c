/* Throws damaged log files and random drafts at the core, to be built with sanitizers; not part of the extension.
 *
 *   cc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover native/{fuzz_scan,scan,append,crc32}.c -o fuzz
 *   ./fuzz ROUNDS SEED FILE...
 *
 * Every buffer is allocated at exactly its size, so that the first byte read or written beyond it is caught.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rmqpy_native.h"

#define ROWS_MAX 4096u
#define DRAFTS_MAX 20u

static uint64_t state;

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(random_number() % limit) : 0;
}

static void *allocate(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (memory == NULL) {
        fprintf(stderr, "out of memory: %zu bytes\n", size);
        exit(1);
    }
    return memory;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static void scan_copy(const uint8_t *data, size_t length, int64_t base_offset, int32_t dledger)
{
    uint8_t *view = allocate(length);
    const size_t rows = 1 + below(ROWS_MAX);
    int64_t *cells = allocate(rows * RMQ_COLUMN_COUNT * sizeof(int64_t));
    rmq_scan_state scan = {
        .view = view,
        .length = length,
        .base_offset = base_offset,
        .dledger = dledger,
        .check_crc = (int32_t)below(2),
        .cells = cells,
        .max_records = rows,
    };
    memcpy(view, data, length);
    const enum rmq_stop stop = rmq_scan(&scan);
    check(scan.position <= length && scan.count <= rows, "a scan beyond its view");
    check(stop != RMQ_END || scan.position == length, "END before the end");
    for (size_t i = 0; i < scan.count; i++) {
        const int64_t *row = cells + i * RMQ_COLUMN_COUNT;
        const size_t properties_end = (size_t)(row[RMQ_PROPERTIES_POSITION] + row[RMQ_PROPERTIES_LENGTH]);
        check(properties_end <= length, "properties beyond the view");
        check((size_t)(row[RMQ_KEYS_POSITION] + row[RMQ_KEYS_LENGTH]) <= length, "keys beyond the view");
        check((size_t)(row[RMQ_TOPIC_POSITION] + row[RMQ_TOPIC_LENGTH]) <= length, "topic beyond the view");
    }
    free(cells);
    free(view);
}

/* Flip bits, overwrite a length, or copy a piece elsewhere. */
static void damage(uint8_t *data, size_t length)
{
    static const uint32_t favourites[] = {0u,          1u,          0x7Fu,       0x7FFFu,    0x10000u,   0x7FFFFFFFu,
                                          0x80000000u, 0xFFFFFFFFu, 0x7F7F7F7Fu, 0xDAA320A7u, 0xDAA320ABu};
    const size_t times = 1 + below(4);
    for (size_t i = 0; i < times && length > 64; i++) {
        switch (below(3)) {
        case 0:
            data[below(length)] ^= (uint8_t)(1u << below(8));
            break;
        case 1:
            rmq_store32(data + below(length - 3), favourites[below(sizeof favourites / sizeof *favourites)]);
            break;
        default:
            memmove(data + below(length - 64), data + below(length - 64), 1 + below(63));
        }
    }
}

typedef struct {
    const uint8_t *data;
    size_t length;
    int64_t base_offset;
    int32_t dledger;
    int64_t *cells; /* of the undamaged file */
    size_t count;
} log_file;

/* Move a length or flag word of one record, which begins at `record`, by a little. */
static void nudge(uint8_t *record, const int64_t *row)
{
    const size_t places[] = {
        0, /* TOTALSIZE */
        36, /* SYSFLAG */
        rmq_head_size((int32_t)row[RMQ_SYS_FLAG]) - 4, /* BODYLENGTH */
        (size_t)(row[RMQ_SIZE] - row[RMQ_PROPERTIES_LENGTH] - row[RMQ_TOPIC_LENGTH]) - 6, /* TOPICLENGTH */
        (size_t)(row[RMQ_SIZE] - row[RMQ_PROPERTIES_LENGTH]) - 4, /* PROPERTIESLENGTH */
    };
    const size_t which = below(sizeof places / sizeof *places);
    uint8_t *at = record + places[which];
    /* A body may just, or just not, leave room for the lengths of topic and properties. */
    const uint32_t from = which == 2 && below(2) ? (uint32_t)((size_t)row[RMQ_SIZE] - places[2] - 7) : rmq_load32(at);
    rmq_store32(at, from + (uint32_t)below(65) - 32u);
}

/* `row`, if any, is the record that ends the range. */
static void fuzz_range(const log_file *file, size_t start, size_t length, const int64_t *row)
{
    uint8_t *copy = allocate(length);
    memcpy(copy, file->data + start, length);
    if (row != NULL && below(2))
        nudge(copy + length - row[RMQ_SIZE], row);
    else
        damage(copy, length);
    scan_copy(copy, length, file->base_offset + (int64_t)start, file->dledger);
    scan_copy(copy, length, file->base_offset + (int64_t)start, !file->dledger);
    free(copy);
}

/* Damaged: a piece from the begin, and a few records with nothing behind them. */
static void fuzz_scan(const log_file *file)
{
    fuzz_range(file, 0, below(file->length + 1), NULL);
    if (file->count == 0)
        return;
    const size_t first = below(file->count);
    const size_t left = file->count - first;
    const size_t last = first + below(left < 3 ? left : 3);
    const int64_t *row = file->cells + last * RMQ_COLUMN_COUNT;
    const int64_t start = file->cells[first * RMQ_COLUMN_COUNT + RMQ_FRAME_OFFSET] - file->base_offset;
    const int64_t end = row[RMQ_OFFSET] + row[RMQ_SIZE] - file->base_offset;
    fuzz_range(file, (size_t)start, (size_t)(end - start), row);
}

static void fuzz_encode(void)
{
    const size_t count = below(DRAFTS_MAX + 1);
    rmq_draft *drafts = allocate(count * sizeof(rmq_draft));
    int64_t *ends = allocate(count * sizeof(int64_t));
    size_t payload_length = 0, out_length = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t *bytes = (uint8_t *)&drafts[i];
        for (size_t k = 0; k < sizeof(rmq_draft); k++)
            bytes[k] = (uint8_t)random_number();
        drafts[i].body_length = (uint32_t)below(300);
        drafts[i].topic_length = (uint32_t)below(128);
        drafts[i].properties_length = (uint32_t)below(200);
        const size_t length = drafts[i].body_length + drafts[i].topic_length + drafts[i].properties_length;
        payload_length += length;
        out_length += rmq_head_size(drafts[i].sys_flag) + 3 + length;
    }
    const size_t missing = below(3) ? 0 : below(50);
    const size_t payload_given = payload_length > missing ? payload_length - missing : 0;
    const size_t out_given = out_length > missing ? out_length - missing : 0;
    uint8_t *payload = allocate(payload_given);
    uint8_t *out = allocate(out_given);
    memset(payload, 'p', payload_given);
    if (count && !below(4))
        drafts[below(count)].topic_length = (uint32_t)random_number();
    else if (count && !below(4))
        drafts[below(count)].body_length = (uint32_t)random_number();
    const size_t done = rmq_encode(drafts, count, payload, payload_given, out, out_given, ends);
    check(done <= count && (done == 0 || (size_t)ends[done - 1] <= out_given), "an encoder beyond its buffer");
    if (done > 0)
        scan_copy(out, (size_t)ends[done - 1], 0, 0);
    free(out);
    free(payload);
    free(ends);
    free(drafts);
}

static void fuzz_crc(void)
{
    const size_t length = below(400);
    uint8_t *data = allocate(length);
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)random_number();
    check(rmq_crc32(data, length) == rmq_crc32_portable(data, length), "the two ways of the CRC disagree");
    free(data);
}

static log_file read_log_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    if (stream == NULL) {
        perror(path);
        exit(1);
    }
    fseek(stream, 0, SEEK_END);
    const size_t length = (size_t)ftell(stream);
    rewind(stream);
    uint8_t *data = allocate(length);
    check(fread(data, 1, length, stream) == length, "a file that shrinks");
    fclose(stream);
    const char *name = strrchr(path, '/');
    log_file file = {
        .data = data,
        .length = length,
        .base_offset = strtoll(name ? name + 1 : path, NULL, 10),
        .dledger = strstr(path, "/data/") != NULL,
        .cells = allocate(ROWS_MAX * RMQ_COLUMN_COUNT * sizeof(int64_t)),
    };
    rmq_scan_state scan = {
        .view = data,
        .length = length,
        .base_offset = file.base_offset,
        .dledger = file.dledger,
        .check_crc = 1,
        .cells = file.cells,
        .max_records = ROWS_MAX,
    };
    (void)rmq_scan(&scan);
    file.count = scan.count;
    return file;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: %s ROUNDS SEED FILE...\n", argv[0]);
        return 1;
    }
    const long rounds = strtol(argv[1], NULL, 10);
    state = strtoull(argv[2], NULL, 10) | 1u;
    size_t found = 0;
    for (int i = 3; i < argc; i++) {
        log_file file = read_log_file(argv[i]);
        found += file.count;
        for (long round = 0; round < rounds; round++) {
            fuzz_scan(&file);
            fuzz_encode();
            fuzz_crc();
        }
        free(file.cells);
        free((void *)(uintptr_t)file.data);
    }
    printf("%d files, %zu records\n", argc - 3, found);
    return 0;
}
