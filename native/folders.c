/* Finds the ends of the consume queues of many topics at the start of a broker, writes units to queues that are not
 * mapped, and reads the queues of an audit as one sum: with 200,000 queues, a call of the system from Python costs
 * several times as much as in here. What is unusual is left to rmqpy/store/queues/consume_queue.py and
 * rmqpy/audit/checks/pooled_check.py, which have the same rules, and the texts of what they refuse. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
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
    int64_t data = 0;

    for (;;) { /* Most files begin with data, and then have a hole up to their end. */
        const off_t hole = lseek(file, (off_t)data, SEEK_HOLE);
        if (hole < data || hole >= size)
            return size;
        const off_t next = lseek(file, hole, SEEK_DATA);
        if (next <= hole)
            return next < 0 && errno == ENXIO ? hole : size;
        data = next;
    }
#else
    (void)file;
    return size;
#endif
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

/* Find the units of one file, and add them to those of the queue. Returns 0 if something is not as usual: units after a
 * zero one, or an error. */
static int read_units(const rmq_folders *state, int file, file_units *found, rmq_pooled_units *pooled)
{
    const int64_t end = data_end(file, state->file_size), piece = (int64_t)state->buffer_length;

    *found = (file_units){0, -1, -1};
    for (int64_t position = 0; position < end; position += piece) {
        const size_t stored = (size_t)(end - position < piece ? end - position : piece);
        const size_t length = (stored + UNIT_SIZE - 1) / UNIT_SIZE * UNIT_SIZE;
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
        if (pooled->low < INT64_MAX) {
            pooled->length = (int64_t)used;
            pooled->position = 0;
            rmq_pool_units(pooled);
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

#ifdef __linux__
/* The names in a folder, as the kernel returns them: readdir of the C library makes four more calls of the system for
 * each folder, and allocates 32 KiB. */
typedef struct {
    int descriptor;
    int has_failed;
    long length, at;
    _Alignas(8) char rows[4096];
} folder_names;

/* Take over the descriptor of a folder. Returns 0, and closes it, if that fails. */
static int open_names(folder_names *names, int descriptor)
{
    names->descriptor = descriptor;
    names->has_failed = 0;
    names->length = names->at = 0;
    return 1;
}

/* Return the next name, or NULL after the last one, or if the system does not deliver it. */
static const char *next_name(folder_names *names)
{
    enum { LENGTH_AT = 16, NAME_AT = 19 }; /* in struct linux_dirent64 */

    for (;;) {
        if (names->at >= names->length) {
            names->length = syscall(SYS_getdents64, names->descriptor, names->rows, sizeof names->rows);
            names->at = 0;
            names->has_failed = names->length < 0;
            if (names->length <= 0)
                return NULL;
        }
        const char *const row = names->rows + names->at;
        uint16_t length;
        memcpy(&length, row + LENGTH_AT, sizeof length);
        names->at += length;
        if (!is_dots(row + NAME_AT))
            return row + NAME_AT;
    }
}

static void close_names(folder_names *names)
{
    close(names->descriptor);
}
#else
typedef struct {
    DIR *folder;
    int has_failed;
} folder_names;

static int open_names(folder_names *names, int descriptor)
{
    names->has_failed = 0;
    names->folder = fdopendir(descriptor);
    if (names->folder == NULL)
        close(descriptor);
    return names->folder != NULL;
}

static const char *next_name(folder_names *names)
{
    const struct dirent *entry;

    do {
        errno = 0;
        entry = readdir(names->folder);
    } while (entry != NULL && is_dots(entry->d_name));
    names->has_failed = entry == NULL && errno != 0;
    return entry == NULL ? NULL : entry->d_name;
}

static void close_names(folder_names *names)
{
    closedir(names->folder);
}
#endif

/* The files in the folder of a queue. */
typedef struct {
    int64_t first, last; /* positions of the first and the last file in the queue */
    int64_t count;
} listed_files;

/* List the files in a folder. Returns 0 if it has anything else. */
static int list_files(folder_names *names, listed_files *found)
{
    *found = (listed_files){0, 0, 0};
    for (const char *name; (name = next_name(names)) != NULL;) {
        const int64_t first = number_of(name, FILE_DIGITS);
        if (first < 0)
            return 0;
        if (found->count == 0 || first < found->first)
            found->first = first;
        if (first > found->last)
            found->last = first;
        found->count++;
    }
    return !names->has_failed;
}

/* Return whether files of this size can follow each other. They do if each name that results from this exists. */
static int follow_each_other(const listed_files *files, int64_t file_size)
{
    const int64_t span = files->last - files->first;

    return files->count == 0
        || (files->first % file_size == 0 && files->last <= INT64_MAX - file_size && span % file_size == 0
            && span / file_size == files->count - 1);
}

/* Find the units of a queue, and add those that count to `pooled`. Returns 0 if something is not as usual. */
static int read_queue(const rmq_folders *state, int folder, rmq_unit_folder *found, rmq_pooled_units *pooled)
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
        pooled->number = first / UNIT_SIZE;
        const int is_usual = read_units(state, file, &units, pooled);
        close(file);
        if (!is_usual || (number + 1 < found->file_count && units.used < state->file_size))
            return 0;
        if (number == 0)
            found->first_physical = units.first_physical;
        else if (number == found->file_count - state->files_read
                 && (units.first_physical < 0 || units.first_physical > pooled->low))
            pooled->irregular = 1; /* The file before, which is not read, may have some of the units, too. */
        if (units.physical_end >= 0)
            found->physical_end = units.physical_end;
        found->end = first + units.used;
    }
    /* Of a queue with fillers only, the files before the last ones may have a message. */
    return found->end == found->first_offset || found->physical_end > 0;
}

static int read_folder(const rmq_folders *state, int descriptor, rmq_unit_folder *found, rmq_pooled_units *pooled)
{
    folder_names names;
    listed_files files;
    int is_usual = 0;

    if (!open_names(&names, descriptor))
        return 0;
    if (list_files(&names, &files) && follow_each_other(&files, state->file_size)) {
        found->first_offset = files.first;
        found->file_count = files.count;
        is_usual = read_queue(state, descriptor, found, pooled);
    }
    close_names(&names);
    return is_usual;
}

/* Read the queues of a topic. Returns 0 if there are not enough rows. */
static int read_topic(rmq_folders *state, const char *name, int any_tags, rmq_topic_folder *found)
{
    const size_t before = state->count, length = strlen(name);
    const int own = openat(state->descriptor, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder_names topic;
    int has_rows = 1;

    *found = (rmq_topic_folder){0, 0, 0, 0, 0};
    if (own < 0 || !open_names(&topic, own))
        return 1;
    found->is_complete = 1;
    for (const char *queue; has_rows && (queue = next_name(&topic)) != NULL;) {
        rmq_unit_folder row = {number_of(queue, 0), 0, 0, 0, -1, 0};
        rmq_pooled_units pooled = {
            .view = state->buffer, .queue = rmq_queue_digest((const uint8_t *)name, length, (int32_t)row.id),
            .any_tags = any_tags, .low = state->low, .high = INT64_MAX, .first = -1, .place = -1,
        };
        const int folder = row.id < 0 ? -1 : openat(own, queue, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (folder < 0 || !read_folder(state, folder, &row, &pooled)) {
            found->is_complete = 0;
            continue;
        }
        has_rows = state->count < state->capacity;
        if (has_rows)
            state->rows[state->count++] = row;
        found->units += pooled.count;
        found->sum += pooled.sum;
        found->irregular |= pooled.irregular;
    }
    found->is_complete = found->is_complete && !topic.has_failed;
    found->count = (int64_t)(state->count - before);
    close_names(&topic);
    return has_rows;
}

int rmq_read_folders(rmq_folders *state)
{
    const char *name = state->names;

    state->count = 0;
    for (size_t number = 0; number < state->topic_count; number++) {
        if (!read_topic(state, name + 1, name[0], &state->topics[number]))
            return 0;
        name += 1 + strlen(name + 1) + 1;
    }
    return 1;
}

/* Where the units of a queue end, from its first file on. */
typedef struct {
    int has_ended;
    int64_t end;          /* queue offset after the last unit */
    int64_t physical_end; /* of its message; 0: there is no unit */
} pooled_end;

/* Read a part of a file and add its units. Returns how many bytes they have, or -1 if the system does not deliver the
 * part. */
static int64_t pool_part(const rmq_pooled_queues *state, int file, int64_t position, size_t length,
                         rmq_pooled_units *units, pooled_end *end)
{
    if (!read_all(file, state->buffer, length, position))
        return -1;
    units->view = state->buffer;
    units->length = (int64_t)length;
    units->position = 0;
    rmq_pool_units(units);
    if (units->position > 0 && units->count > 0) {
        const uint8_t *const last = state->buffer + units->position - UNIT_SIZE;
        if (__builtin_add_overflow(rmq_load_long(last), rmq_load_int(last + 8), &end->physical_end))
            units->irregular = 1;
    }
    return units->position;
}

/* Return whether the bytes that follow the last unit of a file are zeros. `read` of them are at `following`. */
static int ends_with_zeros(const rmq_pooled_queues *state, int file, int64_t position, const uint8_t *following,
                           int64_t read)
{
    const int64_t left = state->file_size - position;
    const int64_t length = left < RMQ_LOOK_AHEAD ? left : RMQ_LOOK_AHEAD;

    if (read >= length)
        return is_zero(following, (size_t)length);
    return read_all(file, state->buffer, (size_t)length, position) && is_zero(state->buffer, (size_t)length);
}

/* Add the units of one file. Returns 0 if something is not as usual. */
static int pool_file(const rmq_pooled_queues *state, int file, rmq_pooled_units *units, pooled_end *end)
{
    int64_t position = 0, read = 0, used = 0;

    while (!end->has_ended && position < state->file_size) {
        const int64_t left = state->file_size - position;
        const int64_t most = position == 0 ? RMQ_POOLED_HEAD : (int64_t)state->buffer_length;
        read = left < most ? left : most;
        used = pool_part(state, file, position, (size_t)read, units, end);
        if (used < 0)
            return 0;
        position += used;
        end->has_ended = used < read;
#ifdef __linux__
        if (position == RMQ_POOLED_HEAD && !end->has_ended)
            (void)posix_fadvise(file, 0, 0, POSIX_FADV_NORMAL); /* probably a full file: read ahead again */
#endif
    }
    end->end += position / UNIT_SIZE;
    return !end->has_ended || ends_with_zeros(state, file, position, state->buffer + used, read - used);
}

/* Open a file of a queue; of the first one, find the size that all must have. Returns -1 if it has another. */
static int open_pooled(rmq_pooled_queues *state, int folder, int64_t first)
{
    char name[FILE_DIGITS + 1];
    struct stat status;

    snprintf(name, sizeof name, "%0*lld", FILE_DIGITS, (long long)first);
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return -1;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file);
        return -1;
    }
    if (state->file_size == 0 && status.st_size > 0 && status.st_size % UNIT_SIZE == 0)
        state->file_size = status.st_size;
    if (state->file_size == 0 || status.st_size != state->file_size) {
        close(file);
        return -1;
    }
#ifdef __linux__
    (void)posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
#endif
    return file;
}

/* Add the units of a queue. Returns 0 if something is not as usual. */
static int pool_queue(rmq_pooled_queues *state, int descriptor, rmq_pooled_units *units, rmq_pooled_queue *found)
{
    pooled_end end = {0, 0, 0};
    folder_names names;
    listed_files files;

    if (!open_names(&names, descriptor))
        return 0;
    int is_usual = list_files(&names, &files);
    for (int64_t number = 0; is_usual && number < files.count; number++) {
        const int file = open_pooled(state, descriptor, files.first + number * state->file_size);
        if (number == 0)
            end.end = files.first / UNIT_SIZE;
        units->number = end.end;
        is_usual = file >= 0 && follow_each_other(&files, state->file_size) && pool_file(state, file, units, &end);
        if (file >= 0)
            close(file);
    }
    close_names(&names);
    found->min_offset = units->count > 0 ? units->first : end.end;
    found->max_offset = end.end;
    found->end_physical = end.physical_end;
    return is_usual && !units->irregular;
}

/* Compare two numbers by their decimal digits, as the names of their folders are. */
static int compare_names(const void *one, const void *two)
{
    char names[2][QUEUE_DIGITS_MAX + 1];

    snprintf(names[0], sizeof names[0], "%lld", (long long)((const rmq_pooled_queue *)one)->id);
    snprintf(names[1], sizeof names[1], "%lld", (long long)((const rmq_pooled_queue *)two)->id);
    return strcmp(names[0], names[1]);
}

int rmq_pool_topic(rmq_pooled_queues *state, const char *name, size_t length, int any_tags)
{
    const size_t before = state->count;
    const int own = openat(state->descriptor, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder_names topic;
    int is_usual = 1;

    if (own < 0 || !open_names(&topic, own))
        return 0;
    for (const char *queue; is_usual && (queue = next_name(&topic)) != NULL;) {
        const int64_t id = number_of(queue, 0);
        const int folder = id < 0 || state->count == state->capacity
            ? -1
            : openat(own, queue, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        rmq_pooled_units units = {
            .queue = rmq_queue_digest((const uint8_t *)name, length, (int32_t)id), .any_tags = any_tags,
            .low = state->low, .high = INT64_MAX, .first = -1, .place = -1,
        };
        rmq_pooled_queue found = {id, 0, 0, 0};
        is_usual = folder >= 0 && pool_queue(state, folder, &units, &found);
        if (!is_usual)
            break;
        state->rows[state->count++] = found;
        state->units += units.count;
        state->sum += units.sum;
    }
    is_usual = is_usual && !topic.has_failed;
    close_names(&topic);
    qsort(state->rows + before, state->count - before, sizeof *state->rows, compare_names);
    return is_usual;
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
