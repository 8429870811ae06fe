/* A disk that keeps what was synced, for a process under LD_PRELOAD.
 *
 * SHADOW_ROOT is the folder that the process writes, SHADOW the folder of the copies. After each successful sync of a
 * file below SHADOW_ROOT, by its descriptor or its mapping, SHADOW/<inode> is a copy of it as it was when the sync began;
 * after each sync of a folder, SHADOW/d<inode> lists its names. SHADOW/syncs has a line with the path for each.
 * harness/power_cut.py makes the files from them that a power loss would have left. A copy is removed with the last
 * name of its file, because the system reuses inode numbers. One sync runs at a time, so that no copy replaces a newer
 * one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paths.h"

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void shadow_name(char *name, const char *kind, ino_t inode, const char *end)
{
    snprintf(name, PATH_MAX, "%s/%s%lu%s", getenv("SHADOW"), kind, (unsigned long)inode, end);
}

static void copy_data(int from, int to, off_t size)
{
    static __thread char buffer[1 << 16];
    off_t start = 0;

    while (start < size && (start = lseek(from, start, SEEK_DATA)) >= 0) {
        const off_t end = lseek(from, start, SEEK_HOLE);
        while (start < end) {
            const size_t wanted = (size_t)(end - start) < sizeof buffer ? (size_t)(end - start) : sizeof buffer;
            const ssize_t count = pread(from, buffer, wanted, start);
            if (count <= 0 || syscall(SYS_pwrite64, to, buffer, (size_t)count, start) != count)
                abort();
            start += count;
        }
    }
    if (ftruncate(to, size) != 0)
        abort();
}

/* A sync in progress: what it will have made durable, and where that belongs. */
struct copy {
    char path[PATH_MAX], temporary[PATH_MAX], name[PATH_MAX];
    int made;
};

static pthread_mutex_t syncing = PTHREAD_MUTEX_INITIALIZER;

static int copy_file(const struct copy *copy, const struct stat *found)
{
    const int from = open(copy->path, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        return 0; /* It was removed in the meantime. */
    const int to = open(copy->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        abort();
    copy_data(from, to, found->st_size);
    close(from);
    close(to);
    return 1;
}

static int copy_names(const struct copy *copy)
{
    DIR *const folder = opendir(copy->path);
    FILE *const list = fopen(copy->temporary, "we");
    if (folder == NULL || list == NULL)
        abort();
    for (struct dirent *each; (each = readdir(folder)) != NULL;)
        fprintf(list, "%s\n", each->d_name);
    closedir(folder);
    if (fclose(list) != 0)
        abort();
    return 1;
}

static int is_tracked(const char *path)
{
    const char *const root = getenv("SHADOW_ROOT");
    return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

/* Begin the sync of copy->path, with the lock. */
static void begin(struct copy *copy)
{
    struct stat found;

    pthread_mutex_lock(&syncing);
    copy->made = 0;
    if (!is_tracked(copy->path) || stat(copy->path, &found) != 0)
        return;
    const int folder = S_ISDIR(found.st_mode);
    shadow_name(copy->temporary, folder ? "d" : "", found.st_ino, ".new");
    shadow_name(copy->name, folder ? "d" : "", found.st_ino, "");
    copy->made = folder ? copy_names(copy) : copy_file(copy, &found);
}

static int end(const struct copy *copy, int result)
{
    char log[PATH_MAX];

    if (copy->made && result == 0) {
        if (REAL(rename)(copy->temporary, copy->name) != 0)
            abort();
        snprintf(log, sizeof log, "%s/syncs", getenv("SHADOW"));
        const int file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (file < 0 || dprintf(file, "%s\n", copy->path) < 0)
            abort();
        close(file);
    }
    pthread_mutex_unlock(&syncing);
    return result;
}

static void forget(const char *path)
{
    char name[PATH_MAX];
    struct stat found;

    if (!is_tracked(path) || stat(path, &found) != 0 || found.st_nlink > 1 || S_ISDIR(found.st_mode))
        return;
    shadow_name(name, "", found.st_ino, "");
    syscall(SYS_unlinkat, AT_FDCWD, name, 0);
}

int fsync(int fd)
{
    struct copy copy;

    path_of_descriptor(fd, copy.path, sizeof copy.path);
    begin(&copy);
    return end(&copy, REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    struct copy copy;

    path_of_descriptor(fd, copy.path, sizeof copy.path);
    begin(&copy);
    return end(&copy, REAL(fdatasync)(fd));
}

int msync(void *address, size_t length, int flags)
{
    struct copy copy;

    path_of_mapping(address, length, copy.path, sizeof copy.path);
    begin(&copy);
    return end(&copy, REAL(msync)(address, length, flags));
}

int unlink(const char *path)
{
    forget(path);
    return REAL(unlink)(path);
}

int remove(const char *path)
{
    forget(path);
    return REAL(remove)(path);
}

int rename(const char *old, const char *new)
{
    forget(new);
    return REAL(rename)(old, new);
}
