"""Tests with stores of the Java broker: their messages are read, their derived files are rebuilt
byte for byte, and opening them leaves no trace.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.store import entries_of, load_folder

from rmqpy.codec.message import decode_message, offset_msg_id
from rmqpy.config.loading import StoreSettings
from rmqpy.model.files import FileSystem
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

DLEDGER = ("C-upgraded-v497", "C-upgraded-v533", "D-dledger-v497", "D-dledger-v533")
ROOTS = [
    ("A-classic-clean-v497", "store"),
    ("A-classic-killed-v497", "store"),
    ("A-classic-clean-v533", "store"),
    ("B-master-slave-v497", "master"),
    ("B-master-slave-v497", "slave"),
    ("B-lagging-slave-v497", "master"),
    *((name, member) for name in DLEDGER for member in ("n0", "n1", "n2")),
]
CLEAN = [root for root in ROOTS if "killed" not in root[0]]
IDS = ["/".join(root) for root in ROOTS]
CLEAN_IDS = ["/".join(root) for root in CLEAN]
FILE_SIZE, SLOTS, ENTRIES = 65536, 100, 400
DIVIDED = 262144


def settings_of(root: str, node: str) -> StoreSettings:
    return StoreSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=FILE_SIZE,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=SLOTS,
        max_index_num=ENTRIES,
        max_message_size=32768,
        enable_dledger_commit_log=node.startswith("n"),
        dledger_self_id=node,
        dledger_group="golden",
        dledger_peers=f"{node}-127.0.0.1:40911",
    )


def open_golden(
    folder: Path, node: str, files: FileSystem | None = None, root: str = ""
) -> MessageStore:
    """Open a node's store, by default on the disk, with its whole log committed."""
    settings = settings_of(root or os.fspath(folder), node)
    clock = ManualScheduler(start_ms=1_800_000_000_000)
    store = open_store(StoreContext(settings, files or OsFileSystem(), clock, 1 << 34))
    if store.opened.entries is not None:
        # A group of one commits the tail that the last checkpoint does not cover.
        entries = entries_of(store)
        entries.commit_to(entries.end.index)
        store.dispatch()
    return store


def host_text(host: tuple[bytes, int]) -> str:
    return "/" + ".".join(map(str, host[0])) + f":{host[1]}"


