/* The cost of the ways to append to a log file: CPU microseconds and wall microseconds per 4 KiB.
 *
 *     cc -O2 -o log_memory bench/log_memory.c && ./log_memory FOLDER [MIB [ROUNDS]]
 *
 * The ways take turns in each round; each round writes MIB (256) in pieces of 96 KiB, which is what a loop turn
 * of a busy broker stages. Between rounds, nothing is touched: on a virtual machine that takes free pages back,
 * wait or use `stress` to see their cost. The file of a way is removed before and after it, and synced outside
 * of the measurement, except where the way itself reaches the disk (O_DIRECT).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 96 * 1024, PAGE = 4096, ROUNDS_MAX = 99 };
enum way { FRESH, ALLOCATED, MAPPED, RECYCLED, RECYCLED_COLD, DIRECT_FRESH, DIRECT_ALLOCATED, DIRECT_RECYCLED, WAYS };

static const char *const NAMES[] = {
    "pwrite, new file",
    "pwrite, fallocated file",
    "stores into a mapping of a new file",
    "pwrite over a recycled file, pages in the cache",
    "pwrite over a recycled file, pages dropped",
    "O_DIRECT, new file",
    "O_DIRECT, fallocated file",
    "O_DIRECT over a recycled file",
};
static double cpu_us[WAYS][ROUNDS_MAX], wall_us[WAYS][ROUNDS_MAX];

static void require(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static double cpu_now(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 + (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static double wall_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void write_all(int file, const char *piece, long size)
{
    for (long at = 0; at < size; at += PIECE)
        require(pwrite(file, piece, PIECE, at) == PIECE, "pwrite");
}

static void measure(const char *path, enum way way, long size, const char *piece, int round)
{
    const int recycled = way == RECYCLED || way == RECYCLED_COLD || way == DIRECT_RECYCLED;
    int file;

    unlink(path);
    file = open(path, O_RDWR | O_CREAT, 0600);
    require(file >= 0, path);
    if (way == ALLOCATED || way == DIRECT_ALLOCATED)
        require(posix_fallocate(file, 0, size) == 0, "posix_fallocate");
    if (way == MAPPED)
        require(ftruncate(file, size) == 0, "ftruncate");
    if (recycled)
        write_all(file, piece, size);
    require(fsync(file) == 0, "fsync");
    if (way == RECYCLED_COLD || way >= DIRECT_FRESH)
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    if (way >= DIRECT_FRESH) {
        close(file);
        file = open(path, O_RDWR | O_DIRECT);
        require(file >= 0, "O_DIRECT");
    }
    const double cpu = cpu_now(), wall = wall_now();
    if (way == MAPPED) {
        char *const map = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        require(map != MAP_FAILED, "mmap");
        for (long at = 0; at < size; at += PIECE)
            memcpy(map + at, piece, PIECE);
        munmap(map, (size_t)size);
    } else
        write_all(file, piece, size);
    cpu_us[way][round] = (cpu_now() - cpu) * PAGE / (double)size;
    wall_us[way][round] = (wall_now() - wall) * PAGE / (double)size;
    fsync(file);
    close(file);
    unlink(path);
}

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    const long size = (argc > 2 ? atol(argv[2]) : 256) * 1024 * 1024 / PIECE * PIECE;
    const int rounds = argc > 3 ? atoi(argv[3]) : 5;
    char path[4096], *piece;

    if (argc < 2 || size <= 0 || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: %s FOLDER [MIB [ROUNDS]]\n", argv[0]);
        return 1;
    }
    snprintf(path, sizeof path, "%s/log_memory.tmp", argv[1]);
    require(posix_memalign((void **)&piece, PAGE, PIECE) == 0, "posix_memalign");
    memset(piece, 'x', PIECE);
    for (int round = 0; round < rounds; round++)
        for (int way = 0; way < WAYS; way++)
            measure(path, (enum way)way, size, piece, round);
    printf("| way | CPU us per 4 KiB | wall us per 4 KiB |\n|---|---|---|\n");
    for (int way = 0; way < WAYS; way++) {
        qsort(cpu_us[way], (size_t)rounds, sizeof(double), ascending);
        qsort(wall_us[way], (size_t)rounds, sizeof(double), ascending);
        printf("| %s | %.2f / %.2f / %.2f | %.2f / %.2f / %.2f |\n", NAMES[way], cpu_us[way][0], cpu_us[way][rounds / 2],
               cpu_us[way][rounds - 1], wall_us[way][0], wall_us[way][rounds / 2], wall_us[way][rounds - 1]);
    }
    return 0;
}
