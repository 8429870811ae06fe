"""Where two stores differ: from manifests, and to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.replicas.compare import DifferenceKind as Kind
from rmqpy.audit.replicas.compare import LocalStore, compare_manifests, compare_stores
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.scan.directory import read_directory
from rmqpy.store.files.disk import OsFileSystem


def at_hand(store):
    return LocalStore(OsFileSystem(), read_directory(OsFileSystem(), str(store)))


def kinds(differences):
    return [difference.kind for difference in differences]


@pytest.fixture
def pair(copy_of: Callable[[str], Path]):
    return copy_of("B-master-slave-v497/master"), copy_of("B-master-slave-v497/slave")


def exact(one, two, manifest_of):
    return compare_stores(manifest_of(one), manifest_of(two), at_hand(one), at_hand(two))


def test_replicas_are_equal(pair, manifest_of: Callable[[Path], Manifest]) -> None:
    assert exact(*pair, manifest_of) == []


def test_a_slave_that_is_behind_differs_by_its_end(
    store_of: Callable[[str], Path], manifest_of: Callable[[Path], Manifest]
) -> None:
    master = store_of("B-lagging-slave-v497/master")
    slave = store_of("B-lagging-slave-v497/slave")
    (difference,) = exact(master, slave, manifest_of)
    assert difference.kind is Kind.END
    assert (difference.begin, difference.end) == (229443, 341158)
    # From digests alone the last block of the slave stays open.
    found = compare_manifests(manifest_of(master), manifest_of(slave))
    assert kinds(found) == [Kind.UNDECIDED, Kind.END]
    assert (found[0].begin, found[0].end) == (196608, 229443)


def test_a_wrong_upgrade_differs_in_the_old_log(
    store_of: Callable[[str], Path], manifest_of: Callable[[Path], Manifest]
) -> None:
    one, two = (store_of(f"X-gap_same_file-v497/n{n}") for n in (0, 1))
    found = exact(one, two, manifest_of)
    assert (found[0].kind, found[0].log, found[0].begin) == (Kind.END, "classic", 222613)


def test_the_first_byte_record_and_queue_offset(
    pair, manifest_of: Callable[[Path], Manifest]
) -> None:
    one, two = pair
    file = sorted((two / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    data[30000] ^= 1
    file.write_bytes(data)
    (difference,) = exact(one, two, manifest_of)
    assert difference.kind is Kind.CONTENT and difference.begin == 65536 + 30000
    record = difference.record
    assert record.offset <= difference.begin < record.offset + record.size
    assert record.topic in str(difference) and f"offset {record.queue_offset}" in str(difference)
    (coarse,) = compare_manifests(manifest_of(one), manifest_of(two))
    assert coarse.begin == 65536 < 65536 + 30000 < coarse.end


def test_a_difference_in_the_part_that_digests_leave_open(
    pair, manifest_of: Callable[[Path], Manifest]
) -> None:
    """The slave is shorter and differs before its end."""
    one, two = pair
    whole = manifest_of(two)
    file = sorted((two / "commitlog").iterdir())[-1]
    data = bytearray(file.read_bytes())
    cut = whole.facts["classic"]["last"]["offset"] - int(file.name)
    data[cut:] = bytes(len(data) - cut)
    data[cut - 200] ^= 1
    file.write_bytes(data)
    found = exact(one, two, manifest_of)
    assert (found[0].kind, found[0].begin) == (Kind.CONTENT, int(file.name) + cut - 200)
    assert Kind.END in kinds(found)


def test_stale_bytes_behind_the_end_are_no_difference(
    pair, manifest_of: Callable[[Path], Manifest]
) -> None:
    one, two = pair
    file = sorted((two / "commitlog").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    assert exact(one, two, manifest_of) == []


def test_before_and_after_a_switch(
    store_of: Callable[[str], Path], manifest_of: Callable[[Path], Manifest]
) -> None:
    before = manifest_of(store_of("B-master-slave-v497/master"))
    after = manifest_of(store_of("C-upgraded-v497/n0"))
    found = compare_manifests(before, after)
    assert kinds(found) == [Kind.DIVIDE, Kind.LOG, Kind.TABLE, Kind.TABLE]
    assert {d.log for d in found if d.kind is Kind.TABLE} == {
        "consumerOffset.json",
        "delayOffset.json",
    }


def test_an_older_begin_and_another_file_size(
    pair, store_of: Callable[[str], Path], manifest_of: Callable[[Path], Manifest]
) -> None:
    one, two = pair
    sorted((two / "commitlog").iterdir())[0].unlink()
    found = exact(one, two, manifest_of)
    assert kinds(found) == [Kind.BEGIN]
    assert (found[0].begin, found[0].end) == (0, 65536)


def test_a_changed_table(pair, manifest_of: Callable[[Path], Manifest]) -> None:
    one, two = pair
    path = two / "config/topics.json"
    path.write_text(path.read_text().replace('"perm":6', '"perm":4', 1))
    (difference,) = exact(one, two, manifest_of)
    assert (difference.kind, difference.log) == (Kind.TABLE, "topics.json")
