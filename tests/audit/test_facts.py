"""Tests of the facts of a directory, on stores of the Java broker and on damaged ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.upgrade import GOLDEN_SIZES

from rmqpy.audit.facts import log_facts
from rmqpy.audit.facts.facts import LogFacts, Mode, RecordFacts, StoreFacts, TailKind
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.facts.small_files import read_table
from rmqpy.audit.scan.directory import LogFile, LogSegments
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.cli import main
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.framing import Framing


@pytest.fixture(params=[log_facts.TAIL_BYTES, 1])
def _tail_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader read a long or a short end of a log; the facts must be the same."""
    monkeypatch.setattr(log_facts, "TAIL_BYTES", request.param)


pytestmark = pytest.mark.usefixtures("_tail_bytes")


def facts_of(store: Path, settings: StoreSettings | None = None) -> StoreFacts:
    return read_facts(OsFileSystem(), str(store), settings)


def classic_of(store: Path) -> LogFacts:
    """Return the facts of the classic log of a store."""
    classic = facts_of(store).classic
    assert classic is not None
    return classic


def record(facts: RecordFacts | None) -> RecordFacts:
    assert facts is not None
    return facts


def codes(facts: StoreFacts) -> list[FindingCode]:
    return [finding.code for finding in facts.findings]


class _Renaming(OsFileSystem):
    """A file system on which a table exists only until it is opened, as while Java replaces it."""

    def exists(self, path: str) -> bool:
        return path.endswith("topics.json") or super().exists(path)


