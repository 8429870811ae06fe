"""Tests that the audit finds damage of every kind, with its code and offset, and nothing else.

The stores are those of the Java broker; each test changes a copy of its own.
"""

from __future__ import annotations

import pickle
import shutil
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from attrs import evolve
from harness.audit import audit, directory_of, without_notes
from harness.upgrade import GOLDEN_SIZES

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.checks.key_check import IndexTable, KeyCheck, open_index
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.findings import FindingCode as Code
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.audit.scan.queue_units import QueueUnits
from rmqpy.audit.scan.ranges import audit_range, split_log
from rmqpy.codec.backend import scan_records
from rmqpy.codec.tally.backend import walk_index
from rmqpy.codec.tally.derived_sums import IndexSums
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem

CLASSIC = "A-classic-clean-v497"
JOINED = "C-upgraded-v497/n0"
ROW = 40
"""The number in its file of the frame that is damaged."""


def problems(findings: Iterable[Finding]) -> set[tuple[Code, int]]:
    """Return code and offset of the findings above NOTE."""
    return {(finding.code, finding.offset) for finding in without_notes(findings)}


class LogUnderTest:
    """One log file of a store and its frames; it can be changed."""

    def __init__(self, path: Path, dledger: bool = False) -> None:
        self.path = path
        self.base = int(path.name)
        self.data = bytearray(path.read_bytes())
        self.scan = scan_records(
            memoryview(bytes(self.data)), self.base, dledger=dledger, check_crc=True
        )
        self.shift = 48 if dledger else 0

    def frame(self, row: int = ROW) -> int:
        """Return the position of a frame in the file."""
        return self.scan.frame_offset[row] - self.base

    def end(self, row: int = ROW) -> int:
        """Return the position of the end of a frame."""
        return self.frame(row) + self.scan.size[row] + self.shift

    def offset(self, row: int = ROW) -> int:
        return self.scan.frame_offset[row]

    def body(self, row: int) -> int:
        """Return the position of a message body."""
        record = self.frame(row) + self.shift
        sys_flag = struct.unpack_from(">i", self.data, record + 36)[0]
        return record + 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)

    def flip(self, position: int, mask: int = 0x01) -> None:
        self.data[position] ^= mask
        self.save()

    def put(self, position: int, data: bytes) -> None:
        self.data[position : position + len(data)] = data
        self.save()

    def save(self) -> None:
        self.path.write_bytes(self.data)


StoreAndLog = tuple[Path, LogUnderTest]


@pytest.fixture
def classic(copy_of: Callable[[str], Path]) -> StoreAndLog:
    store = copy_of(CLASSIC)
    return store, LogUnderTest(sorted((store / "commitlog").iterdir())[1])


@pytest.fixture
def joined(copy_of: Callable[[str], Path]) -> StoreAndLog:
    store = copy_of(JOINED)
    return store, LogUnderTest(sorted((store / "dledger-n0/data").iterdir())[1], dledger=True)


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
def test_a_flipped_bit_of_a_classic_record_is_found(
    classic: StoreAndLog, position: int, mask: int, code: Code
) -> None:
    store, log = classic
    log.flip(log.frame() + position, mask)
    assert problems(audit(store)) == {(code, log.offset())}


@pytest.mark.parametrize("position", [20, 27])
def test_a_flipped_bit_of_a_queue_offset_is_found(classic: StoreAndLog, position: int) -> None:
    store, log = classic
    log.flip(log.frame() + position)
    found = problems(audit(store))
    assert (Code.QUEUE_STEP, log.offset()) in found
    assert (Code.UNIT_WRONG, log.offset()) in found or (Code.UNIT_MISSING, log.offset()) in found
    assert {code for code, _ in found} <= {
        Code.QUEUE_STEP, Code.UNIT_WRONG, Code.UNIT_MISSING, Code.UNIT_SURPLUS,
    }  # fmt: skip


