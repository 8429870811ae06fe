"""What is unread in stores of real RocketMQ 5.3.3: as many messages as its clients left there."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.golden import GOLDEN

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.codec.timers import SLOT_SIZE, TIMER_UNIT_SIZE
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import StoreError
from rmqpy.model.text import time_text
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.store.unread.data import UnreadData, UnreadKind, find_unread
from rmqpy.testing.manual_scheduler import ManualScheduler

FILES = OsFileSystem()
TIMERS, POP = "E-timers-v533", "F-pop-v533"
LATER_MS = 600_000
"""What was due so long after the first timer message had not been delivered at the stop."""
EXPECTED: dict[str, tuple[UnreadKind, ...]] = {
    f"{TIMERS}/clean": (UnreadKind.TIMER_WHEEL,),
    f"{TIMERS}/killed": (UnreadKind.TIMER_WHEEL,),
    f"{TIMERS}/lagging": (UnreadKind.TIMER_TOPIC,),
    "F-pop-acknowledged-v533/log": (),
    f"{POP}/log": (UnreadKind.POP_RECORDS,),
    f"{POP}/kv": (UnreadKind.POP_ROCKSDB,),
    "G-rocksdb-v533/queues": (UnreadKind.ROCKSDB_QUEUES, *3 * [UnreadKind.ROCKSDB_TABLES]),
    "G-rocksdb-v533/both": (UnreadKind.ROCKSDB_QUEUES,),
    "H-queues-v533/store": (
        UnreadKind.BATCH_QUEUES,
        UnreadKind.COMPACTION,
        UnreadKind.LIGHT_QUEUES,
    ),
    "I-controller-v533/n0": (UnreadKind.CONTROLLER,),
    "I-controller-v533/n1": (UnreadKind.CONTROLLER,),
    "J-tiered-v533/store": (UnreadKind.TIERED,),
}


def unread(root: Path) -> list[UnreadData]:
    return find_unread(FILES, StorePaths(str(root), f"{root}/commitlog"))


def one(root: Path) -> UnreadData:
    (only,) = unread(root)
    return only


def events(node: str) -> list[list[str]]:
    """Return what the Java client printed about a node."""
    archive, _, name = node.partition("/")
    raw = lzma.decompress((GOLDEN / f"{archive}.json.xz").read_bytes())
    lines: list[list[str]] = json.loads(raw)["events"].get(name, [])
    return lines


@pytest.mark.parametrize("node", EXPECTED)
def test_everything_unread_is_named_and_nothing_else_is_wrong(
    golden: Callable[[str], Path], node: str
) -> None:
    archive, _, name = node.partition("/")
    root = golden(archive) / name
    facts = read_facts(FILES, str(root))
    assert tuple(each.kind for each in facts.unread) == EXPECTED[node]
    audit = audit_store(FILES, AuditOptions(root=str(root), workers=1))
    notes = {FindingCode.DATA_UNREAD, FindingCode.UNCLEAN_STOP, FindingCode.FILE_AHEAD}
    assert set(audit.counts) <= notes
    assert audit.counts.get(FindingCode.DATA_UNREAD, 0) == len(EXPECTED[node])
    able = {each.program: each.able for each in facts.openers}
    assert able["Java 5.3"] and able["rmqpy"] is not bool(EXPECTED[node])


@pytest.mark.parametrize("name", ["clean", "killed", "lagging"])
def test_timer_messages_that_wait_are_those_that_were_sent(
    golden: Callable[[str], Path], name: str
) -> None:
    """Delivered ones, and one that was taken back, do not wait; one that rolls does."""
    sent = [line for line in events(f"{TIMERS}/{name}") if line[0] == "timer"]
    first = min(int(line[3]) for line in sent)
    later = [line for line in sent if name == "lagging" or int(line[3]) >= first + LATER_MS]
    assert len(later) in (32, 25, 4)
    found = one(golden(TIMERS) / name)
    assert found.messages == (("Timer", len(later)),)
    assert found.found.startswith(f"{len(later)} timer messages")
    soon = sorted(later, key=lambda line: int(line[3]))[:3]
    named = ", ".join(f"{line[6]} at {time_text(int(line[3]))}" for line in soon)
    assert found.found.endswith(f"; due first: {named}")


def test_pop_messages_that_wait_are_those_that_were_received(
    golden: Callable[[str], Path],
) -> None:
    """The receipts of the first group ran out: its messages are in a retry topic of its own."""
    received = Counter(line[2] for line in events(f"{POP}/log") if line[0] == "popped")
    waits = {group: count for group, count in received.items() if group in ("another", "third")}
    assert waits == {"another": 3, "third": 5}
    assert dict(one(golden(POP) / "log").messages) == waits


def test_java_4_9_cannot_read_long_topics(golden: Callable[[str], Path]) -> None:
    facts = read_facts(FILES, str(golden(POP) / "log"))
    (old,) = (each for each in facts.openers if each.program == "Java 4.9")
    assert not old.able and "records of version 2" in old.reasons[0]


def test_units_whose_wheel_is_gone_are_found(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(TIMERS) / "clean"
    (root / "timerwheel").unlink()
    found = one(root)
    assert found.kind is UnreadKind.TIMER_WHEEL and found.messages == (("Timer", 32),)


def test_units_of_which_the_timer_log_is_gone_are_found(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(TIMERS) / "clean"
    for path in (root / "timerlog").iterdir():
        path.unlink()
    assert one(root).found.startswith("32 timer messages")


def test_units_of_which_the_log_was_cut_are_found(golden_copy: Callable[[str], Path]) -> None:
    """Java keeps the timer log when it cuts the log: its units lead to nothing, or elsewhere."""
    root = golden_copy(TIMERS) / "clean"
    log = root / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    end = data.index(b"key30\x02") - 200
    log.write_bytes(data[:end].ljust(len(data), b"\0"))
    found = one(root)
    ((topic, kept),) = found.messages
    assert topic == "Timer" and 0 < kept < 32
    # The message that was taken back counts, too: what took it back is gone.
    assert f", {33 - kept} of them not in the log" in found.found


def test_a_torn_unit_ends_the_timer_log(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(TIMERS) / "killed"
    (root / "timerwheel").unlink()
    last = max(
        path for path in (root / "timerlog").iterdir() if any(path.read_bytes()[:TIMER_UNIT_SIZE])
    )
    data = last.read_bytes()
    last.write_bytes(bytes(len(data)))
    assert 0 < one(root).messages[0][1] < 25


def test_a_receipt_that_cannot_be_read_counts(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(POP) / "log"
    replace_in_log(root, b'"c":"third"', b'"x":"third"')
    found = one(root)
    assert dict(found.messages) == {"another": 3}
    assert found.found.startswith("4 POP messages")


def damage(root: Path) -> list[str]:
    """Return what an audit finds beyond the list of unread data."""
    found: list[str] = []
    options = AuditOptions(
        root=str(root), workers=1, sink=lambda new: found.extend(map(str, new)), digests=True
    )
    audit_store(FILES, options)
    return [text for text in found if not text.startswith("DATA_UNREAD")]


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def replace_in_log(root: Path, old: bytes, new: bytes) -> None:
    log = root / "commitlog" / f"{0:020d}"
    put(log, log.read_bytes().replace(old, new))


def due_slot(root: Path) -> int:
    """Return where the wheel has the slot that is due last, and has not been delivered."""
    data = (root / "timerwheel").read_bytes()
    pages = (at for at in range(0, len(data), PAGE) if data[at : at + PAGE] != EMPTY_PAGE)
    slots = (at for page in pages for at in range(page, page + PAGE, SLOT_SIZE))
    return max(slots, key=lambda at: int.from_bytes(data[at : at + 8]))


def change_due_unit(root: Path, position: int, data: bytes) -> None:
    """Change the last unit of that slot, in the file of the timer log that has it."""
    at = due_slot(root)
    unit = int.from_bytes((root / "timerwheel").read_bytes()[at + 16 : at + 24])
    path = max(path for path in (root / "timerlog").iterdir() if int(path.name) <= unit)
    change(path, unit - int(path.name) + position, data)


WHEEL = "UNREAD_DAMAGED timerwheel"
PAGE = 128 * SLOT_SIZE
EMPTY_PAGE = bytes(PAGE)
"""Nearly all of a wheel is empty."""
FAULTS: dict[str, tuple[UnreadKind | None, str, Callable[[Path], None], str]] = {
    "a slot of the timer wheel that counts another number": (
        UnreadKind.TIMER_WHEEL,
        f"{TIMERS}/clean",
        lambda root: change(root / "timerwheel", due_slot(root) + 24, b"\0\0\0\7"),
        WHEEL,
    ),
    "a slot of the timer wheel that leads elsewhere": (
        UnreadKind.TIMER_WHEEL,
        f"{TIMERS}/clean",
        lambda root: change(root / "timerwheel", due_slot(root) + 16, bytes(7) + b"!"),
        WHEEL,
    ),
    "a unit of the timer log": (
        UnreadKind.TIMER_WHEEL,
        f"{TIMERS}/clean",
        lambda root: change_due_unit(root, 0, bytes(TIMER_UNIT_SIZE)),
        WHEEL,
    ),
    "a unit of the timer log that leads elsewhere": (
        UnreadKind.TIMER_WHEEL,
        f"{TIMERS}/killed",
        lambda root: change_due_unit(root, 28, bytes(7) + b"!"),
        WHEEL,
    ),
    "a message that waits in the timer topic": (
        UnreadKind.TIMER_TOPIC,
        f"{TIMERS}/lagging",
        lambda root: replace_in_log(root, b"body 4", b"b!dy 4"),
        "RECORD_BODY_CRC",
    ),
    "a receipt of POP": (
        UnreadKind.POP_RECORDS,
        f"{POP}/log",
        lambda root: replace_in_log(root, b'"another"', b'"anather"'),
        "RECORD_BODY_CRC",
    ),
    "a unit of a batch queue that leads elsewhere": (
        UnreadKind.BATCH_QUEUES,
        "H-queues-v533/store",
        lambda root: change(root / "batchconsumequeue/Batch/0" / f"{0:020d}", 46, bytes(7) + b"!"),
        "UNREAD_DAMAGED batchconsumequeue/Batch/0",
    ),
    "the last unit of a batch queue": (
        UnreadKind.BATCH_QUEUES,
        "H-queues-v533/store",
        lambda root: change(root / "batchconsumequeue/Batch/0" / f"{0:020d}", 138, bytes(46)),
        "UNIT_MISSING batchconsumequeue/Batch/0",
    ),
    "a record of a compaction log": (
        UnreadKind.COMPACTION,
        "H-queues-v533/store",
        lambda root: change(root / "compaction/compactionLog/Compact/0" / f"{0:020d}", 263, b"!"),
        "UNREAD_DAMAGED compaction/compactionCq/Compact/0",
    ),
    "a unit of a light queue": (
        UnreadKind.LIGHT_QUEUES,
        "H-queues-v533/store",
        lambda root: change(root / "consumequeue/%LMQ%one/0" / f"{0:020d}", 20, bytes(7) + b"!"),
        "UNIT_SURPLUS consumequeue/%LMQ%one/0",
    ),
    "an inner batch": (
        UnreadKind.BATCH_QUEUES,
        "H-queues-v533/store",
        lambda root: change(root / "commitlog" / f"{0:020d}", 2717 + 120, b"!!!!"),
        "RECORD_BODY_CRC",
    ),
    "queues in RocksDB": (
        UnreadKind.ROCKSDB_QUEUES,
        "G-rocksdb-v533/queues",
        lambda root: put(root / "consumequeue/CURRENT", b"MANIFEST-000099\n"),
        "UNREAD_DAMAGED consumequeue: data of RocketMQ 5.x that leads to no message",
    ),
    "a table in RocksDB": (
        UnreadKind.ROCKSDB_TABLES,
        "G-rocksdb-v533/queues",
        lambda root: put(root / "config/topics/CURRENT", b""),
        "UNREAD_DAMAGED config/topics",
    ),
    "POP in RocksDB": (
        UnreadKind.POP_ROCKSDB,
        "F-pop-v533/kv",
        lambda root: put(root / "kvStore/CURRENT", b"MANIFEST-000099\n"),
        "UNREAD_DAMAGED kvStore",
    ),
    "a record of version 2": (
        None,
        "F-pop-v533/log",
        lambda root: change(root / "commitlog" / f"{0:020d}", 7012 + 4, b"!!!!"),
        "RECORD_MAGIC",
    ),
    "epochs": (
        UnreadKind.CONTROLLER,
        "I-controller-v533/n0",
        lambda root: change(root / "epochFileCheckpoint", 0, b"9"),
        "UNREAD_DAMAGED",
    ),
    "the identity of a broker": (
        UnreadKind.CONTROLLER,
        "I-controller-v533/n1",
        lambda root: put(root / "brokerIdentity", b"DefaultCluster#golden"),
        "UNREAD_DAMAGED",
    ),
    "the table of a tiered storage": (
        UnreadKind.TIERED,
        "J-tiered-v533/store",
        lambda root: change(root / "config/tieredStoreMetadata.json", 0, b"!"),
        "CONFIG_BACKUP config/tieredStoreMetadata.json",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_of_each_kind_is_found(golden_copy: Callable[[str], Path], fault: str) -> None:
    _, node, damaged, expected = FAULTS[fault]
    archive, _, name = node.partition("/")
    root = golden_copy(archive) / name
    damaged(root)
    assert any(text.startswith(expected) for text in damage(root)), damage(root)


def test_every_kind_has_a_fault() -> None:
    assert {kind for kind, *_ in FAULTS.values() if kind is not None} == {*UnreadKind}


def start(root: Path, *, accept: bool = False) -> MessageStore:
    settings = StoreSettings(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
        rmqpy_accept_unread_data=accept,
    )
    clock = ManualScheduler(start_ms=1_800_000_000_000)
    return open_store(StoreContext(settings, FILES, clock, 1 << 34))


@pytest.mark.parametrize("node", [node for node, kinds in EXPECTED.items() if kinds])
def test_a_start_refuses_what_it_would_hide_or_harm(
    golden_copy: Callable[[str], Path], node: str
) -> None:
    archive, _, name = node.partition("/")
    root = golden_copy(archive) / name
    with pytest.raises(StoreError) as raised:
        start(root)
    found = unread(root)
    assert raised.value.path == found[0].path
    for each in found:
        assert each.found in raised.value.found and each.remedy in raised.value.remedy
    if found[0].leads:
        with pytest.raises(StoreError):
            start(root, accept=True)


def test_a_store_in_which_pop_has_ended_opens(golden_copy: Callable[[str], Path]) -> None:
    store = start(golden_copy("F-pop-acknowledged-v533") / "log")
    assert store.reader.max_queue_offset("Pop", 0) == 6
    store.shutdown()


def test_accepted_timer_messages_are_named_and_left_alone(
    golden_copy: Callable[[str], Path],
) -> None:
    root = golden_copy(TIMERS) / "clean"
    wheel = (root / "timerwheel").read_bytes()
    store = start(root, accept=True)
    assert any("32 timer messages" in note for note in store.opened.notes)
    store.shutdown()
    assert (root / "timerwheel").read_bytes() == wheel
