/* A process under LD_PRELOAD that kills itself at one of its next file operations or messages.
 *
 * The file "kill-io" in the working directory has a number N: from the first call that sees the file on, the process
 * ends with SIGKILL before the N-th call. Without the file nothing is counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int left = -1;

static void count(void)
{
    char text[16] = {0};

    const int file = (int)syscall(SYS_openat, AT_FDCWD, "kill-io", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        left = -1;
        return;
    }
    if (left < 0 && syscall(SYS_read, file, text, sizeof text - 1) > 0)
        left = atoi(text);
    syscall(SYS_close, file);
    if (left > 0 && __sync_sub_and_fetch(&left, 1) == 0)
        kill(getpid(), SIGKILL);
}

#define COUNTED(result, name, parameters, arguments)                        \
    result name parameters                                                  \
    {                                                                       \
        count();                                                            \
        return ((__typeof__(&name))dlsym(RTLD_NEXT, #name)) arguments;      \
    }

COUNTED(ssize_t, write, (int fd, const void *data, size_t length), (fd, data, length))
COUNTED(ssize_t, pwrite, (int fd, const void *data, size_t length, off_t at), (fd, data, length, at))
COUNTED(ssize_t, pwrite64, (int fd, const void *data, size_t length, off64_t at), (fd, data, length, at))
COUNTED(ssize_t, writev, (int fd, const struct iovec *pieces, int number), (fd, pieces, number))
COUNTED(ssize_t, send, (int fd, const void *data, size_t length, int flags), (fd, data, length, flags))
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
COUNTED(int, fsync, (int fd), (fd))
COUNTED(int, fdatasync, (int fd), (fd))
COUNTED(int, msync, (void *address, size_t length, int flags), (address, length, flags))
COUNTED(int, ftruncate64, (int fd, off64_t length), (fd, length))
COUNTED(int, rename, (const char *from, const char *to), (from, to))
COUNTED(int, unlink, (const char *path), (path))
COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode))