def test_a_flipped_bit_of_a_queue_id_is_found(classic: StoreAndLog) -> None:
    store, log = classic
    log.flip(log.frame() + 15)
    found = problems(audit(store))
    assert found and {offset for code, offset in found if code is Code.UNIT_SURPLUS} <= {
        log.offset()
    }
    assert {code for code, _ in found} <= {
        Code.QUEUE_STEP, Code.UNIT_WRONG, Code.UNIT_MISSING, Code.UNIT_SURPLUS,
    }  # fmt: skip


def test_a_flipped_bit_of_the_topic_is_found(classic: StoreAndLog) -> None:
    store, log = classic
    log.flip(log.scan.topic_position[ROW], 0x80)
    codes = {code for code, _ in problems(audit(store))}
    assert Code.RECORD_TOPIC in codes and Code.UNIT_SURPLUS in codes


def test_flipped_lengths_of_topic_and_properties_are_found(classic: StoreAndLog) -> None:
    store, log = classic
    log.flip(log.scan.topic_position[ROW] - 1)
    assert problems(audit(store)) == {(Code.RECORD_FIELDS, log.offset())}
    log.flip(log.scan.topic_position[ROW] - 1)
    log.flip(log.scan.properties_position[ROW] - 1)
    assert problems(audit(store)) == {(Code.RECORD_FIELDS, log.offset())}


def test_zeroed_properties_are_found(classic: StoreAndLog) -> None:
    """The body CRC does not cover them, so it still matches."""
    store, log = classic
    end = log.end()
    log.put(end - 20, bytes(20))
    found = problems(audit(store))
    assert (Code.RECORD_PROPERTIES, log.offset()) in found
    assert {offset for _, offset in found} == {log.offset()}


def test_a_changed_tag_is_found_by_its_unit(classic: StoreAndLog) -> None:
    store, log = classic
    row = next(row for row, tags in enumerate(log.scan.tags_code) if tags)
    start = log.scan.properties_position[row]
    raw = bytes(log.data[start : start + log.scan.properties_length[row]])
    log.flip(start + raw.index(b"TAGS\x01") + 5, 0x02)
    assert problems(audit(store)) == {(Code.UNIT_WRONG, log.offset(row))}


