"""Stores with files so small that everything rolls, on memory files that die when told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define, evolve, field
from simulator.crash_files import (
    FILE_SIZE,
    CrashingFiles,
    KilledError,
    SingleNodeProposer,
    load_folder,
    read_all,
)

from rmqpy.codec.properties import encode_properties
from rmqpy.config.loading import StoreSettings
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.message import OutgoingMessage
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.plan.node_context import NodeContext

__all__ = [
    "FILE_SIZE",
    "GOLDEN_SIZES",
    "CrashingFiles",
    "KilledError",
    "MakeUpgradeRig",
    "UpgradeRig",
    "load_folder",
    "read_all",
]

HOST = (bytes([127, 0, 0, 1]), 10911)

GOLDEN_SIZES = {
    "mapped_file_size_commit_log": 65536,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


@define
class UpgradeRig:
    """One store directory. ``flag`` is enableDLegerCommitLog."""

    files: CrashingFiles
    root: str = "/store"
    flag: bool = False
    self_id: str = "n0"
    changes: dict[str, Any] = field(factory=dict)
    clock: ManualScheduler = field(factory=ManualScheduler)

    def settings(self) -> StoreSettings:
        values: dict[str, Any] = {
            "store_path_root_dir": self.root,
            "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": 400,
            "max_hash_slot_num": 10,
            "max_index_num": 20,
            "enable_dledger_commit_log": self.flag,
            "dledger_self_id": self.self_id,
            "dledger_group": "group",
            "dledger_peers": f"{self.self_id}-127.0.0.1:20911",
        }
        return StoreSettings(**(values | self.changes))

    def context(self, **changes: Any) -> NodeContext:
        return NodeContext(self.files, upgrade_work(self.root), self.settings(), **changes)

    def with_flag(self, flag: bool) -> UpgradeRig:
        return evolve(self, flag=flag)

    def on(self, files: CrashingFiles) -> UpgradeRig:
        return evolve(self, files=files)

    def open(self) -> MessageStore:
        store = open_store(StoreContext(self.settings(), self.files, self.clock, 1 << 34))
        if self.flag:
            SingleNodeProposer(store).start()
            store.dispatch()
        return store

    def draft(self, number: int, **changes: Any) -> OutgoingMessage:
        pairs = {"KEYS": f"key{number}", "UNIQ_KEY": f"U{number:08X}", "TAGS": f"T{number % 3}"}
        values: dict[str, Any] = {
            "topic": b"Topic",
            "queue_id": number % 2,
            "body": f"body {number} ".encode() * (1 + number % 5),
            "properties": encode_properties(pairs),
            "born_timestamp_ms": 1_700_000_000_000 + number,
            "born_host": HOST,
            "store_host": HOST,
        }
        return OutgoingMessage(**(values | changes))

    def put(self, store: MessageStore, *numbers: int, **changes: Any) -> list[int]:
        self.clock.advance(10)
        results = store.appender.put([self.draft(number, **changes) for number in numbers])
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        store.appender.commit()
        store.dispatch()
        return [int(result.physical_offsets[0]) for result in results]

    def write(self, *numbers: int, **changes: Any) -> list[int]:
        """Open, put, close cleanly."""
        store = self.open()
        try:
            return [offset for number in numbers for offset in self.put(store, number, **changes)]
        finally:
            store.shutdown()

    def records(self) -> dict[tuple[str, int], list[bytes]]:
        """What consumers get, queue by queue, dense from the smallest offset on."""
        store = self.open()
        try:
            return read_all(store)
        finally:
            store.shutdown()

    def tree(self) -> dict[str, bytes]:
        """Every file of the store; not ours, not the lock."""
        found = {}
        for path, node in self.files.nodes.items():
            if path.startswith(self.root + "/") and not path.startswith(f"{self.root}/rmqpy/"):
                found[path.removeprefix(self.root + "/")] = bytes(node.data)
        return found

    def times(self) -> dict[str, int]:
        return {
            path: node.mtime_ms for path, node in self.files.nodes.items() if "/rmqpy/" not in path
        }


MakeUpgradeRig = Callable[..., UpgradeRig]
