"""What a directory is, on stores of the Java broker and on what may happen to them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.audit.facts import log_facts
from rmqpy.audit.facts.facts import Mode, TailKind
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem


@pytest.fixture(params=[log_facts.TAIL_BYTES, 1])
def _tail_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Whether little or much of a log's end is looked at: the same is found."""
    monkeypatch.setattr(log_facts, "TAIL_BYTES", request.param)


pytestmark = pytest.mark.usefixtures("_tail_bytes")


def facts_of(store, **more):
    return read_facts(OsFileSystem(), str(store), **more)


def codes(facts):
    return [finding.code for finding in facts.findings]


@pytest.mark.parametrize(
    ("name", "mode", "end", "messages"),
    [
        ("A-classic-clean-v497", Mode.CLASSIC, 225556, 264),
        ("A-classic-clean-v533", Mode.CLASSIC, 276094, None),
        ("B-master-slave-v497/master", Mode.CLASSIC, 221997, None),
        ("B-lagging-slave-v497/master", Mode.CLASSIC, 341158, None),
        ("B-lagging-slave-v497/slave", Mode.CLASSIC, 229443, None),
        ("C-upgraded-v497/n1", Mode.JOINED, 501902, None),
        ("D-dledger-v497/n2", Mode.DLEDGER, 382144, None),
    ],
)
def test_golden_stores(store_of: Callable[[str], Path], name, mode, end, messages) -> None:
    facts = facts_of(store_of(name))
    assert (facts.mode, facts.end, facts.begin) == (mode, end, 0)
    assert facts.clean_stop and not facts.running
    assert facts.findings == ()
    assert all(opener.able for opener in facts.openers)


def test_an_upgraded_store(store_of: Callable[[str], Path]) -> None:
    facts = facts_of(store_of("C-upgraded-v497/n0"))
    assert facts.divided_offset == 262144
    assert facts.classic.tail is TailKind.BLANK and facts.classic.end == 221997
    assert facts.classic.file_end == facts.classic.next_offset == 262144
    assert facts.ledger.begin == 262144 and facts.ledger.tail is TailKind.CLEAN
    assert (facts.ledger.first.index, facts.ledger.last.index) == (0, 280)
    assert facts.ledger.first.offset == facts.ledger.first.frame_offset + 48 == 262144 + 48
    assert facts.ledger_state.committed_index == 280 and facts.ledger_state.current_term == 1
    assert facts.self_id == "n0"


def test_queue_ends_are_those_of_java(
    store_of: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    name = "A-classic-clean-v497"
    found = {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
        for queue in facts_of(store_of(name)).queues
    }
    for topic, queues in manifest(name)["queues"].items():
        for queue in queues:
            ends = queue["min"], queue["max"]
            assert found.get((topic, queue["queueId"]), (0, 0)) == ends


def test_a_killed_store(store_of: Callable[[str], Path]) -> None:
    facts = facts_of(store_of("A-classic-killed-v497"))
    assert not facts.clean_stop
    assert codes(facts) == [FindingCode.UNCLEAN_STOP]


def test_nothing_is_there(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.mode is Mode.EMPTY and facts.end == 0 and facts.findings == ()


def test_reading_changes_nothing(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    before = sorted((str(p), p.stat().st_mtime_ns) for p in store.rglob("*"))
    facts_of(store)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in store.rglob("*")) == before


def last_log_file(store):
    return sorted((store / "commitlog").iterdir())[-1]


def test_a_record_that_was_cut_off(copy_of: Callable[[str], Path]) -> None:
    """Its properties were not written: lengths and body CRC are right."""
    store = copy_of("A-classic-clean-v497")
    whole = facts_of(store).classic
    last = last_log_file(store)
    data = bytearray(last.read_bytes())
    end = whole.end - int(last.name)
    data[end - 20 : end] = bytes(20)
    last.write_bytes(data)
    log = facts_of(store).classic
    assert log.tail is TailKind.PARTIAL
    assert (log.end, log.tail_bytes) == (whole.last.offset, whole.last.size)
    assert log.last.offset < whole.last.offset


def test_junk_behind_the_end(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    whole = facts_of(store).classic
    last = last_log_file(store)
    data = bytearray(last.read_bytes())
    end = whole.end - int(last.name)
    data[end : end + 10] = b"0123456789"
    last.write_bytes(data)
    facts = facts_of(store)
    assert facts.classic.tail is TailKind.JUNK
    assert (facts.classic.end, facts.classic.tail_bytes) == (whole.end, 10)
    assert codes(facts) == [FindingCode.TAIL_JUNK]


def test_a_file_made_ahead(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    (store / "commitlog" / f"{262144:020d}").write_bytes(bytes(65536))
    facts = facts_of(store)
    assert facts.classic.files_ahead == 1 and facts.end == 225556
    assert codes(facts) == [FindingCode.FILE_AHEAD]


def test_a_file_made_ahead_behind_a_closed_one(copy_of: Callable[[str], Path]) -> None:
    """A switch would put the divide behind the empty file."""
    store = copy_of("A-classic-clean-v497")
    last_log_file(store).write_bytes(bytes(65536))
    facts = facts_of(store)
    assert facts.classic.tail is TailKind.BLANK
    assert codes(facts) == [FindingCode.FILE_AHEAD_SEALED]


def test_missing_stray_short_and_empty_files(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    log = store / "commitlog"
    (log / f"{65536:020d}").unlink()
    (log / "md5sums.txt").write_text("x")
    (log / f"{262144:020d}").write_bytes(b"")
    with (log / f"{131072:020d}").open("r+b") as file:
        file.truncate(65000)
    facts = facts_of(store)
    found = {*codes(facts)}
    assert {FindingCode.FILE_STRAY, FindingCode.FILE_EMPTY, FindingCode.FILE_SIZE} <= found
    assert facts.classic.gaps[0] == (65536, 131072)
    assert FindingCode.FILE_MISSING in codes(facts)
    assert not any(opener.able for opener in facts.openers)


def test_sizes_against_the_configuration(store_of: Callable[[str], Path]) -> None:
    settings = StoreSettings(mapped_file_size_commit_log=131072)
    facts = facts_of(store_of("A-classic-clean-v497"), settings=settings)
    assert codes(facts) == [FindingCode.FILE_SIZE] * 4
    assert "131072" in str(facts.findings[0])


def test_a_divide_that_does_not_fit(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    shutil.copy(store / "commitlog" / f"{0:020d}", store / "commitlog" / f"{262144:020d}")
    assert FindingCode.DIVIDE_MISMATCH in codes(facts_of(store))


def test_a_broken_table_and_its_backup(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    (store / "config/topics.json").write_text('{"topicConfigTable":')
    (store / "config/consumerOffset.json").write_text("{")
    (store / "config/consumerOffset.json.bak").write_text("")
    found = {finding.file: finding.code for finding in facts_of(store).findings}
    assert found == {
        "config/topics.json": FindingCode.CONFIG_BACKUP,
        "config/consumerOffset.json": FindingCode.CONFIG_UNREADABLE,
    }


def test_a_running_broker_is_seen_and_not_disturbed(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys;f=open(sys.argv[1],'r+b');fcntl.lockf(f,fcntl.LOCK_EX,1,0);"
            "print('held',flush=True);sys.stdin.read()",
            str(store / "lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        (store / "lock").touch()
        assert holder.stdout.readline() == b"held\n"
        facts = facts_of(store)
        assert facts.running
        assert facts.confirmed_end == 225556 == facts.end
    finally:
        holder.communicate()
    assert not facts_of(store).running
