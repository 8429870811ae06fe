"""Tests of open index files: of what was known, only slots and last entry are read again."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.audit.checks.index_heads import EVERYWHERE, IndexHeads
from rmqpy.audit.facts.learned import Learned, learned_folder
from rmqpy.audit.facts.proof_age import ProofAge, age_sentences
from rmqpy.audit.scan.directory import LogFile
from rmqpy.codec import layout
from rmqpy.codec.entry import INDEX_UNIT
from rmqpy.codec.tally.backend import sum_units, walk_index
from rmqpy.codec.tally.derived_sums import IndexSums, UnitSums
from rmqpy.codec.units import index_entry_position
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.index.index_file import KeyIndex

LOG_FILE = 1 << 16
SLOTS, ENTRIES = 16, 400
KNOWN, ADDED = 200, 50


class OpenKeyIndex:
    """A key index of which the first entries are known, and others were added since."""

    def __init__(self, root: Path) -> None:
        self.root = root
        learned_folder_of(root).mkdir(parents=True)
        self.put(range(1, KNOWN + 1))
        (self.path,) = (root / "index").iterdir()
        self.sums()
        self.put(range(KNOWN + 1, KNOWN + ADDED + 1))

    def put(self, numbers: range) -> None:
        index = KeyIndex(OsFileSystem(), f"{self.root}/index", SLOTS, ENTRIES, lambda: 7)
        index.load()
        index.finish_recovery(1 << 40, None)
        for number in numbers:
            index.put([number * 2654435761 % (1 << 31)], number * 1000, number * 1000)
        index.sync()
        index.close()

    def sums(self, *, full: bool = False) -> tuple[IndexSums, Learned]:
        learned = learned_of(self.root, full=full)
        heads = IndexHeads(OsFileSystem(), learned)
        return heads.index_sums(str(self.path), (SLOTS, self.entry_end), LOG_FILE), learned

    @property
    def entry_end(self) -> int:
        raw = self.path.read_bytes()
        return int(struct.unpack_from(">i", raw, layout.INDEX_COUNT_POSITION)[0])

    @property
    def complete(self) -> IndexSums:
        view = memoryview(self.path.read_bytes())
        return walk_index(view, SLOTS, self.entry_end, LOG_FILE, *EVERYWHERE)


def learned_folder_of(root: Path) -> Path:
    return Path(learned_folder(str(root)))


def learned_of(root: Path, *, full: bool = False) -> Learned:
    return Learned(OsFileSystem(), str(root), lambda: time.time_ns() // 1_000_000, full)


def change(path: Path, position: int) -> None:
    """Change a byte, and nothing of what the file system says about the file except its times."""
    raw = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([raw[position] ^ 1]))


@pytest.fixture
def key_index(tmp_path: Path) -> OpenKeyIndex:
    return OpenKeyIndex(tmp_path)


def test_only_new_entries_of_a_key_index_are_read(key_index: OpenKeyIndex) -> None:
    slots = index_entry_position(0, SLOTS)
    for added in (ADDED, 0):
        found, learned = key_index.sums()
        assert found == key_index.complete
        assert learned.age.read_bytes == slots + 20 * added
        assert learned.age.learned_bytes == learned.age.grown_bytes == 20 * (KNOWN + ADDED - added)


CHANGES = {
    "last known entry": index_entry_position(KNOWN, SLOTS) + 5,
    "new entry": index_entry_position(KNOWN + 1, SLOTS) + 19,
    "slot": layout.INDEX_HEADER_SIZE + 4 * 3 + 3,
}


@pytest.mark.parametrize("place", sorted(CHANGES))
def test_a_key_index_that_does_not_continue_is_read_again(
    key_index: OpenKeyIndex, place: str
) -> None:
    change(key_index.path, CHANGES[place])
    found, learned = key_index.sums()
    assert found == key_index.complete
    assert learned.age.grown_bytes == 0
    assert learned.age.read_bytes == index_entry_position(key_index.entry_end - 1, SLOTS)


def test_a_key_index_in_another_file_is_read_again(key_index: OpenKeyIndex) -> None:
    raw = key_index.path.read_bytes()
    key_index.path.with_suffix(".new").write_bytes(raw)
    os.replace(key_index.path.with_suffix(".new"), key_index.path)
    found, learned = key_index.sums()
    assert (found, learned.age.grown_bytes) == (key_index.complete, 0)


def test_a_full_audit_names_an_index_of_which_an_older_entry_changed(
    key_index: OpenKeyIndex,
) -> None:
    change(key_index.path, index_entry_position(9, SLOTS) + 9)
    found, learned = key_index.sums()
    assert found != key_index.complete, "this entry is not read again"
    assert learned.age.grown_bytes > 0
    found, learned = key_index.sums(full=True)
    assert found == key_index.complete
    assert learned.age.wrong == (f"index/{key_index.path.name}",)
    assert key_index.sums()[0] == key_index.complete, "it replaces what was learned"


def units_of(numbers: range) -> bytes:
    return b"".join(INDEX_UNIT.pack(1, each * 500, 500, each, 3) for each in numbers)


class OpenUnits:
    """A file of the DLedger index of which the first units are known."""

    def __init__(self, root: Path) -> None:
        self.root = root
        learned_folder_of(root).mkdir(parents=True)
        self.path = root / "00000000000000000000"
        self.path.write_bytes(bytes(32 * 1000))
        self.put(range(1, KNOWN + 1))
        self.sums()
        self.put(range(KNOWN + 1, KNOWN + ADDED + 1))

    def put(self, numbers: range) -> None:
        with self.path.open("r+b") as file:
            file.seek(32 * numbers[0])
            file.write(units_of(numbers))

    def sums(self, *, full: bool = False) -> tuple[UnitSums, Learned]:
        learned = learned_of(self.root, full=full)
        file = LogFile(str(self.path), 0, self.path.stat().st_size, 0)
        return IndexHeads(OsFileSystem(), learned).unit_sums(file, LOG_FILE), learned

    @property
    def complete(self) -> UnitSums:
        return sum_units(memoryview(self.path.read_bytes()), 32, 0, LOG_FILE)


@pytest.fixture
def units(tmp_path: Path) -> OpenUnits:
    return OpenUnits(tmp_path)


def test_only_new_units_of_a_dledger_index_are_read(units: OpenUnits) -> None:
    for added in (ADDED, 0):
        found, learned = units.sums()
        assert found == units.complete
        assert learned.age.read_bytes == 32 * added
        assert learned.age.grown_bytes == 32 * (KNOWN + ADDED + 1 - added)


def test_a_dledger_index_that_was_cut_is_read_again(units: OpenUnits) -> None:
    units.put(range(KNOWN - 3, KNOWN + 9))
    with units.path.open("r+b") as file:
        file.seek(32 * (KNOWN - 3))
        file.write(bytes(32 * (ADDED + 4)))
    found, learned = units.sums()
    assert (found, learned.age.grown_bytes) == (units.complete, 0)


def test_a_full_audit_names_a_dledger_index_of_which_an_older_unit_changed(
    units: OpenUnits,
) -> None:
    change(units.path, 32 * 7 + 8)
    found, learned = units.sums()
    assert found != units.complete, "this unit is not read again"
    assert learned.age.grown_bytes > 0
    found, learned = units.sums(full=True)
    assert found == units.complete
    assert learned.age.wrong == (units.path.name,)


def test_a_report_says_that_older_entries_were_not_read_again() -> None:
    age = ProofAge(read_bytes=1, learned_bytes=300, oldest_ms=3, grown_bytes=200)
    (_, text) = age_sentences(age, 4)
    assert "200 B of these are the older entries of index files" in text and "--full" in text
    assert len(age_sentences(evolve(age, grown_bytes=0), 4)) == 1
