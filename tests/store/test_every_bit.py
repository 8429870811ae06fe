"""Every byte of a log with a flipped bit, one after the other, and the store started: with the
checksum over whole records every flip is found, without it every one that the body CRC and the
lengths cover; no start ever drops a later message silently.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqpy.codec import property_crc
from rmqpy.model.errors import StoreFault

COUNT = 5
FILE = "commitlog/00000000000000000000"


def log_of(kit: Any, crc: bool) -> tuple[Any, list[int]]:
    rig = kit.rig(changes={"enabled_append_prop_crc": crc})
    store = rig.open()
    offsets = [rig.put(store, number)[0] for number in range(COUNT)]
    offsets.append(store.max_physical_offset)
    store.shutdown()
    return rig, offsets


def outcome(rig: Any, kit: Any, place: int, bit: int, whole: dict[Any, list[bytes]]) -> str:
    after = rig.after(rig.files.kill())
    node = after.files.nodes[f"{rig.root}/{FILE}"]
    node.data[place] ^= 1 << bit
    try:
        store = after.open()
    except StoreFault:
        return "refused"
    try:
        if store.opened.notes:
            return "cut"
        return "same" if kit.read_all(store) == whole else "changed"
    except AssertionError:
        return "changed"
    finally:
        store.abandon()


@pytest.mark.parametrize("crc", [True, False], ids=["checksum", "plain"])
def test_flips(kit: Any, crc: bool) -> None:
    rig, offsets = log_of(kit, crc)
    store = rig.open()
    whole = kit.read_all(store)
    store.shutdown()
    last = offsets[-2]
    seen: dict[str, int] = {}
    for place in range(offsets[-1]):
        found = outcome(rig, kit, place, place % 8, whole)
        seen[found] = seen.get(found, 0) + 1
        if crc:
            # The last record cannot be told from a torn one: it may be cut off, and is kept.
            assert found == "refused" or (found == "cut" and place >= last), (place, found)
        else:
            assert found != "cut" or place >= last, "later messages are never dropped"
    assert seen["refused"] > offsets[-1] // 5


def test_the_bytes_are_those_of_5(kit: Any) -> None:
    """``__CRC32#``, ten digits from the right, over everything in front of them."""
    rig, offsets = log_of(kit, True)
    store = rig.open()
    record = bytearray(store.message_at(offsets[0]))
    store.shutdown()
    tail = bytes(record[-20:])
    assert tail[:9] == b"__CRC32#\x01" and tail[-1:] == b"\x02" and tail[9:19].isdigit()
    assert record[-21] == 2
    import zlib

    assert int(tail[9:19][::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF
    assert property_crc.holds(record)
    for place in range(len(record)):
        record[place] ^= 1
        assert not property_crc.holds(record), place
        record[place] ^= 1


def test_an_older_checksum_is_replaced() -> None:
    once = property_crc.with_room(b"a\x01b")
    assert property_crc.with_room(once) == once
    assert len(once) == len(b"a\x01b\x02") + property_crc.SIZE


def test_records_without_it_are_not_judged(kit: Any) -> None:
    rig, offsets = log_of(kit, False)
    rig.changes["enabled_append_prop_crc"] = True
    store = rig.open()
    assert store.opened.notes == []
    assert property_crc.holds(store.message_at(offsets[0]))
    rig.put(store, 7)
    store.shutdown()
    rig.open().shutdown()
