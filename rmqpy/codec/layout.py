"""Every number of the on-disk formats, defined once, with Java's field names. All integers are
big-endian and signed.

Message record, version 1 (the only one that 4.9 writes; offsets hold for two IPv4 hosts):

===  ==========================  ==========  ======  =============================================
 #   Java field                  size        offset  note
===  ==========================  ==========  ======  =============================================
 1   TOTALSIZE                   4           0       the complete record
 2   MAGICCODE                   4           4       MESSAGE_MAGIC_V1
 3   BODYCRC                     4           8       CRC-32 of the body & 0x7FFFFFFF, 0 when empty
 4   QUEUEID                     4           12
 5   FLAG                        4           16      the user's flag word
 6   QUEUEOFFSET                 8           20      0 for prepared and rollback types
 7   PHYSICALOFFSET              8           28      address of byte 0 of this record
 8   SYSFLAG                     4           36
 9   BORNTIMESTAMP               8           40      producer's clock, ms
10   BORNHOST                    8 or 20     48      ip (16 bytes with BORN_HOST_V6), port as int32
11   STORETIMESTAMP              8           56      broker's clock, ms; +12 with BORN_HOST_V6
12   STOREHOST                   8 or 20     64      as BORNHOST, STORE_HOST_V6
13   RECONSUMETIMES              4           72
14   PREPAREDTRANSACTIONOFFSET   8           76
15   BODYLENGTH                  4           84
16   BODY                        n           88
17   TOPICLENGTH                 1           88+n    version 2: 2 bytes; all else is equal
18   TOPIC                       t                   UTF-8
19   PROPERTIESLENGTH            2                   signed
20   PROPERTIES                  p                   see codec.properties
===  ==========================  ==========  ======  =============================================

BLANK (filler at the end of a file): remaining length 4, BLANK_MAGIC 4, then arbitrary bytes.

Consume queue unit (20): physical offset 8, record size 4, tags code 8.

Index file: header 40 = beginTimestamp 8, endTimestamp 8, beginPhyOffset 8, endPhyOffset 8,
hashSlotCount 4, indexCount 4; slots of 4 (newest entry number, 0 none); entries of 20 = keyHash
4, phyOffset 8, timeDiff 4 (seconds), previous entry number of the slot 4.

DLedger entry: magic 4, size 4, index 8, term 8, pos 8, channel 4, chainCrc 4, bodyCrc 4,
bodyLength 4, body. DLedger index unit (32): magic 4, pos 8, size 4, index 8, term 8. DLedger
filler: -1 4, remaining length 4, zeros.

Checkpoint (4096): physicMsgTimestamp 8, logicsMsgTimestamp 8, indexMsgTimestamp 8, from 5.x
masterFlushedOffset 8, confirmPhyOffset 8; the remainder is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Message record
MESSAGE_MAGIC_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_V2: Final = 0xDAA320AB
TOPIC_LENGTH_SIZES: Final[Mapping[int, int]] = {MESSAGE_MAGIC_V1: 1, MESSAGE_MAGIC_V2: 2}
"""The size of a record's TOPICLENGTH field by magic, which is the only difference between the
versions. A record is recognized by a magic in this table.
"""
MAGIC_BYTES: Final = tuple(magic.to_bytes(4) for magic in TOPIC_LENGTH_SIZES)
MAGICS_TEXT: Final = " or ".join(f"{magic:#x}" for magic in TOPIC_LENGTH_SIZES)
TOTAL_SIZE_POSITION: Final = 0
MAGIC_POSITION: Final = 4
BODY_CRC_POSITION: Final = 8
QUEUE_ID_POSITION: Final = 12
FLAG_POSITION: Final = 16
QUEUE_OFFSET_POSITION: Final = 20
PHYSICAL_OFFSET_POSITION: Final = 28
SYS_FLAG_POSITION: Final = 36
BORN_TIMESTAMP_POSITION: Final = 40
BORN_HOST_POSITION: Final = 48
STORE_TIMESTAMP_POSITION: Final = 56
"""Valid with an IPv4 born host; see :func:`store_timestamp_position`."""
HOST_V6_EXTRA: Final = 12
"""The bytes that each IPv6 host adds to a record."""
BODY_POSITION: Final = 88
"""Valid with two IPv4 hosts."""
RECORD_SIZE_MIN: Final = 91
"""The size in version 1, with two IPv4 hosts and empty body, topic and properties."""
TOPIC_BYTES_MAX: Final = 127
PROPERTIES_BYTES_MAX: Final = 32767
REVERSIBLE_PROPERTIES_MAX: Final = PROPERTIES_BYTES_MAX - 2 * 48
"""The size of properties up to which a record of a DLedger log can always be converted to one of a
classic log: the way back covers up to two entry headers with a property of the same size.
"""
CRC_MASK: Final = 0x7FFFFFFF

# BLANK
BLANK_MAGIC: Final = 0xCBD43194
BLANK_SIZE: Final = 8
"""The bytes that must remain in a file after every record (Java END_FILE_MIN_BLANK_LENGTH)."""

# Consume queue
QUEUE_UNIT_SIZE: Final = 20
QUEUE_FILLER_SIZE: Final = 0x7FFFFFFF
"""The record size in the filler units (0, this, 0), which precede the first unit of a queue whose
first offset is not 0.
"""

# Index file
INDEX_HEADER_SIZE: Final = 40
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY_SIZE: Final = 20
INDEX_END_TIMESTAMP_POSITION: Final = 8
INDEX_BEGIN_OFFSET_POSITION: Final = 16
INDEX_END_OFFSET_POSITION: Final = 24
INDEX_SLOT_COUNT_POSITION: Final = 32
INDEX_COUNT_POSITION: Final = 36

# DLedger
ENTRY_MAGIC: Final = 1
ENTRY_FILLER_MAGIC: Final = -1
ENTRY_FILLER_SIZE: Final = 8
ENTRY_HEADER_SIZE: Final = 48
ENTRY_SIZE_MAX: Final = 4 * 1024 * 1024
"""The size of a Java member's encoding buffer: the largest entry it writes, header included."""
ENTRY_INDEX_POSITION: Final = 8
ENTRY_TERM_POSITION: Final = 16
ENTRY_POS_POSITION: Final = 24
ENTRY_BODY_LENGTH_POSITION: Final = 44
INDEX_UNIT_SIZE: Final = 32

