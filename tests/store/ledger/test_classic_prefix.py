"""What a member says of the old log in front of its divide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.checks.engine import AuditOptions
from rmqpy.audit.replicas.manifest import ManifestPlan, make_manifest
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.mapped_files import MappedFiles
from rmqpy.store.ledger.classic_prefix import (
    ClassicPrefix,
    ClassicPrefixMark,
    digest_of_blocks,
    forget_old_log_mark,
    open_old_log,
)
from rmqpy.testing.memory_files import MemoryFiles

FILE_SIZE = 65536


def marked(files: MemoryFiles, root: str, divided: int = 262144) -> ClassicPrefixMark:
    return opened(files, root, divided).mark


def opened(files: MemoryFiles, root: str, divided: int = 262144) -> ClassicPrefix:
    row = MappedFiles(files, (f"{root}/commitlog",), FILE_SIZE)
    row.load("mappedFileSizeCommitLog")
    found = open_old_log(files, row, divided, f"{root}/rmqpy")
    row.close()
    return found


def loaded(folder: Path, root: str) -> MemoryFiles:
    files = MemoryFiles()
    for path in sorted((folder / "commitlog").iterdir()):
        files.put(f"{root}/commitlog/{path.name}", path.read_bytes())
    return files


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_members_with_the_same_divide_and_fewer_messages_differ(
    node: str, golden: Callable[[str], Path]
) -> None:
    store = golden("X-gap_same_file-v497")
    whole = marked(loaded(store / "n0", "/s"), "/s")
    short = marked(loaded(store / node, "/s"), "/s")
    assert (whole.end, short.end) == (224528, 222613)
    assert whole.digest != short.digest


def test_members_by_the_book_say_the_same(golden: Callable[[str], Path]) -> None:
    store = golden("C-upgraded-v497")
    marks = {marked(loaded(store / node, "/s"), "/s") for node in ("n0", "n1", "n2")}
    assert len(marks) == 1


def test_the_mark_outlives_the_files(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    mark = marked(files, "/s")
    for path in [path for path in files.nodes if "/commitlog/" in path]:
        files.unlink(path)
        assert marked(files, "/s") == mark
    forget_old_log_mark(files, "/s/rmqpy")
    assert marked(files, "/s") == ClassicPrefixMark()


def test_a_file_that_was_written_to_is_marked_anew(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    mark = marked(files, "/s")
    files.now_ms = 77
    file = files.open("/s/commitlog/00000000000000196608")
    file.write(100, b"\xff")
    again = marked(files, "/s")
    assert again.digest != mark.digest
    files.nodes["/s/rmqpy/old_log.json"].data[:] = b"{" * len(
        files.nodes["/s/rmqpy/old_log.json"].data
    )
    assert marked(files, "/s") == again


def read_all(old_log: ClassicPrefix) -> int:
    count = 0
    while (work := old_log.next_digest_task()) is not None:
        old_log.take(work())
        count += 1
    return count


def test_the_rest_is_read_later_and_kept(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    assert old_log.mark.digest.count(",") == 1, "two files before the first vote"
    assert read_all(old_log) == 2
    whole = old_log.mark
    assert whole.digest.count(",") == 3
    again = opened(files, "/s")
    assert again.mark == whole and again.next_digest_task() is None, "kept"
    files.unlink("/s/commitlog/00000000000000000000")
    expired = opened(files, "/s")
    assert expired.mark == whole and expired.next_digest_task() is None
    files.unlink("/s/rmqpy/old_log.json")
    shorter = opened(files, "/s")
    assert read_all(shorter) == 1
    assert whole.digest.startswith(shorter.mark.digest)


def test_a_file_that_goes_while_it_waits_ends_the_mark(golden: Callable[[str], Path]) -> None:
    files = loaded(golden("C-upgraded-v497") / "n0", "/s")
    old_log = opened(files, "/s")
    old_log.take(None)
    assert old_log.next_digest_task() is None and old_log.mark.digest.count(",") == 1


@pytest.mark.slow
def test_a_manifest_says_the_same(golden: Callable[[str], Path]) -> None:
    store = golden("C-upgraded-v497") / "n0"
    old_log = opened(loaded(store, "/s"), "/s")
    read_all(old_log)
    audit = AuditOptions(root=str(store))
    manifest, _ = make_manifest(
        OsFileSystem(), ManifestPlan(name="n0", audit=audit, now_ms=lambda: 0)
    )
    log = manifest.log("classic")
    assert log is not None and log.files[-1].end == old_log.mark.end
    blocks = [digest_of_blocks(file.blocks) for file in reversed(log.files)]
    assert ",".join(blocks) == old_log.mark.digest
