/* Which file a system call is about, for the libraries that tests preload. The path is empty if there is none. */
#ifndef PATHS_H
#define PATHS_H

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void path_of_descriptor(int fd, char *path, size_t size)
{
    char link[64];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, size - 1);
    path[length < 0 ? 0 : length] = 0;
}

/* Find the file that is mapped at an address. Brokers map and sync whole files; a sync of less names none. */
static void path_of_mapping(const void *address, size_t length, char *path, size_t size)
{
    char line[PATH_MAX + 128];
    struct stat found;
    FILE *const maps = fopen("/proc/self/maps", "re");

    path[0] = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        uintptr_t start, stop;
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &stop, &at) < 2 || (uintptr_t)address != start)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(path, size, "%s", line + at);
        break;
    }
    if (maps != NULL)
        fclose(maps);
    if (stat(path, &found) != 0 || (off_t)length < found.st_size)
        path[0] = 0;
}

#endif
