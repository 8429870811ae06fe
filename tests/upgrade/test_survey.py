"""Surveys of other hosts: what they contain, and what is requested afterwards."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from harness.mapped_reads import watch_mapped_reads

from rmqpy.audit.replicas.compare import DifferenceKind, compare_manifests
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.log_comparison import Relation, compare_logs
from rmqpy.upgrade.checks.replica import LinkedReplica, LocalReplica
from rmqpy.upgrade.checks.requests import ReplicaRequests
from rmqpy.upgrade.plan.node_context import (
    ABSENT,
    CHUNK,
    content_digest,
    is_tree,
    range_digest,
    tree_digest,
)
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan

DATA = Path(__file__).parent / "data"
FILES = [f"commitlog/{number * 65536:020d}" for number in range(6)]


def local(root: Path) -> LocalReplica:
    plan = SurveyPlan(name=root.name, root=os.fspath(root), now_ms=lambda: 7)
    return LocalReplica(OsFileSystem(), plan)


def linked(root: Path, asked: list[tuple[str, object]]) -> LinkedReplica:
    """Return a replica of another host, which notes in ``asked`` what is requested of it."""
    requests = ReplicaRequests(local(root))

    def fetch(what: str, query: Mapping[str, object]) -> bytes:
        asked.append((what, query.get("path")))
        return requests.answer(what, {name: str(value) for name, value in query.items()})

    return LinkedReplica(root.name, "ssh://far", fetch=fetch)


@pytest.fixture
def pair(golden_copy: Callable[[str], Path]) -> tuple[Path, Path]:
    """Return a store, and an equal one."""
    root = golden_copy("B-lagging-slave-v497")
    shutil.copytree(root / "master", root / "copy")
    return root / "master", root / "copy"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_the_digests_of_equal_logs_do_not_travel(pair: tuple[Path, Path]) -> None:
    asked: list[tuple[str, object]] = []
    mine, theirs = local(pair[0]), linked(pair[1], asked)
    assert compare_logs(mine, theirs).relation is Relation.EQUAL
    assert [what for what, _ in asked] == ["survey"]
    first = mine.survey().manifest.logs[0].files[0].blocks
    assert first[0].encode() not in mine.survey().encode(), "the digest of a block"
    assert first.digest.encode() in mine.survey().encode(), "the digest of the file"


def test_a_file_that_one_log_lacks_is_a_divergence(pair: tuple[Path, Path]) -> None:
    (pair[1] / FILES[1]).unlink()
    for one, two in (pair, pair[::-1]):
        found = compare_logs(local(one), local(two))
        assert found.relation is Relation.DIVERGED
        assert found.common_end <= found.difference <= 65536


def test_only_the_digests_of_a_file_that_differs_travel(pair: tuple[Path, Path]) -> None:
    flip(pair[1] / FILES[1], 1000)
    asked: list[tuple[str, object]] = []
    found = compare_logs(local(pair[0]), linked(pair[1], asked))
    assert (found.relation, found.difference) == (Relation.DIVERGED, 65536 + 1000)
    assert [path for what, path in asked if what == "blocks"] == [FILES[1]]


def test_digests_of_a_log_that_has_changed_since_are_refused(pair: tuple[Path, Path]) -> None:
    flip(pair[1] / FILES[1], 1000)
    theirs = linked(pair[1], [])
    theirs.survey()
    requests = ReplicaRequests(local(pair[1]))
    flip(pair[1] / FILES[1], 2000)
    theirs.fetch = lambda what, query: requests.answer(what, {"path": str(query["path"])})
    with pytest.raises(RmqError, match="the log has changed since it was read"):
        compare_logs(local(pair[0]), theirs)


@pytest.mark.parametrize("path", ["../copy.conf", "consumequeue", "", "/etc/passwd"])
def test_digests_are_those_of_log_files_only(pair: tuple[Path, Path], path: str) -> None:
    with pytest.raises(ValueError, match="is not a file of the log"):
        ReplicaRequests(local(pair[1])).answer("blocks", {"path": path})


def test_a_survey_of_format_2_is_read(golden_copy: Callable[[str], Path]) -> None:
    """It was taken by the code before format 3, and has all digests as text."""
    root = golden_copy("B-lagging-slave-v497")
    raw = lzma.decompress((DATA / "survey-format-2.json.xz").read_bytes())
    earlier, now = Survey.decode(raw), local(root / "slave").survey()
    assert earlier.manifest.logs == now.manifest.logs
    assert earlier.manifest.queues == now.manifest.queues
    assert earlier.manifest.log("classic") is not None
    asked: list[tuple[str, object]] = []
    theirs = linked(root / "slave", asked)
    theirs.fetch = lambda what, query: raw
    assert theirs.survey().manifest.logs == now.manifest.logs


@pytest.mark.parametrize(
    "changes",
    [
        {"count": -1},
        {"count": 1 << 40},
        {"count": "1"},
        {"packed": "%"},
        {"packed": ""},
        {"checksum": None},
        None,
        "blocks",
    ],
)
def test_digests_that_do_not_fit_are_refused(
    pair: tuple[Path, Path], changes: dict[str, object] | str | None
) -> None:
    manifest = local(pair[0]).survey().manifest
    tree = json.loads(manifest.encode())
    place = tree["logs"][0]["files"][0]
    place["blocks"] = {**place["blocks"], **changes} if isinstance(changes, dict) else changes
    with pytest.raises(RmqError):
        next(iter(Manifest.decode(json.dumps(tree).encode()).logs[0].files[0].blocks))


def test_a_manifest_without_single_digests_tells_which_file_differs(
    pair: tuple[Path, Path],
) -> None:
    raw = local(pair[0]).survey().manifest.encode(blocks=False)
    before = Manifest.decode(raw)
    assert len(raw) < len(local(pair[0]).survey().manifest.encode())
    assert Manifest.decode(before.encode()).logs == before.logs
    assert compare_manifests(before, local(pair[1]).survey().manifest) == []
    flip(pair[1] / FILES[1], 1000)
    found = compare_manifests(before, local(pair[1]).survey().manifest)
    contents = [each for each in found if each.kind is DifferenceKind.CONTENT]
    assert [each.begin for each in contents] == [65536]


def test_the_hole_at_the_end_of_a_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a hole takes memory of its size: the last file of a log is a gigabyte of it."""
    path = tmp_path / "file"
    content = b"message" * 100
    with path.open("wb") as file:
        file.write(content)
        file.truncate(3 * CHUNK)
    expected = hashlib.md5(path.read_bytes()).hexdigest()
    ends = watch_mapped_reads(monkeypatch)
    assert range_digest(OsFileSystem(), os.fspath(path)) == expected
    assert range_digest(OsFileSystem(), os.fspath(path), 0, len(content)) == (
        hashlib.md5(content).hexdigest()
    )
    assert ends and max(ends) <= CHUNK