def test_a_changed_key_is_found_by_the_index(classic: StoreAndLog) -> None:
    store, log = classic
    start = log.scan.properties_position[ROW]
    raw = bytes(log.data[start : start + log.scan.properties_length[ROW]])
    log.flip(start + raw.index(b"UNIQ_KEY\x01") + 12, 0x02)
    assert problems(audit(store)) == {
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
def test_a_flipped_bit_of_an_entry_is_found(
    joined: StoreAndLog, position: int, mask: int, code: Code
) -> None:
    store, log = joined
    log.flip(log.frame() + position, mask)
    found = problems(audit(store))
    assert (code, log.offset()) in found
    # Apart from that, only the index unit of the same frame may disagree.
    assert {other for other, _ in found} <= {code, Code.ENTRY_UNIT}


@pytest.mark.slow
@pytest.mark.parametrize("position", [15, 23])
def test_a_flipped_bit_of_index_or_term_is_found(joined: StoreAndLog, position: int) -> None:
    store, log = joined
    log.flip(log.frame() + position)
    found = problems(audit(store))
    kind = Code.ENTRY_INDEX if position == 15 else Code.ENTRY_TERM
    offsets = {log.offset(), log.offset(ROW + 1)}
    assert {offset for code, offset in found if code is kind} <= offsets
    assert (Code.ENTRY_UNIT, log.offset()) in found
    assert any(code is kind for code, _ in found)


def test_a_changed_index_unit_is_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(JOINED)
    units = store / "dledger-n0/index" / f"{0:020d}"
    with units.open("r+b") as file:
        file.seek(32 * 100 + 11)
        file.write(b"\xff")
    (finding,) = audit(store)
    assert finding.code is Code.ENTRY_UNIT


def test_a_zeroed_page_is_found(classic: StoreAndLog) -> None:
    """Only its records are reported: their units and keys are correct."""
    store, log = classic
    first = next(r for r in range(len(log.scan)) if log.end(r) > 8192)
    last = next(r for r in range(len(log.scan)) if log.end(r) >= 8192 + 4096)
    log.put(8192, bytes(4096))
    found = audit(store)
    assert {f.offset for f in found if f.code.name.startswith("RECORD")} <= set(
        log.scan.frame_offset[first : last + 1]
    )
    ends = [f.offset + f.length for f in found if f.code.name.startswith("RECORD")]
    assert max(ends) == log.base + log.end(last)
    assert all(f.code.name.startswith(("RECORD", "KEY")) for f in found)


def test_each_damaged_place_is_a_finding(classic: StoreAndLog) -> None:
    store, log = classic
    log.flip(log.frame(10) + 4)
    log.flip(log.frame(30) + 4)
    log.flip(log.frame(31) + 4)
    found = [f for f in audit(store) if f.code is Code.RECORD_MAGIC]
    assert [f.offset for f in found] == [log.offset(10), log.offset(30), log.offset(31)]
    assert [f.length for f in found] == [log.scan.size[row] for row in (10, 30, 31)]


def test_a_damaged_filler_is_found(classic: StoreAndLog) -> None:
    store, log = classic
    blank = log.scan.end - log.base
    log.flip(blank + 3)
    assert problems(audit(store)) == {(Code.FILLER_SIZE, log.scan.end)}
    log.put(blank, bytes(8))
    assert problems(audit(store)) == {(Code.FILLER_MISSING, log.scan.end)}


def test_an_incomplete_file_is_found(classic: StoreAndLog) -> None:
    """The second half of a file in the middle of the log was never written."""
    store, log = classic
    row = next(row for row in range(len(log.scan)) if log.end(row) > 32768)
    log.put(32768, bytes(len(log.data) - 32768))
    found = problems(audit(store))
    assert (Code.RECORD_FIELDS, log.offset(row)) in found or (
        Code.RECORD_BODY_CRC, log.offset(row)
    ) in found or (Code.FILLER_MISSING, log.offset(row + 1)) in found  # fmt: skip
    assert all(code.name.startswith(("RECORD", "KEY", "FILLER")) for code, _ in found)


def test_a_truncated_file_is_found(classic: StoreAndLog) -> None:
    store, log = classic
    log.path.write_bytes(log.data[:-1])
    found = {f.code for f in audit(store)}
    assert Code.FILE_SIZE in found


def test_a_missing_file_is_found(classic: StoreAndLog) -> None:
    store, log = classic
    log.path.unlink()
    (finding, *others) = audit(store)
    assert finding.code is Code.FILE_MISSING and finding.file.endswith(log.path.name)
    assert {f.code for f in others} <= {Code.KEY_SURPLUS}


def test_swapped_files_are_found(classic: StoreAndLog) -> None:
    store, log = classic
    other = sorted((store / "commitlog").iterdir())[0]
    other_data = other.read_bytes()
    other.write_bytes(log.data)
    log.path.write_bytes(other_data)
    found = audit(store)
    misplaced = [f for f in found if f.code is Code.RECORD_PLACE]
    first = LogUnderTest(other)
    assert misplaced[0].offset == 0
    assert len(misplaced) >= len(first.scan)


def test_a_copied_record_is_found(classic: StoreAndLog) -> None:
    """A copy replaces another record of the same size; its PHYSICALOFFSET reveals it."""
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
    found = problems(audit(store))
    assert (Code.RECORD_PLACE, log.offset(second)) in found
    assert {offset for code, offset in found if code.name.startswith("RECORD")} == {
        log.offset(second)
    }


def forged_record(offset: int, size: int) -> bytes:
    """Return a valid record of ``size`` bytes for a physical offset."""
    body = bytes(size - 91 - 1)
    head = struct.pack(
        ">iIiiiqqiq4siq4siiqi",
        size, 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, offset, 0, 1,
        b"\x7f\0\0\1", 1, 1, b"\x7f\0\0\1", 1, 0, 0, len(body),
    )  # fmt: skip
    return head + body + b"\x01F\0\0"


def forge_records(log: LogUnderTest, row: int) -> None:
    """Fill a large body with forged records, as a hostile producer could."""
    body = log.body(row)
    length = struct.unpack_from(">i", log.data, body - 4)[0]
    place = body
    while place + 100 <= body + length:
        log.data[place : place + 100] = forged_record(log.base + place, 100)
        place += 100
    crc = zlib.crc32(log.data[body : body + length]) & 0x7FFFFFFF
    struct.pack_into(">i", log.data, log.frame(row) + log.shift + 8, crc)
    log.save()


def largest_row(log: LogUnderTest) -> int:
    return max(range(len(log.scan)), key=lambda row: log.scan.size[row])


@pytest.mark.slow
@pytest.mark.parametrize("range_bytes", [1 << 30, 4096, 1000, 100])
def test_forged_records_in_a_body_are_not_counted(classic: StoreAndLog, range_bytes: int) -> None:
    store, log = classic
    before = audit_store(OsFileSystem(), AuditOptions(root=str(store), workers=1)).records
    forge_records(log, largest_row(log))
    options = AuditOptions(root=str(store), workers=1, range_bytes=range_bytes)
    after = audit_store(OsFileSystem(), options)
    assert after.records == before
    assert after.is_clean


def test_forged_records_in_a_damaged_record_are_not_found(classic: StoreAndLog) -> None:
    """The size of the record is damaged, but its body still has its end."""
    store, log = classic
    row = largest_row(log)
    forge_records(log, row)
    log.flip(log.frame(row) + 3)
    found = problems(audit(store))
    assert found == {(Code.RECORD_SIZE, log.offset(row))}


@pytest.mark.slow
@pytest.mark.parametrize("range_bytes", [50000, 10000, 3000, 517])
def test_ranges_of_any_size_give_the_same_report(classic: StoreAndLog, range_bytes: int) -> None:
    store, log = classic
    log.flip(log.frame(3) + 4)
    log.flip(log.frame(20) + 90)
    log.put(20000, bytes(3000))
    log.flip(log.scan.end - log.base + 3)
    expected = audit(store)
    assert audit(store, range_bytes=range_bytes) == expected
    assert len(expected) > 3


def test_wrong_and_missing_units_are_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    folder = store / "consumequeue/Normal/0"
    file = sorted(folder.iterdir())[0]
    data = bytearray(file.read_bytes())
    data[20 * 5 + 7] ^= 1
    data[20 * 9 : 20 * 10] = bytes(20)
    data[20 * 11 + 19] ^= 1
    file.write_bytes(data)
    found = audit(store)
    assert [(f.code, f.queue_offset) for f in found] == [
        (Code.UNIT_WRONG, 5),
        (Code.UNIT_MISSING, 9),
        (Code.UNIT_WRONG, 11),
    ]


def test_a_missing_queue_is_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    shutil.rmtree(store / "consumequeue/Normal/0")
    (finding,) = audit(store)
    assert finding.code is Code.UNIT_MISSING and finding.queue_offset == 0
    assert "units of" in finding.expected


def test_units_after_the_last_message_are_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "consumequeue/Normal/0").iterdir())[-1]
    data = bytearray(file.read_bytes())
    used = len(bytes(data).rstrip(b"\0"))
    end = -(-used // 20) * 20
    data[end : end + 20] = struct.pack(">qiq", 1 << 40, 100, 0)
    file.write_bytes(data)
    (finding,) = audit(store)
    assert (finding.code, finding.offset) == (Code.UNIT_SURPLUS, 1 << 40)


def test_damaged_chains_of_the_key_index_are_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "index").iterdir())[0]
    data = bytearray(file.read_bytes())
    entry = 40 + 4 * 100 + 20 * 7
    data[entry + 16 : entry + 20] = (3).to_bytes(4)
    file.write_bytes(data)
    assert {f.code for f in audit(store)} == {Code.KEY_CHAIN}
    data[entry : entry + 4] = (77).to_bytes(4)
    file.write_bytes(data)
    assert {f.code for f in audit(store)} == {Code.KEY_CHAIN, Code.KEY_MISSING, Code.KEY_SURPLUS}


