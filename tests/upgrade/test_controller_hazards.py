"""Each hazard of a controller group, created on stores that Java 5.3.3 wrote: a check reports it
before anything is started. tests/upgrade/test_controller.py has what ``switch`` refuses.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from attrs import define
from harness.replicas import Replicas

from rmqpy.codec.backend import scan_records
from rmqpy.codec.epochs import Epoch, encode_epochs
from rmqpy.codec.message import decode_message, encode_stored
from rmqpy.upgrade.checks.group_checks import CHECKS, run_checks
from rmqpy.upgrade.checks.hazards import CONTROLLER_HAZARDS
from rmqpy.upgrade.checks.summary import summarize

LOG = "commitlog/00000000000000000000"
EPOCHS = "epochFileCheckpoint"
IDENTITY = "brokerIdentity"
KEYS = "enableControllerMode=true\ncontrollerAddr=10.0.0.1:9878\nallAckInSyncStateSet=true\n"
NEW_EPOCH = 5240
"""Where epoch 2 of the golden store begins."""
CONFIRM_PLACE = 32
"""The position of the confirm offset in ``checkpoint``."""

Damage = Callable[[Replicas], None]


@pytest.fixture
def controlled(golden_copy: Callable[[str], Path]) -> Replicas:
    made = Replicas(golden_copy("I-controller-v533"), ("n0", "n1"), {}, "golden")
    for name in made.names:
        made.write_conf(name, KEYS)
    return made


def test_an_intact_group_has_no_findings(controlled: Replicas) -> None:
    assert controlled.found() == set()


def test_every_hazard_names_its_checks() -> None:
    numbers = [hazard.number for hazard in CONTROLLER_HAZARDS]
    assert numbers == [f"C{number}" for number in range(1, 19)]
    for hazard in CONTROLLER_HAZARDS:
        assert set(hazard.checks) <= set(CHECKS)
        assert hazard.checks or hazard.here
    reported = {case.hazard for case in CASES} | {"C14"}
    assert reported == {hazard.number for hazard in CONTROLLER_HAZARDS if hazard.checks}


@define(frozen=True)
class WrongStart:
    """A hazard, what creates it, the check that reports it, and a part of its text."""

    hazard: str
    name: str
    damage: Damage
    check: str
    text: str


def lose_the_last_message(name: str) -> Damage:
    def lose(group: Replicas) -> None:
        data = group.path(name, LOG).read_bytes()
        scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
        group.edit(name, LOG, scan.offset[-1], bytes(scan.size[-1]))

    return lose


def write(name: str, file: str, data: bytes) -> Damage:
    def damage(group: Replicas) -> None:
        group.path(name, file).write_bytes(data)

    return damage


def epochs(*found: tuple[int, int], names: tuple[str, ...] = ("n1",)) -> Damage:
    def damage(group: Replicas) -> None:
        content = encode_epochs([Epoch(*each) for each in found])
        for name in names:
            group.path(name, EPOCHS).write_bytes(content)
            group.path(name, f"{EPOCHS}.bak").write_bytes(content)

    return damage


def without_epochs(group: Replicas) -> None:
    group.path("n1", EPOCHS).unlink()
    group.path("n1", f"{EPOCHS}.bak").unlink()


def empty_store(group: Replicas) -> None:
    shutil.rmtree(group.root / "n1")
    (group.root / "n1/commitlog").mkdir(parents=True)


def configure(name: str, keys: str) -> Damage:
    """Return a damage that writes these keys into the broker.conf instead of those of a group."""
    return lambda group: group.write_conf(name, keys)


def configure_all(keys: str) -> Damage:
    def damage(group: Replicas) -> None:
        for name in group.names:
            group.write_conf(name, keys)

    return damage


def confirm(offset: int) -> Damage:
    return lambda group: group.edit("n1", "checkpoint", CONFIRM_PLACE, struct.pack(">q", offset))


def truncated(group: Replicas) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, size, bytes) of the last three records of n1, and cut off their units."""
    data = group.path("n1", LOG).read_bytes()
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    cut = scan.offset[-3]
    for unit_file in (group.root / "n1/consumequeue").glob("*/*/*"):
        content = bytearray(unit_file.read_bytes())
        for position in range(0, len(content), 20):
            if int.from_bytes(content[position : position + 8]) >= cut:
                content[position : position + 20] = bytes(20)
        unit_file.write_bytes(content)
    for offset, size in zip(scan.offset[-3:], scan.size[-3:], strict=True):
        yield offset, size, data[offset : offset + size]


