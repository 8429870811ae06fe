"""A store in each of its modes, on any file layer, with files so small that all of them roll.

A commit log file has 4096 bytes, a consume queue file 20 units, a key index file 20 keys, and a
DLedger index file 16 units (the fixtures ``make_rig`` see to that).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

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
from rmqpy.model.files import FileSystem
from rmqpy.model.message import Host, OutgoingMessage
from rmqpy.store.files.disk import boot_id
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.message_store import MessageStore, StoreContext, open_store
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_files import MemoryFiles

__all__ = [
    "CLASSIC_COUNT",
    "FILE_SIZE",
    "CrashingFiles",
    "KilledError",
    "MemoryRig",
    "MessageFields",
    "SingleNodeProposer",
    "StoreRig",
    "bodies_of",
    "entries_of",
    "load_folder",
    "queue_of",
    "read_all",
    "record_at",
]

SELF_ID = "n0"

CLASSIC_COUNT = 30
"""The number of messages in the classic part of a joined store (``any_mode_rig``)."""

HOST = (bytes([127, 0, 0, 1]), 10911)


class MessageFields(TypedDict, total=False):
    """The fields of `OutgoingMessage` that a test may set."""

    topic: bytes
    queue_id: int
    body: bytes | memoryview
    properties: bytes
    flag: int
    sys_flag: int
    born_host: Host
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int


@define
class StoreRig:
    """One store directory and its settings.

    ``flag`` is enableDLegerCommitLog, and ``changes`` are further settings, by attribute name.
    ``memory_bytes`` is what the store takes for the machine's memory.
    """

    files: FileSystem
    root: str
    flag: bool = False
    clock: ManualScheduler = field(factory=ManualScheduler)
    changes: dict[str, Any] = field(factory=dict)
    force: bool = False
    memory_bytes: int = 1 << 34
    self_id: str = SELF_ID
    knows_boot: bool = True
    """Whether the system says when the machine was started."""

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

    def open(self, *, lead: bool = True) -> MessageStore:
        """Open the store; with the flag, also become the leader of the group of one."""
        boot = str(self.files.power_failures) if isinstance(self.files, MemoryFiles) else boot_id()
        if not self.knows_boot:
            boot = ""
        context = StoreContext(
            self.settings(), self.files, self.clock, self.memory_bytes, self.force, boot
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

    def after(self, files: FileSystem) -> Self:
        """Return a rig of the same directory on other files, such as those that a crash left."""
        return evolve(self, files=files, changes=dict(self.changes))

    @staticmethod
    def draft(number: int, **changes: Unpack[MessageFields]) -> OutgoingMessage:
        """Return message ``number``, which its body and its key name."""
        pairs = {"KEYS": f"key{number}", "UNIQ_KEY": f"U{number:08X}", "TAGS": f"T{number % 3}"}
        message = OutgoingMessage(
            topic=b"Topic",
            queue_id=number % 2,
            body=f"body {number} ".encode() * (1 + number % 5),
            properties=encode_properties(pairs),
            born_timestamp_ms=1_700_000_000_000 + number,
            born_host=HOST,
            store_host=HOST,
        )
        return evolve(message, **changes)

    def put(
        self, store: MessageStore, *numbers: int, **changes: Unpack[MessageFields]
    ) -> list[int]:
        """Put messages, end the turn, and return their physical offsets.

        The clock moves by 10 ms per turn.
        """
        self.clock.advance(10)
        results = store.appender.put([self.draft(number, **changes) for number in numbers])
        assert {result.status for result in results} == {PutMessageStatus.PUT_OK}
        store.appender.commit()
        store.dispatch()
        return [int(result.physical_offsets[0]) for result in results]

    def write(self, *numbers: int, **changes: Unpack[MessageFields]) -> list[int]:
        """Open the store, put each message in a turn, stop, and return their physical offsets."""
        store = self.open()
        try:
            return [offset for number in numbers for offset in self.put(store, number, **changes)]
        finally:
            store.shutdown()

    def records(self) -> dict[tuple[str, int], list[bytes]]:
        """Open the store, return every record that a consumer gets, by queue, and stop."""
        store = self.open()
        try:
            return read_all(store)
        finally:
            store.shutdown()

    @staticmethod
    def flush(store: MessageStore) -> None:
        task = store.flush_tracker.flush_task()
        if task is not None:
            task.run()
            store.flush_tracker.flushed(task.offset)

    @staticmethod
    def save_checkpoint(store: MessageStore) -> None:
        """Write the checkpoint of a DLedger log, as its member does every 3 s."""
        entries = store.opened.entries
        if entries is not None:
            for file in entries.take_dirty_index():
                file.sync()
            entries.mark_index_flushed()
            entries.checkpoint_task()()

    def tree(self) -> dict[str, bytes]:
        """Return the content of every file below the root, by its path there."""
        if isinstance(self.files, MemoryFiles):
            found = {path: bytes(node.data) for path, node in self.files.nodes.items()}
        else:
            paths = (path for path in Path(self.root).rglob("*") if path.is_file())
            found = {str(path): path.read_bytes() for path in paths}
        root = self.root + "/"
        return {
            path.removeprefix(root): data for path, data in found.items() if path.startswith(root)
        }

    def edit(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file without the store's knowledge."""
        file = self.files.open(f"{self.root}/{path}")
        file.write(position, data)
        file.sync()
        file.close()

    def write_back(self, part: str) -> None:
        """Sync the files whose paths contain ``part``, as the operating system may at any time."""
        assert isinstance(self.files, MemoryFiles)
        for path in [path for path in self.files.nodes if part in path]:
            self.files.open(path).sync()
            self.files.sync_dir(path.rpartition("/")[0])

    def place(self, offset: int) -> tuple[str, int]:
        """Return the file of a log offset, in commitlog/ or the DLedger data, and its position."""
        first = offset // FILE_SIZE * FILE_SIZE
        name = f"{first:020d}"
        folder = f"dledger-{self.self_id}/data" if self.flag else "commitlog"
        return f"{folder}/{name}", offset - first


@define
class MemoryRig(StoreRig):
    """A store directory in memory."""

    files: MemoryFiles = field(factory=MemoryFiles)
    root: str = "/store"

    def after_end(self, end: str) -> Self:
        """Return a rig of the files that a kill or a power loss ("crash") leaves."""
        return self.after(self.files.kill() if end == "kill" else self.files.crash())


def bodies_of(store: MessageStore) -> set[bytes]:
    """Return the body of every message that a consumer gets (IPv4 hosts)."""
    return {
        record[88 : 88 + int.from_bytes(record[84:88])]
        for records in read_all(store).values()
        for record in records
    }


def entries_of(store: MessageStore) -> EntryStore:
    """Return the entries of a store in DLedger mode."""
    assert store.opened.entries is not None
    return store.opened.entries


def record_at(store: MessageStore, offset: int) -> memoryview:
    """Return the record of the message at a physical offset."""
    record = store.reader.message_at(offset)
    assert record is not None
    return record


def queue_of(store: MessageStore, topic: str, queue_id: int) -> ConsumeQueue:
    """Return a consume queue that exists."""
    queue = store.queues.find(topic, queue_id)
    assert queue is not None
    return queue