# Checkpoint
CHECKPOINT_SIZE: Final = 4096

# Batch body (request 320), per message: total size, magic 0, crc 0, flag, body length, body,
# properties length, properties
BATCH_HEADER_SIZE: Final = 20
BATCH_ITEM_SIZE_MIN: Final = 22

# Blocks, the unit in which logs are counted and compared
BLOCK_SHIFT: Final = 16
BLOCK_SIZE: Final = 1 << BLOCK_SHIFT
"""The size of a block. A frame is counted in the block of the file in which it begins."""
BLOCK_DIGEST_BYTES: Final = 16
"""The size of the BLAKE2b digest of a block."""

_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = _BORN_HOST_V6 | _STORE_HOST_V6
"""The bits of SYSFLAG on which the positions after BORNHOST and STOREHOST depend."""
STORE_TIMESTAMP_POSITIONS: Final[Mapping[int, int]] = {
    0: STORE_TIMESTAMP_POSITION,
    _BORN_HOST_V6: STORE_TIMESTAMP_POSITION + HOST_V6_EXTRA,
    _STORE_HOST_V6: STORE_TIMESTAMP_POSITION,
    HOSTS_V6: STORE_TIMESTAMP_POSITION + HOST_V6_EXTRA,
}
"""The position of STORETIMESTAMP by ``sys_flag & HOSTS_V6``."""
BODY_POSITIONS: Final[Mapping[int, int]] = {
    0: BODY_POSITION,
    _BORN_HOST_V6: BODY_POSITION + HOST_V6_EXTRA,
    _STORE_HOST_V6: BODY_POSITION + HOST_V6_EXTRA,
    HOSTS_V6: BODY_POSITION + 2 * HOST_V6_EXTRA,
}
"""The position of BODY by ``sys_flag & HOSTS_V6``."""
