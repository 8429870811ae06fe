"""A store on a file layer of the test's choice, in each of its modes, with files so small that
everything rolls: commit log files of 4096 bytes, 20 units a consume queue file, 20 keys an index
file, 16 units a DLedger index file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field
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
from rmqpy.model.files import FileSystem
from rmqpy.model.message import OutgoingMessage
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

__all__ = [
    "FILE_SIZE",
    "CrashingFiles",
    "KilledError",
    "MakeStoreRig",
    "SingleNodeProposer",
    "StoreRig",
    "bodies_of",
    "load_folder",
    "read_all",
]

SELF_ID = "n0"

HOST = (bytes([127, 0, 0, 1]), 10911)


@define
class StoreRig:
    """One store directory. ``flag`` is enableDLegerCommitLog."""

    files: FileSystem
    root: str
    flag: bool = False
    clock: ManualScheduler = field(factory=ManualScheduler)
    changes: dict[str, Any] = field(factory=dict)
    force: bool = False
    memory_bytes: int = 1 << 34

    def settings(self) -> StoreSettings:
        values: dict[str, Any] = {
            "store_path_root_dir": self.root,
            "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": 400,
            "max_hash_slot_num": 10,
            "max_index_num": 20,
        }
        if self.flag:
            values |= {
                "enable_dledger_commit_log": True,
                "dledger_self_id": SELF_ID,
                "dledger_group": "group",
                "dledger_peers": f"{SELF_ID}-127.0.0.1:40911",
            }
        return StoreSettings(**(values | self.changes))

    def open(self, *, lead: bool = True) -> MessageStore:
        """Open the directory; with the flag also become the leader of the group of one."""
        context = StoreContext(
            self.settings(), self.files, self.clock, self.memory_bytes, force=self.force
        )
        store = open_store(context)
        if self.flag and lead:
            try:
                SingleNodeProposer(store).start()
            except BaseException:
                store.close_without_flush()
                raise
            store.dispatch()
        return store

    def after(self, files: FileSystem) -> StoreRig:
        """The same directory on another layer (what a crash has left)."""
        return StoreRig(files, self.root, self.flag, self.clock, dict(self.changes), self.force)

    @staticmethod
    def draft(number: int, **changes: Any) -> OutgoingMessage:
        """Message ``number``: its body says so, and so does its key."""
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
        """Put messages and end the turn; their physical offsets. The clock moves 10 ms a turn."""
        self.clock.advance(10)
        results = store.appender.put([self.draft(number, **changes) for number in numbers])
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        store.appender.commit()
        store.dispatch()
        return [int(result.physical_offsets[0]) for result in results]

    @staticmethod
    def flush(store: MessageStore) -> None:
        task = store.flush_tracker.flush_task()
        if task is not None:
            task.run()
            store.flush_tracker.flushed(task.offset)

    def tree(self) -> dict[str, bytes]:
        """Every file below the root, but the lock."""
        if isinstance(self.files, MemoryFiles):
            found = {path: bytes(node.data) for path, node in self.files.nodes.items()}
        else:
            paths = (path for path in Path(self.root).rglob("*") if path.is_file())
            found = {str(path): path.read_bytes() for path in paths}
        return {path.removeprefix(self.root + "/"): data for path, data in found.items()}

    def edit(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file behind the store's back."""
        file = self.files.open(f"{self.root}/{path}")
        file.write(position, data)
        file.sync()
        file.close()

    def write_back(self, part: str) -> None:
        """The system brings files whose paths contain ``part`` to the disk by itself."""
        assert isinstance(self.files, MemoryFiles)
        for path in [path for path in self.files.nodes if part in path]:
            self.files.open(path).sync()
            self.files.sync_dir(path.rpartition("/")[0])

    def place(self, offset: int) -> tuple[str, int]:
        """(path, position) of the byte at a log offset, in commitlog/ or the DLedger data."""
        first = offset // FILE_SIZE * FILE_SIZE
        name = f"{first:020d}"
        folder = f"dledger-{SELF_ID}/data" if self.flag else "commitlog"
        return f"{folder}/{name}", offset - first


def bodies_of(store: MessageStore) -> set[bytes]:
    """The body of every message that a consumer gets (IPv4 hosts)."""
    return {
        record[88 : 88 + int.from_bytes(record[84:88])]
        for records in read_all(store).values()
        for record in records
    }


MakeStoreRig = Callable[..., StoreRig]
