"""The comparison of running members, which are read up to the same end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define, evolve, field
from harness.audit import directory_of

from rmqpy.audit.checks.engine import AuditOptions
from rmqpy.audit.facts.facts import Mode
from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.manifest import Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.audit.replicas.verdict import EQUAL, Word
from rmqpy.cli import main
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.member_facts import MemberFacts, read_member_facts
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.checks.requests import ReplicaRequests
from rmqpy.upgrade.group.common_end import SECONDS_MAX, STILL_SECONDS, Waiting, level_running
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan

HOLD = (
    "import fcntl,sys;f=open(sys.argv[1],'a+b');fcntl.lockf(f,fcntl.LOCK_EX,1,0);"
    "print('held',flush=True);sys.stdin.read()"
)


def running_manifest(store: Path, until: int | None = None) -> Manifest:
    """Return the manifest of a store whose broker runs, up to an offset."""
    options = AuditOptions(root=str(store), workers=1, holder=lambda path: 1, until=until)
    plan = ManifestPlan(name=store.name, audit=options, now_ms=lambda: 7, md5=Md5.NONE)
    return make_manifest(OsFileSystem(), plan)[0]


def certified(*manifests: Manifest, stores: tuple[Path, ...]) -> Certificate:
    available = {store.name: QueueMessages(OsFileSystem(), directory_of(store)) for store in stores}
    return certify(manifests, 11, available)


def test_a_running_broker_is_read_up_to_the_end_of_one_that_lags(
    copy_of: Callable[[str], Path],
) -> None:
    """Queues, index, and log of the first have messages after that end: none of it is damage."""
    stores = copy_of("B-lagging-slave-v497/master"), copy_of("B-lagging-slave-v497/slave")
    end = running_manifest(stores[1]).end
    assert end < running_manifest(stores[0]).end
    found = certified(*map(running_manifest, stores), stores=stores)
    assert found.verdict.word is Word.CONTAINED and not found.holds
    found = certified(*(running_manifest(store, end) for store in stores), stores=stores)
    assert found.verdict == EQUAL and found.holds
    assert [subject.end for subject in found.subjects] == [end, end]
    assert all(subject.running for subject in found.subjects)
    lines = list(certificate_lines(found))
    assert lines.count(f"  its broker is running: read up to offset {end}") == 2
    assert Certificate.decode(found.encode()) == found
    assert all(subject.is_reachable and not subject.severe_findings for subject in found.subjects)


def test_a_stopped_store_is_read_whole(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    options = AuditOptions(root=str(store), workers=1, until=1)
    plan = ManifestPlan(name="a", audit=options, now_ms=lambda: 7, md5=Md5.NONE)
    assert make_manifest(OsFileSystem(), plan)[0].end == 225556


def test_a_member_without_entries_ends_where_its_old_log_does(
    copy_of: Callable[[str], Path],
) -> None:
    """Its DLedger log begins after the rest of the last classic file, which is no message."""
    store = copy_of("C-upgraded-v497/n0")
    first, *others = sorted((store / "dledger-n0/data").iterdir())
    for other in others:
        other.unlink()
    first.write_bytes(bytes(first.stat().st_size))
    plan = SurveyPlan(name="n0", root=os.fspath(store), now_ms=lambda: 7)
    facts = read_member_facts(OsFileSystem(), plan)
    old = read_facts(OsFileSystem(), os.fspath(store)).classic
    assert old is not None and old.end < int(first.name)
    assert (facts.mode, facts.entries, facts.end) == (Mode.JOINED, 0, old.end)


@define
class Scripted:
    """A member whose ends are given: one for each time that it is asked; None: it has stopped."""

    name: str
    ends: list[int | None]
    until: int | None = None
    asked: int = 0

    def facts(self) -> MemberFacts:
        end = self.ends[min(self.asked, len(self.ends) - 1)]
        self.asked += 1
        return MemberFacts(name=self.name, running=end is not None, end=end or 0)

    def read_until(self, end: int) -> None:
        self.until = end


@define
class Clock:
    now: float = 0.0
    notes: list[str] = field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def level(self, *members: Scripted) -> list[int | None]:
        level_running(members, Waiting(lambda: self.now, self.sleep, self.notes.append))
        return [member.until for member in members]


def test_members_at_the_same_end_are_not_waited_for() -> None:
    clock = Clock()
    assert clock.level(Scripted("n0", [70, 90]), Scripted("n1", [70])) == [70, 70]
    assert (clock.now, clock.notes) == (0.0, [])


def test_a_follower_that_learns_what_is_committed_is_waited_for() -> None:
    clock = Clock()
    ends = clock.level(
        Scripted("n0", [50, 50, 60, 90]), Scripted("n1", [70]), Scripted("n2", [70, 99])
    )
    assert ends == [70, 70, 70]
    assert clock.notes == ["waiting for n0 (20 bytes behind): n1 is ahead"]


def test_a_member_that_stands_still_is_compared_as_it_is() -> None:
    clock = Clock()
    assert clock.level(Scripted("n0", [70]), Scripted("n1", [69])) == [70, 70]
    assert STILL_SECONDS < clock.now < STILL_SECONDS + 1
    assert clock.notes[1] == (
        "n1 (1 byte behind) did not catch up with n0 in 10 s, and is compared as it is"
    )


def test_a_member_that_comes_closer_too_slowly_is_compared_as_it_is() -> None:
    clock = Clock()
    clock.level(Scripted("n0", [10_000]), Scripted("n1", list(range(9_000))))
    assert SECONDS_MAX < clock.now < SECONDS_MAX + 1


def test_stopped_members_are_neither_waited_for_nor_read_up_to_an_end() -> None:
    clock = Clock()
    assert clock.level(Scripted("n0", [None]), Scripted("n1", [70])) == [None, None]
    assert clock.level(
        Scripted("n0", [70]), Scripted("n1", [60, None]), Scripted("n2", [None])
    ) == [70, 70, None]
    assert clock.now < 1


@define
class Counting(LocalReplica):
    """Counts its surveys; says that its broker runs."""

    running: bool = True
    count: int = 0

    def survey(self) -> Survey:
        self.count += 1
        survey = super().survey()
        return evolve(survey, manifest=evolve(survey.manifest, running=self.running))


@pytest.mark.parametrize(("running", "count"), [(True, 2), (False, 1)])
def test_a_host_answers_about_a_running_broker_with_a_new_survey(
    copy_of: Callable[[str], Path], running: bool, count: int
) -> None:
    """What is written through a mapping changes neither size nor time of a file at once."""
    plan = SurveyPlan(
        name="a", root=os.fspath(copy_of("A-classic-clean-v497")), now_ms=lambda: 7, md5=Md5.NONE
    )
    replica = Counting(OsFileSystem(), plan, running=running)
    requests = ReplicaRequests(replica)
    for _ in range(2):
        survey = Survey.decode(requests.answer("survey", {"name": "a", "until": "200"}))
    assert replica.count == count
    assert survey.manifest.running is running and replica.plan.until == 200


@pytest.fixture
def held() -> Iterator[Callable[[Path], None]]:
    """Hold the lock of a store, as its broker does."""
    holders: list[subprocess.Popen[bytes]] = []

    def hold(store: Path) -> None:
        words = [sys.executable, "-c", HOLD, os.fspath(store / "lock")]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holders.append(holder)
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"

    yield hold
    for holder in holders:
        holder.communicate()


def last_unit(store: Path) -> tuple[Path, int]:
    """Return the consume queue file that leads to the last message, and where its unit is."""
    facts = read_facts(OsFileSystem(), os.fspath(store))
    last = max(facts.queues, key=lambda queue: queue.end_physical)
    position = (last.max_offset - 1) * QUEUE_UNIT_SIZE
    folder = store / "consumequeue" / last.topic / str(last.queue_id)
    file = max(path for path in folder.iterdir() if int(path.name) <= position)
    return file, position - int(file.name)


@pytest.mark.slow
def test_verify_waits_for_a_member_that_has_the_message_but_not_its_queue(
    classic: Path,
    held: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, position = last_unit(classic / "n1")
    whole = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(bytes(QUEUE_UNIT_SIZE))
    for name in ("n0", "n1"):
        held(classic / name)
    monkeypatch.setattr("time.sleep", lambda seconds: file.write_bytes(whole))
    code = main(["upgrade", "verify", "n0", "n1", "--format", "json"])
    out, err = capsys.readouterr()
    assert (code, json.loads(out)["verdict"]) == (0, "EQUAL"), out
    assert "waiting for n1 (" in err and "n0 is ahead" in err


@pytest.mark.slow
def test_the_way_back_of_members_that_run_is_refused_with_the_reason(
    joined: Path, held: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("n0", "n1", "n2"):
        (joined / name / "abort").touch()
        held(joined / name)
    words = [word for n in range(3) for word in (f"n{n}", "-c", f"n{n}=n{n}.conf")]
    roles = ("n0=SYNC_MASTER", "n1=SLAVE", "n2=SLAVE")
    words += [word for role in roles for word in ("--role", role)]
    assert main(["upgrade", "leave", *words, "--out", "p.json"]) == 2
    err = capsys.readouterr().err
    assert "n0: found its lock held by process" in err and "not clean" not in err
