"""Tests of ``rmqpy upgrade prepare``: it changes no answer, and can be interrupted and removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from harness.cli import start_process, write_broker_conf
from harness.store import StoreRig
from harness.upgrade import (
    GOLDEN_SIZES,
    MakeUpgradeRig,
    RunUpgrade,
    index_entries,
    log_of,
    memory_context,
    small_group,
    tree_of,
    write_confs,
)

from rmqpy.audit.facts.learned import COARSE_SETTLED_NS, Learned, learned_folder, open_learned
from rmqpy.cli.upgrade.group.outcome import rows_by_name
from rmqpy.store.files.disk import DiskFile, OsFileSystem
from rmqpy.testing.ports import free_port_block
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.pace import Pace
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.prepare import ATTEMPTS_MAX, prepare, prepare_all
from rmqpy.upgrade.steps.plan_context import PlanContext

GROUP = "n0 n1 n2 -c n0=n0.conf -c n1=n1.conf -c n2=n2.conf"


@define
class Clock:
    """A clock that only sleeping advances."""

    now_s: float = 1000.0
    slept: list[float] = field(factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def pace_of(clock: Clock, bytes_per_second: float = 0) -> Pace:
    return Pace(bytes_per_second, lambda: clock.now_s, clock.sleep)


def far_future() -> int:
    return 4_000_000_000_000


def replica_of(root: Path, files: OsFileSystem | None = None) -> LocalReplica:
    plan = SurveyPlan(name="n0", root=str(root), now_ms=far_future)
    return LocalReplica(files or OsFileSystem(), plan)


def forecast_of(run: RunUpgrade, line: str) -> dict[str, Any]:
    """Run ``prepare --dry-run``, check that it changes nothing, and return what it says."""
    before = {path: path.lstat().st_ctime_ns for path in Path.cwd().rglob("*")}
    code, out, text = run(f"prepare {line} --dry-run --format json")
    assert code == 0, text
    assert {path: path.lstat().st_ctime_ns for path in Path.cwd().rglob("*")} == before
    return rows_by_name(json.loads(out))


def entries(root: Path) -> set[Path]:
    return {path for path in Path(learned_folder(str(root))).rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_answers_of_all_verbs_stay_the_same(lagging: Path, run: RunUpgrade) -> None:
    verbs = (
        f"check {GROUP} --format json",
        "plan n0 n1 -c n0=n0.conf -c n1=n1.conf --format json",
        "manifest n0 -c n0.conf --format json",
        "verify n0 n1 -c n0=n0.conf -c n1=n1.conf --format json",
    )
    before = [run(verb) for verb in verbs]
    code, out, _ = run(f"prepare {GROUP} --rate 0")
    assert code == 0
    known = dict(re.findall(r"^(n\d): ([\d.]+ \w+) are known", out, re.MULTILINE))
    assert known.keys() == {"n0", "n1", "n2"}
    assert not known["n0"].startswith("0 ")
    assert known["n2"] == "0 B"
    for verb, expected in zip(verbs, before, strict=True):
        for option in ("", " --full"):
            answer = run(verb + option)
            assert answer[0] == expected[0]
            assert timeless(json.loads(answer[1])) == timeless(json.loads(expected[1])), verb


def timeless(value: Any) -> Any:
    """Return an answer without its times, the age of its evidence, and the drawing of both."""
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if not isinstance(value, dict):
        return value
    left_out = ("age", "ages", "made_ms", "map", "taken_ms", "created_ms", "space")
    return {name: timeless(each) for name, each in value.items() if name not in left_out}


def test_reports_say_how_old_their_evidence_is(classic: Path, run: RunUpgrade) -> None:
    run("prepare n0 --rate 0")
    for verb in ("check n0", "verify n0 n1"):
        _, out, _ = run(verb)
        assert re.search(r"read now .* learned earlier .*, the oldest part \d+ s ago", out), out
        assert "learned earlier" not in run(f"{verb} --full")[1]


def test_clear_removes_what_was_learned(classic: Path, run: RunUpgrade) -> None:
    before = tree_of(classic / "n0")
    run("prepare n0 --rate 0")
    assert entries(classic / "n0")
    assert tree_of(classic / "n0") == before
    code, out, _ = run("prepare n0 --clear")
    assert (code, out) == (0, "n0: nothing is known\n")
    assert not Path(learned_folder(str(classic / "n0"))).exists()


def test_an_interrupted_preparation_continues(classic: Path) -> None:
    class KilledError(Exception):
        pass

    def killed(seconds: float) -> None:
        if len(entries(classic / "n0")) >= 2:
            raise KilledError

    with pytest.raises(KilledError):
        prepare(replica_of(classic / "n0"), Pace(1 << 30, lambda: 0.0, killed))
    known = facts(classic / "n0")
    assert known
    found = prepare(replica_of(classic / "n0"), pace_of(Clock()))
    assert found.learned_bytes > 0
    now = facts(classic / "n0")
    assert {each: now[each] for each in known} == known, "nothing was learned twice"
    assert now.keys() > known.keys()


def facts(root: Path) -> dict[tuple[str, str], int]:
    """Return when each part of what is known of a store was learned."""
    learned = open_learned(OsFileSystem(), str(root), lambda: 0)
    assert learned is not None
    folder = Path(learned_folder(str(root)))
    paths = {str(root / path.relative_to(folder).with_suffix("")) for path in entries(root)}
    found = [part for path in paths for part in learned.parts_of(path)]
    return {(each["path"], each["part"]): each["ms"] for each in found}


def test_files_are_read_at_the_given_rate(classic: Path) -> None:
    clock = Clock()
    size = sum(path.stat().st_size for path in (classic / "n0/commitlog").iterdir())
    prepare(replica_of(classic / "n0"), pace_of(clock, size / 100))
    assert sum(clock.slept) == pytest.approx(100, rel=0.02)


class Expiring(OsFileSystem):
    """Files of which the first expires when it is about to be read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def open_readonly(self, path: str) -> DiskFile:
        if path == str(self.path):
            self.path.unlink(missing_ok=True)
        return super().open_readonly(path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("leave", [False, True])
def test_what_was_read_of_a_log_takes_no_memory(tmp_path: Path, *, leave: bool) -> None:
    """The pages of mapped files count as memory of the process, for a cgroup and for ``ps``."""
    size, files = 4 << 20, OsFileSystem()
    changes = {**GOLDEN_SIZES, "mapped_file_size_commit_log": size}
    rig = StoreRig(files, str(tmp_path / "n0"), flag=leave, changes=changes)
    rig.write(*range(23), body=bytes([7]) * (1 << 20))
    rigs = [rig] if leave else [rig, StoreRig(files, str(tmp_path / "n1"), changes=changes)]
    (tmp_path / "n1").mkdir()
    clock = Clock()
    seen = [mapped_bytes()]

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        seen.append(mapped_bytes())

    settings = {Path(each.root).name: each.settings() for each in rigs}
    plans = [
        SurveyPlan(name=name, root=each.store_path_root_dir, settings=each, now_ms=far_future)
        for name, each in settings.items()
    ]
    context = PlanContext(
        group=Group(tuple(LocalReplica(files, plan) for plan in plans)),
        files=files,
        settings=settings,
    )
    pace = Pace(1 << 40, lambda: clock.now_s, sleep)
    *_, last = prepare_all(context, lambda: pace, leave=leave)
    assert (last.twin_bytes if leave else last.staged_bytes) >= 5 * size
    assert max(seen) - seen[0] < 3 * size


def mapped_bytes() -> int:
    found = re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def test_files_may_expire_meanwhile(classic: Path) -> None:
    first = classic / "n0/commitlog/00000000000000000000"
    found = prepare(replica_of(classic / "n0", Expiring(first)), pace_of(Clock()))
    assert not first.exists()
    assert found.learned_bytes > 0
    assert not [path for path in entries(classic / "n0") if path.name.startswith(first.name + ".")]


class Vanishing(OsFileSystem):
    """Files that disappear whenever they are read."""

    def open_readonly(self, path: str) -> DiskFile:
        raise FileNotFoundError(path)


def test_files_that_always_disappear_are_an_error(classic: Path) -> None:
    with pytest.raises(Exception, match=f"each of {ATTEMPTS_MAX} attempts"):
        prepare(replica_of(classic / "n0", Vanishing()), pace_of(Clock()))


@pytest.fixture
def broker(classic: Path, tmp_path: Path) -> Iterator[Path]:
    """Start a broker on the store n0, and return the directory."""
    store = classic / "n0"
    sizes = {
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "mappedFileSizeConsumeQueue": str(GOLDEN_SIZES["mapped_file_size_consume_queue"]),
        "maxHashSlotNum": str(GOLDEN_SIZES["max_hash_slot_num"]),
        "maxIndexNum": str(GOLDEN_SIZES["max_index_num"]),
        "fileReservedTime": "1000000",
    }
    ports = free_port_block(4)
    conf = write_broker_conf(tmp_path, ports.broker_port, **sizes)
    process = start_process(["broker", "-c", str(conf)])
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, (line, process.communicate())
        yield store
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_a_broker_may_run(broker: Path, run: RunUpgrade) -> None:
    sealed = sorted(broker.glob("commitlog/*"))[:-2]
    before = [path.stat().st_mtime_ns for path in sealed]
    assert before and (broker / "abort").exists()
    code, out, text = run(f"prepare {broker} --rate 0")
    assert code == 0, text
    assert not out.startswith(f"{broker.name}: 0 B")
    assert [path.stat().st_mtime_ns for path in sealed] == before
    assert (broker / "abort").exists()


def test_a_directory_that_cannot_be_written_is_read_as_ever(
    classic: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare n0 --rate 0")
    before = run("check n0")
    log = classic / "n0/commitlog/00000000000000000000"
    os.utime(log)

    def refused(files: OsFileSystem, path: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(OsFileSystem, "replace_bytes", refused)
    assert run("check n0")[0] == before[0]


def filled_member(root: Path, run: RunUpgrade) -> dict[str, tuple[bytes, int]]:
    """Plan and apply the alignment of n1 and n2, and return the content of n2."""
    assert run(f"plan {GROUP} --out {root}/plan.json")[0] == 0
    for node in ("n1", "n2"):
        code, _, text = run(f"apply {GROUP} --plan {root}/plan.json --node {node}")
        assert code == 0, text
    return tree_of(root / "n2")


def without_index(tree: dict[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    return {name: each for name, each in tree.items() if not name.startswith("index/")}


def indexed(tree: dict[str, tuple[bytes, int]]) -> list[tuple[int, int]]:
    index = {name: each[0] for name, each in tree.items() if name.startswith("index/")}
    return index_entries(index, GOLDEN_SIZES["max_hash_slot_num"])


@pytest.mark.slow
def test_a_member_is_filled_from_its_stage(
    lagging: Path, tmp_path: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lagging, tmp_path / "other", symlinks=True)
    expected = filled_member(lagging, run)
    other = tmp_path / "other"
    write_confs(other)
    monkeypatch.chdir(other)
    code, out, _ = run(f"prepare {GROUP} --rate 0")
    assert code == 0
    assert re.search(r"n2: [\d.]+ KiB of files that it lacks are ready", out)
    read: list[str] = []
    reading = LocalReplica.read

    def noted(replica: LocalReplica, path: str, start: int, end: int) -> bytes:
        if end - start == GOLDEN_SIZES["mapped_file_size_commit_log"]:
            read.append(path)
        return reading(replica, path, start, end)

    monkeypatch.setattr(LocalReplica, "read", noted)
    found = filled_member(other, run)
    sealed = sorted(path.name for path in (other / "n0/commitlog").iterdir())[:-1]
    assert not [path for path in read if path.rpartition("/")[2] in sealed]
    assert {name: each[0] for name, each in without_index(found).items()} == {
        name: each[0] for name, each in without_index(expected).items()
    }
    assert indexed(found) == indexed(expected) != []
    assert {name: each[1] for name, each in found.items() if "commitlog" in name} == {
        name: each[1] for name, each in expected.items() if "commitlog" in name
    }
    assert run("verify n0 n2")[0] == 0
    known = opened_learned(other / "n2")
    assert all(known.known_md5(str(other / "n2/commitlog" / name)) for name in sealed)
    assert run("rollback n2")[0] == 0
    assert tree_of(other / "n2").keys() <= {"lock"}


@pytest.mark.slow
def test_a_file_on_the_stage_that_has_changed_is_not_used(lagging: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0")
    (staged,) = sorted((lagging / "n2/rmqpy/upgrade/stage/log").iterdir())[:1]
    with staged.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    filled_member(lagging, run)
    assert log_of(lagging / "n2") == log_of(lagging / "n0")
    assert run("verify n0 n2")[0] == 0


@pytest.mark.slow
def test_a_plan_whose_stage_is_gone_is_refused(lagging: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0")
    assert run(f"plan {GROUP} --out plan.json")[0] == 0
    assert run("prepare n2 -c n2.conf --clear")[0] == 0
    code, _, text = run(f"apply {GROUP} --plan plan.json --node n2")
    assert code == 2
    assert "plan again" in text
    assert tree_of(lagging / "n2").keys() <= {"lock"}


@pytest.mark.slow
def test_nothing_is_staged_for_a_member_that_differs(lagging: Path, run: RunUpgrade) -> None:
    first = sorted((lagging / "n1/commitlog").iterdir())[0]
    with first.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    run(f"prepare {GROUP} --rate 0")
    assert not list((lagging / "n1").glob("rmqpy/upgrade/stage/log/*"))


def opened_learned(root: Path) -> Learned:
    return Learned(OsFileSystem(), str(root), lambda: 4_000_000_000_000)


ROLES = "--role n0=ASYNC_MASTER --role n1=SLAVE --role n2=SLAVE"


def content_of(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return logs and queues with the times of the logs, and the index without its names."""
    found: dict[str, tuple[bytes, int]] = {}
    for name, (data, mtime_ms) in sorted(tree_of(root).items()):
        if name.startswith("index/"):
            name = f"index/{sum(each.startswith('index/') for each in found)}"
            data = data[16:]  # The header's times are those of the entries; the rest is compared.
        if name != "lock":
            found[name] = data, mtime_ms if name.startswith("commitlog/") else 0
    return found


@pytest.mark.slow
def test_leaving_with_twins_gives_the_same_stores(
    joined: Path, tmp_path: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(joined, other, symlinks=True)
    assert run(f"leave {GROUP} {ROLES} --apply")[0] == 0
    monkeypatch.chdir(other)
    for conf in other.glob("*.conf"):
        conf.write_text(conf.read_text().replace(str(joined), str(other)))
    before = {name: content_of(other / name) for name in ("n0", "n1", "n2")}
    code, out, text = run(f"prepare {GROUP} --rate 0 --leave")
    assert code == 0, text
    assert len(re.findall(r"of DLedger files are ready", out)) == 3
    assert {name: content_of(other / name) for name in before} == before
    ops = json.loads(run(f"leave {GROUP} {ROLES} --format json")[1])["nodes"][0]["ops"]
    kinds = [each["op"] for each in ops]
    twins = [each for each in ops if each["op"] == "move" and each.get("after")]
    assert twins and kinds.count("reframe") == 1, "only the open file is rewritten"
    (derive,) = (each for each in ops if each["op"] == "derive")
    assert "/stage/twins-derived/" in derive["queues"]
    assert run(f"leave {GROUP} {ROLES} --apply")[0] == 0
    for name in before:
        assert without_index(content_of(other / name)) == without_index(content_of(joined / name))
        assert indexed(tree_of(other / name)) == indexed(tree_of(joined / name)) != []
    for name in before:
        assert run(f"rollback {name}")[0] == 0
    assert {name: content_of(other / name) for name in before} == before
    # The twins are on the stage again.
    assert run(f"leave {GROUP} {ROLES} --apply")[0] == 0
    for name in before:
        assert without_index(content_of(other / name)) == without_index(content_of(joined / name))
        assert indexed(tree_of(other / name)) == indexed(tree_of(joined / name)) != []


@pytest.mark.slow
def test_a_twin_of_a_file_that_has_changed_is_not_used(joined: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0 --leave")
    for path in sorted((joined / "n0/rmqpy/upgrade/stage/twins").iterdir()):
        with path.open("r+b") as file:
            file.seek(300)
            file.write(b"\xff")
    ops = json.loads(run(f"leave {GROUP} {ROLES} --format json")[1])["nodes"][0]["ops"]
    assert not [each for each in ops if each["op"] == "move" and each.get("after")]
    assert all("stage" not in each.get("queues", "") for each in ops)


@pytest.mark.slow
def test_a_twin_that_changes_after_the_plan_is_refused(joined: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0 --leave")
    before = content_of(joined / "n0")
    assert run(f"leave {GROUP} {ROLES} --out plan.json")[0] == 0
    path = sorted((joined / "n0/rmqpy/upgrade/stage/twins").iterdir())[0]
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff")
    code, _, text = run(f"apply {GROUP} --plan plan.json --node n0")
    assert code == 2
    assert "plan again" in text
    assert content_of(joined / "n0") == before


def inodes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_ino
        for path in folder.rglob("*")
        if path.is_file()
    }


def sealed_below(folder: Path) -> dict[str, int]:
    """Return the inodes of the files to which nothing is added: of queues all but the last."""
    found = inodes(folder)
    last = {name.rpartition("/")[0]: name for name in sorted(found) if name[:6] != "index/"}
    return {name: inode for name, inode in found.items() if name not in last.values()}


def check_moved(staged: dict[str, int], store: Path) -> None:
    """Check that staged queues and index have become those of the store, and are known."""
    assert staged
    assert staged.items() <= inodes(store).items(), "moved, not copied"
    known = opened_learned(store)
    for name in staged:
        part = "units" if name.startswith("consumequeue/") else "index"
        assert known.known(str(store / name), part) is not None, name


@pytest.mark.slow
def test_queues_and_index_are_moved_from_the_stage_and_back(joined: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0 --leave")
    stage = joined / "n0/rmqpy/upgrade/stage/twins-derived"
    staged = sealed_below(stage)
    before = {name: path for name, path in inodes(stage).items() if name != "finished"}
    assert run(f"leave {GROUP} {ROLES} --apply")[0] == 0
    check_moved(staged, joined / "n0")
    assert run("rollback n0")[0] == 0
    assert before.items() <= inodes(stage).items()


@pytest.mark.slow
def test_an_empty_member_gets_queues_and_index_from_its_stage(
    lagging: Path, run: RunUpgrade
) -> None:
    run(f"prepare {GROUP} --rate 0")
    staged = sealed_below(lagging / "n2/rmqpy/upgrade/stage/log-derived")
    filled_member(lagging, run)
    check_moved(staged, lagging / "n2")


@pytest.mark.slow
def test_a_stage_of_other_sizes_is_not_used(lagging: Path, run: RunUpgrade) -> None:
    """The configuration of the empty member is corrected after the preparation."""
    conf = lagging / "n2.conf"
    right = conf.read_text()
    conf.write_text(right + "maxIndexNum=50\n")
    assert run(f"prepare {GROUP} --rate 0")[0] == 0
    staged = inodes(lagging / "n2/rmqpy/upgrade/stage/log-derived")
    assert any(name.startswith("index/") for name in staged)
    conf.write_text(right)
    filled_member(lagging, run)
    for folder in ("consumequeue", "index"):
        assert not {*staged.values()} & {*inodes(lagging / "n2" / folder).values()}
    assert run("verify n0 n2")[0] == 0


def wait_until_settled(folder: Path) -> None:
    """Wait until the files below ``folder`` are old enough for something to be learned of them."""
    newest_ns = max(path.stat().st_ctime_ns for path in folder.rglob("*"))
    while time.time_ns() < newest_ns + COARSE_SETTLED_NS:
        time.sleep(0.05)


@pytest.mark.slow
def test_a_dry_run_says_what_preparing_does(lagging: Path, run: RunUpgrade) -> None:
    wait_until_settled(lagging)
    found = forecast_of(run, f"{GROUP} --rate 1")
    assert found["n2"]["staged"] > found["n1"]["staged"] >= 0
    assert found["n2"]["derived"] > 0 and found["n1"]["derived"] == 0
    assert found["n0"]["read"] > 0 and found["n0"]["known"] == 0
    assert found["n0"]["seconds"] == found["n0"]["paced"] / (1 << 20)
    done = rows_by_name(json.loads(run(f"prepare {GROUP} --rate 0 --format json")[1]))
    for name, each in found.items():
        assert each["staged"] == done[name]["staged_bytes"], name
        assert each["read"] == done[name]["learned_bytes"], name
    again = forecast_of(run, GROUP)
    for name, each in again.items():
        nothing = ("read", "staged", "derived", "paced", "seconds")
        assert [each[key] for key in nothing] == [0] * 5, name
        assert each["known"] == found[name]["read"], name


@pytest.mark.slow
def test_a_dry_run_says_what_the_way_back_takes(joined: Path, run: RunUpgrade) -> None:
    found = forecast_of(run, f"{GROUP} --leave")
    done = rows_by_name(json.loads(run(f"prepare {GROUP} --leave --rate 0 --format json")[1]))
    assert {name: each["twins"] for name, each in found.items()} == {
        name: each["twin_bytes"] for name, each in done.items()
    }
    assert all(each["derived"] > 0 for each in found.values())
    assert {each["written"] for each in forecast_of(run, f"{GROUP} --leave").values()} == {0}


def test_a_dry_run_says_that_the_disk_is_too_full(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFileSystem, "disk_usage", lambda *_: (1 << 30, 1000))
    code, out, _ = run(f"prepare {GROUP} --dry-run")
    assert code == 0
    assert re.search(r"n2: found 1000 B of free space, expected [\d.]+ KiB; free", out)
    assert re.search(r"n2: would write [\d.]+ KiB of files that it lacks", out)


def test_queues_are_built_at_the_given_rate(make_rig: MakeUpgradeRig) -> None:
    master, _ = small_group(make_rig)
    empty = make_rig(files=master.files, root="/t")
    master.files.make_dirs("/t")
    context = memory_context(master.files, master, empty)
    clocks: list[Clock] = []

    def paced() -> Pace:
        clocks.append(Clock())
        return pace_of(clocks[-1], 100.0)

    *_, found = prepare_all(context, paced)
    # The copy, and a pass each for queues and index over what has content.
    staged = next(iter(each for path, each in master.files.nodes.items() if "/stage/log/" in path))
    assert found.staged_bytes == len(staged.data)
    slept = sum(sum(clock.slept) for clock in clocks[-1:])
    assert slept >= (found.staged_bytes + 2 * staged.extent * 0.9) / 100


@pytest.mark.slow
def test_the_source_of_a_file_on_the_stage_is_not_needed(lagging: Path, run: RunUpgrade) -> None:
    run(f"prepare {GROUP} --rate 0")
    assert run(f"plan {GROUP} --out plan.json")[0] == 0
    expected = log_of(lagging / "n0")
    first = min((lagging / "n0/commitlog").iterdir())
    first.unlink()
    code, _, text = run(f"apply {GROUP} --plan plan.json --node n2")
    assert code == 0, text
    assert log_of(lagging / "n2") == expected