@pytest.mark.parametrize(
    ("position", "name"),
    [
        (7, "time of the first entry"),
        (15, "time of the last entry"),
        (22, "offset of the first entry"),
        (30, "offset of the last entry"),
        (34, "number of used slots"),
    ],
)
def test_a_wrong_field_in_the_header_of_an_index_file_is_found(
    copy_of: Callable[[str], Path], position: int, name: str
) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "index").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
    settings = StoreSettings(store_path_root_dir=str(store), **GOLDEN_SIZES)
    report = audit_store(OsFileSystem(), AuditOptions(root=str(store), settings=settings))
    assert (Code.INDEX_HEADER, name) in {(f.code, f.field) for f in report.first_findings}


def test_a_header_that_counts_entries_as_slots_is_a_note(
    copy_of: Callable[[str], Path],
) -> None:
    """As 4.4.0 does (tests/interop/test_older_versions.py); a later version adds new slots."""
    store = copy_of(CLASSIC)
    file = sorted((store / "index").iterdir())[1]
    data = bytearray(file.read_bytes())
    slots, entries = (int.from_bytes(data[at : at + 4]) for at in (32, 36))
    for found, code in (
        (entries - 1, Code.INDEX_SLOTS),
        (slots + 1, Code.INDEX_SLOTS),
        (entries, Code.INDEX_HEADER),
        (slots - 1, Code.INDEX_HEADER),
    ):
        data[32:36] = found.to_bytes(4)
        file.write_bytes(data)
        assert {each.code for each in audit(store)} == {code}, found


