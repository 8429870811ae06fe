/* A lower bound of the cost of a rebuild on this machine: it writes the consume queues and the key index of a log that it
 * takes on trust. Each message has the topic of the first one, no tags, and its only key, UNIQ_KEY, at the same place; nothing
 * is checked but the size, which all have. It sees no damage, no other message, and no end of a message that was being written.
 *
 *     cc -O3 -o rebuild_floor bench/rebuild_floor.c && rebuild_floor NEW_FOLDER STORE/commitlog/0*
 *
 * NEW_FOLDER has a file for each queue then, which is what its files are together, and the index files by number: the same
 * bytes as those of a broker.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    QUEUES = 16, UNIT = 20, BUFFER = 12800 * UNIT, HEADER = 40, SLOTS = 5000000, ENTRIES = 20000000, AHEAD = 16,
    QUEUE_ID_AT = 12, STORED_AT = 56, BODY_AT = 84
};

static const uint32_t BLANK = 0xCBD43194; /* the magic of what fills a file up to its end */

struct output {
    int file;
    size_t used;
    uint8_t bytes[BUFFER];
};

struct index {
    uint8_t header_and_slots[HEADER + SLOTS * 4];
    struct output entries;
    int32_t count, used_slots;
    int64_t begin_ms, end_ms, begin, end;
};

struct key {
    uint32_t hash;
    int64_t offset, stored_ms;
};

static struct output queues[QUEUES];
static struct index table;
static const char *folder;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint32_t load32(const uint8_t *from)
{
    uint32_t value;
    memcpy(&value, from, 4);
    return __builtin_bswap32(value);
}

static uint64_t load64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, 8);
    return __builtin_bswap64(value);
}

static void store32(uint8_t *to, uint32_t value)
{
    value = __builtin_bswap32(value);
    memcpy(to, &value, 4);
}

static void store64(uint8_t *to, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(to, &value, 8);
}

static int create(const char *kind, int number)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s-%d", folder, kind, number);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        fail(path);
    return file;
}

static void flush(struct output *output)
{
    if (write(output->file, output->bytes, output->used) != (ssize_t)output->used)
        fail("write");
    output->used = 0;
}

static uint8_t *next(struct output *output)
{
    if (output->used == BUFFER)
        flush(output);
    output->used += UNIT;
    return output->bytes + output->used - UNIT;
}

static void begin_index(void)
{
    static int number;

    memset(&table, 0, sizeof table);
    table.entries.file = create("index", number++);
    if (lseek(table.entries.file, HEADER + SLOTS * 4, SEEK_SET) < 0)
        fail("lseek");
    memset(next(&table.entries), 0, UNIT);
    table.count = 1;
}

static void end_index(void)
{
    uint8_t *const header = table.header_and_slots;

    flush(&table.entries);
    store64(header, (uint64_t)table.begin_ms);
    store64(header + 8, (uint64_t)table.end_ms);
    store64(header + 16, (uint64_t)table.begin);
    store64(header + 24, (uint64_t)table.end);
    store32(header + 32, (uint32_t)table.used_slots);
    store32(header + 36, (uint32_t)table.count);
    if (pwrite(table.entries.file, header, sizeof table.header_and_slots, 0) != sizeof table.header_and_slots)
        fail("pwrite");
    close(table.entries.file);
}

static uint8_t *slot_of(uint32_t hash)
{
    return table.header_and_slots + HEADER + hash % SLOTS * 4;
}

static void put_key(const struct key *key)
{
    if (table.count == ENTRIES) {
        end_index();
        begin_index();
    }
    if (table.count == 1) {
        table.begin_ms = key->stored_ms;
        table.begin = key->offset;
    }
    uint8_t *const slot = slot_of(key->hash), *const entry = next(&table.entries);
    const uint32_t previous = load32(slot);
    store32(entry, key->hash);
    store64(entry + 4, (uint64_t)key->offset);
    store32(entry + 12, (uint32_t)((key->stored_ms - table.begin_ms) / 1000));
    store32(entry + 16, previous);
    store32(slot, (uint32_t)table.count);
    table.used_slots += previous == 0;
    table.count++;
    table.end_ms = key->stored_ms;
    table.end = key->offset;
}