def tail_after_new_messages(group: Replicas) -> None:
    """Cut three messages off, write a shorter one, and leave the rest of the file."""
    (offset, _, data), *_ = truncated(group)
    message = decode_message(data, 0)
    new = encode_stored(attrs.evolve(message, body=message.body[:-1]))
    for name in group.names:
        group.edit(name, LOG, offset, new)
    end = group.path("n0", LOG).stat().st_size
    group.edit("n0", LOG, offset + len(new), bytes(end - offset - len(new)))


def tail_with_its_units(group: Replicas) -> None:
    """Cut three messages off and write a shorter one, as 5.3.3 does: the queues keep the units."""
    queues = group.root / "n1/consumequeue"
    before = {path: path.read_bytes() for path in queues.glob("*/*/*")}
    tail_after_new_messages(group)
    for path, content in before.items():
        path.write_bytes(content)


def tail_that_is_back(group: Replicas) -> None:
    """Cut three messages off both replicas; those of n1 are found again after a crash."""
    (offset, _, _), *_ = truncated(group)
    end = group.path("n0", LOG).stat().st_size
    group.edit("n0", LOG, offset, bytes(end - offset))


CASES = [
    WrongStart("C1", "lagging", lose_the_last_message("n1"), "same-log", "n1: ends at"),
    WrongStart("C2", "no epochs", without_epochs, "epochs", "n1: it has no epochs, n0 has"),
    WrongStart("C3", "longer", lose_the_last_message("n0"), "same-log", "n0: ends at"),
    WrongStart("C4", "new machine", empty_store, "same-log", "n1: has no old log"),
    WrongStart(
        "C5", "foreign", write("n1", IDENTITY, b"other#golden#2"), "identities", "DefaultCluster"
    ),
    WrongStart(
        "C5",
        "being given",
        write("n1", f"{IDENTITY}-temp", b"DefaultCluster#b9#3#10.0.0.2:10911;1"),
        "identities",
        "brokerIdentity-temp was given to b9",
    ),
    WrongStart(
        "C6", "copy", write("n1", IDENTITY, b"DefaultCluster#golden#1"), "identities", "copy"
    ),
    WrongStart("C7", "torn", write("n1", EPOCHS, b"2\n753747620\n1-0\n"), "epochs", "as empty"),
    WrongStart("C7", "other CRC", write("n1", EPOCHS, b"1\n77\n1-0\n"), "epochs", "CRC"),
    WrongStart("C7", "descending", write("n1", EPOCHS, b"2\n0\n2-0\n1-9\n"), "epochs", "one after"),
    WrongStart("C7", "beyond", epochs((1, 0), (2, 10**9)), "epochs", "end of the log is missing"),
    WrongStart(
        "C7", "not from the front", epochs((1, 99), names=("n0", "n1")), "epochs", "to no epoch"
    ),
    WrongStart(
        "C7",
        "one is missing",
        lambda group: (
            epochs((1, 0), (2, 99), (3, NEW_EPOCH), names=("n0",))(group),
            epochs((1, 0), (3, NEW_EPOCH))(group),
        )[0],
        "epochs",
        "n0 has epoch 2, n1 only epochs before and after it",
    ),
    WrongStart("C10", "killed", write("n1", "abort", b""), "clean-stop", "n1: the file abort"),
    WrongStart(
        "C11", "two modes", configure("n1", f"{KEYS}enableDLegerCommitLog=true\ndLegerSelfId=n1\n"),
        "controller-flags", "5.x ends with -4",
    ),
    WrongStart(
        "C11", "duplication", configure("n1", f"{KEYS}duplicationEnable=true\n"),
        "controller-flags", "no replication",
    ),
    WrongStart(
        "C11", "no controller", configure_all("enableControllerMode=true\n"),
        "controller-flags", "(not set)",
    ),
    WrongStart(
        "C11", "wrong address", configure_all("enableControllerMode=true\ncontrollerAddr=c1\n"),
        "controller-flags", "controllerAddr=c1: ",
    ),
    WrongStart(
        "C11", "other controllers", configure("n1", KEYS.replace("10.0.0.1", "10.0.0.2")),
        "controller-flags", "controllerAddr differs",
    ),
    WrongStart(
        "C11", "too many replicas", configure_all(f"{KEYS}minInSyncReplicas=3\n"),
        "controller-flags", "every message that is sent would be refused",
    ),
    WrongStart(
        "C11", "only a learner", configure("n1", f"{KEYS}asyncLearner=true\n"),
        "controller-flags", "nobody can take over",
    ),
    WrongStart(
        "C12", "former master", epochs((1, 0)), "epochs", f"n0 epoch 2 begins at {NEW_EPOCH}"
    ),
    WrongStart("C13", "in the file", tail_after_new_messages, "stale-tail", "after a gap at"),
    WrongStart(
        "C13", "with its units", tail_with_its_units,
        "stale-tail", "where the one of n0 ends; after that it has whole messages",
    ),
    WrongStart("C13", "back", tail_that_is_back, "stale-tail", "3 messages after"),
    WrongStart("C15", "confirmed", confirm(10**6), "confirm-offset", "confirmed its log up to"),
    WrongStart(
        "C16", "as a master", configure("n1", "brokerRole=ASYNC_MASTER\n"),
        "controller-flags", "would start as ASYNC_MASTER",
    ),
    WrongStart(
        "C17", "file size", configure("n1", f"{KEYS}mappedFileSizeCommitLog=131072\n"),
        "same-sizes", "n1: 131072",
    ),
    WrongStart(
        "C18", "acknowledgements", configure("n1", KEYS.replace("allAck", "#allAck")),
        "controller-flags", "allAckInSyncStateSet differs",
    ),
]  # fmt: skip
"""Wrong starts of a pair. The timer log needs another store, so C14 has its own test."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.hazard}-{case.name}")
def test_a_wrong_start_is_reported(controlled: Replicas, case: WrongStart) -> None:
    case.damage(controlled)
    found = [each for each in run_checks(controlled.group()) if not each.is_note]
    texts = [f"{each.replica}: {each.text}" for each in found if each.check == case.check]
    assert any(case.text in text for text in texts), found
    assert all(each.remedy for each in found)


def test_c13_what_a_cut_has_left_is_not_called_missing_in_the_other(controlled: Replicas) -> None:
    tail_with_its_units(controlled)
    group = controlled.group()
    found = run_checks(group)
    assert "same-log" not in {each.check for each in found}
    first, *others = summarize(group, found).causes
    assert first.hazard == "C13" and first.text.startswith("n1: its log is broken at ")
    assert "start the replica with an empty one" in first.next
    assert not any("plan, then apply" in each.next for each in others)
    assert "log-sound" in {each.check for cause in others for each in cause.findings}


def test_c13_what_a_cut_has_left_is_found_beside_another_difference(controlled: Replicas) -> None:
    tail_with_its_units(controlled)
    changed = scan_records(
        memoryview(controlled.path("n1", LOG).read_bytes()), 0, dledger=False, check_crc=False
    ).offset[3]
    controlled.edit("n1", LOG, changed + 100, b"?")
    found = {each.check: each for each in run_checks(controlled.group()) if not each.is_note}
    assert found["same-log"].text.startswith(f"the logs differ from offset {changed} on")
    assert found["stale-tail"].text.startswith("its log is broken at ")
    assert found["stale-tail"].remedy.startswith("decide first about the difference")


def test_c14_a_timer_log_that_leads_beyond_a_truncated_log_is_reported(
    golden_copy: Callable[[str], Path],
) -> None:
    group = Replicas(golden_copy("E-timers-v533"), ("clean",), {})
    found = [each.text for each in run_checks(group.group()) if each.check == "timers-in-log"]
    assert found == []
    (log,) = (group.root / "clean/commitlog").iterdir()
    scan = scan_records(memoryview(log.read_bytes()), 0, dledger=False, check_crc=False)
    half = scan.offset[len(scan) // 2]
    group.edit("clean", f"commitlog/{log.name}", half, bytes(scan.end - half))
    (text,) = [each.text for each in run_checks(group.group()) if each.check == "timers-in-log"]
    assert text.startswith("the end of the timer log, ") and f"the end of the log, {half}" in text


def test_an_epoch_that_begins_after_the_filler_of_a_file_fits_the_log(classic: Path) -> None:
    """A master that is elected when a file has just been filled begins at the next one."""
    group = Replicas(classic, ("n0", "n1"), {})
    (last,) = [name for name in sorted((classic / "n0/commitlog").iterdir())][-1:]
    for name in group.names:
        group.path(name, f"commitlog/{last.name}").unlink()
    epochs((0, 0), (1, int(last.name)), names=group.names)(group)
    found = [each.text for each in run_checks(group.group()) if each.check == "epochs"]
    assert found == []