def test_index_files_in_another_order_are_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    first, second = sorted((store / "index").iterdir())
    first.rename(store / "spare")
    second.rename(first)
    (store / "spare").rename(second)
    (finding,) = audit(store)
    assert (finding.code, finding.file) == (Code.INDEX_HEADER, f"index/{second.name}")


def test_an_index_file_with_entries_and_no_header_is_found(copy_of: Callable[[str], Path]) -> None:
    store = copy_of(CLASSIC)
    file = sorted((store / "index").iterdir())[0]
    file.write_bytes(bytes(40) + file.read_bytes()[40:])
    found = audit(store)
    assert (Code.INDEX_HEADER, f"index/{file.name}") in {(f.code, f.file) for f in found}


@pytest.mark.parametrize(("removed", "count"), [([0], 399), ([1], 44), ([0, 1], 443)])
def test_messages_whose_index_file_is_missing_are_reported(
    copy_of: Callable[[str], Path], removed: list[int], count: int
) -> None:
    store = copy_of(CLASSIC)
    files = sorted((store / "index").iterdir())
    for number in removed:
        files[number].unlink()
    report = audit_store(OsFileSystem(), AuditOptions(root=str(store)))
    assert [f.code for f in report.first_findings] == [Code.KEYS_NOT_INDEXED]
    assert report.keys_found == report.keys - count


