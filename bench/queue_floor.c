/* The lower bounds of the cost of many consume queues on this machine.
 *
 *     cc -O2 -o queue_floor bench/queue_floor.c
 *     queue_floor STORE           an audit: lists the folder of each queue, opens its file, asks for its length, reads the first
 *                                 8 KiB, and looks at nothing
 *     queue_floor NEW_FOLDER N    a rebuild of N queues, ten a topic: makes their folders, creates a file of 6 MB in each, writes
 *                                 40 units, sets its time, and syncs the file system once
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct names {
    int folder;
    long length, at;
    _Alignas(8) char rows[4096];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static struct names open_names(int folder, const char *name)
{
    struct names names = {openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0, 0, ""};

    if (names.folder < 0)
        fail(name);
    return names;
}

static const char *next_name(struct names *names)
{
    for (;;) {
        if (names->at >= names->length) {
            names->length = syscall(SYS_getdents64, names->folder, names->rows, sizeof names->rows);
            names->at = 0;
            if (names->length <= 0)
                return NULL;
        }
        const char *const row = names->rows + names->at;
        uint16_t length;
        memcpy(&length, row + 16, sizeof length); /* struct linux_dirent64 */
        names->at += length;
        if (row[19] != '.')
            return row + 19;
    }
}

static void report(long queues)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    printf("%ld queues: %.3f CPU-seconds\n", queues,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
               + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

/* Make a folder and open it. */
static int make_folder(int parent, const char *name)
{
    const int folder = mkdirat(parent, name, 0750) == 0 ? openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    if (folder < 0)
        fail(name);
    return folder;
}

static void create(const char *path, long queues)
{
    enum { QUEUES_OF_TOPIC = 10, UNITS_BYTES = 40 * 20, FILE_BYTES = 6000000 };
    static const char units[UNITS_BYTES] = {1};
    const struct timespec times[2] = {{1700000000, 0}, {1700000000, 0}};
    const int root = make_folder(AT_FDCWD, path);
    char name[32];
    int topic = -1;

    for (long queue = 0; queue < queues; queue++) {
        if (queue % QUEUES_OF_TOPIC == 0) {
            if (topic >= 0)
                close(topic);
            snprintf(name, sizeof name, "topic-%ld", queue / QUEUES_OF_TOPIC);
            topic = make_folder(root, name);
        }
        snprintf(name, sizeof name, "%ld", queue % QUEUES_OF_TOPIC);
        if (mkdirat(topic, name, 0750) != 0)
            fail(name);
        snprintf(name, sizeof name, "%ld/%020d", queue % QUEUES_OF_TOPIC, 0);
        const int file = openat(topic, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0640);
        if (file < 0 || write(file, units, sizeof units) != UNITS_BYTES || ftruncate(file, FILE_BYTES) != 0
            || futimens(file, times) != 0)
            fail(name);
        close(file);
    }
    if (syncfs(root) != 0)
        fail(path);
}

int main(int count, char **words)
{
    static char data[8192];
    struct stat status;
    long queues = 0;

    if (count == 3) {
        create(words[1], atol(words[2]));
        report(atol(words[2]));
        return 0;
    }
    if (count != 2 || chdir(words[1]) != 0)
        fail("usage: queue_floor STORE | NEW_FOLDER N");
    struct names topics = open_names(AT_FDCWD, "consumequeue");
    for (const char *topic; (topic = next_name(&topics)) != NULL;) {
        struct names folders = open_names(topics.folder, topic);
        for (const char *folder; (folder = next_name(&folders)) != NULL; queues++) {
            struct names files = open_names(folders.folder, folder);
            for (const char *name; (name = next_name(&files)) != NULL;) {
                const int file = openat(files.folder, name, O_RDONLY | O_CLOEXEC);
                if (file < 0 || fstat(file, &status) != 0 || pread(file, data, sizeof data, 0) < 0)
                    fail(name);
                close(file);
            }
            close(files.folder);
        }
        close(folders.folder);
    }
    report(queues);
    return 0;
}
