"""Damage of every kind on stores of the Java broker, with the exact findings and their offsets.

Both engines report the same, for any split. Where only a replica shows the damage, the comparison
reports the byte.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field
from harness.golden import extract
from harness.pipeline import FORGED_SIZE, forged_record

from rmqpy.cli import main
from rmqpy.codec.backend import scan_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSIC = "A-classic-clean-v497/store"
JOINED = "C-upgraded-v497/n0"
DLEDGER = "D-dledger-v497/n0"
LOGS = {CLASSIC: "commitlog", JOINED: "dledger-n0/data", DLEDGER: "dledger-n0/data"}
ROW = 40
"""The number of the damaged frame in the second file of the log."""
SPLITS = ("1073741824", "8192", "517")
SPARK_SPLITS = ("32768", "268435456", "5003")

Findings = set[tuple[str, int]]
"""The codes and offsets of findings."""


class Log:
    """One log file, its frames, and changes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.base = int(path.name)
        self.dledger = path.parent.name == "data"
        self.shift = 48 if self.dledger else 0
        self.data = bytearray(path.read_bytes())
        self.scan = scan_records(
            memoryview(bytes(self.data)), self.base, dledger=self.dledger, check_crc=True
        )

    def at(self, row: int) -> int:
        return self.scan.frame_offset[row]

    def end(self, row: int) -> int:
        return self.at(row) + self.shift + self.scan.size[row]

    def flip(self, offset: int, mask: int) -> None:
        self.data[offset - self.base] ^= mask
        self.path.write_bytes(self.data)

    def put(self, offset: int, data: bytes) -> None:
        self.data[offset - self.base : offset - self.base + len(data)] = data
        self.path.write_bytes(self.data)

    def next_in_queue(self, row: int) -> int:
        """Return the offset of the next frame of the same queue."""
        scan = self.scan
        queue = scan.topic[row], scan.queue_id[row]
        return next(
            scan.frame_offset[other]
            for other in range(row + 1, len(scan))
            if (scan.topic[other], scan.queue_id[other]) == queue
        )


@define
class Store:
    """A copy of a golden store, with the original content of changed files."""

    root: Path
    folder: str
    saved: dict[Path, bytes] = field(factory=dict)

    def log(self, number: int, folder: str | None = None) -> Log:
        path = sorted((self.root / (folder or self.folder)).iterdir())[number]
        self.saved.setdefault(path, path.read_bytes())
        return Log(path)

    def restore(self) -> None:
        for path, data in self.saved.items():
            path.write_bytes(data)
        self.saved.clear()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    base = tmp_path_factory.mktemp("matrix")
    for name in LOGS:
        extract(name.partition("/")[0], base)
    return {name: Store(base / name, folder) for name, folder in LOGS.items()}


@contextmanager
def damaged(store: Store, damage: Callable[[Store], Findings]) -> Iterator[Findings]:
    """Damage a store and yield the expected findings; restore the store afterwards."""
    try:
        yield damage(store)
    finally:
        store.restore()


Report = Callable[..., Any]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    def run(store: Store, *more: str) -> Any:
        code = main(["pipeline", "audit", str(store.root), "--format", "json", *more])
        output = capsys.readouterr()
        assert code != 1, output.err
        (only,) = json.loads(output.out)["stores"]
        assert code == (0 if only["clean"] else 2)
        return only

    return run


def findings_of(report: Any) -> Findings:
    """Return the findings of a report except notes."""
    found = [each for each in report["findings"] if each["severity"] != "note"]
    return {(each["code"], each.get("offset", -1)) for each in found}


# Flipped bits: field, position in the record or entry, mask, and the findings. "here" is the frame,
# "next" the frame after it, "queue" the next one of its queue.

Rule = tuple[tuple[str, str], ...]
SILENT: Rule = ()
SLOT_LOST: Rule = (("QUEUE_STEP", "queue"), ("UNIT_MISSING", "here"), ("UNIT_SURPLUS", "here"))