@pytest.mark.parametrize("running", [False, True])
def test_keys_added_after_the_header_was_read_are_ignored_in_a_running_broker(
    copy_of: Callable[[str], Path], running: bool
) -> None:
    """The slots of a growing index lead to newer entries than the header counts."""
    store = copy_of(CLASSIC)
    directory = directory_of(store)
    tables, _ = open_index(OsFileSystem(), directory, None)
    earlier = [
        evolve(table, header=evolve(table.header, index_count=table.header.index_count - 9))
        for table in tables
    ]

    def walked(table: IndexTable, low: int, high: int) -> IndexSums:
        return walk_index(table.view[:], table.slot_count, table.entry_end, 1 << 62, low, high)

    check = KeyCheck(OsFileSystem(), directory, earlier, 0, 0, (0, 0), walked, running)
    found = {finding.code for findings in check.run() for finding in findings}
    assert found == (set() if running else {Code.KEY_CHAIN, Code.INDEX_HEADER})


def test_a_wrong_upgrade_of_java_is_found(store_of: Callable[[str], Path]) -> None:
    """n1 became leader with five messages fewer than n0, so its queue offsets are shifted."""
    found = audit(store_of("X-gap_same_file-v497/n1"))
    assert [(f.code, f.offset, f.queue_offset) for f in found] == [
        (Code.QUEUE_STEP, 262144, 35),
        (Code.UNIT_MISSING, 262144, 35),
        (Code.UNIT_MISSING, 263868, 36),
        (Code.QUEUE_STEP, 267012, 32),
        (Code.UNIT_SURPLUS, 262192, 30),
        (Code.UNIT_SURPLUS, 263916, 31),
    ]


def test_stores_of_java_are_clean(store_of: Callable[[str], Path], clean_node: str) -> None:
    assert problems(audit(store_of(clean_node))) == set()


def test_a_damaged_record_does_not_match_its_checksum(classic: StoreAndLog) -> None:
    """Java 5.x can store a checksum of the whole record as its last property."""
    store, log = classic
    start, length = log.scan.properties_position[ROW], log.scan.properties_length[ROW]
    assert length > 40
    # The checksum replaces the last 20 bytes of the properties.
    end = start + length
    record = bytes(log.data[log.frame() : end - 20])
    digits = f"{zlib.crc32(record) & 0x7FFFFFFF:010d}"[::-1].encode()
    log.put(end - 20, b"__CRC32#\x01" + digits + b"\x02")
    codes = {f.code for f in audit(store)}
    assert Code.RECORD_CHECKSUM not in codes
    log.flip(log.frame() + 19)
    assert (Code.RECORD_CHECKSUM, log.offset()) in problems(audit(store))


def test_ranges_and_their_results_can_be_pickled(classic: StoreAndLog) -> None:
    """Other engines audit ranges in other processes."""
    store, log = classic
    log.flip(log.frame() + 4)
    directory = directory_of(store)
    plan = TallyPlan(
        dledger=False, units_of=QueueUnits(OsFileSystem(), directory), keys=(0, 1 << 40)
    )
    for work in split_log(directory.classic, directory.root):
        result = audit_range(
            map_log(OsFileSystem(), work.path), pickle.loads(pickle.dumps(work)), plan
        )
        assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 8, 15, 23])
@pytest.mark.parametrize("row", [0, ROW])
def test_ranges_of_any_size_find_the_same_in_a_damaged_entry(
    joined: StoreAndLog, row: int, position: int
) -> None:
    """This includes the first frame of a range, and a negative index."""
    store, log = joined
    log.flip(log.frame(row) + position, 0x80)
    expected = audit(store)
    assert expected
    for range_bytes in (8192, 517):
        assert audit(store, range_bytes=range_bytes) == expected


@pytest.mark.slow
@pytest.mark.parametrize("position", [15, 27, 39])
def test_ranges_of_any_size_find_the_same_in_a_damaged_queue(
    classic: StoreAndLog, position: int
) -> None:
    """This includes the step of a queue from one range to the next."""
    store, log = classic
    log.flip(log.frame() + position, 0x04)
    expected = audit(store)
    assert expected
    for range_bytes in (8192, 517):
        assert audit(store, range_bytes=range_bytes) == expected
