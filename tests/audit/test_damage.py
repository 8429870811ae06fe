"""Damage of every kind is found: its code, its offset, and nothing that is not there.

The stores are the Java broker's; each test changes a private copy.
"""

from __future__ import annotations

import pickle
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.checks.key_check import KeyCheck, open_index
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import FindingCode as Code
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits
from rmqpy.audit.scan.ranges import audit_range, split_log
from rmqpy.codec.backend import scan_records
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.store.files.disk import OsFileSystem

CLASSIC = "A-classic-clean-v497"
JOINED = "C-upgraded-v497/n0"
ROW = 40
"""The frame that is damaged, by its number in the file."""


def fsck(store, **more):
    found = []
    audit_store(OsFileSystem(), AuditOptions(root=str(store), sink=found.extend, workers=1, **more))
    return found


def told(found):
    """Code and offset of everything that is no note."""
    return {(f.code, f.offset) for f in found if f.code.severity.value != "note"}


class LogUnderTest:
    """One log file of a store, its frames, and a way to change it."""

    def __init__(self, path, dledger=False):
        self.path = path
        self.base = int(path.name)
        self.data = bytearray(path.read_bytes())
        self.scan = scan_records(
            memoryview(bytes(self.data)), self.base, dledger=dledger, check_crc=True
        )
        self.shift = 48 if dledger else 0

    def frame(self, row=ROW):
        """Position of a frame."""
        return self.scan.frame_offset[row] - self.base

    def end(self, row=ROW):
        return self.frame(row) + self.scan.size[row] + self.shift

    def offset(self, row=ROW):
        return self.scan.frame_offset[row]

    def flip(self, position, mask=0x01):
        self.data[position] ^= mask
        self.save()

    def put(self, position, data):
        self.data[position : position + len(data)] = data
        self.save()

    def save(self):
        self.path.write_bytes(self.data)


@pytest.fixture
def classic(copy_of: Callable[[str], Path]):
    store = copy_of(CLASSIC)
    return store, LogUnderTest(sorted((store / "commitlog").iterdir())[1])


@pytest.fixture
def joined(copy_of: Callable[[str], Path]):
    store = copy_of(JOINED)
    return store, LogUnderTest(sorted((store / "dledger-n0/data").iterdir())[1], dledger=True)


def body_at(log, row=ROW):
    record = log.frame(row) + log.shift
    sys_flag = struct.unpack_from(">i", log.data, record + 36)[0]
    return record + 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "mask", "code"),
    [
        (0, 0x40, Code.RECORD_SIZE),
        (2, 0x01, Code.RECORD_SIZE),
        (3, 0x01, Code.RECORD_SIZE),
        (4, 0x01, Code.RECORD_MAGIC),
        (7, 0x80, Code.RECORD_MAGIC),
        (8, 0x01, Code.RECORD_BODY_CRC),
        (11, 0x80, Code.RECORD_BODY_CRC),
        (28, 0x01, Code.RECORD_PLACE),
        (35, 0x01, Code.RECORD_PLACE),
        (39, 0x10, Code.RECORD_FIELDS),
        (39, 0x20, Code.RECORD_FIELDS),
        (84, 0x40, Code.RECORD_FIELDS),
        (87, 0x01, Code.RECORD_FIELDS),
        (88, 0x01, Code.RECORD_BODY_CRC),
    ],
)
def test_a_flipped_bit_of_a_classic_record(classic, position, mask, code) -> None:
    store, log = classic
    log.flip(log.frame() + position, mask)
    assert told(fsck(store)) == {(code, log.offset())}


@pytest.mark.parametrize("position", [20, 27])
def test_a_flipped_bit_of_a_queue_offset(classic, position) -> None:
    store, log = classic
    log.flip(log.frame() + position)
    found = told(fsck(store))
    assert (Code.QUEUE_STEP, log.offset()) in found
    assert (Code.UNIT_WRONG, log.offset()) in found or (Code.UNIT_MISSING, log.offset()) in found
    assert {code for code, _ in found} <= {
        Code.QUEUE_STEP, Code.UNIT_WRONG, Code.UNIT_MISSING, Code.UNIT_SURPLUS,
    }  # fmt: skip


