"""Tests that start a store after a flipped bit, in each byte of its log in turn.

With the checksum over whole records, every flip is found; without it, every one that the body CRC
and the lengths cover. No start ever drops a later message silently. Recovery is also tested with
every bit of a log of 64 KiB: ``pytest -m crash -rP tests/store/files/test_every_bit.py`` prints its
results.
"""

from __future__ import annotations

import zlib
from collections import Counter

import pytest
from attrs import define
from harness.store import MemoryRig, read_all, record_at

from rmqpy.codec import layout
from rmqpy.codec.properties import PROPERTY_CRC_SIZE, reserve_property_crc, verify_property_crc
from rmqpy.model.errors import StoreError
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.log_recovery import LogRecovery
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.testing.memory_files import MemoryFiles

COUNT = 5
FILE = "commitlog/00000000000000000000"


def log_of(make_rig: type[MemoryRig], crc: bool) -> tuple[MemoryRig, list[int]]:
    """Return a store and the offsets of its records, with the end of the log."""
    rig = make_rig(changes={"enabled_append_prop_crc": crc})
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(COUNT)]
    offsets.append(store.log.max_offset)
    store.shutdown()
    return rig, offsets


def outcome(rig: MemoryRig, place: int, bit: int, whole: dict[tuple[str, int], list[bytes]]) -> str:
    """Start the store with a flipped bit; return refused, cut, same, or changed."""
    after = rig.after_end("kill")
    node = after.files.nodes[f"{rig.root}/{FILE}"]
    node.data[place] ^= 1 << bit
    try:
        store = after.open()
    except StoreError:
        return "refused"
    try:
        if store.opened.notes:
            return "cut"
        return "same" if read_all(store) == whole else "changed"
    except AssertionError:
        return "changed"
    finally:
        store.close_without_flush()


@pytest.mark.slow
@pytest.mark.parametrize("crc", [True, False], ids=["checksum", "plain"])
def test_a_start_finds_a_flipped_bit(make_rig: type[MemoryRig], crc: bool) -> None:
    rig, offsets = log_of(make_rig, crc)
    store = rig.open()
    whole = read_all(store)
    store.shutdown()
    last = offsets[-2]
    seen: dict[str, int] = {}
    for place in range(offsets[-1]):
        found = outcome(rig, place, place % 8, whole)
        seen[found] = seen.get(found, 0) + 1
        if crc:
            # The last record may look torn: it is cut off then, and kept.
            assert found == "refused" or (found == "cut" and place >= last), (place, found)
        else:
            assert found != "cut" or place >= last, "later messages must not be dropped"
    assert seen["refused"] > offsets[-1] // 5


