/* Disk faults on demand, for a process under LD_PRELOAD.
 *
 * The file named by FAULTY_IO has one line per fault: "OPERATION ERRNO PATH-PART". The operations are write, sync (of a
 * descriptor or of a mapping), and room. It is read at every call, so that a test can switch faults on and off while the process runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paths.h"

#define TEXT_MAX 1024

static int fault_of_path(const char *operation, const char *path)
{
    char text[TEXT_MAX], wanted[16], part[256];
    const char *const control = getenv("FAULTY_IO");
    int code;

    if (control == NULL)
        return 0;
    const int file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    const ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (length <= 0)
        return 0;
    text[length] = 0;
    char *rest = text;
    for (char *line; (line = strtok_r(rest, "\n", &rest)) != NULL;)
        if (sscanf(line, "%15s %d %255s", wanted, &code, part) == 3 && strcmp(wanted, operation) == 0
            && strstr(path, part) != NULL)
            return code;
    return 0;
}

static int fault(const char *operation, int fd)
{
    char path[PATH_MAX];

    path_of_descriptor(fd, path, sizeof path);
    return fault_of_path(operation, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define FAILING(operation, name, result, call) \
    {                                          \
        const int code = fault(operation, fd); \
        if (code != 0) {                       \
            errno = code;                      \
            return (result)-1;                 \
        }                                      \
        return REAL(name) call;                \
    }

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
    FAILING("write", pwrite, ssize_t, (fd, data, length, offset))

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset)
    FAILING("write", pwrite64, ssize_t, (fd, data, length, offset))

int fsync(int fd) FAILING("sync", fsync, int, (fd))

int fdatasync(int fd) FAILING("sync", fdatasync, int, (fd))

int msync(void *address, size_t length, int flags)
{
    char path[PATH_MAX];

    path_of_mapping(address, length, path, sizeof path);
    const int code = fault_of_path("sync", path);
    if (code != 0) {
        errno = code;
        return -1;
    }
    return REAL(msync)(address, length, flags);
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    const int code = fault("room", fd);
    return code != 0 ? code : REAL(posix_fallocate)(fd, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    const int code = fault("room", fd);
    return code != 0 ? code : REAL(posix_fallocate64)(fd, offset, length);
}
