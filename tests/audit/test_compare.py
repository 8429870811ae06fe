"""Tests of the comparison of two stores, by their manifests and to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness.audit import directory_of, manifest_of

from rmqpy.audit.replicas.compare import (
    Difference,
    LocalStore,
    compare_manifests,
    compare_stores,
    verdict_on,
    verdict_on_logs,
)
from rmqpy.audit.replicas.compare import DifferenceKind as Kind
from rmqpy.audit.replicas.difference_text import difference_sentences
from rmqpy.audit.replicas.verdict import DIFFERENT, EQUAL, Containment
from rmqpy.codec.backend import scan_records
from rmqpy.store.files.disk import OsFileSystem

Pair = tuple[Path, Path]


def local_store(store: Path) -> LocalStore:
    return LocalStore(OsFileSystem(), directory_of(store))


def kinds(differences: list[Difference]) -> list[Kind]:
    return [difference.kind for difference in differences]


@pytest.fixture
def pair(copy_of: Callable[[str], Path]) -> Pair:
    """Return copies of a master and its slave."""
    return copy_of("B-master-slave-v497/master"), copy_of("B-master-slave-v497/slave")


def compare(one: Path, two: Path) -> list[Difference]:
    """Return the differences to the byte."""
    return compare_stores(manifest_of(one), manifest_of(two), local_store(one), local_store(two))


def sentences(one: Path, two: Path) -> list[str]:
    left, right = manifest_of(one), manifest_of(two)
    found = compare(one, two)
    return [*difference_sentences(found, left, right, verdict_on(found, left, right))]


def test_replicas_are_equal(pair: Pair) -> None:
    assert compare(*pair) == []


def test_a_lagging_slave_differs_by_its_end(store_of: Callable[[str], Path]) -> None:
    master = store_of("B-lagging-slave-v497/master")
    slave = store_of("B-lagging-slave-v497/slave")
    (difference,) = compare(master, slave)
    assert difference.kind is Kind.END
    assert (difference.begin, difference.end) == (229443, 341158)
    # Digests alone leave the last block of the slave undecided.
    found = compare_manifests(manifest_of(master), manifest_of(slave))
    assert kinds(found) == [Kind.UNDECIDED, Kind.END]
    assert (found[0].begin, found[0].end) == (196608, 229443)


def test_a_wrong_upgrade_differs_in_the_old_log(store_of: Callable[[str], Path]) -> None:
    one, two = (store_of(f"X-gap_same_file-v497/n{n}") for n in (0, 1))
    found = compare(one, two)
    assert (found[0].kind, found[0].log, found[0].begin) == (Kind.END, "classic", 222613)


def test_the_first_different_byte_and_its_message_are_found(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[30000] ^= 1
    file.write_bytes(data)
    (difference,) = compare(one, two)
    assert difference.kind is Kind.CONTENT and difference.begin == 65536 + 30000
    record = difference.record
    assert record is not None
    assert record.offset <= difference.begin < record.offset + record.size
    (sentence,) = sentences(one, two)
    assert sentence.startswith(f"the classic logs differ at offset {65536 + 30000}: byte ")
    place = f"topic {record.topic}, queue {record.queue_id} offset {record.queue_offset}"
    assert sentence.endswith(f"; {place}")
    (coarse,) = compare_manifests(manifest_of(one), manifest_of(two))
    assert coarse.begin == 65536 < 65536 + 30000 < coarse.end


def test_a_difference_in_an_undecided_block_is_found(pair: Pair) -> None:
    """The slave is shorter and differs before its end."""
    one, two = pair
    before = manifest_of(two)
    file = sorted((two / "commitlog").iterdir())[-1]
    data = bytearray(file.read_bytes())
    cut = before.facts["classic"]["last"]["offset"] - int(file.name)
    data[cut:] = bytes(len(data) - cut)
    data[cut - 200] ^= 1
    file.write_bytes(data)
    found = compare(one, two)
    assert (found[0].kind, found[0].begin) == (Kind.CONTENT, int(file.name) + cut - 200)
    assert Kind.END in kinds(found)


@pytest.mark.parametrize("place", [4, 88], ids=["magic", "body"])
def test_what_follows_the_last_record_is_said_not_to_be_compared(pair: Pair, place: int) -> None:
    """A damaged last record cannot be distinguished from the rest of an interrupted write."""
    one, two = pair
    file = max((one / "commitlog").iterdir())
    data = bytearray(file.read_bytes())
    last = scan_records(memoryview(bytes(data)), 0, dledger=False, check_crc=False).offset[-1]
    damaged = bytearray(data)
    damaged[last + place] ^= 0x40
    file.write_bytes(damaged)
    data[last:] = bytes(len(data) - last)
    (two / "commitlog" / file.name).write_bytes(data)
    assert compare(one, two) == []
    assert sentences(one, two) == [
        "not compared: what master has after its last record (TAIL_PARTIAL 1), the rest of an"
        " interrupted write or a damaged record"
    ]


def test_stale_bytes_after_the_end_are_no_difference(pair: Pair) -> None:
    one, two = pair
    file = sorted((two / "commitlog").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    assert compare(one, two) == []


def test_a_switch_adds_a_log_and_changes_tables(store_of: Callable[[str], Path]) -> None:
    before = manifest_of(store_of("B-master-slave-v497/master"))
    after = manifest_of(store_of("C-upgraded-v497/n0"))
    found = compare_manifests(before, after)
    assert kinds(found) == [Kind.DIVIDE, Kind.LOG, Kind.TABLE, Kind.TABLE]
    assert {d.log for d in found if d.kind is Kind.TABLE} == {
        "consumerOffset.json",
        "delayOffset.json",
    }


def test_logs_with_different_begins_differ_by_their_begin(pair: Pair) -> None:
    one, two = pair
    sorted((two / "commitlog").iterdir())[0].unlink()
    found = compare(one, two)
    assert kinds(found) == [Kind.BEGIN]
    assert (found[0].begin, found[0].end) == (0, 65536)


def test_a_changed_table_is_found(pair: Pair) -> None:
    one, two = pair
    path = two / "config/topics.json"
    path.write_text(path.read_text().replace('"perm":6', '"perm":4', 1))
    (difference,) = compare(one, two)
    assert (difference.kind, difference.log) == (Kind.TABLE, "topics.json")


def test_files_that_only_one_log_has_are_differences(pair: Pair) -> None:
    """Adjacent ones are one difference, in both orders; if both lack a file, it is none."""
    one, two = pair
    for store, numbers in ((two, (1, 2)), (one, (2,))):
        paths = sorted((store / "commitlog").iterdir())
        for number in numbers:
            paths[number].unlink()
        if store is two:
            for stores in (pair, pair[::-1]):
                (found,) = compare(*stores)
                assert (found.kind, found.begin, found.end) == (Kind.FILE, 65536, 3 * 65536)
    (found,) = compare(one, two)
    assert (found.kind, found.begin, found.end) == (Kind.FILE, 65536, 2 * 65536)
    assert verdict_on([found], manifest_of(one), manifest_of(two)) == DIFFERENT


def test_a_log_that_is_longer_without_more_messages_has_an_unknown_number(pair: Pair) -> None:
    one, two = map(manifest_of, pair)
    assert one.messages == two.messages
    verdict = verdict_on_logs(one, two, in_left=False, in_right=True)
    assert verdict.contained == (Containment(one.name, two.name, None),)
    assert str(verdict).endswith(" has a longer log, with an unknown number of messages more")
    assert verdict_on_logs(one, two, in_left=True, in_right=True) == DIFFERENT
    assert verdict_on_logs(one, two, in_left=False, in_right=False) == EQUAL


def test_messages_that_expired_in_one_store_are_counted_by_topic(pair: Pair) -> None:
    one, two = pair
    left = manifest_of(one)
    sorted((two / "commitlog").iterdir())[0].unlink()
    right = manifest_of(two)
    begins, *missing = sentences(one, two)
    assert begins == f"the classic log of {left.name} begins at 0, that of {right.name} at 65536"
    counts = [int(sentence.split()[0]) for sentence in missing]
    assert sum(counts) == left.messages - right.messages > 0
