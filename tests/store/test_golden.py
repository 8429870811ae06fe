"""Stores that the Java broker wrote: read them back, build its derived files again, leave no
trace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.store import load_folder

from rmqpy.codec.message import decode_message, offset_msg_id
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

ROOTS = [
    ("A-classic-clean-v497", "store"),
    ("A-classic-killed-v497", "store"),
    ("A-classic-clean-v533", "store"),
    ("B-master-slave-v497", "master"),
    ("B-master-slave-v497", "slave"),
    ("B-lagging-slave-v497", "master"),
    ("C-upgraded-v497", "n0"),
    ("C-upgraded-v497", "n1"),
    ("C-upgraded-v497", "n2"),
    ("D-dledger-v497", "n0"),
    ("D-dledger-v497", "n1"),
    ("D-dledger-v497", "n2"),
]
CLEAN = [root for root in ROOTS if "killed" not in root[0]]
IDS = ["/".join(root) for root in ROOTS]
CLEAN_IDS = ["/".join(root) for root in CLEAN]
FILE_SIZE, SLOTS, ENTRIES = 65536, 100, 400
DIVIDED = 262144


def settings_of(root: str, node: str) -> StoreSettings:
    values: dict[str, Any] = {
        "store_path_root_dir": root,
        "mapped_file_size_commit_log": FILE_SIZE,
        "mapped_file_size_consume_queue": 2000,
        "max_hash_slot_num": SLOTS,
        "max_index_num": ENTRIES,
        "max_message_size": 32768,
    }
    if node.startswith("n"):
        values |= {
            "enable_dledger_commit_log": True,
            "dledger_self_id": node,
            "dledger_group": "golden",
            "dledger_peers": f"{node}-127.0.0.1:40911",
        }
    return StoreSettings(**values)


def open_golden(folder: Path, node: str, layer: Any = None, root: str = "") -> MessageStore:
    settings = settings_of(root or os.fspath(folder), node)
    clock = ManualScheduler(start_ms=1_800_000_000_000)
    store = open_store(StoreContext(settings, layer or OsFileSystem(), clock, 1 << 34))
    if store.opened.entries is not None:
        # The tail that the last checkpoint does not vouch for: a group of one commits it.
        store.opened.entries.commit_to(store.opened.entries.end.index)
        store.dispatch()
    return store


def host_text(host: tuple[bytes, int]) -> str:
    return "/" + ".".join(map(str, host[0])) + f":{host[1]}"


@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_every_message_reads_back(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    store = open_golden(golden_copy(name) / node, node)
    messages = manifest(name)["messages"]
    assert len(messages) > 250
    v533 = name.endswith("v533")
    for said in messages:
        page = store.reader.get_message(
            said["topic"], said["queueId"], said["queueOffset"], 1, None
        )
        (view,) = page.messages
        found = decode_message(view)
        assert (found.topic, found.queue_id) == (said["topic"], said["queueId"])
        assert found.queue_offset == said["queueOffset"]
        assert found.physical_offset == said["commitLogOffset"]
        assert found.size == said["storeSize"] == len(view)
        assert found.body_crc == said["bodyCRC"]
        assert found.store_timestamp_ms == said["storeTimestamp"]
        assert found.born_timestamp_ms == said["bornTimestamp"]
        assert host_text(found.born_host) == said["bornHost"]
        assert found.reconsume_times == said["reconsumeTimes"]
        assert found.flag == said["flag"]
        assert found.sys_flag | (1 if v533 else 0) == said["sysFlag"] | (1 if v533 else 0)
        assert found.properties == said["props"]
        assert offset_msg_id(found.store_host, found.physical_offset) == said["offsetMsgId"]
        at = store.reader.message_at(said["commitLogOffset"])
        assert at is not None and bytes(at) == bytes(view)
        assert store.reader.message_at(said["commitLogOffset"] + 1) is None
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_the_ends_of_every_queue(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    store = open_golden(golden_copy(name) / node, node)
    queues = manifest(name)["queues"]
    for topic, said in queues.items():
        for queue in said:
            assert store.reader.min_queue_offset(topic, queue["queueId"]) == queue["min"]
            end = store.reader.max_queue_offset(topic, queue["queueId"])
            # 5.3.3 delivered the delayed messages between the count and the stop.
            late = name.endswith("v533") and topic == "Delay"
            assert end == queue["max"] + int(late)
    store.shutdown()


INDEXED = [
    root for root in ROOTS if root not in (("D-dledger-v497", "n1"), ("D-dledger-v497", "n2"))
]
"""These two Java brokers were killed, and lost the keys of the index file that was current then."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), INDEXED, ids=["/".join(root) for root in INDEXED])
def test_every_key_is_found(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    """By unique key, and by each word of KEYS. (The killed store too: its current index file is
    discarded and filled again.)
    """
    store = open_golden(golden_copy(name) / node, node)
    while store.catch_up_index():
        pass
    last = 1 << 50
    for said in manifest(name)["messages"]:
        keys = [*said["props"].get("UNIQ_KEY", "").split(), *said["props"].get("KEYS", "").split()]
        for key in keys:
            # One second of grace: index times are whole seconds.
            begin = said["storeTimestamp"] - 1000
            found = store.reader.query_message(said["topic"], key, 64, begin, last)
            places = [int.from_bytes(message[28:36]) for message in found.messages]
            assert len(places) == len(set(places))
            assert said["commitLogOffset"] in places, (key, places)
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("node", ["n0", "n1", "n2"])
def test_where_the_upgraded_log_divides(node: str, golden_copy: Callable[[str], Path]) -> None:
    store = open_golden(golden_copy("C-upgraded-v497") / node, node)
    assert store.opened.divided_offset == DIVIDED
    assert store.log.min_offset == 0
    assert store.log.max_offset == store.log.confirm_offset == 501902
    assert store.opened.entries is not None and store.opened.entries.end.index == 280
    assert store.reader.earliest_store_timestamp() > 0
    store.shutdown()


# ------------------------------------------------------------------------------- derived files


def tree(root: Path) -> dict[str, bytes]:
    """Every file below ``root``; of DLedger index files only what is not zero at their end."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = os.fspath(path.relative_to(root))
        if path.is_file() and "/index/" not in name:
            found[name] = path.read_bytes()
        elif path.is_file():
            with path.open("rb") as file:
                found[name] = file.read(1 << 20)
    return found


def below(files: dict[str, bytes], folder: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith(folder + "/")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_derived_files_equal_javas(
    name: str, node: str, golden_copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    """Delete consumequeue/ and index/: what dispatch makes of the log is what Java made of it,
    byte by byte; only the names of index files are times of their creation.
    """
    java, root = golden(name) / node, golden_copy(name) / node
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = open_golden(root, node)
    while store.catch_up_index():
        pass
    store.shutdown()
    assert store.health.failure is None
    ours, theirs = tree(root), tree(java)
    queues = below(ours, "consumequeue")
    assert queues == below(theirs, "consumequeue")
    assert len(queues) > 15
    our_index = list(below(ours, "index").values())
    whole = "n0" if name == "D-dledger-v497" else node  # see INDEXED; the logs are equal
    java_index = list(below(tree(golden(name) / whole), "index").values())
    assert len(our_index) == len(java_index) >= 2
    assert our_index == java_index


OURS = ("rmqpy/format",)
OURS_WHERE_CLASSIC = {"rmqpy/recovery-point"}
OURS_WHERE_JOINED = {"rmqpy/old_log.json"}
"""What a clean open and close adds to a store."""

REWRITTEN = ("dledger-{node}/checkpoint", "dledger-{node}/checkpoint.bak")
"""What it writes anew: DLedger's checkpoint is a text with the time in it."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), CLEAN, ids=CLEAN_IDS)
def test_opening_and_closing_changes_nothing(
    name: str, node: str, golden_copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    """A clean store opened and shut down cleanly: commitlog/, consumequeue/, index/ and the DLedger
    files are the same bytes, the store's checkpoint too; only our own folder is new, and the text
    of DLedger's checkpoint has our form.
    """
    java, root = golden(name) / node, golden_copy(name) / node
    before = {path.relative_to(java) for path in java.rglob("*")}
    store = open_golden(root, node)
    assert store.opened.notes == []
    assert not store.catch_up_index()
    store.shutdown()
    ours, theirs = tree(root), tree(java)
    rewritten = {text.format(node=node) for text in REWRITTEN}
    added = set(ours) - set(theirs)
    ours_by_mode = OURS_WHERE_CLASSIC | OURS_WHERE_JOINED
    assert added - rewritten - ours_by_mode == set(OURS)
    assert set(theirs) - set(ours) == set()
    changed = {path for path, data in theirs.items() if ours[path] != data}
    assert changed <= rewritten
    after = {path.relative_to(root) for path in root.rglob("*") if path.is_dir()}
    assert after - before == {Path("rmqpy")}
    # And once more: now nothing at all changes.
    open_golden(root, node).shutdown()
    assert tree(root) == ours


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), CLEAN[:4], ids=CLEAN_IDS[:4])
def test_a_lost_consume_queue_is_built_again(
    name: str, node: str, golden: Callable[[str], Path]
) -> None:
    """One unit in the middle of a queue is zero (a page that never reached the disk): the queue is
    whole again after the start.
    """
    files = MemoryFiles()
    load_folder(golden(name) / node, files, "/store")
    path = "/store/consumequeue/Normal/0/00000000000000000000"
    java = bytes(files.nodes[path].data)
    files.nodes[path].data[40:80] = bytes(40)
    store = open_golden(golden(name), node, files, "/store")
    store.shutdown()
    assert bytes(files.nodes[path].data) == java
    assert store.health.failure is None


def test_the_files_of_a_killed_store_are_completed(
    golden: Callable[[str], Path], golden_copy: Callable[[str], Path]
) -> None:
    """The unclean store: consume queues end up as Java wrote them, and the stop is clean then."""
    name = "A-classic-killed-v497"
    root = golden_copy(name) / "store"
    store = open_golden(root, "store")
    store.shutdown()
    ours, theirs = tree(root), tree(golden(name) / "store")
    assert below(ours, "consumequeue") == below(theirs, "consumequeue")
    assert below(ours, "commitlog") == below(theirs, "commitlog")
    assert "abort" in theirs and "abort" not in ours
