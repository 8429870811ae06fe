/* Key index files: the hashes of a record's keys, the entries of a file, and the search for them. Same
 * results as rmqpy/codec/packing.py and rmqpy/store/index/index_file.py. */
#include "rmqpy_native.h"

#define INDEX_HEADER_SIZE 40
#define INDEX_SLOT_SIZE 4
#define KEY_SIZE 20
#define TIME_MAX_MS (INT64_C(1) << 56) /* more is damage */
#define PREFETCH_DISTANCE 16 /* in entries; their slots are scattered over the file */

void rmq_load_index_header(const uint8_t *index, rmq_index_header *header)
{
    header->begin_timestamp = rmq_load_long(index);
    header->end_timestamp = rmq_load_long(index + 8);
    header->begin_offset = rmq_load_long(index + 16);
    header->end_offset = rmq_load_long(index + 24);
    header->slot_count = rmq_load_int(index + 32);
    header->index_count = rmq_load_int(index + 36);
    if (header->index_count <= 0)
        header->index_count = 1;
}

void rmq_store_index_header(uint8_t *index, const rmq_index_header *header)
{
    rmq_store_long(index, header->begin_timestamp);
    rmq_store_long(index + 8, header->end_timestamp);
    rmq_store_long(index + 16, header->begin_offset);
    rmq_store_long(index + 24, header->end_offset);
    rmq_store32(index + 32, (uint32_t)header->slot_count);
    rmq_store32(index + 36, (uint32_t)header->index_count);
}

uint8_t *rmq_index_slot(uint8_t *index, int64_t slots, int64_t hash)
{
    /* The division of 64 bits takes twice as long. */
    return index + INDEX_HEADER_SIZE + (size_t)((uint32_t)hash % (uint32_t)slots) * INDEX_SLOT_SIZE;
}

uint8_t *rmq_index_entry(uint8_t *index, int64_t slots, int64_t number)
{
    return index + INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE + number * RMQ_INDEX_ENTRY_SIZE;
}

void rmq_put_key(uint8_t *index, int64_t slots, rmq_index_header *header, const rmq_key *key, uint8_t *entry)
{
    uint8_t *const slot = rmq_index_slot(index, slots, key->hash);
    int32_t previous = rmq_load_int(slot);
    int64_t seconds = 0;

    if (previous <= 0 || previous >= header->index_count)
        previous = 0;
    if (header->begin_timestamp > 0 && key->stored > header->begin_timestamp)
        seconds = (key->stored - header->begin_timestamp) / 1000;
    rmq_store32(entry, (uint32_t)key->hash);
    rmq_store_long(entry + 4, key->offset);
    rmq_store32(entry + 12, seconds > INT32_MAX ? INT32_MAX : (uint32_t)seconds);
    rmq_store32(entry + 16, (uint32_t)previous);
    rmq_store32(slot, (uint32_t)header->index_count);
    if (header->index_count <= 1) {
        header->begin_offset = key->offset;
        header->begin_timestamp = key->stored;
    }
    if (previous == 0 && header->slot_count < INT32_MAX)
        header->slot_count++;
    header->index_count++;
    header->end_offset = key->offset;
    header->end_timestamp = key->stored;
}

int rmq_find_keys(const uint8_t *view, const int64_t *row, int64_t *hashes)
{
    const uint8_t *word = view + row[RMQ_KEYS_POSITION];
    const uint8_t *const end = word + row[RMQ_KEYS_LENGTH];
    int count = 0;

    if (row[RMQ_UNIQ_KEY_HASH] >= 0)
        hashes[count++] = row[RMQ_UNIQ_KEY_HASH];
    if (row[RMQ_KEYS_LENGTH] <= 0)
        return count;
    const uint32_t topic_hash = rmq_java_hash(0, view + row[RMQ_TOPIC_POSITION], (size_t)row[RMQ_TOPIC_LENGTH]);
    while (word < end) {
        const uint8_t *stop = word;
        for (; stop < end && *stop != ' '; stop++)
            if (*stop >= 0x80u)
                return -1;
        if (stop > word) {
            if (count == RMQ_KEYS_MAX)
                return -1;
            hashes[count++] = rmq_index_key_hash(topic_hash, word, (size_t)(stop - word));
        }
        word = stop + 1;
    }
    return count;
}

