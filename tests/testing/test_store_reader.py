"""The independent store reader agrees with Java's manifests and finds damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.testing.store_reader import read_store


def stores_in(golden: Callable[[str], Path], name: str) -> list[Path]:
    """Return the store directories in a golden archive."""
    return sorted(path.parent for path in golden(name).rglob("consumequeue"))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("A-classic-clean-v497", 1),
        ("A-classic-clean-v533", 1),
        ("A-classic-killed-v497", 1),
        ("B-master-slave-v497", 2),
        ("B-lagging-slave-v497", 2),
        ("C-upgraded-v497", 3),
        ("D-dledger-v497", 3),
    ],
)
def test_a_java_store_has_no_problems(golden: Callable[[str], Path], name: str, count: int) -> None:
    stores = stores_in(golden, name)
    assert len(stores) == count
    for store in stores:
        reading = read_store(store)
        assert reading.problems == []
        assert len(reading.messages) > 200


def test_it_reads_the_messages_that_the_java_consumer_received(
    golden: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    (store,) = stores_in(golden, "A-classic-clean-v497")
    found = {m.physical_offset: m for m in read_store(store).messages}
    for message in manifest("A-classic-clean-v497")["messages"]:
        mine = found[message["commitLogOffset"]]
        assert mine.queue_offset == message["queueOffset"]
        assert mine.queue_id == message["queueId"]
        assert mine.size == message["storeSize"]


def test_the_damage_of_a_wrong_upgrade_is_found(golden: Callable[[str], Path]) -> None:
    """n1 took over with fewer old messages than n0, so the units of its queues are shifted."""
    by_node = {s.name: read_store(s).problems for s in stores_in(golden, "X-gap_same_file-v497")}
    assert by_node["n0"] == []
    assert any("Normal/0@35: the slot has None" in problem for problem in by_node["n1"])


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (4, b"\0\0\0\0", "magic"),
        (27, b"\x77", "its queue offsets have gaps"),
        (35, b"\x77", "says physical offset 119"),
        (88, b"\xff\xff", "the body CRC is wrong"),
    ],
)
def test_a_changed_byte_is_found(
    golden_copy: Callable[[str], Path], position: int, value: bytes, problem: str
) -> None:
    store = next(golden_copy("A-classic-clean-v497").rglob("commitlog")).parent
    log = store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[position : position + len(value)] = value
    log.write_bytes(data)
    assert any(problem in found for found in read_store(store).problems)


def test_a_changed_slot_is_found(golden_copy: Callable[[str], Path]) -> None:
    store = next(golden_copy("A-classic-clean-v497").rglob("commitlog")).parent
    slot_file = next(store.glob("consumequeue/Normal*/0/*"))
    data = bytearray(slot_file.read_bytes())
    data[7] ^= 1
    slot_file.write_bytes(data)
    assert any("the slot has" in found for found in read_store(store).problems)