def test_a_flipped_bit_of_a_queue_id(classic) -> None:
    store, log = classic
    log.flip(log.frame() + 15)
    found = told(fsck(store))
    assert found and {offset for code, offset in found if code is Code.UNIT_SURPLUS} <= {
        log.offset()
    }
    assert {code for code, _ in found} <= {
        Code.QUEUE_STEP, Code.UNIT_WRONG, Code.UNIT_MISSING, Code.UNIT_SURPLUS,
    }  # fmt: skip


def test_a_flipped_bit_of_the_topic(classic) -> None:
    store, log = classic
    log.flip(log.scan.topic_position[ROW], 0x80)
    codes = {code for code, _ in told(fsck(store))}
    assert Code.RECORD_TOPIC in codes and Code.UNIT_SURPLUS in codes


def test_flipped_lengths_of_topic_and_properties(classic) -> None:
    store, log = classic
    log.flip(log.scan.topic_position[ROW] - 1)
    assert told(fsck(store)) == {(Code.RECORD_FIELDS, log.offset())}
    log.flip(log.scan.topic_position[ROW] - 1)
    log.flip(log.scan.properties_position[ROW] - 1)
    assert told(fsck(store)) == {(Code.RECORD_FIELDS, log.offset())}


def test_properties_that_were_zeroed(classic) -> None:
    """Their CRC is right: it does not cover them."""
    store, log = classic
    end = log.end()
    log.put(end - 20, bytes(20))
    found = told(fsck(store))
    assert (Code.RECORD_PROPERTIES, log.offset()) in found
    assert {offset for _, offset in found} == {log.offset()}


def test_a_tag_that_changed_is_told_by_its_unit(classic) -> None:
    store, log = classic
    row = next(row for row, tags in enumerate(log.scan.tags_code) if tags)
    start = log.scan.properties_position[row]
    raw = bytes(log.data[start : start + log.scan.properties_length[row]])
    log.flip(start + raw.index(b"TAGS\x01") + 5, 0x02)
    assert told(fsck(store)) == {(Code.UNIT_WRONG, log.offset(row))}


def test_a_key_that_changed_is_told_by_the_index(classic) -> None:
    store, log = classic
    start = log.scan.properties_position[ROW]
    raw = bytes(log.data[start : start + log.scan.properties_length[ROW]])
    log.flip(start + raw.index(b"UNIQ_KEY\x01") + 12, 0x02)
    assert told(fsck(store)) == {
        (Code.KEY_MISSING, log.offset()),
        (Code.KEY_SURPLUS, log.offset()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "mask", "code"),
    [
        (0, 0x01, Code.ENTRY_MAGIC),
        (3, 0x02, Code.ENTRY_MAGIC),
        (5, 0x40, Code.ENTRY_SIZE),
        (7, 0x01, Code.ENTRY_SIZE),
        (24, 0x01, Code.ENTRY_PLACE),
        (31, 0x01, Code.ENTRY_PLACE),
        (35, 0x01, Code.ENTRY_RESERVED),
        (36, 0x01, Code.ENTRY_RESERVED),
        (43, 0x01, Code.ENTRY_RESERVED),
        (44, 0x01, Code.ENTRY_FIELDS),
        (48, 0x01, Code.RECORD_SIZE),
        (51, 0x01, Code.RECORD_SIZE),
        (52, 0x01, Code.RECORD_MAGIC),
        (56, 0x01, Code.RECORD_BODY_CRC),
        (76, 0x01, Code.RECORD_PLACE),
        (48 + 87, 0x01, Code.RECORD_FIELDS),
        (48 + 88, 0x01, Code.RECORD_BODY_CRC),
    ],
)
def test_a_flipped_bit_of_an_entry(joined, position, mask, code) -> None:
    store, log = joined
    log.flip(log.frame() + position, mask)
    found = told(fsck(store))
    assert (code, log.offset()) in found
    # What stands beside it can only be what the index units and queues say of the same frame.
    assert {other for other, _ in found} <= {code, Code.ENTRY_UNIT}


@pytest.mark.slow
@pytest.mark.parametrize("position", [15, 23])
def test_a_flipped_bit_of_index_and_term(joined, position) -> None:
    store, log = joined
    log.flip(log.frame() + position)
    found = told(fsck(store))
    kind = Code.ENTRY_INDEX if position == 15 else Code.ENTRY_TERM
    offsets = {log.offset(), log.offset(ROW + 1)}
    assert {offset for code, offset in found if code is kind} <= offsets
    assert (Code.ENTRY_UNIT, log.offset()) in found
    assert any(code is kind for code, _ in found)