@pytest.mark.parametrize("count", [0, 1, 20, 65536, 65537, 300_000])
def test_a_digest_of_content_depends_on_all_but_the_zeros_at_the_end(
    count: int, tmp_path: Path
) -> None:
    written, sparse = (tmp_path / name for name in ("written", "sparse"))
    content = b"\0" * (count // 2) + b"unit" * (count // 8) + b"\1" * bool(count)
    written.write_bytes(content + bytes(400_000 - len(content)))
    with sparse.open("wb") as file:
        file.write(content)
        file.truncate(400_000)

    def digest(path: Path) -> str:
        return content_digest(OsFileSystem(), os.fspath(path))

    expected = f"400000 {hashlib.md5(content).hexdigest()}"
    assert digest(written) == digest(sparse) == expected
    for place in {max(len(content) - 1, 0), len(content), 399_999}:
        data = bytearray(written.read_bytes())
        data[place] ^= 2
        sparse.write_bytes(data)
        assert digest(sparse) != expected
    sparse.write_bytes(content)
    assert digest(sparse) == f"{len(content)} {hashlib.md5(content).hexdigest()}"


def test_a_folder_is_known_by_the_digest_of_an_earlier_version(tmp_path: Path) -> None:
    files, root = OsFileSystem(), os.fspath(tmp_path)
    (tmp_path / "T/0").mkdir(parents=True)
    content = b"unit" + bytes(36)
    (tmp_path / "T/0/00000000000000000000").write_bytes(content)
    row = f"/T/0/{0:020d} 40 {hashlib.md5(content).hexdigest()}"
    earlier = hashlib.md5(row.encode()).hexdigest()
    assert is_tree(files, root, earlier) and is_tree(files, root, tree_digest(files, root))
    (tmp_path / "T/0/00000000000000000000").write_bytes(b"\1" + content[1:])
    assert not is_tree(files, root, earlier)
    assert is_tree(files, f"{root}/none", ABSENT) and not is_tree(files, f"{root}/none", earlier)
