"""``rmqpy pipeline rebuild``: the files of the Java broker byte for byte, installed by a plan."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve
from harness.pipeline import FORGED_SIZE, RecordedProgress, forged_record

from rmqpy.audit.facts.reader import read_facts
from rmqpy.cli import main
from rmqpy.codec.backend import scan_records
from rmqpy.pipeline.jobs.rebuild import Rebuild, RebuildPlan, Run, run_here
from rmqpy.pipeline.spark.work_units import remove_temporary
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.plan.operations import places
from rmqpy.upgrade.steps.plan_context import settings_of_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = [
    "A-classic-clean-v497",
    "A-classic-clean-v533",
    "A-classic-killed-v497",
    "B-lagging-slave-v497/slave",
    "B-master-slave-v497/master",
    "C-upgraded-v497/n0",
    "C-upgraded-v497/n2",
    "D-dledger-v497/n0",
    "X-gap_same_file-v497/n0",
]
SIZES = """\
enableDLegerCommitLog=true
dLegerGroup=g
dLegerPeers=n0-127.0.0.1:40911
dLegerSelfId=n0
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
"""


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def derived(store: Path) -> tuple[dict[str, bytes], list[bytes]]:
    """Return consume queues by name, and index files in order, as their names are times."""
    return tree(store / "consumequeue"), [*tree(store / "index").values()]


def contents_of(queues: Path) -> list[tuple[str, int, str]]:
    """Return (path, size, md5 without the zeros at the end) of the files of consume queues."""
    return [
        (name, len(data), hashlib.md5(data.rstrip(b"\0")).hexdigest())
        for name, data in sorted(tree(queues).items())
    ]


def plan_of(store: Path, root: str, target: Path, range_bytes: int) -> RebuildPlan:
    facts = read_facts(OsFileSystem(), root)
    log = facts.classic or facts.ledger
    assert log is not None
    settings = settings_of_facts(root, log.file_size, facts.as_json())
    return RebuildPlan(root=root, target=str(target), settings=settings, range_bytes=range_bytes)


@pytest.fixture
def rebuilt(tmp_path: Path) -> Callable[..., Rebuild]:
    """Return a function that rebuilds a store into ``tmp_path/made``."""

    def build(store: Path, range_bytes: int = 1 << 30, run: Run = run_here) -> Rebuild:
        made = Rebuild(plan_of(store, str(store), tmp_path / "made", range_bytes), run)
        made.run()
        assert sorted(made.contents) == contents_of(tmp_path / "made/consumequeue")
        return made

    return build


@pytest.mark.slow
@pytest.mark.parametrize("range_bytes", [1 << 30, 8192, 1000])
@pytest.mark.parametrize("name", STORES)
def test_a_rebuild_is_what_java_wrote(
    name: str,
    range_bytes: int,
    store_of: Callable[[str], Path],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
) -> None:
    store = store_of(name)
    made = rebuilt(store, range_bytes)
    assert made.is_whole and made.units > 250 and made.keys > 250
    assert derived(tmp_path / "made") == derived(store)
    assert sorted(os.listdir(tmp_path / "made")) == ["consumequeue", "index"]


def test_a_topic_of_several_tasks_has_all_queues(
    store_of: Callable[[str], Path],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rmqpy.pipeline.jobs.rebuild.BATCH_QUEUES", 3)
    store = store_of(STORES[0])
    assert rebuilt(store).queues > 20
    assert derived(tmp_path / "made") == derived(store)


def test_both_waves_report_their_progress(store_of: Callable[[str], Path], tmp_path: Path) -> None:
    store, packing, writing = store_of(STORES[0]), RecordedProgress(), RecordedProgress()
    plan = plan_of(store, str(store), tmp_path / "made", 8192)
    made = Rebuild(evolve(plan, packing=packing, writing=writing))
    made.run()
    assert len(packing.reports) > 1 and packing.sum == packing.total
    assert len(writing.reports) > made.index_files and writing.sum == writing.total
    assert writing.sum == writing.total == 20 * (made.units + made.keys)


@pytest.mark.spark
@pytest.mark.parametrize("name", STORES)
def test_on_spark(
    name: str,
    store_of: Callable[[str], Path],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    store = store_of(name)
    made = rebuilt(store, 8192, partial(map_on_spark, spark))
    assert made.is_whole
    assert derived(tmp_path / "made") == derived(store)


@pytest.mark.spark
@pytest.mark.parametrize("wave", [0, 1])
def test_a_worker_killed_after_its_write_costs_nothing(
    wave: int,
    store_of: Callable[[str], Path],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    """The worker dies while ranges are packed, or while queues are written."""
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    waves = iter(range(2))
    marker = str(tmp_path / "died")

    def dying(task: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def do(unit: Any) -> Any:
            result = task(unit)
            if not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return do

    def run(task: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[Any]:
        return map_on_spark(spark, dying(task) if next(waves) == wave else task, units)

    store = store_of("C-upgraded-v497/n0")
    rebuilt(store, 8192, run)
    assert os.path.exists(marker)
    assert derived(tmp_path / "made") == derived(store)


def test_an_index_file_lost_by_a_kill_is_rebuilt(
    store_of: Callable[[str], Path], rebuilt: Callable[..., Rebuild], tmp_path: Path
) -> None:
    """Java deletes the newest index file after an unclean stop; n1 was killed, n0 was not."""
    n0, n1 = (store_of(f"D-dledger-v497/{node}") for node in ("n0", "n1"))
    assert derived(n1)[1] != derived(n0)[1]
    rebuilt(n1)
    assert derived(tmp_path / "made") == derived(n0)


def command(store: Path, *more: object) -> int:
    return main(["pipeline", "rebuild", str(store), *map(str, more)])


def test_an_intact_store_needs_no_installation(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of("A-classic-clean-v497")
    assert command(store) == 0
    assert "nothing to install" in capsys.readouterr().out
    assert list((store / "rmqpy/upgrade").glob("*")) == []


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_lost_queues_are_installed_and_rolled_back(
    engine: str,
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    store = copy_of("C-upgraded-v497/n0")
    before = derived(store)
    shutil.rmtree(store / "consumequeue/Normal")
    zeroed = next((store / "consumequeue").rglob("0" * 20))
    zeroed.write_bytes(bytes(zeroed.stat().st_size))
    shutil.rmtree(store / "index")
    damaged = tree(store / "consumequeue")
    plan, conf = tmp_path / "plan.json", tmp_path / "broker.conf"
    # Without an index file, only the configuration has their sizes.
    conf.write_text(f"storePathRootDir={store}\n{SIZES}")
    split = ("--range-bytes", 8192, "--engine", engine, "-c", conf)
    assert command(store, "--out", plan, *split) == 0
    assert "2 install" in capsys.readouterr().out
    assert main(["pipeline", "audit", str(store)]) == 2
    apply = ["upgrade", "apply", "--plan", str(plan), "--node", "n0", str(store)]
    assert main([*apply, "--dry-run"]) == 0 and main(apply) == 0
    assert derived(store) == before
    assert main(["pipeline", "audit", str(store)]) == 0
    assert main(["upgrade", "rollback", str(store)]) == 0
    assert tree(store / "consumequeue") == damaged and not (store / "index").exists()
    assert command(store, "--apply", *split) == 0
    assert main(["upgrade", "finalize", str(store)]) == 0
    assert derived(store) == before
    assert not list((store / "rmqpy/upgrade").glob("keep-*"))


@pytest.mark.slow
def test_a_plan_for_an_older_log_is_refused(
    copy_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of("A-classic-clean-v497")
    shutil.rmtree(store / "consumequeue/Normal")
    plan = tmp_path / "plan.json"
    assert command(store, "--out", plan) == 0
    os.utime(max((store / "commitlog").iterdir()))
    node = json.loads(plan.read_text())["nodes"][0]["replica"]
    assert main(["upgrade", "apply", "--plan", str(plan), "--node", node, str(store)]) == 2
    assert "plan again" in capsys.readouterr().err
    # The files built for the older log are removed by the next build.
    assert command(store, "--out", plan) == 0
    assert len(list((store / "rmqpy/upgrade").glob("keep-*"))) == 1
    assert main(["upgrade", "apply", "--plan", str(plan), "--node", node, str(store)]) == 0


class KilledError(Exception):
    """The process is killed."""


@pytest.mark.slow
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("renames", range(4))
def test_an_installation_killed_at_any_rename_can_be_resumed(
    renames: int,
    back: bool,
    copy_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two folders are moved aside and replaced; then the plan is resumed or rolled back."""
    store = copy_of("A-classic-clean-v497")
    java = derived(store)
    for file in (store / "index").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    shutil.rmtree(store / "consumequeue/Normal/0")
    before = derived(store)
    plan = tmp_path / "plan.json"
    assert command(store, "--out", plan) == 0
    node = json.loads(plan.read_text())["nodes"][0]["replica"]
    move, left = places._move, iter(range(renames))

    def killed(*words: Any) -> None:
        if next(left, None) is None:
            raise KilledError
        move(*words)

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(places, "_move", killed)
        main(["upgrade", "apply", "--plan", str(plan), "--node", node, str(store)])
    if back:
        assert main(["upgrade", "rollback", str(store)]) == 0
        assert derived(store) == before
        return
    assert command(store) == 2, "a plan is half done"
    assert main(["upgrade", "apply", "--resume", str(store)]) == 0
    assert derived(store) == java
    assert main(["upgrade", "rollback", str(store)]) == 0
    assert derived(store) == before