RECORD_FIELDS: list[tuple[str, int, int, Rule]] = [
    ("TOTALSIZE", 0, 0x01, (("RECORD_SIZE", "here"),)),
    ("TOTALSIZE", 3, 0x01, (("RECORD_SIZE", "here"),)),
    ("MAGICCODE", 4, 0x80, (("RECORD_MAGIC", "here"),)),
    ("MAGICCODE", 7, 0x01, (("RECORD_MAGIC", "here"),)),
    ("BODYCRC", 8, 0x01, (("RECORD_BODY_CRC", "here"),)),
    ("BODYCRC", 11, 0x80, (("RECORD_BODY_CRC", "here"),)),
    ("QUEUEID", 12, 0x01, SLOT_LOST),
    ("QUEUEID", 15, 0x80, SLOT_LOST),
    ("FLAG", 16, 0x80, SILENT),
    ("FLAG", 19, 0x01, SILENT),
    ("QUEUEOFFSET", 20, 0x01, (("QUEUE_STEP", "here"), *SLOT_LOST)),
    ("QUEUEOFFSET", 27, 0x80, (("QUEUE_STEP", "here"), *SLOT_LOST)),
    ("PHYSICALOFFSET", 28, 0x80, (("RECORD_PLACE", "here"),)),
    ("PHYSICALOFFSET", 35, 0x01, (("RECORD_PLACE", "here"),)),
    ("SYSFLAG of an IPv6 host", 39, 0x10, (("RECORD_FIELDS", "here"),)),
    ("SYSFLAG of a half message", 39, 0x04, (("QUEUE_STEP", "queue"),)),
    ("SYSFLAG", 36, 0x01, SILENT),
    ("BORNTIMESTAMP", 47, 0x01, SILENT),
    ("BORNHOST", 48, 0x01, SILENT),
    ("STORETIMESTAMP", 63, 0x01, SILENT),
    ("STOREHOST", 64, 0x01, SILENT),
    ("RECONSUMETIMES", 75, 0x01, SILENT),
    ("PREPAREDTRANSACTIONOFFSET", 83, 0x01, SILENT),
    ("BODYLENGTH", 84, 0x01, (("RECORD_FIELDS", "here"),)),
    ("BODYLENGTH", 87, 0x01, (("RECORD_FIELDS", "here"),)),
    ("BODY", 88, 0x01, (("RECORD_BODY_CRC", "here"),)),
]
UNIT_TOO: Rule = (("ENTRY_UNIT", "here"),)
ENTRY_FIELDS: list[tuple[str, int, int, Rule]] = [
    ("magic", 0, 0x01, (("ENTRY_MAGIC", "here"),)),
    ("magic", 3, 0x01, (("ENTRY_MAGIC", "here"),)),
    ("size", 4, 0x01, (("ENTRY_SIZE", "here"),)),
    ("size", 7, 0x01, (("ENTRY_SIZE", "here"),)),
    ("index", 8, 0x01, (("ENTRY_INDEX", "here"), ("ENTRY_INDEX", "next"), *UNIT_TOO)),
    ("index", 15, 0x01, (("ENTRY_INDEX", "here"), ("ENTRY_INDEX", "next"), *UNIT_TOO)),
    ("term grown", 16, 0x01, (("ENTRY_TERM", "next"), *UNIT_TOO)),
    ("term grown", 22, 0x01, (("ENTRY_TERM", "next"), *UNIT_TOO)),
    ("term fallen", 23, 0x01, (("ENTRY_TERM", "here"), *UNIT_TOO)),
    ("pos", 24, 0x01, (("ENTRY_PLACE", "here"),)),
    ("pos", 31, 0x01, (("ENTRY_PLACE", "here"),)),
    ("channel", 32, 0x01, (("ENTRY_RESERVED", "here"),)),
    ("chainCrc", 36, 0x01, (("ENTRY_RESERVED", "here"),)),
    ("bodyCrc", 43, 0x01, (("ENTRY_RESERVED", "here"),)),
    ("bodyLength", 44, 0x01, (("ENTRY_FIELDS", "here"),)),
    ("bodyLength", 47, 0x01, (("ENTRY_FIELDS", "here"),)),
]


