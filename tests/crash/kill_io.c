/* A process under LD_PRELOAD that kills itself at one of its file operations or messages.
 *
 * The file "kill-io" in the working directory has a number N and, after a blank, a text: from the first call on that
 * writes, sends, or has received the text, the process ends with SIGKILL before the N-th call (that one is the first).
 * Without a text, the calls count from the one that sees the file. Receiving does not count. Without the file nothing
 * is counted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TEXT_MAX 64

static int left = -1; /* the calls until the end; -1 without the file */
static char text[TEXT_MAX];

/* Read the file. Return whether calls count, or would after the text. */
static int is_armed(void)
{
    char line[16 + TEXT_MAX] = {0};
    const int file = (int)syscall(SYS_openat, AT_FDCWD, "kill-io", O_RDONLY | O_CLOEXEC);

    if (file < 0) {
        left = -1;
        return 0;
    }
    if (left < 0 && syscall(SYS_read, file, line, sizeof line - 1) > 0) {
        const char *const blank = strchr(line, ' ');
        snprintf(text, sizeof text, "%s", blank != NULL ? blank + 1 : "");
        left = atoi(line);
    }
    syscall(SYS_close, file);
    return left > 0;
}

static void look(const void *data, size_t length)
{
    const size_t wanted = strlen(text);

    if (wanted > 0 && data != NULL && memmem(data, length, text, wanted) != NULL)
        text[0] = 0;
}

static void look_at_pieces(const struct iovec *pieces, size_t number)
{
    for (size_t piece = 0; piece < number; piece++)
        look(pieces[piece].iov_base, pieces[piece].iov_len);
}

static void count(void)
{
    if (text[0] == 0 && __sync_sub_and_fetch(&left, 1) == 0)
        kill(getpid(), SIGKILL);
}

#define COUNTED(result, name, parameters, arguments, looking)                \
    result name parameters                                                  \
    {                                                                       \
        if (is_armed()) {                                                   \
            looking;                                                        \
            count();                                                        \
        }                                                                   \
        return ((__typeof__(&name))dlsym(RTLD_NEXT, #name)) arguments;      \
    }

COUNTED(ssize_t, write, (int fd, const void *data, size_t length), (fd, data, length), look(data, length))
COUNTED(ssize_t, pwrite, (int fd, const void *data, size_t length, off_t at), (fd, data, length, at), look(data, length))
COUNTED(ssize_t, pwrite64, (int fd, const void *data, size_t length, off64_t at), (fd, data, length, at),
    look(data, length))
COUNTED(ssize_t, writev, (int fd, const struct iovec *pieces, int number), (fd, pieces, number),
    look_at_pieces(pieces, (size_t)number))
COUNTED(ssize_t, send, (int fd, const void *data, size_t length, int flags), (fd, data, length, flags),
    look(data, length))
COUNTED(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
    look_at_pieces(message->msg_iov, message->msg_iovlen))
COUNTED(int, fsync, (int fd), (fd), (void)0)
COUNTED(int, fdatasync, (int fd), (fd), (void)0)
COUNTED(int, msync, (void *address, size_t length, int flags), (address, length, flags), (void)0)
COUNTED(int, ftruncate64, (int fd, off64_t length), (fd, length), (void)0)
COUNTED(int, rename, (const char *from, const char *to), (from, to), (void)0)
COUNTED(int, unlink, (const char *path), (path), (void)0)
COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode), (void)0)

#define RECEIVING(name, parameters, arguments)                              \
    ssize_t name parameters                                                 \
    {                                                                       \
        const ssize_t got = ((__typeof__(&name))dlsym(RTLD_NEXT, #name)) arguments; \
        if (got > 0 && is_armed())                                          \
            look(data, (size_t)got);                                        \
        return got;                                                         \
    }

RECEIVING(read, (int fd, void *data, size_t length), (fd, data, length))
RECEIVING(recv, (int fd, void *data, size_t length, int flags), (fd, data, length, flags))
