"""Tests of the fault campaign (tests/campaign): it takes back every fault, and it can fail."""

from __future__ import annotations

import random
from pathlib import Path, PurePosixPath

import pytest
from campaign import runner
from campaign.faults import KINDS, StoreFiles, copy_sparse
from campaign.judges import Answer, Judges
from campaign.meaning import FileKind, limit_of, meaning_of
from campaign.runner import Alarm, Result, run_faults, run_healthy
from campaign.stores import Group, build_group


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return build_group("master and slave 4.9.7", tmp_path / "group")


@pytest.fixture
def store(group: Group, tmp_path: Path) -> StoreFiles:
    root = group.stores["n0"]
    for path in root.rglob("*"):
        if path.is_file():
            copy = tmp_path / "pristine" / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_sparse(path, copy)
    return StoreFiles(root, tmp_path / "pristine")


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_taken_back(kind: str, store: StoreFiles) -> None:
    before = contents(store.root)
    changed = 0
    for seed in range(20):
        fault = store.inject(kind, random.Random(seed))
        changed += contents(store.root) != before
        assert fault is None or contents(store.root) != before
        store.restore()
        assert contents(store.root) == before
    assert changed


@pytest.mark.slow
def test_a_fault_that_no_command_reports_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(judges: Judges, node: str) -> dict[str, Answer]:
        return dict.fromkeys(("fsck", "check", "verify", "verify --before"), Answer(0, frozenset()))

    monkeypatch.setattr(Judges, "answers", blind)
    results = [found for found in run_faults(range(0, 60, 10)) if isinstance(found, Result)]
    assert any(result.missed for result in results)
    assert not any(result.missed for result in results if not result.fault.matters)


def test_a_healthy_store_that_is_refused_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(*words: str) -> Answer:
        return Answer(2, frozenset({"damage"}))

    monkeypatch.setattr(runner, "run", strict)
    assert list(run_healthy([0])) == [Alarm("store 0", "fsck", ("damage",))]


@pytest.mark.slow
def test_random_healthy_stores_raise_no_alarm() -> None:
    """CI looks at 20 with ``tox run -e faults``."""
    assert list(run_healthy(range(4))) == [None] * 4


@pytest.mark.slow
def test_every_fault_that_matters_is_reported_and_never_called_equal() -> None:
    """In a classic store and in a joined group; CI injects 100 with ``tox run -e faults``."""
    for found in run_faults([0, 10, 4]):
        assert isinstance(found, Result), found
        assert not found.missed and not found.overlooked, found


def test_only_the_numbers_of_the_entry_that_a_record_was_are_not_compared() -> None:
    healthy = b"body\x05TopicKEYS\x01key\x02__RMQPY_ENTRY\x010000000000000078.00000001\x02"
    path = PurePosixPath("commitlog/00000000000000000000")
    for place in range(len(healthy)):
        data = bytearray(healthy)
        data[place] ^= 1
        is_number = healthy.index(b"0000") <= place < len(healthy) - 1
        assert bool(limit_of(path, bytes(data), healthy)) == is_number


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        (b"dataVersion", False),
        (b"groupTopicMap", False),
        (b"normal", False),  # the first one is in groupTopicMap
        (b"offsetTable", True),
        (b"Normal@normal", True),
    ],
)
def test_what_no_broker_reads_in_a_table_has_no_meaning(changed: bytes, matters: bool) -> None:
    healthy = (
        b'{"dataVersion":{"counter":1},"groupTopicMap":{"normal":["Normal"]},'
        b'"offsetTable":{"Normal@normal":{0:7}}}'
    )
    for bit in (1, 0x80):  # Java reads bytes that are not UTF-8 as U+FFFD.
        data = bytearray(healthy)
        data[healthy.index(changed)] ^= bit
        one, other = (meaning_of(FileKind.TABLE, each, healthy) for each in (bytes(data), healthy))
        assert (one != other) == matters