@define(frozen=True)
class Flip:
    """A flipped bit of the frame ``ROW``; ``position`` counts from the start of the frame."""

    position: int
    mask: int
    rule: Rule

    def __call__(self, store: Store) -> Findings:
        log = store.log(1)
        places = {"here": log.at(ROW), "next": log.at(ROW + 1), "queue": log.next_in_queue(ROW)}
        log.flip(self.place(log), self.mask)
        return {(code, places[where]) for code, where in self.rule}

    def place(self, log: Log) -> int:
        return log.at(ROW) + self.position


def flips() -> Iterator[Any]:
    for name in LOGS:
        shift = 0 if name == CLASSIC else 48
        for field_name, position, mask, rule in RECORD_FIELDS if name != DLEDGER else ():
            yield pytest.param(
                *(name, Flip(position + shift, mask, rule)),
                id=f"{name[0]}-{field_name}-{position}",
            )
        for field_name, position, mask, rule in ENTRY_FIELDS if shift else ():
            yield pytest.param(
                name, Flip(position, mask, rule), id=f"{name[0]}-entry-{field_name}-{position}"
            )


# After the body


def topic_length(store: Store) -> Findings:
    log = store.log(1)
    log.flip(log.base + log.scan.topic_position[ROW] - 1, 0x01)
    return {("RECORD_FIELDS", log.at(ROW))}


def topic(store: Store) -> Findings:
    log = store.log(1)
    log.flip(log.base + log.scan.topic_position[ROW], 0x80)
    here, queue = log.at(ROW), log.next_in_queue(ROW)
    record = here + log.shift
    return {
        ("RECORD_TOPIC", here),
        ("UNIT_MISSING", here),
        ("QUEUE_STEP", queue),
        ("UNIT_SURPLUS", record),
        ("KEY_MISSING", record),
        ("KEY_SURPLUS", record),
    }


def properties_length(store: Store) -> Findings:
    log = store.log(1)
    log.flip(log.base + log.scan.properties_position[ROW] - 1, 0x01)
    return {("RECORD_FIELDS", log.at(ROW))}


def key(store: Store) -> Findings:
    log = store.log(1)
    start = log.scan.properties_position[ROW]
    place = log.data.index(b"UNIQ_KEY\x01", start) + 12
    log.flip(log.base + place, 0x02)
    record = log.at(ROW) + log.shift
    return {("KEY_MISSING", record), ("KEY_SURPLUS", record)}


# Larger damage


def cut(position: int) -> Callable[[Store], Findings]:
    """Cut the last record at ``position``, or with -1 five bytes before its end."""

    def damage(store: Store) -> Findings:
        log = last_log(store)
        row = len(log.scan) - 1
        place = log.at(row) + log.shift + position if position > 0 else log.end(row) - 5
        log.put(place, bytes(log.base + len(log.data) - place))
        found = {("TAIL_PARTIAL", log.at(row))}
        # Its unit is a surplus only if the lengths of the record are valid.
        return found | ({("UNIT_SURPLUS", log.at(row) + log.shift)} if position > 0 else set())

    return damage


def last_log(store: Store) -> Log:
    folder = store.root / store.folder
    for number in range(len(list(folder.iterdir())) - 1, -1, -1):
        log = store.log(number)
        if len(log.scan):
            return log
    raise AssertionError("no frame in any file")


def junk(store: Store) -> Findings:
    log = last_log(store)
    log.put(log.scan.end, b"\x5a" * 100)
    return {("TAIL_JUNK", log.scan.end)}


def last_record_twice(store: Store) -> Findings:
    log = last_log(store)
    row = len(log.scan) - 1
    log.put(log.scan.end, bytes(log.data[log.at(row) - log.base : log.end(row) - log.base]))
    return {("TAIL_PARTIAL", log.scan.end)}


def zeroed_page(store: Store) -> Findings:
    """Zero the first page of the second file: one finding up to the next complete frame."""
    log = store.log(1)
    log.put(log.base, bytes(4096))
    return {("RECORD_ZEROED", log.base)}


def zeroed_page_inside(store: Store) -> Findings:
    """Zero a record from inside its body on."""
    log = store.log(1)
    row = max(range(len(log.scan)), key=lambda row: log.scan.size[row])
    log.put(log.at(row) + log.shift + 200, bytes(log.end(row) - log.at(row) - log.shift - 200))
    return {("RECORD_FIELDS", log.at(row))}


