/* A disk that keeps what was synced, for a process under LD_PRELOAD.
 *
 * SHADOW_ROOT is the folder that the process writes, SHADOW the folder of the copies. After each successful sync of a
 * file below SHADOW_ROOT, SHADOW/<inode> is a copy of it; after each sync of a folder, SHADOW/d<inode> lists its names.
 * harness/power_cut.py makes the files from them that a power loss would have left. A copy is removed with the last
 * name of its file, because the system reuses inode numbers. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

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

static void keep_file(const char *path, const struct stat *found)
{
    char temporary[PATH_MAX], name[PATH_MAX], end[32];

    snprintf(end, sizeof end, ".%ld", (long)syscall(SYS_gettid));
    shadow_name(temporary, "", found->st_ino, end);
    shadow_name(name, "", found->st_ino, "");
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        return; /* It was removed in the meantime. */
    const int to = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        abort();
    copy_data(from, to, found->st_size);
    close(from);
    close(to);
    if (REAL(rename)(temporary, name) != 0)
        abort();
}

static void keep_names(const char *path, const struct stat *found)
{
    char temporary[PATH_MAX], name[PATH_MAX];

    shadow_name(temporary, "d", found->st_ino, ".new");
    shadow_name(name, "d", found->st_ino, "");
    DIR *const folder = opendir(path);
    FILE *const list = fopen(temporary, "we");
    if (folder == NULL || list == NULL)
        abort();
    for (struct dirent *each; (each = readdir(folder)) != NULL;)
        fprintf(list, "%s\n", each->d_name);
    closedir(folder);
    if (fclose(list) != 0 || REAL(rename)(temporary, name) != 0)
        abort();
}

static int is_tracked(const char *path)
{
    const char *const root = getenv("SHADOW_ROOT");
    return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

static int synced(int fd, int result)
{
    char link[64], path[PATH_MAX];
    struct stat found;

    if (result != 0)
        return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || fstat(fd, &found) != 0)
        return result;
    path[length] = 0;
    if (!is_tracked(path))
        return result;
    if (S_ISDIR(found.st_mode))
        keep_names(path, &found);
    else if (found.st_nlink > 0)
        keep_file(path, &found);
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
    return synced(fd, REAL(fsync)(fd));
}

int fdatasync(int fd)
{
    return synced(fd, REAL(fdatasync)(fd));
}

int unlink(const char *path)
{
    forget(path);
    return REAL(unlink)(path);
}

int rename(const char *old, const char *new)
{
    forget(new);
    return REAL(rename)(old, new);
}
