"""What RocketMQ 5.x may keep in a store and nothing in rmqpy reads.

A broker that opens such a store in silence does not deliver what waits there, or starts as a master
beside the one that a controller has elected. Empty files of the same features are in every store of
5.x and harmless.

==============================  ====================================================================
found                           why it matters
==============================  ====================================================================
``brokerIdentity``,             a controller decides who is master; a broker that starts as one by
``epochFileCheckpoint``         its configuration is a second one and gives queue offsets again
timer wheel: slots that are     messages with a delivery time are in no queue of their topic until
not due, records of the timer   they are due
topic that are not in it
POP: revive records behind the  messages that were received and not acknowledged return to their
offset of the reviver           group only through these records
RocksDB: queues, tables, POP    are in no other file, or newer there
batch queues, compaction logs   topics of these types are read through them only
==============================  ====================================================================

Offsets: ``timerwheel`` consists of slots of 32 bytes (time / precision, first, last: int64; number,
magic: int32); ``config/timercheck`` begins with the time up to which the wheel has been delivered
and has the next queue offset to take from the timer topic at 16. A delivered slot keeps its number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from attrs import define

from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.remoting.fastjson import FastjsonDecodeError, loads

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"

_PRECISION_MS: Final = 1000
_SLOT: Final = struct.Struct(">qqqii")
_CHECK: Final = struct.Struct(">qqq")
_PAGE: Final = 4096
_UNIT: Final = QUEUE_UNIT_SIZE
_ROCKSDB_MARK: Final = "CURRENT"
_CONTROLLER_FILES: Final = (
    "brokerIdentity",
    "brokerIdentity-temp",
    "epochFileCheckpoint",
    "epochFileCheckpoint.bak",
)


@define(slots=True, frozen=True)
class UnreadData:
    """One finding. ``leads`` is True if the data decides who is master: then no setting helps."""

    path: str
    found: str
    remedy: str
    leads: bool = False


def find_unread(files: FileSystem, root: str) -> list[UnreadData]:
    """Return everything in the store at ``root`` that rmqpy would not read. Changes nothing."""
    return [
        *_controller(files, root),
        *_rocksdb(files, root),
        *_timer(files, root),
        *_revive(files, root),
        *_other_logs(files, root),
    ]


def check_no_unread(files: FileSystem, root: str, *, accept: bool) -> list[str]:
    """Raise StoreError if the store contains data that rmqpy does not read. With ``accept``
    (``rmqpyAcceptUnreadData``) return notes instead, except for data that decides who is master.
    """
    found = find_unread(files, root)
    refused = [each for each in found if each.leads or not accept]
    if not refused:
        return [f"{each.path}: {each.found}: not read by rmqpy" for each in found]
    remedies = dict.fromkeys(each.remedy for each in refused)
    if not any(each.leads for each in refused):
        remedies["or set rmqpyAcceptUnreadData=true to start without it"] = None
    raise StoreError(
        refused[0].path,
        "; ".join(dict.fromkeys(each.found for each in refused)),
        "a store whose data rmqpy reads completely",
        "; ".join(remedies),
    )


def _controller(files: FileSystem, root: str) -> Iterator[UnreadData]:
    paths = [f"{root}/{name}" for name in _CONTROLLER_FILES]
    for path in paths:
        if files.exists(path) and files.size_of(path):
            yield UnreadData(
                path,
                "the identity or epochs of a broker whose master a 5.x controller elects",
                "start it with the Java broker and enableControllerMode=true; or, to leave the"
                " controller for good, stop all replicas and the controller, compare the logs"
                " (rmqpy upgrade check), and move brokerIdentity and epochFileCheckpoint* out of"
                " each store",
                leads=True,
            )
            return


def _rocksdb(files: FileSystem, root: str) -> Iterator[UnreadData]:
    if files.exists(f"{root}/consumequeue/{_ROCKSDB_MARK}"):
        yield UnreadData(
            f"{root}/consumequeue",
            "consume queues in RocksDB",
            "move the folder out of the store, so that the queues are built again from the log",
        )
    config = f"{root}/config"
    for name in files.list_dir(config):
        if files.exists(f"{config}/{name}/{_ROCKSDB_MARK}"):
            yield UnreadData(
                f"{config}/{name}",
                f"the table {name} in RocksDB",
                "export the tables with the 5.x tools (mqadmin rocksDBConfigToJson) to the json"
                " files in config/, and move the folders of RocksDB away",
            )
    if files.exists(f"{root}/kvStore/{_ROCKSDB_MARK}"):
        yield UnreadData(
            f"{root}/kvStore",
            "POP messages in RocksDB that may not be acknowledged",
            "let the consumers of the 5.x broker acknowledge them, stop it, and move kvStore away",
        )


def _timer(files: FileSystem, root: str) -> Iterator[UnreadData]:
    read_to_ms, taken = 0, 0
    check = f"{root}/config/timercheck"
    if files.exists(check):
        data = files.read_bytes(check)
        if len(data) >= _CHECK.size:
            read_to_ms, _, taken = _CHECK.unpack_from(data)
    remedy = (
        "let the 5.x broker deliver the timer messages first, or move timerwheel, timerlog, and"
        " config/timer* out of the store to give them up"
    )
    wheel = f"{root}/timerwheel"
    waiting = _waiting_timers(files, wheel, read_to_ms) if files.exists(wheel) else 0
    if waiting:
        yield UnreadData(wheel, f"{waiting} timer messages that are not due yet", remedy)
    path = f"{root}/consumequeue/{TIMER_TOPIC}"
    behind = _queue_end(files, f"{path}/0") - taken
    if behind > 0:
        yield UnreadData(path, f"{behind} timer messages that are not in the wheel yet", remedy)


def _waiting_timers(files: FileSystem, path: str, read_to_ms: int) -> int:
    """Return the number of messages in the slots of the wheel that have not been delivered."""
    if files.size_of(path) < _SLOT.size:
        return 0
    file = files.open_readonly(path)
    waiting = 0
    empty = bytes(_PAGE)
    try:
        view = file.view
        end = min(file.data_end(0) + _PAGE, len(view))
        for start in range(0, end, _PAGE):
            page = bytes(view[start : start + _PAGE])
            if page == empty[: len(page)]:
                continue
            usable = page[: len(page) - len(page) % _SLOT.size]
            for time, _first, _last, number, _magic in _SLOT.iter_unpack(usable):
                if number > 0 and time * _PRECISION_MS >= read_to_ms:
                    waiting += number
        view.release()
    finally:
        file.close()
    return waiting


def _revive(files: FileSystem, root: str) -> Iterator[UnreadData]:
    folder = f"{root}/consumequeue"
    topics = [name for name in files.list_dir(folder) if name.startswith(REVIVE_TOPIC_PREFIX)]
    if not topics:
        return
    offsets = _committed(files, f"{root}/config/consumerOffset.json")
    for topic in topics:
        committed = offsets.get(f"{topic}@{REVIVE_GROUP}", {})
        behind = 0
        for name in files.list_dir(f"{folder}/{topic}"):
            if name.isascii() and name.isdigit():
                end = _queue_end(files, f"{folder}/{topic}/{name}")
                behind += max(0, end - committed.get(int(name), 0))
        if behind:
            yield UnreadData(
                f"{folder}/{topic}",
                f"{behind} POP records of messages that may not be acknowledged",
                "let the 5.x broker run until its consumers have acknowledged all POP messages",
            )


def _queue_end(files: FileSystem, folder: str) -> int:
    """Return the end of a consume queue: the number after its last unit, 0 if there is none."""
    names = [name for name in files.list_dir(folder) if name.isascii() and name.isdigit()]
    for name in sorted(names, reverse=True):
        file = files.open_readonly(f"{folder}/{name}")
        try:
            end = file.data_end(0)
            while end > 0:
                start = max(0, end - _PAGE)
                data = bytes(file.view[start:end]).rstrip(b"\0")
                if data:
                    return (int(name) + start + len(data) + _UNIT - 1) // _UNIT
                end = start
        finally:
            file.close()
    return 0


def _committed(files: FileSystem, path: str) -> dict[str, dict[int, int]]:
    """Return the offsets in a table of consumer offsets; what cannot be read counts as 0."""
    try:
        content: Any = loads(files.read_bytes(path))
        return {
            str(name): {int(queue): int(offset) for queue, offset in queues.items()}
            for name, queues in content["offsetTable"].items()
        }
    except (OSError, FastjsonDecodeError, LookupError, TypeError, ValueError, AttributeError):
        return {}


def _other_logs(files: FileSystem, root: str) -> Iterator[UnreadData]:
    for folder, what in (
        ("batchconsumequeue", "queues of batch topics"),
        ("compaction/compactionLog", "logs of compaction topics"),
    ):
        path = f"{root}/{folder}"
        if _has_data(files, path):
            yield UnreadData(
                path, what, "read these topics with the 5.x broker, and delete them there"
            )


def _has_data(files: FileSystem, path: str) -> bool:
    """Return whether a directory tree contains a file that is not empty."""
    for name in files.list_dir(path):
        child = f"{path}/{name}"
        if files.is_dir(child):
            if _has_data(files, child):
                return True
        elif files.size_of(child):
            return True
    return False
