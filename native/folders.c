/* Finds the ends of the consume queues of one topic at the start of a broker, and writes units to queues that are not
 * mapped: with 200,000 queues, a call of the system from Python costs several times as much as in here. What is unusual
 * is left to rmqpy/store/queues/consume_queue.py, which has the same rules, and the texts of what it refuses. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rmqpy_native.h"

enum { UNIT_SIZE = 20, FILLER_SIZE = 0x7FFFFFFF, FILE_DIGITS = 20, QUEUE_DIGITS_MAX = 9, TOPIC_BYTES_MAX = 127 };

/* Return the number that a name is in decimal digits, or -1. `digits` is how many it must have; 0: as few as it needs,
 * and at most QUEUE_DIGITS_MAX. */
static int64_t number_of(const char *name, int digits)
{
    const int most = digits > 0 ? digits : QUEUE_DIGITS_MAX;
    int64_t number = 0;
    int count = 0;

    for (; name[count] >= '0' && name[count] <= '9' && count < most; count++) {
        if (number > (INT64_MAX - 9) / 10)
            return -1;
        number = number * 10 + (name[count] - '0');
    }
    if (count == 0 || name[count] != '\0' || (digits > 0 ? count != digits : count > 1 && name[0] == '0'))
        return -1;
    return number;
}

static int is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Return a position from which on a file contains only zeros. */
static int64_t data_end(int file, int64_t size)
{
#if defined(SEEK_DATA) && defined(SEEK_HOLE)
    int64_t end = 0;

    while (end < size) {
        const off_t data = lseek(file, (off_t)end, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? end : size;
        const off_t hole = lseek(file, data, SEEK_HOLE);
        if (hole <= data)
            return size;
        end = hole;
    }
#endif
    return size;
}

static int is_zero(const uint8_t *data, size_t length)
{
    return length == 0 || (data[0] == 0 && memcmp(data, data + 1, length - 1) == 0);
}

/* Read `length` bytes. Returns 0 if the system does not deliver them. */
static int read_all(int file, uint8_t *to, size_t length, int64_t position)
{
    while (length > 0) {
        const ssize_t count = pread(file, to, length, (off_t)position);
        if (count <= 0)
            return 0;
        to += count;
        position += count;
        length -= (size_t)count;
    }
    return 1;
}

/* The units of one file. The offsets are -1 if there is no such message. */
typedef struct {
    int64_t used; /* the end of the units before the first zero one */
    int64_t first_physical, physical_end;
} file_units;

/* Find the units of one file. Returns 0 if something is not as usual: units after a zero one, or an error. */
static int read_units(const rmq_folders *state, int file, file_units *found)
{
    const int64_t end = data_end(file, state->file_size), piece = (int64_t)state->buffer_length;

    *found = (file_units){0, -1, -1};
    for (int64_t position = 0; position < end; position += piece) {
        const int64_t left = state->file_size - position;
        const size_t length = (size_t)(left < piece ? left : piece);
        const size_t stored = (size_t)(end - position < (int64_t)length ? end - position : (int64_t)length);
        size_t used = 0;
        if (!read_all(file, state->buffer, stored, position))
            return 0;
        memset(state->buffer + stored, 0, length - stored); /* a part of the last unit, perhaps */
        while (used < length && !is_zero(state->buffer + used, UNIT_SIZE))
            used += UNIT_SIZE;
        if (!is_zero(state->buffer + used, length - used) || (used > 0 && found->used < position))
            return 0;
        found->used += (int64_t)used;
        for (size_t at = 0; at < used; at += UNIT_SIZE) {
            const int64_t offset = rmq_load_long(state->buffer + at);
            const int32_t size = rmq_load_int(state->buffer + at + 8);
            if (size <= 0 || size == FILLER_SIZE)
                continue;
            if (offset < 0 || offset > INT64_MAX - size)
                return 0;
            if (position == 0 && at == 0)
                found->first_physical = offset;
            found->physical_end = offset + size;
        }
    }
    return 1;
}

/* Open a file of a queue, or return -1 if it has not the size of one. */
static int open_file(const rmq_folders *state, int folder, int64_t first)
{
    char name[FILE_DIGITS + 1];
    struct stat status;

    snprintf(name, sizeof name, "%0*lld", FILE_DIGITS, (long long)first);
    /* A queue that may not be written must be refused now. Without O_NONBLOCK, a pipe would be waited for. */
    const int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size != state->file_size)) {
        close(file);
        return -1;
    }