def test_the_checksum_has_the_bytes_of_java_5(make_rig: type[MemoryRig]) -> None:
    """It is ``__CRC32#`` and ten digits, lowest first, over all bytes before it."""
    rig, offsets = log_of(make_rig, True)
    store = rig.open()
    record = bytearray(record_at(store, offsets[0]))
    store.shutdown()
    tail = bytes(record[-20:])
    assert tail[:9] == b"__CRC32#\x01" and tail[-1:] == b"\x02" and tail[9:19].isdigit()
    assert record[-21] == 2
    assert int(tail[9:19][::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF
    assert verify_property_crc(record)
    for place in range(len(record)):
        record[place] ^= 1
        assert not verify_property_crc(record), place
        record[place] ^= 1


def test_an_older_checksum_is_replaced() -> None:
    once = reserve_property_crc(b"a\x01b")
    assert reserve_property_crc(once) == once
    assert len(once) == len(b"a\x01b\x02") + PROPERTY_CRC_SIZE


def test_records_without_a_checksum_are_valid(make_rig: type[MemoryRig]) -> None:
    rig, offsets = log_of(make_rig, False)
    rig.changes["enabled_append_prop_crc"] = True
    store = rig.open()
    assert store.opened.notes == []
    assert verify_property_crc(record_at(store, offsets[0]))
    rig.put(store, 7)
    store.shutdown()
    rig.open().shutdown()


# ------------------------------------------------------------------- every bit of a log of 64 KiB

LOG_BYTES = 1 << 16
SAMPLE_STEP = 1009
"""A prime, so that the sample has bits of every position and every field."""


@define
class Log:
    """A log file full of records, and its recovery."""

    files: MemoryFiles
    path: str
    whole: bytes
    offsets: list[int]
    crc: bool

    @classmethod
    def of(cls, make_rig: type[MemoryRig], crc: bool) -> Log:
        changes = {"enabled_append_prop_crc": crc, "mapped_file_size_commit_log": LOG_BYTES}
        rig = make_rig(changes=changes)
        store = rig.open()
        offsets: list[int] = []
        while not offsets or offsets[-1] < LOG_BYTES - 1000:
            offsets += rig.put(store, len(offsets))
        offsets.append(store.log.max_offset)
        store.shutdown()
        return cls(rig.files, f"{rig.root}/{FILE}", rig.tree()[FILE], offsets, crc)

    def outcome(self, bit: int) -> str:
        """Recover the log with a flipped bit.

        Return refused, cut, noticed (bytes after the end), or unnoticed.
        """
        node = self.files.nodes[self.path]
        node.extent, data = LOG_BYTES, node.data
        data[bit // 8] ^= 1 << bit % 8
        segments = MappedFiles(self.files, (self.path.rpartition("/")[0],), LOG_BYTES)
        segments.load("mappedFileSizeCommitLog")
        recovery = LogRecovery(
            self.files, segments, Framing.CLASSIC, "/quarantine", check_property_crc=self.crc
        )
        # A recovery may start at any record; those before this one are unchanged.
        start = max((offset for offset in self.offsets[:-1] if offset <= bit // 8), default=0)
        try:
            end = recovery.recover(0, start)
        except StoreError:
            return "refused"
        finally:
            data[:] = self.whole
        if end.end < self.offsets[-1]:
            return "cut"
        return "noticed" if end.torn_bytes else "unnoticed"

    def field_of(self, place: int) -> str:
        """Return Java's name for the field that contains the byte at ``place``."""
        begin = max(offset for offset in self.offsets if offset <= place)
        if begin == self.offsets[-1]:
            return "after the end"
        record = self.whole[begin:]
        body_end = layout.BODY_POSITION + int.from_bytes(record[84:88])
        topic_end = body_end + 1 + record[body_end]
        ends = {
            4: "TOTALSIZE",
            8: "MAGICCODE",
            12: "BODYCRC",
            16: "QUEUEID",
            20: "FLAG",
            28: "QUEUEOFFSET",
            36: "PHYSICALOFFSET",
            40: "SYSFLAG",
            48: "BORNTIMESTAMP",
            56: "BORNHOST",
            64: "STORETIMESTAMP",
            72: "STOREHOST",
            76: "RECONSUMETIMES",
            84: "PREPAREDTRANSACTIONOFFSET",
            88: "BODYLENGTH",
            body_end: "BODY",
            body_end + 1: "TOPICLENGTH",
            topic_end: "TOPIC",
            topic_end + 2: "PROPERTIESLENGTH",
            len(self.whole): "PROPERTIES",
        }
        return next(name for end, name in ends.items() if place - begin < end)


UNCOVERED = {
    "QUEUEID",
    "FLAG",
    "QUEUEOFFSET",
    "SYSFLAG",
    "BORNTIMESTAMP",
    "BORNHOST",
    "STORETIMESTAMP",
    "STOREHOST",
    "RECONSUMETIMES",
    "PREPAREDTRANSACTIONOFFSET",
    "TOPIC",
    "PROPERTIES",
}
"""The fields in which flips are not found without the checksum over the whole record."""


def check_bits(log: Log, bits: range) -> None:
    """Flip each bit in turn and check the outcome of the recovery."""
    last = log.offsets[-2]
    unnoticed: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for bit in bits:
        found = log.outcome(bit)
        outcomes[found] += 1
        # Only the last record may look torn; a later message must not be dropped.
        assert found != "cut" or bit // 8 >= last, bit
        if found == "unnoticed":
            unnoticed[log.field_of(bit // 8)] += 1
    print(f"{len(bits)} flips, checksum {'on' if log.crc else 'off'}: {dict(outcomes)}")
    print(f"not found: {dict(unnoticed) or 'none'}")
    if log.crc:
        assert not unnoticed
    else:
        assert set(unnoticed) == UNCOVERED


@pytest.mark.slow
@pytest.mark.parametrize("crc", [True, False], ids=["checksum", "plain"])
def test_recovery_finds_a_sample_of_the_flipped_bits(make_rig: type[MemoryRig], crc: bool) -> None:
    check_bits(Log.of(make_rig, crc), range(0, 8 * LOG_BYTES, SAMPLE_STEP))


@pytest.mark.crash
@pytest.mark.parametrize("crc", [True, False], ids=["checksum", "plain"])
def test_recovery_finds_every_flipped_bit(make_rig: type[MemoryRig], crc: bool) -> None:
    check_bits(Log.of(make_rig, crc), range(8 * LOG_BYTES))
