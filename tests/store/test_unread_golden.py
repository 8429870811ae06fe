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
from rmqpy.codec.timers import TIMER_UNIT_SIZE
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import UnreadData, UnreadKind, find_unread

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
    log = root / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    log.write_bytes(data.replace(b'"c":"third"', b'"x":"third"'))
    found = one(root)
    assert dict(found.messages) == {"another": 3}
    assert found.found.startswith("4 POP messages")