#ifdef __linux__
    if (file >= 0)
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
#endif
    return file;
}

static int has_size(const rmq_folders *state, int folder, int64_t first)
{
    char name[FILE_DIGITS + 1];
    struct stat status;

    snprintf(name, sizeof name, "%0*lld", FILE_DIGITS, (long long)first);
    return fstatat(folder, name, &status, 0) == 0 && S_ISREG(status.st_mode) && status.st_size == state->file_size;
}

/* Find the first and the number of the files in a folder. Returns 0 unless they follow each other. */
static int list_files(const rmq_folders *state, DIR *folder, rmq_unit_folder *found)
{
    int64_t last = 0;

    errno = 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL; errno = 0) {
        if (is_dots(entry->d_name))
            continue;
        const int64_t first = number_of(entry->d_name, FILE_DIGITS);
        if (first < 0 || first % state->file_size != 0 || first > INT64_MAX - state->file_size)
            return 0;
        if (found->file_count == 0 || first < found->first_offset)
            found->first_offset = first;
        if (first > last)
            last = first;
        found->file_count++;
    }
    return errno == 0
        && (found->file_count == 0 || last - found->first_offset == (found->file_count - 1) * state->file_size);
}

/* Find the units of a queue. Returns 0 if something is not as usual. */
static int read_queue(const rmq_folders *state, int folder, rmq_unit_folder *found)
{
    file_units units = {0, -1, -1};

    for (int64_t number = 0; number < found->file_count; number++) {
        const int64_t first = found->first_offset + number * state->file_size;
        if (number < found->file_count - state->files_read) {
            if (!has_size(state, folder, first))
                return 0;
            continue;
        }
        const int file = open_file(state, folder, first);
        if (file < 0)
            return 0;
        const int is_usual = read_units(state, file, &units);
        close(file);
        if (!is_usual || (number + 1 < found->file_count && units.used < state->file_size))
            return 0;
        if (number == 0)
            found->first_physical = units.first_physical;
        if (units.physical_end >= 0)
            found->physical_end = units.physical_end;
        found->end = first + units.used;
    }
    /* Of a queue with fillers only, the files before the last ones may have a message. */
    return found->end == found->first_offset || found->physical_end > 0;
}

static int read_folder(const rmq_folders *state, int descriptor, rmq_unit_folder *found)
{
    DIR *const folder = fdopendir(descriptor);
    int is_usual = 0;

    if (folder == NULL) {
        close(descriptor);
        return 0;
    }
    is_usual = list_files(state, folder, found) && read_queue(state, descriptor, found);
    closedir(folder);
    return is_usual;
}

int rmq_read_folders(rmq_folders *state)
{
    const int own = openat(state->descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const topic = own < 0 ? NULL : fdopendir(own);
    int is_complete = 1;

    state->count = 0;
    if (topic == NULL) {
        if (own >= 0)
            close(own);
        return 0;
    }
    errno = 0;
    for (const struct dirent *entry; (entry = readdir(topic)) != NULL; errno = 0) {
        if (is_dots(entry->d_name))
            continue;
        const int64_t id = number_of(entry->d_name, 0);
        const int queue = id < 0 || state->count == state->capacity
            ? -1
            : openat(own, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rmq_unit_folder found = {id, 0, 0, 0, -1, 0};
        if (queue >= 0 && read_folder(state, queue, &found))
            state->rows[state->count++] = found;
        else
            is_complete = 0;
    }
    is_complete = is_complete && errno == 0;
    closedir(topic);
    return is_complete;
}

int rmq_write_unit(int32_t folder, const uint8_t *topic, size_t length, int64_t queue_id, int64_t first,
                   int64_t position, const uint8_t *unit)
{
    char path[TOPIC_BYTES_MAX + 1 + 20 + 1 + FILE_DIGITS + 1];

    if (length == 0 || length > TOPIC_BYTES_MAX || memchr(topic, '/', length) != NULL)
        return 0;
    snprintf(path, sizeof path, "%.*s/%lld/%0*lld", (int)length, (const char *)topic, (long long)queue_id, FILE_DIGITS,
             (long long)first);
    const int file = openat(folder, path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    const ssize_t count = pwrite(file, unit, UNIT_SIZE, (off_t)position);
    return close(file) == 0 && count == UNIT_SIZE;
}
