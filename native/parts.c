/* Columns of messages: finds the parts of scanned records, and copies, references, or numbers many
 * parts at once. Same results as rmqpy/codec/columns.py. */
#include <string.h>

#include "rmqpy_native.h"

#define PROBES_MAX 64
#define INLINE_MAX 12 /* bytes that an Arrow view holds inline */

int rmq_record_parts(const uint8_t *view, size_t length, const int64_t *frames, size_t count, int64_t shift,
                     int32_t check_crc, int64_t *cells)
{
    for (size_t i = 0; i < count; i++, cells += RMQ_PART_COUNT) {
        rmq_record_places places;
        if (!rmq_is_within(length, frames[i] + shift, RMQ_RECORD_SIZE_MIN))
            return 0;
        const size_t start = (size_t)(frames[i] + shift);
        if (rmq_measure_record(view, start, length - start, &places) != RMQ_END)
            return 0;
        const uint8_t *const record = view + start;
        const int32_t sys_flag = rmq_load_int(record + 36);
        const uint32_t born = sys_flag & RMQ_BORN_HOST_V6 ? 8u + RMQ_HOST_V6_EXTRA : 8u;
        const uint32_t store = sys_flag & RMQ_STORE_HOST_V6 ? 8u + RMQ_HOST_V6_EXTRA : 8u;
        rmq_known_properties found;
        rmq_find_properties((rmq_slice){view + places.properties, places.properties_length}, view + length, &found);

        cells[RMQ_PART_BODY] = (int64_t)(start + places.head_size);
        cells[RMQ_PART_BODY_LENGTH] = (int64_t)places.body_length;
        cells[RMQ_PART_BODY_CRC] = rmq_load_int(record + 8);
        cells[RMQ_PART_CRC_AGREES] = check_crc
            && (int64_t)rmq_crc32(record + places.head_size, places.body_length) == cells[RMQ_PART_BODY_CRC];
        cells[RMQ_PART_BORN_HOST] = (int64_t)start + 48;
        cells[RMQ_PART_BORN_HOST_LENGTH] = born;
        cells[RMQ_PART_STORE_HOST] = (int64_t)start + 48 + born + 8;
        cells[RMQ_PART_STORE_HOST_LENGTH] = store;
        cells[RMQ_PART_TAGS] = found.tags.at ? found.tags.at - view : 0;
        cells[RMQ_PART_TAGS_LENGTH] = (int64_t)found.tags.length;
    }
    return 1;
}

int rmq_gather(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
               uint8_t *data, size_t capacity)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        if (!rmq_is_within(length, positions[i], lengths[i]) || (size_t)lengths[i] > capacity - used)
            return 0;
        memcpy(data + used, view + positions[i], (size_t)lengths[i]);
        used += (size_t)lengths[i];
    }
    return 1;
}

int rmq_part_views(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths, size_t count,
                   uint8_t *data)
{
    for (size_t i = 0; i < count; i++, data += RMQ_VIEW_SIZE) {
        if (!rmq_is_within(length, positions[i], lengths[i]) || positions[i] > INT32_MAX || lengths[i] > INT32_MAX)
            return 0;
        const uint8_t *const part = view + positions[i];
        const int32_t size = (int32_t)lengths[i], buffer = 0, offset = (int32_t)positions[i];
        memcpy(data, &size, 4);
        if (size <= INLINE_MAX) {
            memset(data + 4, 0, INLINE_MAX);
            memcpy(data + 4, part, (size_t)size);
        } else {
            memcpy(data + 4, part, 4);
            memcpy(data + 8, &buffer, 4);
            memcpy(data + 12, &offset, 4);
        }
    }
    return 1;
}

static uint64_t hash_bytes(const uint8_t *at, size_t length)
{
    const uint64_t factor = 0x9E3779B97F4A7C15u;
    uint64_t hash = length * factor, word;

    for (; length >= 8; at += 8, length -= 8) {
        memcpy(&word, at, 8);
        hash = (hash ^ word) * factor;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, at, length);
    hash = (hash ^ word) * factor;
    return hash ^ hash >> 32;
}

int64_t rmq_number_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                         size_t count, int32_t *table, size_t mask, int32_t *numbers, int32_t *firsts)
{
    int32_t known = 0;

    memset(table, 0xFF, (mask + 1) * sizeof *table);
    for (size_t i = 0; i < count; i++) {
        if (!rmq_is_within(length, positions[i], lengths[i]))
            return -1;
        const uint8_t *const part = view + positions[i];
        const size_t size = (size_t)lengths[i];
        size_t place = hash_bytes(part, size) & mask;
        for (int probes = 0;; probes++, place = (place + 1) & mask) {
            if (table[place] < 0) {
                firsts[known] = (int32_t)i;
                table[place] = known++;
                break;
            }
            const int32_t first = firsts[table[place]];
            if ((size_t)lengths[first] == size && memcmp(view + positions[first], part, size) == 0)
                break;
            if (probes == PROBES_MAX)
                return -1;
        }
        numbers[i] = table[place];
    }
    return known;
}

int64_t rmq_property_parts(const uint8_t *view, size_t length, const int64_t *positions, const int64_t *lengths,
                           size_t count, int32_t *starts, int64_t *cells)
{
    int64_t total = 0;
    rmq_properties found;

    for (size_t i = 0; i < count; i++) {
        if (!rmq_is_within(length, positions[i], lengths[i])
            || !rmq_read_properties(view + positions[i], lengths[i], &found))
            return -1;
        starts[i] = (int32_t)total;
        for (int k = 0; k < found.count; k++, total++, cells += 4) {
            cells[0] = found.list[k].name - view;
            cells[1] = (int64_t)found.list[k].name_length;
            cells[2] = found.list[k].value - view;
            cells[3] = (int64_t)found.list[k].value_length;
        }
    }
    starts[count] = (int32_t)total;
    return total;
}
