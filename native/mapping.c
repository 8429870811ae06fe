/* Shared mappings of files that keep no descriptor: before Python 3.13, an mmap object of Python keeps
 * one of its own for as long as it exists. And memory for large tables. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

#include "rmqpy_native.h"

uint8_t *rmq_map_file(int32_t descriptor, int64_t length, int writable)
{
    if (length <= 0 || (uint64_t)length > SIZE_MAX)
        return NULL;
    void *const begin = mmap(NULL, (size_t)length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, 0);
    return begin == MAP_FAILED ? NULL : begin;
}

void rmq_unmap_file(uint8_t *begin, int64_t length)
{
    munmap(begin, (size_t)length);
}

uint8_t *rmq_map_zeros(int64_t length)
{
    if (length <= 0 || (uint64_t)length > SIZE_MAX)
        return NULL;
    void *const begin = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
        return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(begin, (size_t)length, MADV_HUGEPAGE); /* ten page faults for 20 MB instead of 5,000 */
#endif
    return begin;
}

void rmq_release_pages(const uint8_t *begin, int64_t length)
{
    /* The pages of a shared mapping stay in the page cache, also those that were written. */
    (void)madvise((void *)(uintptr_t)begin, (size_t)length, MADV_DONTNEED);
}

void rmq_advise_random(uint8_t *begin, int64_t length)
{
    (void)madvise(begin, (size_t)length, MADV_RANDOM);
}
