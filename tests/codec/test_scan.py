"""Tests of the scan of a log file: golden stores, every reason to stop, and C against Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Unpack

import pytest
from attrs import evolve
from harness.store import MessageFields

from rmqpy.codec import backend, entry, message, scan
from rmqpy.codec.hashes import java_string_hash
from rmqpy.codec.properties import decode_properties, is_whole
from rmqpy.codec.scan import SCAN_LIMIT, Scan, StopReason
from rmqpy.codec.units import index_key_hash
from rmqpy.model.flags import BORN_HOST_V6
from rmqpy.model.message import OutgoingMessage


class Walk(Protocol):
    """Scans data from a base offset."""

    def __call__(
        self,
        data: bytes | bytearray,
        base: int = 0,
        *,
        dledger: bool = False,
        check_crc: bool = True,
        max_records: int = SCAN_LIMIT,
    ) -> Scan: ...


@pytest.fixture(params=["pure", "chosen"])
def walk(request: pytest.FixtureRequest) -> Walk:
    scan_records = backend.scan_records if request.param == "chosen" else scan.scan_records

    def run(
        data: bytes | bytearray,
        base: int = 0,
        *,
        dledger: bool = False,
        check_crc: bool = True,
        max_records: int = SCAN_LIMIT,
    ) -> Scan:
        return scan_records(
            memoryview(data), base, dledger=dledger, check_crc=check_crc, max_records=max_records
        )

    return run


def records(count: int = 3, base: int = 0, **changes: Unpack[MessageFields]) -> list[bytearray]:
    """Return equal records for consecutive offsets from ``base`` on."""
    draft = OutgoingMessage(
        topic=b"T",
        queue_id=1,
        body=b"hello",
        properties=b"TAGS\x01TagA\x02UNIQ_KEY\x01u1\x02KEYS\x01a b",
        born_timestamp_ms=17,
        born_host=(b"\n\0\0\1", 1234),
        store_host=(b"\n\0\0\2", 10911),
    )
    encoded = [message.encode_message(evolve(draft, **changes)) for _ in range(count)]
    for number, record in enumerate(encoded):
        message.set_offsets(record, 0, number, base + number * len(record), 1000 + number)
    return encoded


def test_a_scan_fills_its_columns(walk: Walk) -> None:
    encoded = records(2, base=65536, queue_id=5, flag=-2, reconsume_times=3)
    size = len(encoded[0])
    found = walk(b"".join(encoded), 65536)
    assert found.stop is StopReason.END
    assert (len(found), found.end) == (2, 65536 + 2 * size)
    assert list(found.offset) == list(found.frame_offset) == [65536, 65536 + size]
    assert found.misplaced() == []
    assert (list(found.size), list(found.queue_id)) == ([size] * 2, [5, 5])
    assert (list(found.queue_offset), list(found.flag)) == ([0, 1], [-2, -2])
    assert list(found.store_timestamp_ms) == [1000, 1001]
    assert (found.born_timestamp_ms[0], found.reconsume_times[1]) == (17, 3)
    assert found.tags_code[0] == java_string_hash("TagA")
    assert found.uniq_key_hash[0] == index_key_hash("T", "u1")
    assert found.topic == [b"T", b"T"]
    assert found.topic[0] is found.topic[1]
    data = b"".join(encoded)
    start, length = found.keys_position[1], found.keys_length[1]
    assert data[start : start + length] == b"a b"
    start, length = found.properties_position[1], found.properties_length[1]
    assert data[start : start + length] == b"TAGS\x01TagA\x02UNIQ_KEY\x01u1\x02KEYS\x01a b"
    assert data[found.topic_position[0] :][: found.topic_length[0]] == b"T"
    assert set(found.entry_index) == set(found.term) == {-1}


@pytest.mark.parametrize("scan_records", [backend.scan_records, scan.scan_records])
def test_a_scan_without_topics_has_all_other_columns(
    scan_records: Callable[..., Scan],
) -> None:
    data = memoryview(b"".join(records(3)))
    whole = scan_records(data, 0, dledger=False, check_crc=True)
    found = scan_records(data, 0, dledger=False, check_crc=True, topics=False)
    assert whole.topic == [b"T"] * 3
    assert found == evolve(whole, topic=[])


def test_misplaced_records_are_reported(walk: Walk) -> None:
    encoded = records(3)
    message.set_offsets(encoded[1], 0, None, 999, 1)
    assert walk(b"".join(encoded)).misplaced() == [1]


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        (b"DELAY\x013", 3),
        (b"DELAY\x01+18", 18),
        (b"DELAY\x01-2147483648", -2147483648),
        (b"DELAY\x012147483647", 2147483647),
        (b"DELAY\x012147483648", 0),
        (b"DELAY\x0100000000000000000007", 7),
        (b"DELAY\x01" + b"9" * 30000, 0),
        (b"DELAY\x01", 0),
        (b"DELAY\x01-", 0),
        (b"DELAY\x011x", 0),
        (b"DELAY\x01 1", 0),
        (b"DELAY\x010", 0),
        (b"", 0),
        (b"DELAY\x012\x02DELAY\x01\x02xDELAY\x019", 2),
    ],
)
def test_the_delay_level_is_parsed_as_in_java(walk: Walk, properties: bytes, level: int) -> None:
    found = walk(records(1, properties=properties)[0])
    assert list(found.delay_level) == [level]
    assert (found.tags_code[0], found.uniq_key_hash[0], found.keys_length[0]) == (0, -1, 0)


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", "é\U0001f600".encode(), b"\xed\xa0\x80a", b"\xe2\x82", b"a" * 300]
)
def test_texts_outside_ascii_are_hashed_as_in_java(walk: Walk, raw: bytes) -> None:
    properties = b"TAGS\x01" + raw + b"\x02UNIQ_KEY\x01" + raw
    found = walk(records(1, topic=b"T\xe2", properties=properties)[0])
    text = decode_properties(properties)["TAGS"]
    assert found.tags_code[0] == java_string_hash(text)
    assert found.uniq_key_hash[0] == index_key_hash("T\ufffd", text)


def test_properties_of_every_length_are_found(walk: Walk) -> None:
    texts = [b"v" * length for length in range(1, 40)]
    raw = [b"A\x01" + one + b"\x02KEYS\x01" + other for one in texts for other in texts]
    found = walk(b"".join(record for text in raw for record in records(1, properties=text)))
    assert list(found.keys_length) == [len(other) for _ in texts for other in texts]
    ends = map(sum, zip(found.properties_position, found.properties_length, strict=True))
    starts = map(sum, zip(found.keys_position, found.keys_length, strict=True))
    assert list(starts) == list(ends)


@pytest.mark.parametrize(
    ("tail", "stop"),
    [
        (b"", StopReason.END),
        (bytes(8), StopReason.ZERO),
        (bytes(100), StopReason.ZERO),
        (bytes(7), StopReason.TRUNCATED),
        (message.encode_blank(8), StopReason.BLANK),
        (message.encode_blank(500) + b"stale" * 20, StopReason.BLANK),
        (b"\0\0\0\x6a\0\0\0\0" + bytes(98), StopReason.BAD_MAGIC),
        (b"\0\0\0\x00\xda\xa3\x20\xa7" + bytes(98), StopReason.BAD_SIZE),
        (b"\xff\xff\xff\xff\xda\xa3\x20\xa7" + bytes(98), StopReason.BAD_SIZE),
        (b"\0\0\0\x5a\xda\xa3\x20\xa7" + bytes(98), StopReason.BAD_SIZE),
        (b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" + bytes(98), StopReason.TRUNCATED),
        (b"\0\0\0\x6a\xda\xa3\x20\xa7" + bytes(98), StopReason.BAD_FIELDS),
    ],
)
def test_a_scan_stops_with_the_reason(walk: Walk, tail: bytes, stop: StopReason) -> None:
    encoded = records(3)
    found = walk(b"".join(encoded) + tail)
    assert (len(found), found.stop, found.end) == (3, stop, 3 * len(encoded[0]))


def test_a_scan_of_nothing_is_empty(walk: Walk) -> None:
    found = walk(b"", 4096)
    assert (len(found), found.stop, found.end, found.topic) == (0, StopReason.END, 4096, [])


def test_a_truncated_record_stops_the_scan(walk: Walk) -> None:
    encoded = records(2)
    data = b"".join(encoded)
    for length in range(len(encoded[0]) + 1, len(data)):
        found = walk(data[:length])
        assert (len(found), found.stop) == (1, StopReason.TRUNCATED)


def test_the_crc_is_checked_on_demand(walk: Walk) -> None:
    encoded = records(3)
    encoded[1][88] ^= 1
    data = b"".join(encoded)
    assert (walk(data).stop, len(walk(data))) == (StopReason.BAD_CRC, 1)
    assert (walk(data, check_crc=False).stop, len(walk(data, check_crc=False))) == (
        StopReason.END,
        3,
    )
    empty = records(1, body=b"")[0]
    empty[8:12] = b"\1\2\3\4"  # Java does not check it either.
    assert walk(empty).stop is StopReason.END


@pytest.mark.parametrize(("limit", "stop"), [(1, 8), (2, 8), (3, 0), (4, 0)])
def test_a_scan_stops_at_its_limit(walk: Walk, limit: int, stop: int) -> None:
    encoded = records(3)
    found = walk(b"".join(encoded), max_records=limit)
    assert (len(found), found.stop) == (min(limit, 3), stop)
    assert found.end == min(limit, 3) * len(encoded[0])


def test_records_of_version_2_and_with_ipv6_are_scanned(walk: Walk) -> None:
    v6 = records(1, sys_flag=BORN_HOST_V6, born_host=(bytes(16), 1), body=b"")[0]
    v2 = bytearray(records(1, body=b"", topic=b"", properties=b"")[0])
    v2[0:8] = (91 + 1 + 200).to_bytes(4) + b"\xda\xa3\x20\xab"
    v2[88:] = b"\0\xc8" + b"t" * 200 + b"\0\0"
    found = walk(bytes(v6 + v2))
    assert (found.stop, found.topic) == (StopReason.END, [b"T", b"t" * 200])
    assert list(found.store_timestamp_ms) == [1000, 1000]


def ledger(count: int = 3, base: int = 0, index: int = 0) -> list[bytearray]:
    """Return entries with equal records, the first one at ``base``."""
    encoded = records(count)
    size = len(encoded[0]) + 48
    for number, record in enumerate(encoded):
        message.set_offsets(record, 0, number, base + number * size + 48, 1)
    return [
        bytearray(entry.encode_entry_header(index + number, 4, base + number * size, len(record)))
        + record
        for number, record in enumerate(encoded)
    ]


def test_entries_are_scanned_with_index_and_term(walk: Walk) -> None:
    encoded = ledger(3, base=65536, index=9)
    found = walk(b"".join(encoded) + entry.encode_filler_head(8), 65536, dledger=True)
    size = len(encoded[0])
    assert (found.stop, found.end) == (StopReason.BLANK, 65536 + 3 * size)
    assert list(found.frame_offset) == [65536 + number * size for number in range(3)]
    assert list(found.offset) == [65584 + number * size for number in range(3)]
    assert list(found.size) == [size - 48] * 3
    assert (list(found.entry_index), list(found.term)) == ([9, 10, 11], [4, 4, 4])
    assert found.misplaced() == []


@pytest.mark.parametrize(
    ("position", "value", "stop"),
    [
        (0, "00000002", StopReason.BAD_MAGIC),
        (0, "ffffffff", StopReason.BLANK),
        (0, "0000000000000000", StopReason.ZERO),
        (4, "00000000", StopReason.BAD_SIZE),
        (4, "0000008a", StopReason.BAD_SIZE),
        (4, "80000000", StopReason.BAD_SIZE),
        (4, "7fffffff", StopReason.TRUNCATED),
        (4, "0000008b", StopReason.BAD_FIELDS),
        (8, "0000000000000002", StopReason.BAD_FIELDS),
        (8, "ffffffffffffffff", StopReason.BAD_FIELDS),
        (16, "0000000000000003", StopReason.BAD_FIELDS),
        (16, "0000000000000005", StopReason.END),
        (24, "0000000000000000", StopReason.BAD_FIELDS),
        (44, "00000000", StopReason.BAD_FIELDS),
        (48, "0000006b", StopReason.BAD_FIELDS),
        (52, "daa320a8", StopReason.BAD_MAGIC),
        (136, "68656c6c70", StopReason.BAD_CRC),
    ],
)
def test_an_invalid_entry_stops_the_scan(
    walk: Walk, position: int, value: str, stop: StopReason
) -> None:
    encoded = ledger(2)
    encoded[1][position : position + len(value) // 2] = bytes.fromhex(value)
    found = walk(b"".join(encoded), dledger=True)
    good = 2 if stop is StopReason.END else 1
    assert (found.stop, len(found), found.end) == (stop, good, good * len(encoded[0]))


def test_a_negative_first_index_or_term_is_refused(walk: Walk) -> None:
    for position in (8, 16):
        encoded = ledger(1)[0]
        encoded[position : position + 8] = b"\xff" * 8
        assert walk(encoded, dledger=True).stop is StopReason.BAD_FIELDS


def test_the_chosen_implementation_has_a_reason() -> None:
    assert backend.implementation in ("c", "pure")
    assert "rmqpy._native" in backend.reason or "RMQPY_PURE" in backend.reason


GOLDEN = [
    ("A-classic-clean-v497", "store", 279),
    ("A-classic-killed-v497", "store", 305),
    ("A-classic-clean-v533", "store", 337),
    ("B-master-slave-v497", "slave", 279),
    ("B-lagging-slave-v497", "slave", 291),
    ("C-upgraded-v497", "n2", 560),
    ("D-dledger-v497", "n0", 552),
    ("X-gap_same_file-v497", "n0", 298),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node", "count"), GOLDEN)
def test_golden_stores_are_scanned_completely(
    golden: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    walk: Walk,
    name: str,
    node: str,
    count: int,
) -> None:
    """Every record is found in its place, and every file except the last ends in a filler."""
    store = golden(name) / node
    files = sorted(
        [*store.glob("commitlog/*"), *store.glob("dledger-*/data/*")], key=lambda path: path.name
    )
    places: dict[int, tuple[Scan, int]] = {}
    for path in files:
        data = path.read_bytes()
        found = walk(data, int(path.name), dledger=path.parent.name == "data")
        assert found.stop is (StopReason.ZERO if path is files[-1] else StopReason.BLANK)
        assert found.misplaced() == []
        slices = zip(found.properties_position, found.properties_length, strict=True)
        assert all(is_whole(data[start : start + length]) for start, length in slices)
        places |= {offset: (found, row) for row, offset in enumerate(found.offset)}
    assert len(places) == count
    for seen in manifest(name)["messages"]:
        if seen["commitLogOffset"] not in places:
            assert name.startswith("B-lagging")
            continue
        found, row = places[seen["commitLogOffset"]]
        assert found.topic[row].decode() == seen["topic"]
        assert found.queue_id[row] == seen["queueId"]
        assert found.queue_offset[row] == seen["queueOffset"]
        assert found.size[row] == seen["storeSize"]
        assert found.store_timestamp_ms[row] == seen["storeTimestamp"]
        assert found.prepared_transaction_offset[row] == seen["preparedTransactionOffset"]
        assert found.delay_level[row] == int(seen["props"].get("DELAY", "0"))
        assert found.tags_code[row] == java_string_hash(seen["props"].get("TAGS", ""))
        key = seen["props"].get("UNIQ_KEY")
        hashed = -1 if key is None else index_key_hash(seen["topic"], key)
        assert found.uniq_key_hash[row] == hashed


def test_the_golden_ledger_has_three_terms(golden: Callable[[str], Path], walk: Walk) -> None:
    terms: Counter[int] = Counter()
    index: list[int] = []
    for path in sorted((golden("D-dledger-v497") / "n1/dledger-n1/data").iterdir()):
        found = walk(path.read_bytes(), int(path.name), dledger=True)
        terms.update(found.term)
        index.extend(found.entry_index)
    assert index == list(range(552))
    assert sorted(terms) == [1, 2, 3]