def test_an_index_unit_that_changed(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(JOINED)
    units = store / "dledger-n0/index" / f"{0:020d}"
    with units.open("r+b") as file:
        file.seek(32 * 100 + 11)
        file.write(b"\xff")
    (finding,) = fsck(store)
    assert finding.code is Code.ENTRY_UNIT


def test_a_zeroed_page(classic) -> None:
    """All frames in it are one stretch; the units say what was there, and are no findings."""
    store, log = classic
    first = next(r for r in range(len(log.scan)) if log.end(r) > 8192)
    last = next(r for r in range(len(log.scan)) if log.end(r) >= 8192 + 4096)
    log.put(8192, bytes(4096))
    found = fsck(store)
    assert {f.offset for f in found if f.code.name.startswith("RECORD")} <= set(
        log.scan.frame_offset[first : last + 1]
    )
    ends = [f.offset + f.length for f in found if f.code.name.startswith("RECORD")]
    assert max(ends) == log.base + log.end(last)
    assert all(f.code.name.startswith(("RECORD", "KEY")) for f in found)


def test_two_places_of_damage_are_two_findings(classic) -> None:
    store, log = classic
    log.flip(log.frame(10) + 4)
    log.flip(log.frame(30) + 4)
    log.flip(log.frame(31) + 4)
    found = [f for f in fsck(store) if f.code is Code.RECORD_MAGIC]
    assert [f.offset for f in found] == [log.offset(10), log.offset(30), log.offset(31)]
    assert [f.length for f in found] == [log.scan.size[row] for row in (10, 30, 31)]


def test_the_filler_of_a_file(classic) -> None:
    store, log = classic
    blank = log.scan.end - log.base
    log.flip(blank + 3)
    assert told(fsck(store)) == {(Code.FILLER_SIZE, log.scan.end)}
    log.put(blank, bytes(8))
    assert told(fsck(store)) == {(Code.FILLER_MISSING, log.scan.end)}


def test_a_file_cut_and_padded(classic) -> None:
    """A file of the middle whose second half was never written."""
    store, log = classic
    row = next(row for row in range(len(log.scan)) if log.end(row) > 32768)
    log.put(32768, bytes(len(log.data) - 32768))
    found = told(fsck(store))
    assert (Code.RECORD_FIELDS, log.offset(row)) in found or (
        Code.RECORD_BODY_CRC, log.offset(row)
    ) in found or (Code.FILLER_MISSING, log.offset(row + 1)) in found  # fmt: skip
    assert all(code.name.startswith(("RECORD", "KEY", "FILLER")) for code, _ in found)


def test_a_shorter_file(classic) -> None:
    store, log = classic
    log.path.write_bytes(log.data[:-1])
    found = {f.code for f in fsck(store)}
    assert Code.FILE_SIZE in found


def test_a_missing_file(classic) -> None:
    store, log = classic
    log.path.unlink()
    (finding, *others) = fsck(store)
    assert finding.code is Code.FILE_MISSING and finding.file.endswith(log.path.name)
    assert {f.code for f in others} <= {Code.KEY_SURPLUS}


def test_swapped_files(classic) -> None:
    store, log = classic
    other = sorted((store / "commitlog").iterdir())[0]
    other_data = other.read_bytes()
    other.write_bytes(log.data)
    log.path.write_bytes(other_data)
    found = fsck(store)
    misplaced = [f for f in found if f.code is Code.RECORD_PLACE]
    first = LogUnderTest(other)
    assert misplaced[0].offset == 0
    assert len(misplaced) >= len(first.scan)


def test_a_record_twice(classic) -> None:
    """A copy in place of another of the same size: its place betrays it."""
    store, log = classic
    sizes = list(log.scan.size)
    first, second = next(
        (a, b)
        for a in range(len(sizes))
        for b in range(a + 1, len(sizes))
        if sizes[a] == sizes[b] and log.scan.topic[a] == log.scan.topic[b]
    )
    copy = bytes(log.data[log.frame(first) : log.end(first)])
    log.put(log.frame(second), copy)
    found = told(fsck(store))
    assert (Code.RECORD_PLACE, log.offset(second)) in found
    assert {offset for code, offset in found if code.name.startswith("RECORD")} == {
        log.offset(second)
    }


def forged(place, size):
    """A whole record of ``size`` bytes that belongs at ``place``."""
    body = bytes(size - 91 - 1)
    head = struct.pack(
        ">iIiiiqqiq4siq4siiqi",
        size, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, place, 0, 1,
        b"\x7f\0\0\1", 1, 1, b"\x7f\0\0\1", 1, 0, 0, len(body),
    )  # fmt: skip
    return head + body + b"\x01F\0\0"


def with_forged_bodies(log, row):
    """Fill a large body with forged records, as a hostile producer could."""
    body = body_at(log, row)
    length = struct.unpack_from(">i", log.data, body - 4)[0]
    place = body
    while place + 100 <= body + length:
        log.data[place : place + 100] = forged(log.base + place, 100)
        place += 100
    crc = zlib.crc32(log.data[body : body + length]) & 0x7FFFFFFF
    struct.pack_into(">i", log.data, log.frame(row) + log.shift + 8, crc)
    log.save()


def large_row(log):
    return max(range(len(log.scan)), key=lambda row: log.scan.size[row])


@pytest.mark.slow
@pytest.mark.parametrize("range_bytes", [1 << 30, 4096, 1000, 100])
def test_forged_records_in_a_body_are_no_records(classic, range_bytes) -> None:
    store, log = classic
    before = audit_store(OsFileSystem(), AuditOptions(root=str(store), workers=1)).records
    with_forged_bodies(log, large_row(log))
    found = []
    plan = AuditOptions(
        root=str(store), sink=found.extend, workers=1, range_bytes=range_bytes, digests=False
    )
    assert audit_store(OsFileSystem(), plan).records == before
    assert told(found) == set()


def test_forged_records_in_a_damaged_record(classic) -> None:
    """Its size is damaged, but what is behind its body is not: the forged ones stay out."""
    store, log = classic
    row = large_row(log)
    with_forged_bodies(log, row)
    log.flip(log.frame(row) + 3)
    found = told(fsck(store))
    assert found == {(Code.RECORD_SIZE, log.offset(row))}


@pytest.mark.slow
@pytest.mark.parametrize("range_bytes", [50000, 10000, 3000, 517])
def test_every_split_gives_the_same_report(classic, range_bytes) -> None:
    store, log = classic
    log.flip(log.frame(3) + 4)
    log.flip(log.frame(20) + 90)
    log.put(20000, bytes(3000))
    log.flip(log.scan.end - log.base + 3)
    whole = fsck(store)
    assert fsck(store, range_bytes=range_bytes) == whole
    assert len(whole) > 3


def test_a_wrong_unit_and_a_missing_one(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    folder = store / "consumequeue/Normal/0"
    file = sorted(folder.iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20 * 5 + 7] ^= 1
    data[20 * 9 : 20 * 10] = bytes(20)
    data[20 * 11 + 19] ^= 1
    file.write_bytes(data)
    found = fsck(store)
    assert [(f.code, f.queue_offset) for f in found] == [
        (Code.UNIT_WRONG, 5),
        (Code.UNIT_MISSING, 9),
        (Code.UNIT_WRONG, 11),
    ]


def test_a_queue_that_vanished(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    shutil.rmtree(store / "consumequeue/Normal/0")
    (finding,) = fsck(store)
    assert finding.code is Code.UNIT_MISSING and finding.queue_offset == 0
    assert "units of" in finding.expected


def test_units_behind_the_last_message(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "consumequeue/Normal/0").iterdir())[-1]
    data = bytearray(file.read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    end = -(-used // 20) * 20
    data[end : end + 20] = struct.pack(">qiq", 1 << 40, 100, 0)
    file.write_bytes(data)
    (finding,) = fsck(store)
    assert (finding.code, finding.offset) == (Code.UNIT_SURPLUS, 1 << 40)


def test_the_chains_of_the_key_index(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "index").iterdir())[0]
    data = bytearray(file.read_bytes())
    entry = 40 + 4 * 100 + 20 * 7
    data[entry + 16 : entry + 20] = (3).to_bytes(4)
    file.write_bytes(data)
    assert {f.code for f in fsck(store)} == {Code.KEY_CHAIN}
    data[entry : entry + 4] = (77).to_bytes(4)
    file.write_bytes(data)
    assert {f.code for f in fsck(store)} == {Code.KEY_CHAIN, Code.KEY_MISSING, Code.KEY_SURPLUS}


@pytest.mark.parametrize("running", [False, True])
def test_keys_that_came_behind_the_header_that_was_read(
    copy_of: Callable[[str], Path], running
) -> None:
    """Slots of a running broker's index lead to newer entries than the header told."""
    store = copy_of(CLASSIC)
    directory = read_directory(OsFileSystem(), str(store))
    tables, _ = open_index(OsFileSystem(), directory, None)
    earlier = [
        evolve(table, header=evolve(table.header, index_count=table.header.index_count - 9))
        for table in tables
    ]
    check = KeyCheck(OsFileSystem(), directory, earlier, 0, 0, (0, 0), running)
    found = {finding.code for findings in check.run() for finding in findings}
    assert found == (set() if running else {Code.KEY_CHAIN})


def test_a_wrong_upgrade_of_java(store_of: Callable[[str], Path]) -> None:
    """n1 took over with five messages fewer than n0: its queue is shifted for ever."""
    found = fsck(store_of("X-gap_same_file-v497/n1"))
    assert [(f.code, f.offset, f.queue_offset) for f in found] == [
        (Code.QUEUE_STEP, 262144, 35),
        (Code.UNIT_MISSING, 262144, 35),
        (Code.UNIT_MISSING, 263868, 36),
        (Code.QUEUE_STEP, 267012, 32),
        (Code.UNIT_SURPLUS, 262192, 30),
        (Code.UNIT_SURPLUS, 263916, 31),
    ]


def test_stores_of_java_are_clean(store_of: Callable[[str], Path], clean_node: str) -> None:
    assert told(fsck(store_of(clean_node))) == set()


def test_a_checksum_over_the_record(classic) -> None:
    """5.x can keep one as the last property: it covers what the body CRC does not."""
    store, log = classic
    start, length = log.scan.properties_position[ROW], log.scan.properties_length[ROW]
    assert length > 40
    # In place of the last 20 bytes of the properties, whatever they were.
    end = start + length
    record = bytes(log.data[log.frame() : end - 20])
    digits = f"{zlib.crc32(record) & 0x7FFFFFFF:010d}"[::-1].encode()
    log.put(end - 20, b"__CRC32#\x01" + digits + b"\x02")
    codes = {f.code for f in fsck(store)}
    assert Code.RECORD_CHECKSUM not in codes
    log.flip(log.frame() + 19)
    assert (Code.RECORD_CHECKSUM, log.offset()) in told(fsck(store))


def test_a_result_can_be_sent_to_another_process(classic) -> None:
    """What a range was found to hold is a value: other engines run ranges elsewhere."""
    store, log = classic
    log.flip(log.frame() + 4)
    directory = read_directory(OsFileSystem(), str(store))
    works = list(split_log(directory.classic, directory.root))
    plan = TallyPlan(
        dledger=False, units_of=QueueUnits(OsFileSystem(), directory), keys=(0, 1 << 40)
    )
    for work in works:
        result = audit_range(
            map_log(OsFileSystem(), work.path), pickle.loads(pickle.dumps(work)), plan
        )
        assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(result.tally.queues)) == result.tally.queues


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 8, 15, 23])
@pytest.mark.parametrize("row", [0, ROW])
def test_every_split_tells_the_same_of_an_entry(joined, row, position) -> None:
    """Damage at the first frame of a range, and an index that became negative."""
    store, log = joined
    log.flip(log.frame(row) + position, 0x80)
    whole = fsck(store)
    assert whole
    for range_bytes in (8192, 517):
        assert fsck(store, range_bytes=range_bytes) == whole


@pytest.mark.slow
@pytest.mark.parametrize("position", [15, 27, 39])
def test_every_split_tells_the_same_of_a_queue(classic, position) -> None:
    """Steps of a queue from one range to the next have their frame's length too."""
    store, log = classic
    log.flip(log.frame() + position, 0x04)
    whole = fsck(store)
    assert whole
    for range_bytes in (8192, 517):
        assert fsck(store, range_bytes=range_bytes) == whole
