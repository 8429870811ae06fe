"""Every byte of a log with a flipped bit, one after the other, and the store started: with the
checksum over whole records every flip is found, without it every one that the body CRC and the
lengths cover; no start ever drops a later message silently. And every bit of a log of 64 KiB, as
recovery sees it: ``pytest -m crash -rP tests/store/files/test_every_bit.py`` prints what it finds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from attrs import define
from harness.store import MakeStoreRig, StoreRig, read_all

from rmqpy.codec import layout
from rmqpy.codec.properties import PROPERTY_CRC_SIZE, reserve_property_crc, verify_property_crc
from rmqpy.model.errors import StoreError
from rmqpy.store.files.log_recovery import Framing, LogRecovery
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.testing.memory_files import MemoryFiles

COUNT = 5
FILE = "commitlog/00000000000000000000"


def log_of(make_rig: MakeStoreRig, crc: bool) -> tuple[Any, list[int]]:
    rig = make_rig(changes={"enabled_append_prop_crc": crc})
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(COUNT)]
    offsets.append(store.log.max_offset)
    store.shutdown()
    return rig, offsets


def outcome(rig: StoreRig, place: int, bit: int, whole: dict[Any, list[bytes]]) -> str:
    after = rig.after(rig.files.kill())
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
def test_flips(make_rig: MakeStoreRig, crc: bool) -> None:
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
            # The last record cannot be told from a torn one: it may be cut off, and is kept.
            assert found == "refused" or (found == "cut" and place >= last), (place, found)
        else:
            assert found != "cut" or place >= last, "later messages are never dropped"
    assert seen["refused"] > offsets[-1] // 5


def test_the_bytes_are_those_of_5(make_rig: MakeStoreRig) -> None:
    """``__CRC32#``, ten digits from the right, over everything in front of them."""
    rig, offsets = log_of(make_rig, True)
    store = rig.open()
    record = bytearray(store.reader.message_at(offsets[0]))
    store.shutdown()
    tail = bytes(record[-20:])
    assert tail[:9] == b"__CRC32#\x01" and tail[-1:] == b"\x02" and tail[9:19].isdigit()
    assert record[-21] == 2
    import zlib

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


def test_records_without_it_are_not_judged(make_rig: MakeStoreRig) -> None:
    rig, offsets = log_of(make_rig, False)
    rig.changes["enabled_append_prop_crc"] = True
    store = rig.open()
    assert store.opened.notes == []
    assert verify_property_crc(store.reader.message_at(offsets[0]))
    rig.put(store, 7)
    store.shutdown()
    rig.open().shutdown()


# Every bit of 64 KiB: what recovery itself says, without the rest of a start.

LOG_BYTES = 1 << 16
SAMPLE_STEP = 1009
"""A prime: the sample has bits of every number and every field."""


@define
class Log:
    """A log file that records fill, and recovery over it."""

    files: MemoryFiles
    path: str
    whole: bytes
    offsets: list[int]
    crc: bool

    @classmethod
    def of(cls, make_rig: MakeStoreRig, crc: bool) -> Log:
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
        """refused, cut, noticed (bytes behind the end), or unnoticed: with that bit flipped."""
        node = self.files.nodes[self.path]
        node.extent, data = LOG_BYTES, node.data
        data[bit // 8] ^= 1 << bit % 8
        row = MappedFiles(self.files, (self.path.rpartition("/")[0],), LOG_BYTES)
        row.load("mappedFileSizeCommitLog")
        walker = LogRecovery(
            self.files, row, Framing.CLASSIC, "/quarantine", check_property_crc=self.crc
        )
        # A recovery may begin at any record; what stands in front of this one is as it was.
        start = max((offset for offset in self.offsets[:-1] if offset <= bit // 8), default=0)
        try:
            end = walker.recover(0, start)
        except StoreError:
            return "refused"
        finally:
            data[:] = self.whole
        if end.end < self.offsets[-1]:
            return "cut"
        return "noticed" if end.torn_bytes else "unnoticed"

    def field_of(self, place: int) -> str:
        """Java's name for the field of the record that has the byte at ``place``."""
        begin = max(offset for offset in self.offsets if offset <= place)
        if begin == self.offsets[-1]:
            return "behind the end"
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
"""Fields of which flips are not found without the checksum over the whole record."""


def check_bits(log: Log, bits: range) -> None:
    last = log.offsets[-2]
    unnoticed: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for bit in bits:
        found = log.outcome(bit)
        outcomes[found] += 1
        # The last record cannot be told from a torn one; a later message is never dropped.
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
def test_a_sample_of_the_bits_of_64_kib(make_rig: MakeStoreRig, crc: bool) -> None:
    check_bits(Log.of(make_rig, crc), range(0, 8 * LOG_BYTES, SAMPLE_STEP))


@pytest.mark.crash
@pytest.mark.parametrize("crc", [True, False], ids=["checksum", "plain"])
def test_every_bit_of_64_kib(make_rig: MakeStoreRig, crc: bool) -> None:
    check_bits(Log.of(make_rig, crc), range(8 * LOG_BYTES))
