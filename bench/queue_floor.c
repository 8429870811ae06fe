/* The lower bound of the cost of an audit of many consume queues on this machine: it lists the folder of each queue, opens
 * its file, asks for its length, reads the first 8 KiB, and looks at nothing.
 *
 *     cc -O2 -o queue_floor bench/queue_floor.c && queue_floor STORE
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

int main(int count, char **words)
{
    static char data[8192];
    struct rusage usage;
    struct stat status;
    long queues = 0;

    if (count != 2 || chdir(words[1]) != 0)
        fail("usage: queue_floor STORE");
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
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld queues: %.3f CPU-seconds\n", queues,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
               + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