def test_a_table_that_is_being_replaced_is_read_from_its_backup(tmp_path: Path) -> None:
    (tmp_path / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    assert read_table(_Renaming(), f"{tmp_path}/topics.json") == {"topicConfigTable": {}}


@pytest.mark.parametrize(
    ("name", "mode", "end"),
    [
        ("A-classic-clean-v497", Mode.CLASSIC, 225556),
        ("A-classic-clean-v533", Mode.CLASSIC, 276094),
        ("B-master-slave-v497/master", Mode.CLASSIC, 221997),
        ("B-lagging-slave-v497/master", Mode.CLASSIC, 341158),
        ("B-lagging-slave-v497/slave", Mode.CLASSIC, 229443),
        ("C-upgraded-v497/n1", Mode.JOINED, 501902),
        ("D-dledger-v497/n2", Mode.DLEDGER, 382144),
    ],
)
def test_golden_stores_have_no_findings(
    store_of: Callable[[str], Path], name: str, mode: Mode, end: int
) -> None:
    facts = facts_of(store_of(name))
    assert (facts.mode, facts.end, facts.begin) == (mode, end, 0)
    assert facts.clean_stop and not facts.running
    assert facts.findings == ()
    assert all(opener.able for opener in facts.openers)


def test_an_upgraded_store_has_two_logs(store_of: Callable[[str], Path]) -> None:
    facts = facts_of(store_of("C-upgraded-v497/n0"))
    assert facts.divided_offset == 262144
    classic, ledger, state = facts.classic, facts.ledger, facts.ledger_state
    assert classic is not None and ledger is not None and state is not None
    assert classic.tail is TailKind.BLANK and classic.end == 221997
    assert classic.file_end == classic.next_offset == 262144
    assert ledger.begin == 262144 and ledger.tail is TailKind.CLEAN
    first = record(ledger.first)
    assert (first.index, record(ledger.last).index) == (0, 280)
    assert first.offset == first.frame_offset + 48 == 262144 + 48
    assert state.committed_index == 280 and state.current_term == 1
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


def test_a_killed_store_had_no_clean_stop(store_of: Callable[[str], Path]) -> None:
    facts = facts_of(store_of("A-classic-killed-v497"))
    assert not facts.clean_stop
    assert codes(facts) == [FindingCode.UNCLEAN_STOP]


def test_an_empty_directory_has_no_findings(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    assert facts.mode is Mode.EMPTY and facts.end == 0 and facts.findings == ()


def test_reading_changes_nothing(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    before = sorted((str(p), p.stat().st_mtime_ns) for p in store.rglob("*"))
    facts_of(store)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in store.rglob("*")) == before


def last_log_file(store: Path) -> Path:
    return sorted((store / "commitlog").iterdir())[-1]


def test_an_incomplete_last_record_is_a_partial_tail(copy_of: Callable[[str], Path]) -> None:
    """Its properties were not written; lengths and body CRC are correct."""
    store = copy_of("A-classic-clean-v497")
    before = classic_of(store)
    last = last_log_file(store)
    data = bytearray(last.read_bytes())
    end = before.end - int(last.name)
    data[end - 20 : end] = bytes(20)
    last.write_bytes(data)
    log = classic_of(store)
    assert log.tail is TailKind.PARTIAL
    assert (log.end, log.tail_bytes) == (record(before.last).offset, record(before.last).size)
    assert record(log.last).offset < record(before.last).offset


def test_junk_after_the_end_is_reported(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    before = classic_of(store)
    last = last_log_file(store)
    data = bytearray(last.read_bytes())
    end = before.end - int(last.name)
    data[end : end + 10] = b"0123456789"
    last.write_bytes(data)
    facts = facts_of(store)
    log = classic_of(store)
    assert log.tail is TailKind.JUNK
    assert (log.end, log.tail_bytes) == (before.end, 10)
    assert codes(facts) == [FindingCode.TAIL_JUNK]


def test_a_file_created_ahead_is_reported(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    (store / "commitlog" / f"{262144:020d}").write_bytes(bytes(65536))
    facts = facts_of(store)
    assert classic_of(store).files_ahead == 1 and facts.end == 225556
    assert codes(facts) == [FindingCode.FILE_AHEAD]


def test_a_file_created_ahead_after_a_closed_one_is_reported(
    copy_of: Callable[[str], Path],
) -> None:
    """A switch would put the divide after the empty file."""
    store = copy_of("A-classic-clean-v497")
    last_log_file(store).write_bytes(bytes(65536))
    facts = facts_of(store)
    assert classic_of(store).tail is TailKind.BLANK
    assert codes(facts) == [FindingCode.FILE_AHEAD_SEALED]


def test_missing_stray_short_and_empty_files_are_reported(copy_of: Callable[[str], Path]) -> None:
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
    assert classic_of(store).gaps[0] == (65536, 131072)
    assert FindingCode.FILE_MISSING in codes(facts)
    assert not any(opener.able for opener in facts.openers)


def test_file_sizes_must_be_those_of_the_configuration(store_of: Callable[[str], Path]) -> None:
    sizes = GOLDEN_SIZES.copy()
    sizes["mapped_file_size_commit_log"] = 131072
    settings = StoreSettings(**sizes)
    facts = facts_of(store_of("A-classic-clean-v497"), settings=settings)
    assert codes(facts) == [FindingCode.FILE_SIZE] * 4
    assert "131072" in str(facts.findings[0])


def test_the_common_length_of_files_is_counted_once() -> None:
    """It is asked for once a file: with a count each time, the time grew with the third power of
    the number of files.
    """
    passes = 0

    class Counted(tuple[LogFile, ...]):
        def __iter__(self) -> Iterator[LogFile]:
            nonlocal passes
            passes += 1
            return super().__iter__()

    sizes = [100, 50, 100, 50, 7]
    files = Counted(LogFile("/s/0", 100 * number, size, 0) for number, size in enumerate(sizes))
    log = LogSegments("commitlog", Framing.CLASSIC, files)
    assert [log.file_size for _ in files] == [100] * len(files), "of two, the first one"
    assert passes == 2, "once by this test"
    assert LogSegments("commitlog", Framing.CLASSIC).file_size == 0


def test_a_divide_that_does_not_fit_is_reported(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    shutil.copy(store / "commitlog" / f"{0:020d}", store / "commitlog" / f"{262144:020d}")
    assert FindingCode.DIVIDE_MISMATCH in codes(facts_of(store))


def test_unreadable_tables_and_their_backups_are_reported(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    (store / "config/topics.json").write_text('{"topicConfigTable":')
    (store / "config/consumerOffset.json").write_text("{")
    (store / "config/consumerOffset.json.bak").write_text("")
    found = {finding.file: finding.code for finding in facts_of(store).findings}
    assert found == {
        "config/topics.json": FindingCode.CONFIG_BACKUP,
        "config/consumerOffset.json": FindingCode.CONFIG_UNREADABLE,
    }


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("currterm", "x", "1 bytes without currTerm"),
        ("currterm", "voteLeader=n1\ncurrTerm=\n", "currTerm="),
        ("currterm", None, "no file"),
        ("currterm", "voteLeade2=n0\ncurrTerm=1\n", "an unknown line: 'voteLeade2=n0'"),
        ("currterm", "voteLeader=n0\ncurrTerm=0\n", "term 0, although the last entry has term 1"),
        (
            "currterm",
            f"voteLeader=\ncurrTerm={2**63 - 1}\n",
            f"term {2**63 - 1}, which no elections reach: a forged message has raised it",
        ),
        ("checkpoint", None, "no file"),
        ("checkpoint", "committedIndex=x\n", "committedIndex=x"),
        ("checkpoint", "committedIndex=9\nendIndex=8\n", "committedIndex 9 after endIndex 8"),
        (
            "checkpoint",
            "committedIndex=9\nendIndex=9\ndurableIndex=9\ndurableOffset=1x\n",
            "durableOffset=1x",
        ),
        (
            "checkpoint",
            "committedIndex=9\nendIndex=9\ndurableIndex=999\ndurableOffset=1\n",
            "entry 999 was on the disk, which the log does not have any more",
        ),
    ],
)
def test_an_unreadable_state_of_a_member_is_reported(
    copy_of: Callable[[str], Path], name: str, content: str | None, found: str
) -> None:
    store = copy_of("C-upgraded-v497/n0")
    path = store / "dledger-n0" / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    (finding,) = facts_of(store).findings
    assert (finding.code, finding.file) == (FindingCode.LEDGER_STATE, f"dledger-n0/{name}")
    assert finding.found == found


def test_the_durable_entry_of_a_member_is_no_unknown_line(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    path = store / "dledger-n0" / "checkpoint"
    path.write_text(path.read_text() + "durableIndex=280\ndurableOffset=9\n")
    assert not facts_of(store).findings


def test_a_running_member_has_more_on_its_disk_than_is_read(copy_of: Callable[[str], Path]) -> None:
    """Its checkpoint is written while it is examined up to an earlier end."""
    store = copy_of("C-upgraded-v497/n0")
    whole = facts_of(store)
    path = store / "dledger-n0" / "checkpoint"
    path.write_text(path.read_text() + "durableIndex=280\ndurableOffset=9\n")
    part = read_facts(OsFileSystem(), str(store), None, lambda path: 1, until=whole.end - 1)
    assert part.ledger is not None and whole.ledger is not None
    assert part.end < whole.end and codes(part) == []


def test_a_missing_index_of_entries_is_reported(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    shutil.rmtree(store / "dledger-n0/index")
    assert codes(facts_of(store)) == [FindingCode.ENTRY_INDEX_MISSING]


def test_a_running_member_without_entries_is_whole(copy_of: Callable[[str], Path]) -> None:
    """The state right after the start of a switched group: the old log is closed, no vote yet."""
    store = copy_of("C-upgraded-v497/n0")
    first, *others = sorted((store / "dledger-n0/data").iterdir())
    for other in others:
        other.unlink()
    os.truncate(first, 0)
    os.truncate(first, 65536)
    for name in ("index", "consumequeue"):
        shutil.rmtree(store / name, ignore_errors=True)
    shutil.rmtree(store / "dledger-n0/index")
    for path in (store / "dledger-n0").glob("c*"):
        path.unlink()  # currterm, checkpoint, and their backups
    facts = read_facts(OsFileSystem(), str(store), None, lambda path: 1)
    assert facts.running and facts.mode is Mode.JOINED
    assert codes(facts) == []


def test_a_running_broker_is_detected_and_not_disturbed(copy_of: Callable[[str], Path]) -> None:
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
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        facts = facts_of(store)
        assert facts.running
        assert facts.confirmed_end == 225556 == facts.end
    finally:
        holder.communicate()
    assert not facts_of(store).running


@pytest.mark.parametrize("size", [1980, 2020, 0])
@pytest.mark.parametrize("path", ["consumequeue/Retry/0/00000000000000000000", "index"])
def test_derived_files_of_a_wrong_length_are_reported(
    copy_of: Callable[[str], Path], path: str, size: int
) -> None:
    """Java does not start on such a queue file, not even if it is the only one of its queue."""
    store = copy_of("A-classic-clean-v497")
    file = store / path
    if file.is_dir():
        file = sorted(file.iterdir())[1]
    os.truncate(file, size)
    (finding, *_) = (each for each in facts_of(store).findings if each.file.endswith(file.name))
    assert (finding.code, finding.found) == (FindingCode.FILE_SIZE, f"{size} bytes")
    assert main(["store", "fsck", str(store)]) == 2


def test_extensions_of_queues_have_one_length(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    for number, size in enumerate((4096, 4096, 4000)):
        folder = store / f"consumequeue_ext/Normal/{number}"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(bytes(size))
    (finding,) = facts_of(store).findings
    assert finding.code is FindingCode.FILE_SIZE
    assert finding.file == "consumequeue_ext/Normal/2/00000000000000000000"
    assert (finding.found, finding.expected) == ("4000 bytes", "4096")


def test_lengths_are_compared_with_the_settings(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    sizes = GOLDEN_SIZES.copy()
    sizes["mapped_file_size_consume_queue"] = 1990  # 2000, in whole units
    settings = StoreSettings(store_path_root_dir=str(store), **sizes)
    assert read_facts(OsFileSystem(), str(store), settings).findings == ()
    sizes["max_index_num"] += 1
    settings = StoreSettings(store_path_root_dir=str(store), **sizes)
    found = read_facts(OsFileSystem(), str(store), settings).findings
    assert [(each.code, each.file.partition("/")[0]) for each in found] == [
        (FindingCode.FILE_SIZE, "index")
    ] * 2
