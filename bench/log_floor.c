/* The lower bound of the cost of reading a log on this machine: it maps each file, reads one byte of each cache line, and
 * looks at nothing. With "read", it reads into one small buffer instead.
 *
 *     cc -O2 -o log_floor bench/log_floor.c && log_floor map STORE/commitlog/0*
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 64, BUFFER = 256 << 10 };

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t touch(const uint8_t *data, size_t length)
{
    uint64_t sum = 0;

    for (size_t at = 0; at < length; at += LINE)
        sum += data[at];
    return sum;
}

int main(int count, char **words)
{
    static uint8_t buffer[BUFFER];
    struct rusage usage;
    struct stat status;
    uint64_t sum = 0, bytes = 0;

    if (count < 3)
        fail("usage: log_floor map|read FILE...");
    for (int number = 2; number < count; number++) {
        const int file = open(words[number], O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &status) != 0)
            fail(words[number]);
        const size_t length = (size_t)status.st_size;
        bytes += length;
        if (strcmp(words[1], "read") == 0) {
            for (ssize_t read_bytes; (read_bytes = read(file, buffer, sizeof buffer)) > 0;)
                sum += touch(buffer, (size_t)read_bytes);
        } else {
            uint8_t *const view = mmap(NULL, length, PROT_READ, MAP_SHARED, file, 0);
            if (view == MAP_FAILED)
                fail(words[number]);
            sum += touch(view, length);
            munmap(view, length);
        }
        close(file);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("%.2f GiB (sum %llu): %.3f CPU-seconds\n", (double)bytes / (1 << 30), (unsigned long long)sum,
           (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
               + (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    return 0;
}
