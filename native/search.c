/* Searches for magic codes and for the start of the zeros at the end. Same results as rmqpy/codec/scan.py. */
#include <string.h>

#include "rmqpy_native.h"

#define MAGIC_SIZE 4u

int64_t rmq_find_magic(const uint8_t *view, size_t length, size_t start, size_t stop)
{
    const uint8_t first = (uint8_t)(RMQ_MESSAGE_MAGIC_V1 >> 24);

    if (length < MAGIC_SIZE || start >= stop)
        return -1;
    if (stop > length - MAGIC_SIZE + 1)
        stop = length - MAGIC_SIZE + 1;
    while (start < stop) {
        const uint8_t *const found = memchr(view + start, first, stop - start);
        if (found == NULL)
            return -1;
        const uint32_t magic = rmq_load32(found);
        if (magic == RMQ_MESSAGE_MAGIC_V1 || magic == RMQ_MESSAGE_MAGIC_V2)
            return found - view;
        start = (size_t)(found - view) + 1;
    }
    return -1;
}

static int is_zero(const uint8_t *at)
{
    uint64_t words[32], sum = 0;

    memcpy(words, at, sizeof words);
    for (int i = 0; i < 32; i++)
        sum |= words[i];
    return sum == 0;
}

int64_t rmq_content_end(const uint8_t *view, size_t length, size_t position)
{
    size_t end = length;

    while (end >= position + 256 && is_zero(view + end - 256))
        end -= 256;
    while (end > position && view[end - 1] == 0)
        end--;
    return (int64_t)(end > position ? end : position);
}