def record_twice(store: Store) -> Findings:
    """Replace a record by another one of its size: only position, index, and slot are wrong."""
    log = store.log(1)
    scan = log.scan
    first, second = next(
        (a, b)
        for a in range(len(scan))
        for b in range(a + 1, len(scan))
        if scan.size[a] == scan.size[b] and scan.topic[a] == scan.topic[b] == b"Normal"
    )
    log.put(log.at(second), bytes(log.data[log.at(first) - log.base : log.end(first) - log.base]))
    return {("RECORD_PLACE", log.at(second))}


def misplaced(store: Store) -> Findings:
    """Swap two files: every record of both has the wrong position."""
    one, two = store.log(0), store.log(1)
    first, second = bytes(one.data), bytes(two.data)
    one.path.write_bytes(second)
    two.path.write_bytes(first)
    return {
        ("RECORD_PLACE", each.frame_offset[row] + shift)
        for each, shift in ((two.scan, -65536), (one.scan, 65536))
        for row in range(len(each))
    }


def missing(number: int) -> Callable[[Store], Findings]:
    def damage(store: Store) -> Findings:
        store.log(number).path.unlink()
        return {("FILE_MISSING", -1)}

    return damage


def shorter(store: Store) -> Findings:
    log = store.log(1)
    log.path.write_bytes(log.data[:-1])
    return {("FILE_SIZE", -1)}


def filler_size(store: Store) -> Findings:
    log = store.log(1)
    size = log.scan.end + (7 if log.dledger else 3)
    log.flip(size, 0x01)
    return {("FILLER_SIZE", log.scan.end)}


def filler_missing(store: Store) -> Findings:
    log = store.log(1)
    log.put(log.scan.end, bytes(8))
    return {("FILLER_MISSING", log.scan.end)}


def forged(store: Store) -> Findings:
    """Fill a body with complete frames at their own offsets, with a valid CRC: no findings."""
    log = store.log(1)
    row = max(range(len(log.scan)), key=lambda row: log.scan.size[row])
    record = log.at(row) - log.base + log.shift
    body = record + 88
    length = int.from_bytes(log.data[body - 4 : body])
    size = log.shift + FORGED_SIZE
    assert length > 5 * size
    for place in range(body, body + length - size, size):
        entry = (FORGED_MAGIC, size, 1, 1, log.base + place, 0, 0, 0, FORGED_SIZE)
        if log.shift:
            struct.pack_into(">iiqqqiiii", log.data, place, *entry)
        start = place + log.shift
        log.data[start : place + size] = forged_record(log.base + start)
    crc = zlib.crc32(log.data[body : body + length]) & 0x7FFFFFFF
    log.put(log.base + record + 8, struct.pack(">i", crc))
    return set()


FORGED_MAGIC = 1
"""The magic of a DLedger entry (Java DLedgerEntryType.NORMAL)."""

COMMON = [
    *(topic_length, topic, properties_length, key, forged),
    *(cut(20), cut(100), cut(-1), junk, last_record_twice),
    *(zeroed_page, zeroed_page_inside, record_twice, misplaced),
    *(missing(1), missing(2), shorter, filler_size, filler_missing),
]
SUBSETS = {"record_twice", "misplaced", "missing", "shorter"}
"""Damage with many further findings of queues, keys, and units; only its own are compared."""


def name_of(damage: Callable[[Store], Findings]) -> str:
    return damage.__qualname__.partition(".")[0]


# Across the divide


def divide_open(store: Store) -> Findings:
    log = store.log(-1, "commitlog")
    log.put(log.scan.end, bytes(8))
    return {("DIVIDE_OPEN", -1)}


def divide_filler(store: Store) -> Findings:
    log = store.log(-1, "commitlog")
    log.flip(log.scan.end + 3, 0x01)
    return {("FILLER_SIZE", log.scan.end)}


def last_old_message_lost(store: Store) -> Findings:
    log = store.log(-1, "commitlog")
    row = len(log.scan) - 1
    log.put(log.at(row), bytes(log.end(row) - log.at(row)))
    return {("RECORD_ZEROED", log.at(row))}