@pytest.mark.slow
def test_duplicate_queue_offsets_are_reported(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong upgrade of Java used queue offsets twice; the queue is not changed."""
    store = copy_of("X-gap_same_file-v497/n1")
    assert command(store) == 2
    output = capsys.readouterr().out
    assert "Normal queue 0: queue offset 35 where 30 follows: 5 are missing" in output
    assert "Normal queue 0: queue offset 32 where 37 follows: 5 are duplicated" in output


def test_damage_is_reported(
    copy_of: Callable[[str], Path],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
) -> None:
    """A lost message becomes filler in its queue; all others keep their positions."""
    store = copy_of("A-classic-clean-v497")
    file = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    scan = scan_records(memoryview(bytes(data)), int(file.name), dledger=False, check_crc=False)
    row = next(row for row in range(30, len(scan)) if scan.topic[row] == b"Normal")
    position = scan.offset[row] - int(file.name)
    data[position + 4] ^= 1
    file.write_bytes(data)
    made = rebuilt(store, 3000)
    (skipped,) = made.skipped
    assert (skipped.offset, skipped.size) == (scan.offset[row], scan.size[row])
    (broken,) = made.breaks
    assert (broken.topic, broken.queue_id) == ("Normal", scan.queue_id[row])
    assert (broken.found, broken.expected) == (scan.queue_offset[row] + 1, scan.queue_offset[row])
    ours, javas = tree(tmp_path / "made/consumequeue"), tree(store / "consumequeue")
    (different,) = (name for name in javas if ours[name] != javas[name])
    place = scan.queue_offset[row] % 100 * 20
    assert ours[different][place : place + 20] == struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    patched = bytearray(ours[different])
    patched[place : place + 20] = javas[different][place : place + 20]
    assert patched == javas[different]


@pytest.mark.slow
def test_forged_records_in_a_body_have_no_units(
    copy_of: Callable[[str], Path], rebuilt: Callable[..., Rebuild], tmp_path: Path
) -> None:
    """Any split of the log has the same result."""
    store = copy_of("A-classic-clean-v497")
    file = sorted((store / "commitlog").iterdir())[1]
    data = bytearray(file.read_bytes())
    base = int(file.name)
    scan = scan_records(memoryview(bytes(data)), base, dledger=False, check_crc=False)
    row = max(range(len(scan)), key=lambda row: scan.size[row])
    body = scan.offset[row] - base + 88
    length = int.from_bytes(data[body - 4 : body])
    assert length > 1500
    for place in range(body, body + length - FORGED_SIZE, FORGED_SIZE):
        data[place : place + FORGED_SIZE] = forged_record(base + place)
    crc = zlib.crc32(data[body : body + length]) & 0x7FFFFFFF
    struct.pack_into(">i", data, scan.offset[row] - base + 8, crc)
    file.write_bytes(data)
    made = rebuilt(store, 500)
    assert made.is_whole and derived(tmp_path / "made") == derived(store)


def test_a_queue_whose_messages_have_expired_keeps_its_end(
    copy_of: Callable[[str], Path], rebuilt: Callable[..., Rebuild], tmp_path: Path
) -> None:
    store = copy_of("A-classic-clean-v497")
    old = store / "consumequeue/Normal/9"
    old.mkdir()
    units = struct.pack(">qiq", 100, 200, 0) * 3
    (old / f"{4000:020d}").write_bytes(units + bytes(2000 - len(units)))
    first, *_ = sorted((store / "commitlog").iterdir())
    first.unlink()
    made = rebuilt(store)
    assert made.copied >= 1
    assert tree(tmp_path / "made/consumequeue/Normal/9") == tree(old)
    # A queue that now starts later has fillers before its messages, which keep their positions.
    for name, data in tree(store / "consumequeue").items():
        ours = tree(tmp_path / "made/consumequeue").get(name)
        if ours is None or name.startswith("Normal/9"):
            continue
        for place in range(0, len(data), 20):
            unit = struct.unpack_from(">qiq", ours, place)
            if unit[1] != 0x7FFFFFFF:
                assert ours[place : place + 20] == data[place : place + 20]


@pytest.mark.slow
def test_deleted_topics_are_not_rebuilt(
    copy_of: Callable[[str], Path], rebuilt: Callable[..., Rebuild], tmp_path: Path
) -> None:
    store = copy_of("A-classic-clean-v497")
    table = json.loads((store / "config/topics.json").read_text())
    del table["topicConfigTable"]["Normal"]
    (store / "config/topics.json").write_text(json.dumps(table))
    rebuilt(store)
    assert (tmp_path / "made/consumequeue/Normal").exists(), "a topic with a folder is not deleted"
    shutil.rmtree(store / "consumequeue/Normal")
    rebuilt(store)
    assert not (tmp_path / "made/consumequeue/Normal").exists()


def test_times_of_files_are_those_of_their_last_messages(
    store_of: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    rebuilt: Callable[..., Rebuild],
    tmp_path: Path,
) -> None:
    rebuilt(store_of("C-upgraded-v497/n0"))
    stored = {
        (each["topic"], each["queueId"], each["queueOffset"]): each["storeTimestamp"]
        for each in manifest("C-upgraded-v497")["messages"]
    }
    seen = 0
    for file in (tmp_path / "made/consumequeue/Normal").rglob("0" * 17 + "*"):
        units = len(file.read_bytes().rstrip(b"\0")) // 20 + 1
        for end in (units, units - 1):
            key = ("Normal", int(file.parent.name), int(file.name) // 20 + end - 1)
            if key in stored:
                assert file.stat().st_mtime_ns == stored[key] * 1_000_000
                seen += 1
                break
    assert seen


def test_a_running_broker_is_refused(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of("A-classic-clean-v497")
    hold_lock = (
        "from rmqpy.store.files.disk import OsFileSystem; "
        "lock = OsFileSystem().lock(sys.argv[1]); print(); input()"
    )
    words = [sys.executable, "-c", f"import sys; {hold_lock}", str(store / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None and broker.stdout.readline() == b"\n"
        assert command(store) == 2
        broker.communicate(b"\n")
    assert "found a broker that runs in this directory, expected none" in capsys.readouterr().err
    assert command(store / "config") == 1
    assert "a part of the store" in capsys.readouterr().err


def test_the_files_of_a_late_duplicate_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "_temporary"
    folder.mkdir()
    rmdir, late = os.rmdir, [3]

    def create_first(path: str, *, dir_fd: int | None = None) -> None:
        if late[0]:
            late[0] -= 1
            (folder / f"late-{late[0]}").touch()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", create_first)
    remove_temporary(folder)
    assert not folder.exists() and late == [0]
    folder.mkdir()
    late[0] = 100
    with pytest.raises(OSError, match="not empty"):
        remove_temporary(folder)
