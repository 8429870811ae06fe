"""Damage of every kind on stores of the Java broker: exactly these findings at these offsets, the
same from both engines and for any split; and where a replica shows more, the byte itself.
"""

from __future__ import annotations

import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from rmqpy.cli import main
from rmqpy.codec.backend import scan_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parents[1] / "golden"
CLASSIC = "A-classic-clean-v497/store"
JOINED = "C-upgraded-v497/n0"
DLEDGER = "D-dledger-v497/n0"
LOGS = {CLASSIC: "commitlog", JOINED: "dledger-n0/data", DLEDGER: "dledger-n0/data"}
ROW = 40
"""The frame that is damaged, by its number in the second file of the log."""
SPLITS = ("1073741824", "8192", "517")
SPARK_SPLITS = ("32768", "268435456", "5003")

Told = set[tuple[str, int]]
"""Codes and offsets."""


class Log:
    """One log file: its frames, and changes that are taken back."""

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
        """Offset of the next frame of the same queue."""
        scan = self.scan
        queue = scan.topic[row], scan.queue_id[row]
        return next(
            scan.frame_offset[other]
            for other in range(row + 1, len(scan))
            if (scan.topic[other], scan.queue_id[other]) == queue
        )


@define
class Store:
    """A private copy of a golden store."""

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
        with tarfile.open(GOLDEN / f"{name.partition('/')[0]}.tar.xz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.4
            archive.extractall(base)
    return {name: Store(base / name, folder) for name, folder in LOGS.items()}


@contextmanager
def damaged(store: Store, damage: Callable[[Store], Told]) -> Iterator[Told]:
    try:
        yield damage(store)
    finally:
        store.restore()


Report = Callable[..., Any]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    def run(store: Store, *more: str) -> Any:
        code = main(["pipeline", "audit", str(store.root), "--format", "json", *more])
        told = capsys.readouterr()
        assert code != 1, told.err
        (only,) = json.loads(told.out)["stores"]
        assert code == (0 if only["clean"] else 2)
        return only

    return run


def told_of(report: Any) -> Told:
    found = [each for each in report["findings"] if each["severity"] != "note"]
    return {(each["code"], each.get("offset", -1)) for each in found}


# Flipped bits: field, position in the record or entry, mask, what is told. "here" is the frame,
# "next" the frame behind it, "queue" the next one of its queue.

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
    """One bit of the frame ``ROW``. ``position`` from the begin of the frame."""

    position: int
    mask: int
    rule: Rule

    def __call__(self, store: Store) -> Told:
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


# Behind the body.


def topic_length(store: Store) -> Told:
    log = store.log(1)
    log.flip(log.base + log.scan.topic_position[ROW] - 1, 0x01)
    return {("RECORD_FIELDS", log.at(ROW))}


def topic(store: Store) -> Told:
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


def properties_length(store: Store) -> Told:
    log = store.log(1)
    log.flip(log.base + log.scan.properties_position[ROW] - 1, 0x01)
    return {("RECORD_FIELDS", log.at(ROW))}


def key(store: Store) -> Told:
    log = store.log(1)
    start = log.scan.properties_position[ROW]
    place = log.data.index(b"UNIQ_KEY\x01", start) + 12
    log.flip(log.base + place, 0x02)
    record = log.at(ROW) + log.shift
    return {("KEY_MISSING", record), ("KEY_SURPLUS", record)}


# Larger damage.


def cut(position: int) -> Callable[[Store], Told]:
    """The last record ends early, at ``position`` of it; -1: five bytes before its end."""

    def damage(store: Store) -> Told:
        log = last_log(store)
        row = len(log.scan) - 1
        place = log.at(row) + log.shift + position if position > 0 else log.end(row) - 5
        log.put(place, bytes(log.base + len(log.data) - place))
        told = {("TAIL_PARTIAL", log.at(row))}
        # Its unit is too early only while the record's lengths fit.
        return told | ({("UNIT_SURPLUS", log.at(row) + log.shift)} if position > 0 else set())

    return damage


def last_log(store: Store) -> Log:
    folder = store.root / store.folder
    for number in range(len(list(folder.iterdir())) - 1, -1, -1):
        log = store.log(number)
        if len(log.scan):
            return log
    raise AssertionError("no frame in any file")


def junk(store: Store) -> Told:
    log = last_log(store)
    log.put(log.scan.end, b"\x5a" * 100)
    return {("TAIL_JUNK", log.scan.end)}


def last_record_twice(store: Store) -> Told:
    log = last_log(store)
    row = len(log.scan) - 1
    log.put(log.scan.end, bytes(log.data[log.at(row) - log.base : log.end(row) - log.base]))
    return {("TAIL_PARTIAL", log.scan.end)}


def zeroed_page(store: Store) -> Told:
    """The second file's first page: one stretch up to the next whole frame."""
    log = store.log(1)
    log.put(log.base, bytes(4096))
    return {("RECORD_ZEROED", log.base)}


def zeroed_page_inside(store: Store) -> Told:
    """From inside a record's body on."""
    log = store.log(1)
    row = max(range(len(log.scan)), key=lambda row: log.scan.size[row])
    log.put(log.at(row) + log.shift + 200, bytes(log.end(row) - log.at(row) - log.shift - 200))
    return {("RECORD_FIELDS", log.at(row))}


def record_twice(store: Store) -> Told:
    """A record of the same size in place of another: only its place, index and slot betray it."""
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


def misplaced(store: Store) -> Told:
    """Two files swapped: every record of both stands elsewhere."""
    one, two = store.log(0), store.log(1)
    first, second = bytes(one.data), bytes(two.data)
    one.path.write_bytes(second)
    two.path.write_bytes(first)
    return {
        ("RECORD_PLACE", each.frame_offset[row] + shift)
        for each, shift in ((two.scan, -65536), (one.scan, 65536))
        for row in range(len(each))
    }


def missing(number: int) -> Callable[[Store], Told]:
    def damage(store: Store) -> Told:
        store.log(number).path.unlink()
        return {("FILE_MISSING", -1)}

    return damage


def shorter(store: Store) -> Told:
    log = store.log(1)
    log.path.write_bytes(log.data[:-1])
    return {("FILE_SIZE", -1)}


def filler_size(store: Store) -> Told:
    log = store.log(1)
    size = log.scan.end + (7 if log.dledger else 3)
    log.flip(size, 0x01)
    return {("FILLER_SIZE", log.scan.end)}


def filler_missing(store: Store) -> Told:
    log = store.log(1)
    log.put(log.scan.end, bytes(8))
    return {("FILLER_MISSING", log.scan.end)}


def forged(store: Store) -> Told:
    """A body full of whole frames, each at its own offset, with the CRC of such a body: nothing."""
    log = store.log(1)
    row = max(range(len(log.scan)), key=lambda row: log.scan.size[row])
    record = log.at(row) - log.base + log.shift
    body = record + 88
    length = int.from_bytes(log.data[body - 4 : body])
    size = log.shift + 100
    assert length > 5 * size
    for place in range(body, body + length - size, size):
        entry = (FORGED_MAGIC, size, 1, 1, log.base + place, 0, 0, 0, 100)
        if log.shift:
            struct.pack_into(">iiqqqiiii", log.data, place, *entry)
        own = log.base + place + log.shift
        head = struct.pack(
            ">iIiiiqqiq4siq4siiqi",
            *(100, 0xDAA320A7, zlib.crc32(bytes(8)) & 0x7FFFFFFF, 0, 0, 0, own, 0, 1),
            *(b"\x7f\0\0\1", 1, 1, b"\x7f\0\0\1", 1, 0, 0, 8),
        )
        log.data[place + log.shift : place + size] = head + bytes(8) + b"\x01F\0\0"
    crc = zlib.crc32(log.data[body : body + length]) & 0x7FFFFFFF
    log.put(log.base + record + 8, struct.pack(">i", crc))
    return set()


FORGED_MAGIC = 1
"""Of a DLedger entry (Java DLedgerEntryType.NORMAL)."""

COMMON = [
    *(topic_length, topic, properties_length, key, forged),
    *(cut(20), cut(100), cut(-1), junk, last_record_twice),
    *(zeroed_page, zeroed_page_inside, record_twice, misplaced),
    *(missing(1), missing(2), shorter, filler_size, filler_missing),
]
SUBSETS = {"record_twice", "misplaced", "missing", "shorter"}
"""Many findings follow from these: of queues, keys and units. The damage itself is told exactly."""


def name_of(damage: Callable[[Store], Told]) -> str:
    return damage.__qualname__.partition(".")[0]


# Across the divide.


def divide_open(store: Store) -> Told:
    log = store.log(-1, "commitlog")
    log.put(log.scan.end, bytes(8))
    return {("DIVIDE_OPEN", -1)}


def divide_filler(store: Store) -> Told:
    log = store.log(-1, "commitlog")
    log.flip(log.scan.end + 3, 0x01)
    return {("FILLER_SIZE", log.scan.end)}


def last_old_message_lost(store: Store) -> Told:
    log = store.log(-1, "commitlog")
    row = len(log.scan) - 1
    log.put(log.at(row), bytes(log.end(row) - log.at(row)))
    return {("RECORD_ZEROED", log.at(row))}


def first_entry_lost(store: Store) -> Told:
    """What is lost explains the step of index and of queue offset behind it."""
    log = store.log(0)
    log.put(log.at(0), bytes(log.end(0) - log.at(0)))
    return {("RECORD_ZEROED", log.at(0))}


def queue_goes_on_wrongly(store: Store) -> Told:
    """The first new message of a queue does not follow its last old one."""
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


def ledger_begins_elsewhere(store: Store) -> Told:
    store.log(0).path.unlink()
    return {("DIVIDE_MISMATCH", -1)}


DIVIDE = [
    *(divide_open, divide_filler, last_old_message_lost, first_entry_lost),
    *(queue_goes_on_wrongly, ledger_begins_elsewhere),
]


def larger() -> Iterator[Any]:
    for name in LOGS:
        for number, damage in enumerate(COMMON):
            yield pytest.param(name, damage, id=f"{name[0]}-{name_of(damage)}-{number}")
    for damage in DIVIDE:
        yield pytest.param(JOINED, damage, id=f"divide-{name_of(damage)}")


def check(report: Any, expected: Told, damage: Callable[[Store], Told]) -> None:
    told = told_of(report)
    if name_of(damage) in SUBSETS or damage is ledger_begins_elsewhere:
        assert expected <= told
        codes = {code for code, _ in expected}
        assert {each for each in told if each[0] in codes} == expected
    else:
        assert told == expected


def normal(expected: Told, log: Log) -> Told:
    """A unit or key that is left over is told with the offset of the record, not of its entry."""
    return {
        (code, place + log.shift if code == "UNIT_SURPLUS" else place) for code, place in expected
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flip"), [*flips()])
def test_a_flipped_bit(
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
        whole = report(store, "--range-bytes", SPLITS[0])
        assert told_of(whole) == normal(expected, log)
        assert report(store, "--range-bytes", SPLITS[-1]) == whole
        if whole["clean"] is False and name != CLASSIC:
            return
        # A replica tells the byte, also where one store alone shows nothing.
        intact = f"intact={store_of(name.removesuffix('/store'))}"
        words = ["pipeline", "compare", intact, f"damaged={store.root}", "--format", "json"]
        assert main(words) == 2
        (pair,) = json.loads(capsys.readouterr().out)["pairs"]
        assert pair["first"]["begin"] in (flip.place(log), log.at(ROW))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "damage"), [*larger()])
def test_larger_damage(
    name: str, damage: Callable[[Store], Told], stores: dict[str, Store], report: Report
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
    damage: Callable[[Store], Told],
    stores: dict[str, Store],
    report: Report,
    spark: SparkSession,
) -> None:
    store = stores[name]
    with damaged(store, damage):
        local = report(store, "--engine", "local")
        for split in SPARK_SPLITS[:1] if isinstance(damage, Flip) else SPARK_SPLITS:
            assert report(store, "--engine", "spark", "--range-bytes", split) == local
