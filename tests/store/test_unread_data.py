"""Stores of RocketMQ 5.x: what rmqpy does not read there is refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.store import MemoryRig

from rmqpy.audit.facts.reader import read_facts
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.cli import main
from rmqpy.config.loading import load_broker_configuration
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import find_unread
from rmqpy.testing.memory_files import MemoryFiles

ROOT = "/store"
NOW_MS = 1_795_244_000_000


@pytest.fixture
def rig(make_rig: type[MemoryRig]) -> MemoryRig:
    rig = make_rig(flag=False)
    rig.write(*range(20))
    return rig


def paths(root: Path) -> StorePaths:
    return StorePaths(str(root), f"{root}/commitlog")


def refused(rig: MemoryRig) -> StoreError:
    before = rig.tree()
    with pytest.raises(StoreError) as raised:
        rig.open()
    assert rig.tree() == before, "nothing is changed"
    return raised.value


def slot(time_ms: int, number: int) -> bytes:
    return struct.pack(">qqqii", time_ms // 1000, 0, 52 * number, number, 0)


def wheel(*slots: bytes) -> bytes:
    """Return a wheel with some slots far apart."""
    return b"".join(bytes(8192) + each for each in slots) + bytes(5000 // 32 * 32)


def check(read_to_ms: int, taken: int = 0) -> bytes:
    return struct.pack(">qqqqqqq", read_to_ms, 0, taken, 0, 0, 0, 0)


CONTROLLER = {
    "brokerIdentity": b"c#broker-a#1",
    "brokerIdentity-temp": b"c#broker-a#1#127.0.0.1;1",
    "epochFileCheckpoint": b"1\n0\n1-4096\n",
    "epochFileCheckpoint.bak": b"1\n0\n1-4096\n",
}


@pytest.mark.parametrize("name", CONTROLLER)
def test_a_store_whose_master_a_controller_elects_is_refused(rig: MemoryRig, name: str) -> None:
    rig.files.put(f"{ROOT}/{name}", CONTROLLER[name])
    fault = refused(rig)
    assert fault.path == f"{ROOT}/{name}" and "controller elects" in fault.found
    assert "enableControllerMode=true" in fault.remedy and "out of each store" in fault.remedy
    assert "rmqpyAcceptUnreadData" not in fault.remedy
    rig.changes["rmqpy_accept_unread_data"] = True
    refused(rig)
    rig.files.put(f"{ROOT}/{name}", b"")
    rig.open().shutdown()


def test_timer_messages_that_wait_are_refused_or_accepted_by_name(rig: MemoryRig) -> None:
    rig.files.put(f"{ROOT}/timerwheel", wheel(slot(NOW_MS - 9000, 7), slot(NOW_MS + 9000, 3)))
    rig.files.put(f"{ROOT}/config/timercheck", check(NOW_MS))
    fault = refused(rig)
    assert fault.found == "3 timer messages that are not due yet"
    assert "deliver the timer messages first" in fault.remedy
    assert "rmqpyAcceptUnreadData=true" in fault.remedy
    rig.changes["rmqpy_accept_unread_data"] = True
    store = rig.open()
    assert any("3 timer messages" in note for note in store.opened.notes)
    store.shutdown()


@pytest.mark.parametrize(
    ("slots", "checked"),
    [
        ((), b""),
        ((slot(NOW_MS - 9000, 7),), check(NOW_MS)),
        ((slot(NOW_MS + 9000, 0),), check(NOW_MS)),
        ((), check(NOW_MS)),
    ],
    ids=["new", "delivered", "empty slot", "empty"],
)
def test_a_wheel_from_which_everything_was_delivered_is_harmless(
    rig: MemoryRig, slots: tuple[bytes, ...], checked: bytes
) -> None:
    rig.files.put(f"{ROOT}/timerwheel", wheel(*slots))
    rig.files.put(f"{ROOT}/config/timercheck", checked)
    rig.files.put(f"{ROOT}/config/timermetrics", b"{}")
    rig.open().shutdown()


def found(files: MemoryFiles) -> list[tuple[str, str]]:
    """Return path and finding of everything unread."""
    return [
        (each.path, each.found)
        for each in find_unread(files, StorePaths(ROOT, f"{ROOT}/commitlog"))
    ]


def queue(files: MemoryFiles, topic: str, queue_id: int, units: int) -> None:
    """Put a consume queue of two files of 50 units each, the second one reserved only."""
    unit = struct.pack(">qiq", 4096, 100, 0)
    folder = f"{ROOT}/consumequeue/{topic}/{queue_id}"
    files.put(f"{folder}/{0:020d}", (unit * units).ljust(1000, b"\0"))
    files.put(f"{folder}/{1000:020d}", bytes(1000))


def test_timer_messages_in_front_of_the_wheel_are_found() -> None:
    files = MemoryFiles()
    files.put(f"{ROOT}/config/timercheck", check(NOW_MS, 5))
    queue(files, "rmq_sys_wheel_timer", 0, 5)
    assert not found(files)
    queue(files, "rmq_sys_wheel_timer", 0, 9)
    ((path, text),) = found(files)
    assert path.endswith("/rmq_sys_wheel_timer") and text.startswith("4 timer messages")


def test_pop_records_behind_the_reviver_are_found() -> None:
    files = MemoryFiles()
    topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
    for number in range(8):
        queue(files, topic, number, 0)
    assert not found(files)
    queue(files, topic, 0, 10)
    queue(files, topic, 3, 4)
    table = b'{"offsetTable":{"%s@CID_RMQ_SYS_REVIVE_GROUP":{0:9,3:%d}}}'
    files.put(f"{ROOT}/config/consumerOffset.json", table % (topic.encode(), 3))
    assert not found(files)
    files.put(f"{ROOT}/config/consumerOffset.json", table % (topic.encode(), 1))
    assert found(files) == [
        (
            f"{ROOT}/consumequeue/{topic}",
            "2 POP messages that were received and not acknowledged",
        )
    ]
    files.put(f"{ROOT}/config/consumerOffset.json", b"damaged")
    ((_, text),) = found(files)
    assert text.startswith("14 ")


def test_rocksdb_and_other_logs_are_refused(rig: MemoryRig) -> None:
    for path in (
        "consumequeue/CURRENT",
        "config/consumerOffsets/CURRENT",
        "kvStore/000004.log",
        "batchconsumequeue/T/0/00000000000000000000",
        "compaction/compactionLog/T/0/00000000000000000000",
    ):
        rig.files.put(f"{ROOT}/kvStore/CURRENT", b"MANIFEST-000004\n")  # Alone it is empty.
        rig.files.put(f"{ROOT}/{path}", b"MANIFEST-000004\n")
        fault = refused(rig)
        folder = path.partition("/T/" if "/T/" in path else "/0" if "kv" in path else "/CURRENT")[0]
        assert fault.path == f"{ROOT}/{folder}"
        rig.files.unlink(f"{ROOT}/{path}")
    rig.open().shutdown()


def test_a_golden_store_of_5_3_3_has_nothing_that_is_not_read(
    golden_copy: Callable[[str], Path],
) -> None:
    """Its wheel is empty, and a compaction folder has only a checkpoint."""
    root = golden_copy("A-classic-clean-v533") / "store"
    assert (root / "timerwheel").exists() and (root / "compaction").exists()
    assert find_unread(OsFileSystem(), paths(root)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enableControllerMode", "true"),
        ("enableSlaveActingMaster", "true"),
        ("storeType", "defaultRocksDB"),
        ("brokerConfigPaths", "/etc/broker-a.conf"),
    ],
)
def test_modes_of_5_x_are_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as raised:
        load_broker_configuration(None, {name: value}, {"HOME": "/home"})
    assert "From 5.x" in str(raised.value)


@pytest.mark.slow
def test_every_tool_reports_what_a_start_refuses(
    golden_copy: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The damage of a log decides the exit code of fsck; check must not let a switch pass."""
    root = golden_copy("E-timers-v533") / "clean"
    text = "DATA_UNREAD timerwheel"
    assert main(["store", "fsck", str(root)]) == 0
    assert text in capsys.readouterr().out
    assert main(["store", "inspect", str(root)]) == 0
    assert "timerwheel: 32 timer messages" in capsys.readouterr().out
    conf = tmp_path / "broker.conf"
    for accepted, code in (("false", 2), ("true", 0)):
        conf.write_text(
            f"storePathRootDir={root}\nmappedFileSizeCommitLog=65536\n"
            "mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
            f"brokerName=b0\nrmqpyAcceptUnreadData={accepted}\n"
        )
        assert main(["upgrade", "check", f"n0={root}", "-c", f"n0={conf}", "--details"]) in (0, 2)
        out = capsys.readouterr().out
        assert ("FINDING [tables-readable] n0: DATA_UNREAD" in out) is (code == 2), out
        assert "DATA_UNREAD" in out
    (root / "brokerIdentity").write_bytes(CONTROLLER["brokerIdentity"])
    assert {each.path.rpartition("/")[2] for each in find_unread(OsFileSystem(), paths(root))} == {
        finding.file
        for finding in read_facts(OsFileSystem(), str(root)).findings
        if finding.code is FindingCode.DATA_UNREAD
    }
