/* Encoding of message records, version 1, a batch at a time. */
#include <string.h>

#include "rmqpy_native.h"

#define TOPIC_BYTES_MAX 127u
#define PROPERTIES_BYTES_MAX 32767u
#define BODY_BYTES_MAX 0x7FFF0000u /* so that TOTALSIZE is a positive int32 */

static uint8_t *put_host(uint8_t *at, const uint8_t *ip, size_t ip_length, int32_t port)
{
    memcpy(at, ip, ip_length);
    rmq_store32(at + ip_length, (uint32_t)port);
    return at + ip_length + 4;
}

/* `size` bytes are there at `out`; `payload` holds body, topic, properties. */
static void put_record(const rmq_draft *draft, const uint8_t *payload, uint8_t *out, uint32_t size)
{
    const uint8_t *const topic = payload + draft->body_length;
    uint8_t *at = out;

    rmq_store32(at, size);
    rmq_store32(at + 4, RMQ_MESSAGE_MAGIC_V1);
    rmq_store32(at + 8, draft->body_length ? rmq_crc32(payload, draft->body_length) : 0u);
    rmq_store32(at + 12, (uint32_t)draft->queue_id);
    rmq_store32(at + 16, (uint32_t)draft->flag);
    memset(at + 20, 0, 16); /* queue offset and physical offset are the log's to give */
    rmq_store32(at + 36, (uint32_t)draft->sys_flag);
    rmq_store_long(at + 40, draft->born_timestamp_ms);
    at = put_host(at + 48, draft->born_ip, (draft->sys_flag & RMQ_BORN_HOST_V6) ? 16 : 4,
                  draft->born_port);
    memset(at, 0, 8); /* the store timestamp too */
    at = put_host(at + 8, draft->store_ip, (draft->sys_flag & RMQ_STORE_HOST_V6) ? 16 : 4,
                  draft->store_port);
    rmq_store32(at, (uint32_t)draft->reconsume_times);
    rmq_store_long(at + 4, draft->prepared_transaction_offset);
    rmq_store32(at + 12, draft->body_length);
    memcpy(at + 16, payload, draft->body_length);
    at += 16 + draft->body_length;
    *at++ = (uint8_t)draft->topic_length;
    memcpy(at, topic, draft->topic_length);
    at += draft->topic_length;
    *at++ = (uint8_t)(draft->properties_length >> 8);
    *at++ = (uint8_t)draft->properties_length;
    memcpy(at, topic + draft->topic_length, draft->properties_length);
}

size_t rmq_encode(const rmq_draft *drafts, size_t count, const uint8_t *payload, size_t payload_length,
                  uint8_t *out, size_t out_length, int64_t *ends)
{
    size_t taken = 0, written = 0;

    for (size_t i = 0; i < count; i++) {
        const rmq_draft *const draft = &drafts[i];
        if (draft->topic_length > TOPIC_BYTES_MAX || draft->properties_length > PROPERTIES_BYTES_MAX
            || draft->body_length > BODY_BYTES_MAX)
            return i;
        const size_t length = (size_t)draft->body_length + draft->topic_length + draft->properties_length;
        const size_t size = rmq_head_size(draft->sys_flag) + 3u + length;
        if (length > payload_length - taken || size > out_length - written)
            return i;
        put_record(draft, payload + taken, out + written, (uint32_t)size);
        taken += length;
        written += size;
        ends[i] = (int64_t)written;
    }
    return count;
}