def first_entry_lost(store: Store) -> Findings:
    """Zero the first entry, which explains the steps of index and queue offset after it."""
    log = store.log(0)
    log.put(log.at(0), bytes(log.end(0) - log.at(0)))
    return {("RECORD_ZEROED", log.at(0))}


def queue_continues_wrongly(store: Store) -> Findings:
    """Change the queue offset of a queue's first new message, which must follow the old ones."""
    log = store.log(0)
    queues = list(zip(log.scan.topic, log.scan.queue_id, strict=True))
    row = next(
        row
        for row, queue in enumerate(queues)
        if queues.index(queue) == row and queues.count(queue) > 1 and log.scan.queue_offset[row]
    )
    here, queue = log.at(row), log.next_in_queue(row)
    log.flip(here + log.shift + 27, 0x80)
    return {
        ("QUEUE_STEP", here),
        ("QUEUE_STEP", queue),
        ("UNIT_MISSING", here),
        ("UNIT_SURPLUS", here + log.shift),
    }


def ledger_starts_elsewhere(store: Store) -> Findings:
    store.log(0).path.unlink()
    return {("DIVIDE_MISMATCH", -1)}


DIVIDE = [
    *(divide_open, divide_filler, last_old_message_lost, first_entry_lost),
    *(queue_continues_wrongly, ledger_starts_elsewhere),
]


def larger() -> Iterator[Any]:
    for name in LOGS:
        for number, damage in enumerate(COMMON):
            yield pytest.param(name, damage, id=f"{name[0]}-{name_of(damage)}-{number}")
    for damage in DIVIDE:
        yield pytest.param(JOINED, damage, id=f"divide-{name_of(damage)}")


def check(report: Any, expected: Findings, damage: Callable[[Store], Findings]) -> None:
    found = findings_of(report)
    if name_of(damage) in SUBSETS or damage is ledger_starts_elsewhere:
        assert expected <= found
        codes = {code for code, _ in expected}
        assert {each for each in found if each[0] in codes} == expected
    else:
        assert found == expected


def normal(expected: Findings, log: Log) -> Findings:
    """Return the findings, with the offset of the record instead of the entry for surplus units."""
    return {
        (code, place + log.shift if code == "UNIT_SURPLUS" else place) for code, place in expected
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flip"), [*flips()])
def test_a_flipped_bit_is_found(
    name: str,
    flip: Flip,
    stores: dict[str, Store],
    store_of: Callable[[str], Path],
    report: Report,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = stores[name]
    log = store.log(1)
    with damaged(store, flip) as expected:
        found = report(store, "--range-bytes", SPLITS[0])
        assert findings_of(found) == normal(expected, log)
        assert report(store, "--range-bytes", SPLITS[-1]) == found
        if found["clean"] is False and name != CLASSIC:
            return
        # A replica shows the byte even if the store alone has no findings.
        intact = f"intact={store_of(name.removesuffix('/store'))}"
        words = ["pipeline", "compare", intact, f"damaged={store.root}", "--format", "json"]
        assert main(words) == 2
        (pair,) = json.loads(capsys.readouterr().out)["pairs"]
        assert pair["first"]["begin"] in (flip.place(log), log.at(ROW))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), [*larger()])
def test_larger_damage_is_found(
    name: str, damage: Callable[[Store], Findings], stores: dict[str, Store], report: Report
) -> None:
    store = stores[name]
    with damaged(store, damage) as expected:
        reports = [report(store, "--range-bytes", split) for split in SPLITS]
        check(reports[0], expected, damage)
        assert reports[1:] == reports[:1] * 2


@pytest.mark.spark
@pytest.mark.parametrize(("name", "damage"), [*flips(), *larger()])
def test_on_spark(
    name: str,
    damage: Callable[[Store], Findings],
    stores: dict[str, Store],
    report: Report,
    spark: SparkSession,
) -> None:
    store = stores[name]
    with damaged(store, damage):
        local = report(store, "--engine", "local")
        for split in SPARK_SPLITS[:1] if isinstance(damage, Flip) else SPARK_SPLITS:
            assert report(store, "--engine", "spark", "--range-bytes", split) == local
