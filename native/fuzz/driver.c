/* A fuzzer for compilers without libFuzzer. Keeps the inputs that reach code which no other input reached.
 *
 *   driver SECONDS SEED CURRENT CORPUS...     SECONDS 0: run every input of the folders once
 *
 * The core is built with gcc -fsanitize-coverage=trace-pc, which calls this file at every branch target; this file
 * itself is built without it. CURRENT is a file that always holds the current input: after a crash, it holds the cause.
 * New inputs are written to the first folder and named by their hash.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAP_SIZE (1u << 16)
#define INPUT_MAX 16384u
#define INPUTS_MAX 16384u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);

typedef struct {
    uint8_t *data;
    size_t size;
} input;

typedef struct {
    uint32_t size;
    uint8_t data[INPUT_MAX];
} current_input;

static uint8_t hits[MAP_SIZE]; /* of one run */
static uint8_t seen[MAP_SIZE]; /* of all runs: classes of counts, a bit each */
static uintptr_t previous;
static uint64_t state;
static input inputs[INPUTS_MAX];
static size_t input_count;
static current_input *current;

void __sanitizer_cov_trace_pc(void)
{
    const uintptr_t place = (uintptr_t)__builtin_return_address(0);

    hits[((place >> 1) ^ previous) & (MAP_SIZE - 1)]++;
    previous = place & (MAP_SIZE - 1);
}

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t random_below(size_t limit)
{
    return limit ? (size_t)(random_number() % limit) : 0;
}

/* Return whether the run reached anything new. */
static int is_new(void)
{
    int found = 0;

    for (size_t i = 0; i < MAP_SIZE; i++) {
        const uint8_t count = hits[i];
        const uint8_t class = count == 0 ? 0 : count < 4 ? (uint8_t)(1u << (count - 1)) : count < 16 ? 8 : count < 64 ? 16 : 32;
        found |= class & ~seen[i];
        seen[i] |= class;
    }
    return found;
}

static int run(const uint8_t *data, size_t size)
{
    memset(hits, 0, sizeof hits);
    previous = 0;
    current->size = (uint32_t)size;
    memcpy(current->data, data, size);
    LLVMFuzzerTestOneInput(data, size);
    return is_new();
}

static void keep(const uint8_t *data, size_t size)
{
    if (input_count == INPUTS_MAX)
        return;
    uint8_t *const copy = malloc(size);
    memcpy(copy, data, size);
    inputs[input_count++] = (input){copy, size};
}

static void write_file(const char *folder, const uint8_t *data, size_t size)
{
    char path[4096];
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    snprintf(path, sizeof path, "%s/%016llx", folder, (unsigned long long)hash);
    FILE *const file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        perror(path);
}

static void load(const char *folder)
{
    static uint8_t buffer[INPUT_MAX];
    DIR *const found = opendir(folder);

    if (found == NULL) {
        perror(folder);
        exit(1);
    }
    for (struct dirent *entry; (entry = readdir(found)) != NULL;) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *const file = fopen(path, "rb");
        if (file == NULL)
            continue;
        const size_t size = fread(buffer, 1, sizeof buffer, file);
        fclose(file);
        run(buffer, size);
        keep(buffer, size);
    }
    closedir(found);
}

/* Apply one random change. A length word gets a value close to the old one, or a boundary value. */
static size_t change(uint8_t *data, size_t size)
{
    static const uint32_t BOUNDARIES[] = {0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    static const char *const WORDS[] = {"\\u0001", "\\u0002", "\\\"", "\",\"", "\":\"", "WAIT", "DELAY", "CLUSTER", "true",
                                        "false", "-1", "999999999999999999", "0", "fuzz", "group", "\xC3\xA9", "\xFF"};
    const size_t at = random_below(size), rest = size - at;
    uint32_t word;

    switch (random_below(8)) {
    case 0: data[at] ^= (uint8_t)(1u << random_below(8)); break;
    case 1: data[at] = (uint8_t)random_number(); break;
    case 2:
        if (rest < 4)
            break;
        word = BOUNDARIES[random_below(sizeof BOUNDARIES / sizeof *BOUNDARIES)];
        if (random_below(2)) {
            word = (uint32_t)data[at] << 24 | (uint32_t)data[at + 1] << 16 | (uint32_t)data[at + 2] << 8 | data[at + 3];
            word += (uint32_t)random_below(9) - 4u;
        }
        for (int i = 0; i < 4; i++)
            data[at + (size_t)i] = (uint8_t)(word >> (24 - 8 * i));
        break;
    case 3: { /* remove a piece */
        const size_t length = random_below(rest < 64 ? rest : 64);
        memmove(data + at, data + at + length, rest - length);
        return size - length;
    }
    case 4: { /* repeat a piece */
        const size_t length = random_below(rest < 512 ? rest : 512);
        if (size + length > INPUT_MAX)
            break;
        memmove(data + at + length, data + at, rest);
        return size + length;
    }
    case 5: {
        const char *const text = WORDS[random_below(sizeof WORDS / sizeof *WORDS)];
        const size_t length = strlen(text);
        if (rest >= length)
            memcpy(data + at, text, length);
        break;
    }
    case 6: { /* copy a piece of another input */
        const input *const other = &inputs[random_below(input_count)];
        const size_t from = random_below(other->size);
        size_t length = other->size - from;
        length = length < INPUT_MAX - at ? length : INPUT_MAX - at;
        memcpy(data + at, other->data + from, length);
        return at + length > size ? at + length : size;
    }
    default: data[0] = (uint8_t)random_number();
    }
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t data[INPUT_MAX];
    uint64_t runs = 0;

    if (argc < 5) {
        fprintf(stderr, "usage: %s SECONDS SEED CURRENT CORPUS...\n", argv[0]);
        return 1;
    }
    const time_t end = time(NULL) + strtol(argv[1], NULL, 10);
    state = strtoull(argv[2], NULL, 10) * 2 + 1;
    const int file = open(argv[3], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, sizeof *current) != 0) {
        perror(argv[3]);
        return 1;
    }
    current = mmap(NULL, sizeof *current, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    for (int i = 4; i < argc; i++)
        load(argv[i]);
    const size_t given = input_count;
    while (input_count > 0 && time(NULL) < end) {
        for (int i = 0; i < 1000; i++, runs++) {
            const input *const from = &inputs[random_below(input_count)];
            size_t size = from->size;
            memcpy(data, from->data, size);
            for (size_t changes = 1 + random_below(6); changes > 0 && size > 1; changes--)
                size = change(data, size);
            if (run(data, size)) {
                keep(data, size);
                write_file(argv[4], data, size);
            }
        }
    }
    size_t edges = 0;
    for (size_t i = 0; i < MAP_SIZE; i++)
        edges += seen[i] != 0;
    printf("%zu inputs given, %llu runs, %zu inputs found, %zu edges\n", given, (unsigned long long)runs,
           input_count - given, edges);
    return 0;
}
