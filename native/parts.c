/* Columns of messages: where the parts of scanned records stand, and many parts copied into one piece of memory.
 * Same results as rmqpy/codec/parts.py. */
#include <string.h>

#include "rmqpy_native.h"

int rmq_record_parts(const uint8_t *view, size_t length, const int64_t *records, size_t count, int32_t check_crc,
                     int64_t *cells)
{
    for (size_t i = 0; i < count; i++, cells += RMQ_PART_COUNT) {
        rmq_record_places places;
        if (!rmq_is_within(length, records[i], RMQ_RECORD_SIZE_MIN))
            return 0;
        const size_t start = (size_t)records[i];
        if (rmq_measure(view, start, length - start, &places) != RMQ_END)
            return 0;
        const uint8_t *const record = view + start;
        const int32_t sys_flag = rmq_load_int(record + 36);
        const uint32_t born = sys_flag & RMQ_BORN_HOST_V6 ? 8u + RMQ_HOST_V6_EXTRA : 8u;
        const uint32_t store = sys_flag & RMQ_STORE_HOST_V6 ? 8u + RMQ_HOST_V6_EXTRA : 8u;
        const rmq_known_properties found = rmq_find_properties(view + places.properties, places.properties_length);

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
               uint8_t *data, size_t room)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        if (!rmq_is_within(length, positions[i], lengths[i]) || (size_t)lengths[i] > room - used)
            return 0;
        memcpy(data + used, view + positions[i], (size_t)lengths[i]);
        used += (size_t)lengths[i];
    }
    return 1;
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
