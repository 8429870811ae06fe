/* The C core: buffer in, buffer out. Rules and files: README.md beside this header.
 *
 * The lines between the two cffi marks are both this header's body and the cdef of build_native.py.
 */
#ifndef RMQPY_NATIVE_H
#define RMQPY_NATIVE_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */

/* CRC-32 (IEEE) with the sign bit cleared, as RocketMQ stores it. */
uint32_t rmq_crc32(const uint8_t *data, size_t length);

/* CRC-32 by the table code only, whatever the processor can do; for comparing the two. */
uint32_t rmq_crc32_portable(const uint8_t *data, size_t length);

/* Whether rmq_crc32 uses the carry-less multiplication of this processor. */
int rmq_crc32_is_accelerated(void);

/* What a record is made of; rmqpy/codec/native.py packs these. Native byte order. */
typedef struct {
    int64_t born_timestamp_ms;
    int64_t prepared_transaction_offset;
    int32_t queue_id;
    int32_t flag;
    int32_t sys_flag;
    int32_t reconsume_times;
    int32_t born_port;
    int32_t store_port;
    uint32_t body_length;
    uint32_t topic_length;
    uint32_t properties_length;
    uint32_t reserved;
    uint8_t born_ip[16];
    uint8_t store_ip[16];
} rmq_draft;

/* Encode `count` version 1 records back to back into `out`. `payload` holds body, topic, properties of each
 * draft in turn. ends[i] becomes the position behind record i. Queue offset, physical offset and store
 * timestamp are 0. Returns `count`, or the number of the draft that breaks a limit or does not fit. */
size_t rmq_encode(const rmq_draft *drafts, size_t count, const uint8_t *payload, size_t payload_length,
                  uint8_t *out, size_t out_length, int64_t *ends);

/* Columns of one row of a scan: the fields of rmqpy.codec.scan.Scan before `topic`, in that order. */
enum rmq_column {
    RMQ_FRAME_OFFSET,
    RMQ_OFFSET,
    RMQ_SIZE,
    RMQ_QUEUE_ID,
    RMQ_QUEUE_OFFSET,
    RMQ_PHYSICAL_OFFSET,
    RMQ_SYS_FLAG,
    RMQ_FLAG,
    RMQ_BORN_TIMESTAMP,
    RMQ_STORE_TIMESTAMP,
    RMQ_RECONSUME_TIMES,
    RMQ_PREPARED_TRANSACTION_OFFSET,
    RMQ_TAGS_CODE,
    RMQ_DELAY_LEVEL,
    RMQ_TOPIC_POSITION,
    RMQ_TOPIC_LENGTH,
    RMQ_PROPERTIES_POSITION,
    RMQ_PROPERTIES_LENGTH,
    RMQ_UNIQ_KEY_HASH,
    RMQ_KEYS_POSITION,
    RMQ_KEYS_LENGTH,
    RMQ_ENTRY_INDEX,
    RMQ_TERM,
    RMQ_COLUMN_COUNT
};

/* Why a scan ended: rmqpy.codec.scan.StopReason. */
enum rmq_stop {
    RMQ_END,
    RMQ_BLANK,
    RMQ_ZERO,
    RMQ_BAD_MAGIC,
    RMQ_BAD_SIZE,
    RMQ_TRUNCATED,
    RMQ_BAD_FIELDS,
    RMQ_BAD_CRC,
    RMQ_LIMIT
};

/* A walk over the records of `view`, which begins at offset `base_offset` of the log.
 * The caller sets the first seven fields; `cells` has room for max_records rows. rmq_scan sets the rest. */
typedef struct {
    const uint8_t *view;
    size_t length;
    int64_t base_offset;
    int32_t dledger;
    int32_t check_crc;
    int64_t *cells;
    size_t max_records;
    size_t count;      /* rows filled */
    size_t position;   /* behind the last good record and its framing */
} rmq_scan_state;

enum rmq_stop rmq_scan(rmq_scan_state *state);

/* cffi: end */

/* Shared by the C files only. */

static inline uint32_t rmq_load32(const uint8_t *at)
{
    return ((uint32_t)at[0] << 24) | ((uint32_t)at[1] << 16) | ((uint32_t)at[2] << 8) | at[3];
}

static inline int32_t rmq_load_int(const uint8_t *at)
{
    return (int32_t)rmq_load32(at);
}

static inline int64_t rmq_load_long(const uint8_t *at)
{
    return (int64_t)(((uint64_t)rmq_load32(at) << 32) | rmq_load32(at + 4));
}

static inline void rmq_store32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static inline void rmq_store_long(uint8_t *at, int64_t value)
{
    rmq_store32(at, (uint32_t)((uint64_t)value >> 32));
    rmq_store32(at + 4, (uint32_t)(uint64_t)value);
}

/* The record's numbers: rmqpy/codec/layout.py has the table. */
#define RMQ_MESSAGE_MAGIC_V1 0xDAA320A7u
#define RMQ_MESSAGE_MAGIC_V2 0xDAA320ABu
#define RMQ_BLANK_MAGIC 0xCBD43194u
#define RMQ_BORN_HOST_V6 0x10
#define RMQ_STORE_HOST_V6 0x20
#define RMQ_HOST_V6_EXTRA 12u
#define RMQ_HEAD_SIZE 88u       /* up to and with BODYLENGTH, two IPv4 hosts */
#define RMQ_RECORD_SIZE_MIN 91u
#define RMQ_ENTRY_HEADER_SIZE 48u

static inline size_t rmq_head_size(int32_t sys_flag)
{
    return RMQ_HEAD_SIZE + ((sys_flag & RMQ_BORN_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u)
           + ((sys_flag & RMQ_STORE_HOST_V6) ? RMQ_HOST_V6_EXTRA : 0u);
}

#endif
