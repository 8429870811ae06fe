"""Tests of what audits learn about sealed files: with it, they find exactly what they find without.

The verdict is the manifest with all findings; only its age may differ.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from campaign.faults import KINDS, Fault, StoreFiles, copy_sparse
from campaign.meaning import FileKind
from campaign.stores import GROUPS, build_group
from harness.upgrade import GOLDEN_SIZES

from rmqpy.audit.checks.engine import AuditOptions, ThreadRunner
from rmqpy.audit.facts import learned as learned_module
from rmqpy.audit.facts.file_md5 import FilePart, FileSums
from rmqpy.audit.facts.learned import Learned, learned_folder, open_learned
from rmqpy.audit.facts.proof_age import ProofAge
from rmqpy.audit.replicas.compare import compare_manifests
from rmqpy.audit.replicas.manifest import Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.audit.scan.blocks import digest_of
from rmqpy.audit.scan.directory import read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.ranges import RangeResult, WorkRange
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem

JOINED = "C-upgraded-v497/n0"
NODES = ("A-classic-clean-v497", "A-classic-clean-v533", JOINED)
INDEXES = (FileKind.INDEX, FileKind.LEDGER_INDEX)


def later_ms() -> int:
    """Return a time at which files that were just written have settled."""
    return time.time_ns() // 1_000_000 + 10_000


class ReadFiles(ThreadRunner):
    """A runner that notes the log files that it reads."""

    def __init__(self) -> None:
        super().__init__(OsFileSystem(), 1)
        self.walked: set[str] = set()
        self.summed: set[str] = set()

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        works = list(ranges)
        self.walked |= {work.path for work in works}
        return super().run(works, plan)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        found = list(parts)
        self.summed |= {part.path for part in found}
        return super().md5s(found)


def taken(
    store: Path,
    learned: Learned | None,
    runner: ReadFiles | None = None,
    md5: Md5 = Md5.EVERY_FILE,
) -> tuple[Manifest, list[Finding]]:
    """Return the manifest of a store without its age, and all findings."""
    found: list[Finding] = []
    settings = StoreSettings(
        store_path_root_dir=str(store), store_path_commit_log=f"{store}/commitlog", **GOLDEN_SIZES
    )
    options = AuditOptions(
        root=str(store), settings=settings, workers=1, sink=found.extend, learned=learned
    )
    plan = ManifestPlan(name="n0", audit=options, now_ms=lambda: 7, md5=md5)
    manifest, _ = make_manifest(OsFileSystem(), plan, runner)
    return evolve(manifest, age=None), found


def opened(store: Path, *, full: bool = False) -> Learned:
    """Return what was learned about a store; from now on something is."""
    Path(learned_folder(str(store))).mkdir(parents=True, exist_ok=True)
    found = open_learned(OsFileSystem(), str(store), later_ms, full=full)
    assert found is not None
    return found


def sealed_in(store: Path) -> frozenset[str]:
    return sealed_files(OsFileSystem(), read_directory(OsFileSystem(), str(store)))


def entries(store: Path) -> list[Path]:
    return sorted(path for path in Path(learned_folder(str(store))).rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_sealed_files_are_read_once(copy_of: Callable[[str], Path], node: str) -> None:
    store = copy_of(node)
    whole = taken(store, None)
    assert taken(store, opened(store)) == whole
    again, runner = opened(store), ReadFiles()
    assert taken(store, again, runner) == whole
    logs = {path for path in sealed_in(store) if "/commitlog/" in path or "/data/" in path}
    assert logs
    assert not sealed_in(store) & (runner.walked | runner.summed)
    assert again.age.learned_bytes >= sum(os.path.getsize(path) for path in logs)
    assert again.age.oldest_ms > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GROUPS))
def test_the_verdict_with_faults_is_that_of_a_complete_audit(name: str, tmp_path: Path) -> None:
    """Faults before the first audit, and faults after it, whose files keep their times."""
    compare_with_faults(name, tmp_path, rounds=3)


def compare_with_faults(name: str, base: Path, rounds: int, seed: int = 0) -> None:
    """Compare audits of a store of group ``name`` with and without what was learned before.

    An older entry of an open index file may be changed without being noticed, but then the age says
    that such entries were not read, and a full audit finds it.
    """
    store = build_group(name, base / "group").stores["n0"]
    for path in store.rglob("*"):
        if path.is_file():
            copy = base / "pristine" / path.relative_to(store)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_sparse(path, copy)
    files = StoreFiles(store, base / "pristine")
    dice = random.Random(f"{name} {seed}")
    for number in range(rounds):
        shutil.rmtree(learned_folder(str(store)), ignore_errors=True)
        early = injected(files, dice) if number % 3 else None
        assert taken(store, opened(store), md5=Md5.OWN_FILES) == complete(store), early
        late = injected(files, dice)
        # The first audit with the fault uses entries and writes others, the second uses those.
        for _ in range(2):
            learned = opened(store)
            found = taken(store, learned, md5=Md5.OWN_FILES)
            if found != complete(store) and late is not None and late.file_kind in INDEXES:
                assert learned.age.grown_bytes > 0, (early, late)
                found = taken(store, opened(store, full=True), md5=Md5.OWN_FILES)
            assert found == complete(store), (early, late)
        files.restore()
        assert taken(store, opened(store), md5=Md5.OWN_FILES) == complete(store), "after a repair"


def complete(store: Path) -> tuple[Manifest, list[Finding]]:
    return taken(store, None, md5=Md5.OWN_FILES)


def injected(files: StoreFiles, dice: random.Random) -> Fault | None:
    while True:
        try:
            return files.inject(dice.choice(list(KINDS)), dice)
        except FileNotFoundError:
            continue  # The fault before it has removed the file.


def test_a_change_is_found_though_the_time_of_the_write_is_restored(
    copy_of: Callable[[str], Path],
) -> None:
    store = copy_of(JOINED)
    taken(store, opened(store))
    log = store / "commitlog" / "00000000000000000000"
    status = log.stat()
    with log.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    manifest, found = taken(store, opened(store))
    assert found and (manifest, found) == taken(store, None)


DAMAGES = ["bit", "length", "short", "empty", "version", "other file", "earlier format"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_entries_that_are_not_valid_are_not_used(
    copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    store = copy_of("A-classic-clean-v497")
    whole = taken(store, opened(store))
    first, second = [path for path in entries(store) if "commitlog" in path.parts][1::2][:2]
    assert first.suffix == second.suffix == ".known"
    log = str(store / first.relative_to(learned_folder(str(store))).with_suffix(""))
    parts = {entry["part"] for entry in opened(store).parts_of(log)}
    assert parts > {"walk"}
    raw = first.read_bytes()
    size_at = len(learned_module.HEADER) + 8
    changed = {
        "bit": raw[:-1] + bytes([raw[-1] ^ 1]),
        "length": raw[:size_at] + b"\xff" * 4 + raw[size_at + 4 :],
        "short": raw[: len(raw) - 1],
        "empty": b"",
        "other file": second.read_bytes(),
        "earlier format": raw.replace(b"rmqpy-learned 2", b"rmqpy-learned 1"),
    }
    if damage == "version":
        monkeypatch.setattr(learned_module, "VERSION", "another")
    else:
        first.write_bytes(changed[damage])
    again = opened(store)
    left = {part for part in parts if again.known(log, part) is not None}
    if damage in ("bit", "short"):
        assert len(left) == len(parts) - 1, "only the last part is damaged"
    else:
        assert not left
    assert taken(store, again) == whole
    assert {entry["part"] for entry in opened(store).parts_of(log)} == parts


def test_a_full_audit_reads_everything_and_names_wrong_entries(
    copy_of: Callable[[str], Path],
) -> None:
    store = copy_of("A-classic-clean-v497")
    whole = taken(store, opened(store))
    (entry,) = (
        path
        for path in entries(store)
        if path.name == "00000000000000000000.known" and "commitlog" in path.parts
    )
    log = store / "commitlog" / entry.stem
    writer = opened(store)
    value = writer.known(str(log), "walk")
    value["result"]["blocks"]["digest"] = "0" * 32
    value["result"]["blocks"]["checksum"] = digest_of(b"\1" * 16)
    identity = OsFileSystem().identity(str(log))
    writer.keep_walk(str(log), value, b"\1" * 16, identity)
    assert taken(store, opened(store)) != whole, "an entry is believed, not read again"
    thorough, runner = opened(store, full=True), ReadFiles()
    assert taken(store, thorough, runner) == whole
    assert sealed_in(store) <= runner.walked | runner.summed
    assert thorough.age.wrong == (f"commitlog/{entry.stem}",)
    assert thorough.age.learned_bytes == 0
    assert taken(store, opened(store)) == whole, "a full audit replaces wrong entries"


@pytest.mark.parametrize("damage", ["none", "bit", "missing"])
def test_block_digests_are_read_only_where_stores_differ(
    copy_of: Callable[[str], Path], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damaged or missing ones are computed again from the log."""
    stores = [copy_of("A-classic-clean-v497"), copy_of("A-classic-clean-v533")]
    whole = [taken(store, opened(store))[0] for store in stores]
    read: list[str] = []
    kept = Learned.blocks

    def noted(learned: Learned, path: str) -> bytes | None:
        read.append(path)
        return kept(learned, path)

    monkeypatch.setattr(Learned, "blocks", noted)
    one, again = (taken(stores[0], opened(stores[0]))[0] for _ in range(2))
    assert not compare_manifests(one, again) and not read
    blocks = next(path for path in entries(stores[0]) if path.suffix == ".blocks")
    if damage == "bit":
        blocks.write_bytes(blocks.read_bytes()[:-1] + b"?")
    elif damage == "missing":
        blocks.unlink()
    learned = opened(stores[0])
    one, other = taken(stores[0], learned)[0], taken(stores[1], opened(stores[1]))[0]
    before = learned.age.read_bytes
    assert compare_manifests(one, other) == compare_manifests(*whole)
    log = stores[0] / "commitlog" / blocks.stem
    assert read[0] == str(log)
    assert learned.age.read_bytes - before == (0 if damage == "none" else used_bytes(log))