@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_every_message_is_that_of_the_java_consumer(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    store = open_golden(golden_copy(name) / node, node)
    messages = manifest(name)["messages"]
    assert len(messages) > 250
    v533 = name.endswith("v533")
    for seen in messages:
        page = store.reader.get_message(
            seen["topic"], seen["queueId"], seen["queueOffset"], 1, None
        )
        (view,) = page.messages
        found = decode_message(view)
        assert (found.topic, found.queue_id) == (seen["topic"], seen["queueId"])
        assert found.queue_offset == seen["queueOffset"]
        assert found.physical_offset == seen["commitLogOffset"]
        assert found.size == seen["storeSize"] == len(view)
        assert found.body_crc == seen["bodyCRC"]
        assert found.store_timestamp_ms == seen["storeTimestamp"]
        assert found.born_timestamp_ms == seen["bornTimestamp"]
        assert host_text(found.born_host) == seen["bornHost"]
        assert found.reconsume_times == seen["reconsumeTimes"]
        assert found.flag == seen["flag"]
        assert found.sys_flag | (1 if v533 else 0) == seen["sysFlag"] | (1 if v533 else 0)
        assert found.properties == seen["props"]
        assert offset_msg_id(found.store_host, found.physical_offset) == seen["offsetMsgId"]
        at = store.reader.message_at(seen["commitLogOffset"])
        assert at is not None and bytes(at) == bytes(view)
        assert store.reader.message_at(seen["commitLogOffset"] + 1) is None
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_the_ends_of_every_queue_are_those_of_java(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    store = open_golden(golden_copy(name) / node, node)
    queues = manifest(name)["queues"]
    for topic, recorded in queues.items():
        for queue in recorded:
            assert store.reader.min_queue_offset(topic, queue["queueId"]) == queue["min"]
            end = store.reader.max_queue_offset(topic, queue["queueId"])
            # The 5.3.3 broker delivered the delayed message after the queues were recorded.
            late = name == "A-classic-clean-v533" and topic == "Delay"
            assert end == queue["max"] + int(late)
    store.shutdown()


INDEXED = [
    root for root in ROOTS if root not in (("D-dledger-v497", "n1"), ("D-dledger-v497", "n2"))
]
"""The two excluded brokers were killed and lost the keys of their last index file."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), INDEXED, ids=["/".join(root) for root in INDEXED])
def test_every_key_is_found(
    name: str,
    node: str,
    golden_copy: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
) -> None:
    """Keys are the unique key and each word of KEYS. The last index file of the killed store is
    discarded and filled again.
    """
    store = open_golden(golden_copy(name) / node, node)
    while store.catch_up_index():
        pass
    last = 1 << 50
    for seen in manifest(name)["messages"]:
        keys = [*seen["props"].get("UNIQ_KEY", "").split(), *seen["props"].get("KEYS", "").split()]
        for key in keys:
            # Index times are whole seconds.
            begin = seen["storeTimestamp"] - 1000
            found = store.reader.query_message(seen["topic"], key, 64, begin, last)
            places = [int.from_bytes(message[28:36]) for message in found.messages]
            assert len(places) == len(set(places))
            assert seen["commitLogOffset"] in places, (key, places)
    store.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("node", ["n0", "n1", "n2"])
def test_an_upgraded_log_has_its_divided_offset(
    node: str, golden_copy: Callable[[str], Path]
) -> None:
    store = open_golden(golden_copy("C-upgraded-v497") / node, node)
    assert store.opened.divided_offset == DIVIDED
    assert store.log.min_offset == 0
    assert store.log.max_offset == store.log.confirm_offset == 501902
    assert entries_of(store).end.index == 280
    assert store.reader.earliest_store_timestamp() > 0
    store.shutdown()


# ------------------------------------------------------------------------------- derived files


def tree(root: Path) -> dict[str, bytes]:
    """Return every file below ``root``; of index files, the first MiB."""
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
    """Return the files of a folder."""
    return {name: data for name, data in files.items() if name.startswith(folder + "/")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), ROOTS, ids=IDS)
def test_rebuilt_derived_files_equal_those_of_java(
    name: str, node: str, golden_copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    """Dispatch rebuilds consumequeue/ and index/ byte for byte, except the names of index files,
    which are the times of their creation.
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
    # The logs of D are equal, but only n0 has all its keys (see INDEXED).
    whole = "n0" if name == "D-dledger-v497" else node
    java_index = list(below(tree(golden(name) / whole), "index").values())
    assert len(our_index) == len(java_index) >= 2
    assert our_index == java_index


OURS = ("rmqpy/format",)
OURS_WHERE_CLASSIC = {"rmqpy/recovery-point"}
OURS_WHERE_JOINED = {"rmqpy/old_log.json"}
"""The files that a clean start and stop add to a store."""

REWRITTEN = ("dledger-{node}/checkpoint", "dledger-{node}/checkpoint.bak")
"""The files that it rewrites: DLedger's checkpoint is a text that contains the time."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), CLEAN, ids=CLEAN_IDS)
def test_opening_and_closing_changes_nothing(
    name: str, node: str, golden_copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    """A clean start and stop leave commitlog/, consumequeue/, index/, the DLedger files and the
    checkpoint as they were. Only rmqpy/ is new, and DLedger's checkpoint has our form.
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
    # A second start and stop change nothing at all.
    open_golden(root, node).shutdown()
    assert tree(root) == ours


@pytest.mark.slow
@pytest.mark.parametrize(("name", "node"), CLEAN[:4], ids=CLEAN_IDS[:4])
def test_a_consume_queue_with_a_hole_is_rebuilt(
    name: str, node: str, golden: Callable[[str], Path]
) -> None:
    """Units in the middle of a queue are zero, as after a page that never reached the disk."""
    files = MemoryFiles()
    load_folder(golden(name) / node, files, "/store")
    path = "/store/consumequeue/Normal/0/00000000000000000000"
    java = bytes(files.nodes[path].data)
    files.nodes[path].data[40:80] = bytes(40)
    store = open_golden(golden(name), node, files, "/store")
    store.shutdown()
    assert bytes(files.nodes[path].data) == java
    assert store.health.failure is None


def test_the_queues_of_a_killed_store_are_completed(
    golden: Callable[[str], Path], golden_copy: Callable[[str], Path]
) -> None:
    """The consume queues equal those of Java, and the stop is clean."""
    name = "A-classic-killed-v497"
    root = golden_copy(name) / "store"
    store = open_golden(root, "store")
    store.shutdown()
    ours, theirs = tree(root), tree(golden(name) / "store")
    assert below(ours, "consumequeue") == below(theirs, "consumequeue")
    assert below(ours, "commitlog") == below(theirs, "commitlog")
    assert "abort" in theirs and "abort" not in ours
