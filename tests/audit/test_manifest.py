"""Tests of the manifest: its MD5 sums, its digests, and its JSON form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.audit import directory_of, manifest_of

from rmqpy.audit.replicas.manifest import Manifest, Md5
from rmqpy.audit.scan.log_bytes import LogBytes
from rmqpy.audit.scan.ranges import Ending, WorkRange, audit_range
from rmqpy.codec.layout import BLOCK_SIZE
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.framing import Framing


def test_derived_files_may_have_no_md5(store_of: Callable[[str], Path]) -> None:
    files = manifest_of(store_of("A-classic-clean-v497"), md5=Md5.OWN_FILES).files
    derived = {file.path for file in files if not file.md5}
    assert {path.partition("/")[0] for path in derived} == {"consumequeue", "index"}
    assert {file.path for file in files} - derived >= {"checkpoint", "config/topics.json"}


def test_md5_sums_are_those_of_the_golden_manifests(
    store_of: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    store = store_of("A-classic-clean-v497")
    files = manifest_of(store, md5=Md5.EVERY_FILE).files
    found = {file.path: (file.size, file.md5) for file in files}
    java = next(iter(manifest("A-classic-clean-v497")["files"].values()))
    for path, expected in java.items():
        if path.startswith(("commitlog", "consumequeue", "config", "checkpoint")):
            assert found[path] == (expected["size"], expected["md5"]), path


@pytest.mark.slow
def test_a_manifest_is_decoded_as_it_was_encoded(
    store_of: Callable[[str], Path], clean_node: str
) -> None:
    manifest = manifest_of(store_of(clean_node))
    assert Manifest.decode(manifest.encode()) == manifest


@pytest.mark.slow
def test_every_message_has_its_unit(store_of: Callable[[str], Path], told_node: str) -> None:
    for queue in manifest_of(store_of(told_node)).queues:
        assert queue.right_units == queue.count
        assert queue.max_offset - queue.min_offset == queue.count
        assert sum(bucket[1] for bucket in queue.buckets) == queue.count + queue.unqueued


def test_replicas_have_equal_digests(store_of: Callable[[str], Path]) -> None:
    """Master and slave differ only in index file names and delay offsets."""
    one = manifest_of(store_of("B-master-slave-v497/master"))
    two = manifest_of(store_of("B-master-slave-v497/slave"))
    assert one.logs == two.logs
    assert one.queues == two.queues
    assert {t.name for t, u in zip(one.tables, two.tables, strict=True) if t != u} <= {
        "delayOffset.json"
    }


@pytest.mark.slow
def test_bytes_after_the_end_are_not_in_the_digests(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("C-upgraded-v497/n0")
    before = manifest_of(store, md5=Md5.EVERY_FILE)
    file = sorted((store / "commitlog").iterdir())[-1]
    data = bytearray(file.read_bytes())
    data[-10:] = b"0123456789"
    file.write_bytes(data)
    after = manifest_of(store, md5=Md5.EVERY_FILE)
    assert after.logs == before.logs and after.queues == before.queues
    changed = {f.path for f, g in zip(before.files, after.files, strict=True) if f.md5 != g.md5}
    assert changed == {f"commitlog/{file.name}"}


def test_block_digests_cover_the_valid_prefix(store_of: Callable[[str], Path]) -> None:
    store = store_of("A-classic-clean-v497")
    (log,) = manifest_of(store).logs
    last = log.files[-1]
    data = (store / last.path).read_bytes()[: last.end - last.first_offset]
    assert list(last.blocks) == [hashlib.blake2b(data, digest_size=16).hexdigest()]
    assert log.end == 225556
    assert sum(group.count for file in log.files for group in file.blocks.groups) == 279


def test_every_row_of_files_has_its_own_name(store_of: Callable[[str], Path]) -> None:
    """What is known of a row is kept by its name."""
    directory = directory_of(store_of("C-upgraded-v497/n0"))
    names = [queue.segments.name for queue in directory.queues]
    assert len(set(names)) == len(names) > 10
    assert [log.name for log in directory.logs] == ["commitlog", "dledger-n0/data"]


def test_a_changed_file_does_not_fit_the_manifest(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("B-master-slave-v497/slave")
    manifest = manifest_of(store)
    assert manifest.fits(OsFileSystem(), str(store))
    file = sorted((store / "commitlog").iterdir())[0]
    file.touch()
    assert not manifest.fits(OsFileSystem(), str(store))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"kind":"other","format":1}',
        b'{"kind":"rmqpy-manifest","format":99}',
        b'{"kind":"rmqpy-manifest","format":1,"name":3}',
    ],
)
def test_an_invalid_manifest_is_refused(raw: bytes) -> None:
    with pytest.raises(RmqError, match="manifest"):
        Manifest.decode(raw)


def test_a_manifest_contains_the_facts_of_the_store(store_of: Callable[[str], Path]) -> None:
    manifest = manifest_of(store_of("C-upgraded-v497/n0"))
    assert manifest.facts["classic"]["tail"] == "blank"
    assert json.loads(manifest.encode())["divided_offset"] == 262144


def test_the_blocks_of_a_hole_are_not_digested() -> None:
    """The last file of a log is mostly a hole, and reading a hole takes memory of its size."""
    data = LogBytes(memoryview(bytes(4 * BLOCK_SIZE)), 0)
    work = WorkRange(
        log="commitlog",
        framing=Framing.CLASSIC,
        path="/s/commitlog/0",
        file="commitlog/0",
        first_offset=0,
        file_size=4 * BLOCK_SIZE,
        start=BLOCK_SIZE,
        stop=4 * BLOCK_SIZE,
    )
    plan = TallyPlan(dledger=False, blocks=True)
    after_the_data = audit_range(data, work, plan)
    assert (after_the_data.begin, after_the_data.blocks.count) == (-1, 0)
    walked_again = audit_range(data, work, plan, BLOCK_SIZE)
    assert (walked_again.begin, walked_again.ending) == (BLOCK_SIZE, Ending.ZEROS)
