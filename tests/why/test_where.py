"""``rmqpy where``: every message that a Java consumer received is found, with its places."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from why.conftest import LiveBroker, Ran

from rmqpy.codec.units import (
    INDEX_ENTRY,
    INDEX_SLOT,
    index_entry_position,
    index_key_hash,
    index_slot_position,
)
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.why.message_id import IdKind, parse_message_id
from rmqpy.why.questions.message_copies import CopyKind, MessageCopy
from rmqpy.why.questions.where import find_message
from rmqpy.why.sources.directory import StoreDirectorySource

NOW_MS = 1_795_300_000_000
PENDING = "FD00000000000000000000000000000207A64E0E2F2A685B43DA00A0"


def source_of(store: Path) -> StoreDirectorySource:
    return StoreDirectorySource(OsFileSystem(), str(store))


@pytest.mark.slow
def test_every_message_is_found_by_its_unique_id(
    told_node: str, store_of: Callable[[str], Path], manifest: Callable[[str], Any]
) -> None:
    source = source_of(store_of(told_node))
    told = manifest(told_node.partition("/")[0])["messages"][::-7]
    unfound = [each for each in told if not any(_places(source, each))]
    lagging = told_node.endswith("slave") and told_node.startswith("B-lagging")
    assert bool(unfound) == lagging


def _places(source: StoreDirectorySource, told: dict[str, Any]) -> list[MessageCopy]:
    wanted = parse_message_id(told["msgId"], NOW_MS)
    result = find_message(source, wanted, (told["topic"],))
    place = told["queueId"], told["queueOffset"], told["commitLogOffset"]
    return [
        each
        for each in result.copies
        if (each.message.queue_id, each.message.queue_offset, each.message.physical_offset) == place
        if not each.unit_fault
    ]


def test_offset_ids_and_keys_find_the_same_message(store_of: Callable[[str], Path]) -> None:
    source = source_of(store_of("D-dledger-v497/n0"))
    unique = source.with_key("Keyed", "dK-0", unique=False)[0][0].properties["UNIQ_KEY"]
    by_id = find_message(source, parse_message_id(unique, NOW_MS))
    (copy,) = by_id.copies
    offset_id = copy.as_json()["offset_message_id"]
    assert parse_message_id(offset_id, NOW_MS).kind is IdKind.OFFSET
    for text in (offset_id, "dK-0"):
        (same,) = find_message(source, parse_message_id(text, NOW_MS)).copies
        assert same.as_json() == copy.as_json()
    assert copy.place.log == "DLedger" and copy.place.committed is True
    assert copy.place.index >= 0 and copy.place.term >= 1


def test_the_log_is_read_if_the_index_is_gone(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    wanted = parse_message_id("aK-0", NOW_MS)
    (before,) = find_message(source_of(store), wanted).copies
    shutil.rmtree(store / "index")
    result = find_message(source_of(store), wanted)
    assert [each.message for each in result.copies] == [before.message]
    assert result.copies[0].index_file == ""
    assert "the parts of the log that no index file covers" in result.searched
    unread = find_message(source_of(store), wanted, scan=False)
    assert not unread.copies and "--no-scan" in unread.incomplete[0]


def test_an_index_that_a_broker_has_added_to_leads_to_older_messages(
    copy_of: Callable[[str], Path],
) -> None:
    """A broker writes entry and slot before the header; a slot may lead to a newer entry, or soon
    does, than the header counted when it was read.
    """
    store = copy_of("A-classic-clean-v533")
    early = source_of(store)
    table = early._index[-1]
    number, file = table.entry_end, table.file
    message = early.message(table.entry(number - 1)[1])
    assert message is not None
    topic, key = message.topic, message.properties["UNIQ_KEY"]
    assert early.with_key(topic, key, unique=True) == [(message, file)]
    key_hash = index_key_hash(topic, key)
    slot = index_slot_position(key_hash, table.slot_count)
    data = bytearray((store / file).read_bytes())
    (head,) = INDEX_SLOT.unpack_from(data, slot)
    end = early.directory.logs[-1].end_offset
    entry = (key_hash + table.slot_count, end, 0, head)
    INDEX_ENTRY.pack_into(data, index_entry_position(number, table.slot_count), *entry)
    INDEX_SLOT.pack_into(data, slot, number)
    with (store / file).open("r+b") as written:
        written.write(data)
    for source in (early, source_of(store)):
        assert source.with_key(topic, key, unique=True) == [(message, file)]


def test_all_copies_are_found_without_the_table_of_topics(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    wanted = parse_message_id("bRK-0", NOW_MS)
    before = find_message(source_of(store), wanted).copies
    for name in ("topics.json", "topics.json.bak"):
        (store / "config" / name).write_text("")
    found = find_message(source_of(store), wanted)
    assert [each.message for each in found.copies] == [each.message for each in before]
    assert "every record of the log" in found.searched


@pytest.mark.parametrize(
    ("unit", "fault"),
    [
        (slice(20, 40), r"it leads to \d+ bytes at physical offset \d+ instead"),
        (slice(2000, 2020), "the queue has no unit for it"),
    ],
)
def test_a_unit_that_leads_elsewhere_is_reported(
    unit: slice, fault: str, copy_of: Callable[[str], Path]
) -> None:
    store = copy_of("A-classic-clean-v497")
    file = store / "consumequeue" / "Keyed" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[:20] = data[unit] or bytes(20)
    file.write_bytes(data)
    result = find_message(source_of(store), parse_message_id("aK-0", NOW_MS), ("Keyed",))
    (copy,) = result.copies
    assert (copy.message.queue_id, copy.message.queue_offset) == (0, 0)
    assert re.fullmatch(fault, copy.unit_fault)


def test_all_copies_of_a_failed_message_are_found(store_of: Callable[[str], Path]) -> None:
    source = source_of(store_of("C-upgraded-v497/n0"))
    (first,) = source.with_key("Retry", "bRK-0", unique=False)
    wanted = parse_message_id(first[0].properties["UNIQ_KEY"], NOW_MS)
    copies = find_message(source, wanted).copies
    kinds = [CopyKind.TOPIC, CopyKind.DELAYED, CopyKind.RETRY, CopyKind.DEAD]
    assert [each.kind for each in copies] == kinds
    assert copies[1].delivered is True and copies[1].real_topic == "%RETRY%CID_retry"


def test_the_command_shows_places_and_hides_replaced_copies(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = store_of("C-upgraded-v497/n0")
    shown = run("where", PENDING, store)
    assert shown.code == 0
    assert shown.out.splitlines()[0] == f"{PENDING} (unique id): found in 1 of 1 store"
    assert "given-up half message: TRANS_CHECK_MAX_TIME_TOPIC queue 0 offset 0" in shown.out
    assert "16 more copies; --details shows all" in shown.out
    assert "commitlog/00000000000000196608 byte 24626: physical offset 221234" in shown.out
    assert run("where", PENDING, store, "--details").out.count("half message:") == 17


def test_a_message_that_is_nowhere_is_exit_code_2(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run("where", "no-such-key", store_of("A-classic-clean-v497"), "--format", "json")
    assert ran.code == 2
    assert ran.json["stores"][0]["found"] == []
    assert ran.json["stores"][0]["searched"][-1] == "every record of the log"


def test_a_misspelled_topic_is_named(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    ran = run("where", "aK-0", store_of("A-classic-clean-v497"), "--topic", "Keyd")
    assert ran.code == 1 and "did you mean Keyed?" in ran.err


@pytest.mark.slow
def test_a_running_broker_finds_the_same_copies(live: LiveBroker, run: Callable[..., Ran]) -> None:
    key = "aRK-0"
    on_disk = run("where", key, live.store, "--format", "json")
    (disk,) = on_disk.json["stores"]
    asked = run("where", key, live.address, "--format", "json")
    (wire,) = asked.json["stores"]
    assert (on_disk.code, asked.code) == (0, 0)
    for each in disk["found"] + wire["found"]:
        each["index_file"] = each["unit"]["file"] = each["unit"]["position"] = None
    assert wire["found"] == disk["found"]
    (offset_id, *_) = [each["offset_message_id"] for each in disk["found"]]
    assert run("where", offset_id, live.address).code == 0
    missing = run("where", "no-such-key", live.address, "--format", "json")
    assert missing.code == 2
    assert "a broker answers no such request" in missing.json["stores"][0]["not_examined"][0]


def test_a_directory_instead_of_the_id_is_named(
    store_of: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    store = str(store_of("D-dledger-v497/n0"))
    ran = run("where", store)
    assert ran.code == 1 and f"found the directory {store} where the message id must be" in ran.err


def test_a_broker_that_does_not_answer_is_an_error_with_a_remedy(run: Callable[..., Ran]) -> None:
    ran = run("where", "key", "127.0.0.1:1", "--format", "json")
    assert ran.code == 1
    assert ran.json["found"].startswith("no answer (connect to 127.0.0.1:1")
    assert ran.json["expected"] == "a running broker" and "check the address" in ran.json["remedy"]
