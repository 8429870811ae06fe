"""Consume queues and tables in RocksDB, which real RocketMQ 5.3.3 wrote: read, counted, checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest
from harness.upgrade import tree_of

from rmqpy.audit.facts.facts import StoreFacts
from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.unread.rocksdb_reader import can_read_rocksdb

SENT = 40
needs_library = pytest.mark.skipif(not can_read_rocksdb(), reason="rmqpy[rocksdb] is not installed")


@pytest.fixture
def store(golden_copy: Callable[[str], Path]) -> Path:
    return golden_copy("G-rocksdb-v533") / "queues"


def facts_of(root: Path) -> StoreFacts:
    return read_facts(OsFileSystem(), str(root))


def damage_of(root: Path) -> list[str]:
    found = facts_of(root).findings
    return [str(each.found) for each in found if each.code is FindingCode.UNREAD_DAMAGED]


def remove_units(folder: Path, queue_offsets: tuple[int, ...]) -> None:
    """Remove units of queue 0 of the topic Rocks, as if RocksDB had lost its last writes."""
    from rocksdict import Options, Rdict

    options = Options(raw_mode=True)
    families = dict.fromkeys(Rdict.list_cf(str(folder), options), options)
    database = Rdict(str(folder), options=options, column_families=families)
    units = database.get_column_family("default")
    for offset in queue_offsets:
        key = pack(">iB5sBiBq", 5, 1, b"Rocks", 1, 0, 1, offset)
        assert key in units
        del units[key]
    units.close()
    database.close()


@needs_library
def test_queues_and_tables_are_counted_and_the_store_is_not_changed(store: Path) -> None:
    before = tree_of(store)
    texts = {each.path.rpartition("/")[2]: each.found for each in facts_of(store).unread}
    assert texts["consumequeue"].endswith(f"{SENT} messages in 1 queue")
    assert texts["topics"].endswith("13 entries")
    assert texts["subscriptionGroups"].endswith("8 entries")
    assert not damage_of(store)
    queues = next(each for each in facts_of(store).unread if "queues" in each.kind.value)
    assert queues.messages == (("Rocks", SENT),)
    assert tree_of(store) == before


@needs_library
def test_units_that_lead_to_no_message_are_found(store: Path) -> None:
    with (store / "commitlog/00000000000000000000").open("r+b") as log:
        log.seek(259)  # the second record
        log.write(b"\0\0\0\1")
    (text,) = damage_of(store)
    assert text.startswith("1 unit in RocksDB without a message or after a gap")
    assert "Rocks queue 0, queue offset 1, physical offset 259" in text


@needs_library
@pytest.mark.parametrize("removed", [(SENT - 1,), tuple(range(SENT))], ids=["last", "all"])
def test_messages_without_a_unit_are_found(
    store: Path, capsys: pytest.CaptureFixture[str], removed: tuple[int, ...]
) -> None:
    """No gap shows that the last units are missing: only the log knows."""
    assert main(["store", "fsck", str(store)]) == 0
    remove_units(store / "consumequeue", removed)
    capsys.readouterr()
    assert main(["store", "fsck", str(store)]) == 2
    printed = capsys.readouterr().out
    count = SENT - len(removed)
    assert (
        f"UNIT_MISSING consumequeue, Rocks queue 0: a message without a consume queue unit: {count}"
        f" units, expected units of {SENT} records\n"
    ) in printed


@needs_library
def test_a_rocksdb_that_cannot_be_read_is_named(store: Path) -> None:
    for path in (store / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    (text,) = damage_of(store)
    assert text.startswith("a RocksDB that cannot be read: ")


def test_without_the_library_it_is_only_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqpy.audit.facts.rocksdb_content.can_read_rocksdb", lambda: False)
    texts = [each.found for each in facts_of(store).unread]
    assert len(texts) == 4
    assert all(text.endswith("(not read: rmqpy[rocksdb] is not installed)") for text in texts)
    assert not damage_of(store)