/* Where the key of the first message is, and the hash of its topic and '#'. */
static void find_key(const uint8_t *record, size_t *key_at, size_t *key_length, uint32_t *topic_hash)
{
    const uint8_t *const topic = record + BODY_AT + 4 + load32(record + BODY_AT);
    const uint8_t *const properties = topic + 1 + topic[0];
    const size_t length = (size_t)properties[0] << 8 | properties[1];
    const uint8_t *const key = memmem(properties + 2, length, "UNIQ_KEY\1", 9);

    if (key == NULL || memmem(properties + 2, length, "TAGS\1", 5) != NULL)
        fail("a message without UNIQ_KEY, or with tags");
    *key_at = (size_t)(key + 9 - record);
    *key_length = strcspn((const char *)key + 9, "\2");
    *topic_hash = 0;
    for (size_t i = 1; i <= topic[0]; i++)
        *topic_hash = *topic_hash * 31 + topic[i];
    *topic_hash = *topic_hash * 31 + '#';
}

int main(int count, char **words)
{
    struct key keys[AHEAD] = {{0, 0, 0}};
    struct rusage usage;
    struct stat status;
    size_t key_at = 0, key_length = 0;
    uint32_t topic_hash = 0, size = 0;
    uint64_t messages = 0;

    if (count < 3) {
        fprintf(stderr, "usage: rebuild_floor NEW_FOLDER FILE...\n");
        return 2;
    }
    folder = words[1];
    if (mkdir(folder, 0777) != 0)
        fail(folder);
    for (int number = 0; number < QUEUES; number++)
        queues[number].file = create("queue", number);
    begin_index();
    for (int number = 2; number < count; number++) {
        const int file = open(words[number], O_RDONLY | O_CLOEXEC);
        const char *const name = strrchr(words[number], '/');
        if (file < 0 || name == NULL || fstat(file, &status) != 0)
            fail(words[number]);
        const int64_t first = strtoll(name + 1, NULL, 10);
        const size_t length = (size_t)status.st_size;
        const uint8_t *const view = mmap(NULL, length, PROT_READ, MAP_SHARED, file, 0);
        if (view == MAP_FAILED)
            fail(words[number]);
        if (size == 0) {
            size = load32(view);
            find_key(view, &key_at, &key_length, &topic_hash);
        }
        size_t at = 0;
        for (; length - at >= size && load32(view + at) == size; at += size) {
            const uint8_t *const record = view + at, *const key = record + key_at;
            const uint32_t queue = load32(record + QUEUE_ID_AT);
            if (queue >= QUEUES) {
                fprintf(stderr, "queue %u, but there is room for %d\n", queue, QUEUES);
                return 2;
            }
            uint8_t *const unit = next(&queues[queue]);
            uint32_t hash = topic_hash;
            for (size_t i = 0; i < key_length; i++)
                hash = hash * 31 + key[i];
            store64(unit, (uint64_t)first + at);
            store32(unit + 8, size);
            memset(unit + 12, 0, 8);
            /* The slots are scattered, so each is used some messages after the processor was told to load it. */
            struct key *const place = &keys[messages++ % AHEAD];
            if (messages > AHEAD)
                put_key(place);
            *place = (struct key){hash >> 31 ? -hash : hash, (int64_t)(first + (int64_t)at), (int64_t)load64(record + STORED_AT)};
            __builtin_prefetch(slot_of(place->hash), 1);
        }
        if (length - at >= 8 && load32(view + at) != 0 && load32(view + at + 4) != BLANK) {
            fprintf(stderr, "%s: a message of another size at byte %zu\n", words[number], at);
            return 2;
        }
        munmap((void *)(uintptr_t)view, length);
        close(file);
    }
    for (uint64_t each = messages < AHEAD ? 0 : messages - AHEAD; each < messages; each++)
        put_key(&keys[each % AHEAD]);
    end_index();
    for (int number = 0; number < QUEUES; number++)
        flush(&queues[number]);
    getrusage(RUSAGE_SELF, &usage);
    printf("%llu messages: %.3f CPU-seconds\n", (unsigned long long)messages,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
               + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