static int64_t hash_at(const uint8_t *keys, size_t number)
{
    return rmq_load_int(keys + number * KEY_SIZE);
}

size_t rmq_put_keys(uint8_t *index, size_t length, int64_t slots, const uint8_t *keys, size_t count)
{
    rmq_index_header header;
    size_t done = 0;

    if (length < INDEX_HEADER_SIZE || slots <= 0 || slots > INT32_MAX
        || (uint64_t)slots > (length - INDEX_HEADER_SIZE) / INDEX_SLOT_SIZE)
        return 0;
    rmq_load_index_header(index, &header);
    const uint64_t entries = (length - INDEX_HEADER_SIZE - (size_t)slots * INDEX_SLOT_SIZE) / RMQ_INDEX_ENTRY_SIZE;
    for (; done < count && (uint64_t)header.index_count < entries && header.index_count < INT32_MAX; done++) {
        const uint8_t *const key = keys + done * KEY_SIZE;
        const rmq_key found = {hash_at(keys, done), rmq_load_long(key + 4), rmq_load_long(key + 12)};
        if (found.hash < 0)
            break;
        if (done + PREFETCH_DISTANCE < count && hash_at(keys, done + PREFETCH_DISTANCE) >= 0)
            __builtin_prefetch(rmq_index_slot(index, slots, hash_at(keys, done + PREFETCH_DISTANCE)), 1);
        rmq_put_key(index, slots, &header, &found, rmq_index_entry(index, slots, header.index_count));
    }
    if (done > 0)
        rmq_store_index_header(index, &header);
    return done;
}

static int is_known(const rmq_found *found, int64_t offset)
{
    for (int64_t i = 0; i < found->count; i++)
        if (found->offsets[i] == offset)
            return 1;
    return 0;
}

/* Follow the chain of a hash in one file. Returns 0 if it leads out of the file. */
static int search_file(const rmq_key_index *index, const uint8_t *file, const rmq_index_header *header, int64_t hash,
                       const int64_t *range_ms, rmq_found *found)
{
    const uint8_t *const entries = file + INDEX_HEADER_SIZE + index->slots * INDEX_SLOT_SIZE;
    int32_t number = rmq_load_int(file + INDEX_HEADER_SIZE + hash % index->slots * INDEX_SLOT_SIZE);

    while (number > 0 && number < header->index_count) {
        if (number >= index->entries)
            return RMQ_NEEDS_PYTHON;
        const uint8_t *const entry = entries + (int64_t)number * RMQ_INDEX_ENTRY_SIZE;
        const int64_t offset = rmq_load_long(entry + 4);
        const int32_t seconds = rmq_load_int(entry + 12), previous = rmq_load_int(entry + 16);
        if (seconds < 0)
            break;
        const int64_t stored = header->begin_timestamp + (int64_t)seconds * 1000;
        if (rmq_load_int(entry) == hash && stored >= range_ms[0] && stored <= range_ms[1] && !is_known(found, offset)) {
            found->offsets[found->count++] = offset;
            if (found->count == found->maximum)
                break;
        }
        /* Chains lead to older entries only. Any other link is damage and could form a cycle. */
        if (previous <= 0 || previous >= number || stored < range_ms[0])
            break;
        number = previous;
    }
    return RMQ_OK;
}

int rmq_find_messages(const rmq_key_index *index, int64_t hash, const int64_t *range_ms, rmq_found *found)
{
    found->count = 0;
    for (int64_t i = index->count - 1; i >= 0 && found->count < found->maximum; i--) {
        rmq_index_header header;
        rmq_load_index_header(index->files[i], &header);
        if (header.begin_timestamp < 0 || header.begin_timestamp > TIME_MAX_MS)
            return RMQ_NEEDS_PYTHON;
        if (header.begin_timestamp <= range_ms[1] && header.end_timestamp >= range_ms[0]
            && !search_file(index, index->files[i], &header, hash, range_ms, found))
            return RMQ_NEEDS_PYTHON;
        if (header.begin_timestamp < range_ms[0])
            break;
    }
    return RMQ_OK;
}