def used_bytes(path: Path) -> int:
    """Return the size of a file without the hole at its end."""
    file = OsFileSystem().open_readonly(str(path))
    try:
        return file.data_end(0)
    finally:
        file.close()


def test_a_log_that_has_changed_meanwhile_is_not_compared(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    taken(store, opened(store))
    manifest = taken(store, opened(store))[0]
    blocks = next(path for path in entries(store) if path.suffix == ".blocks")
    blocks.unlink()
    with (store / "commitlog" / blocks.stem).open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    log = manifest.log("classic")
    assert log is not None
    with pytest.raises(RmqError, match=r"found block digests .*expected .*run the command again"):
        list(log.files[0].blocks)


def test_a_file_that_has_just_changed_is_read_again(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    changed_ms = [path.stat().st_ctime_ns // 1_000_000 for path in (store / "commitlog").iterdir()]
    Path(learned_folder(str(store))).mkdir(parents=True)
    early = Learned(OsFileSystem(), str(store), lambda: min(changed_ms))
    taken(store, early)
    learned = opened(store)
    folder = Path(learned_folder(str(store)))
    paths = [str(store / path.relative_to(folder).with_suffix("")) for path in entries(store)]
    kept = {entry["part"] for path in paths for entry in learned.parts_of(path)}
    assert early.unsettled and kept <= {"head"}, "nobody relies on the times of an open index"


def test_nothing_is_written_to_a_store_that_was_not_prepared(
    copy_of: Callable[[str], Path],
) -> None:
    store = copy_of("A-classic-clean-v497")
    assert open_learned(OsFileSystem(), str(store), later_ms) is None
    assert not Path(learned_folder(str(store))).exists()


def test_entries_of_files_that_are_gone_are_removed(copy_of: Callable[[str], Path]) -> None:
    store = copy_of("A-classic-clean-v497")
    taken(store, opened(store))
    first, *_, last = sorted((store / "commitlog").iterdir())
    first.unlink()
    earlier = Path(learned_folder(str(store))) / "commitlog" / f"{last.name}.range"
    earlier.write_bytes(b"of an earlier version of rmqpy")
    opened(store).forget_missing()
    assert entries(store) and not earlier.exists()
    assert not [path for path in entries(store) if path.match(f"commitlog/{first.name}.*")]


def test_a_manifest_says_how_old_its_parts_are(copy_of: Callable[[str], Path]) -> None:
    age = ProofAge(read_bytes=1, learned_bytes=2, oldest_ms=3, wrong=("commitlog/0",))
    manifest = evolve(taken(copy_of("A-classic-clean-v497"), None)[0], age=age)
    assert Manifest.decode(manifest.encode()).age == age


def test_a_sparse_copy_is_another_file(copy_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A copy of a store does not believe what was learned about the original."""
    store = copy_of("A-classic-clean-v497")
    taken(store, opened(store))
    copy = tmp_path / "copy"
    for path in store.rglob("*"):
        if path.is_file():
            target = copy / path.relative_to(store)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_sparse(path, target)
    runner = ReadFiles()
    taken(copy, opened(copy), runner)
    assert {path for path in sealed_in(copy) if "/commitlog/" in path} <= runner.walked
