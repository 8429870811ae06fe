"""What RocketMQ 5.x may keep in a store and nothing in rmqpy reads: the one list of it.

A broker that opens such a store in silence does not deliver what waits there, or starts as a master
beside the one that a controller has elected. Empty files of the same features are in every store of
5.x and harmless, and so are records of version 2 (long topics), which rmqpy reads.

=================  =================================================================================
kind               why it matters
=================  =================================================================================
CONTROLLER         ``brokerIdentity``, ``epochFileCheckpoint``: a controller decides who is master;
                   a broker that starts as one by its configuration is a second one and gives queue
                   offsets again
TIMER_WHEEL        :mod:`rmqpy.store.unread.timers`: messages with a delivery time are in no queue
TIMER_TOPIC        of their topic until they are due
POP_RECORDS        :mod:`rmqpy.store.unread.pop`: messages that were received and not acknowledged
                   return to their group only through these records
POP_ROCKSDB        the same in RocksDB
ROCKSDB_QUEUES     consume queues and tables that are in no other file, or newer there
ROCKSDB_TABLES
BATCH_QUEUES       topics of these types are read through them only
COMPACTION
LIGHT_QUEUES       ``%LMQ%`` queues: rmqpy adds no messages to them
TIERED             messages that are no longer in the log may be in another storage
=================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final

from rmqpy.codec.properties import PROPERTY_UNIQ_KEY
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.names import LMQ_PREFIX
from rmqpy.model.text import time_text
from rmqpy.model.values import define
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.pop import REVIVE_TOPIC_PREFIX, read_pop_records
from rmqpy.store.unread.raw_log import RawLog
from rmqpy.store.unread.rocksdb import (
    POP_FOLDER,
    has_rocksdb_data,
    is_rocksdb,
    rocksdb_queues,
)
from rmqpy.store.unread.timers import TIMER_TOPIC, TimerReader, WaitingTimers

_NAMED_MAX: Final = 3
"""How many topics or groups a sentence names."""


class UnreadKind(Enum):
    """What was found. ``read_with`` is the setting with which Java 5.x reads it, if it needs one;
    ``in_4_9`` says whether Java 4.9 reads it too.
    """

    read_with: str
    in_4_9: bool

    def __new__(cls, value: str, read_with: str = "", in_4_9: bool = False) -> UnreadKind:
        kind = object.__new__(cls)
        kind._value_, kind.read_with, kind.in_4_9 = value, read_with, in_4_9
        return kind

    CONTROLLER = "controller", "enableControllerMode=true"
    TIMER_WHEEL = "timer-wheel"
    TIMER_TOPIC = "timer-topic"
    POP_RECORDS = "pop-records", "", True
    POP_ROCKSDB = "pop-rocksdb", "popConsumerKVServiceInit=true"
    ROCKSDB_QUEUES = "rocksdb-queues", "storeType=defaultRocksDB"
    ROCKSDB_TABLES = "rocksdb-tables", "storeType=defaultRocksDB"
    BATCH_QUEUES = "batch-queues"
    COMPACTION = "compaction"
    LIGHT_QUEUES = "light-queues", "enableLmq=true and enableMultiDispatch=true", True
    TIERED = "tiered", "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore"


@define(slots=True, frozen=True)
class UnreadData:
    """One finding. ``messages`` is how many messages wait, by topic (POP: by group); empty if that
    was not counted.
    """

    kind: UnreadKind
    path: str
    found: str
    remedy: str
    messages: tuple[tuple[str, int], ...] = ()

    @property
    def leads(self) -> bool:
        """Whether the data decides who is master: then no setting helps."""
        return self.kind is UnreadKind.CONTROLLER


def find_unread(files: FileSystem, paths: StorePaths) -> list[UnreadData]:
    """Return everything in the store that rmqpy would not read. Changes nothing."""
    log = RawLog(files, paths)
    return [
        *_controller(files, paths),
        *_rocksdb(files, paths),
        *_timers_and_pop(log),
        *_other_queues(log),
    ]


def check_no_unread(files: FileSystem, paths: StorePaths, *, accept: bool) -> list[str]:
    """Raise StoreError if the store contains data that rmqpy does not read. With ``accept``
    (``rmqpyAcceptUnreadData``) return notes instead, except for data that decides who is master.
    """
    found = find_unread(files, paths)
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


def _controller(files: FileSystem, paths: StorePaths) -> Iterator[UnreadData]:
    for path in paths.controller_files:
        if files.exists(path) and files.size_of(path):
            yield UnreadData(
                UnreadKind.CONTROLLER,
                path,
                "the identity or epochs of a broker whose master a 5.x controller elects",
                "start it with the Java broker and enableControllerMode=true; or, to leave the"
                " controller for good, stop all replicas and the controller, compare the logs"
                " (rmqpy upgrade check), and move brokerIdentity and epochFileCheckpoint* out of"
                " each store",
            )
            return


def _rocksdb(files: FileSystem, paths: StorePaths) -> Iterator[UnreadData]:
    pop = f"{paths.root}/{POP_FOLDER}"
    for folder in rocksdb_queues(files, paths.root):
        yield UnreadData(
            UnreadKind.ROCKSDB_QUEUES,
            folder,
            "consume queues in RocksDB",
            "move the folder out of the store, so that the queues are built again from the log",
        )
    config = paths.config
    for name in files.list_dir(config):
        if is_rocksdb(files, f"{config}/{name}"):
            yield UnreadData(
                UnreadKind.ROCKSDB_TABLES,
                f"{config}/{name}",
                f"the table {name} in RocksDB",
                "export the tables with the 5.x tools (mqadmin rocksDBConfigToJson) to the json"
                " files in config/, and move the folders of RocksDB away",
            )
    if has_rocksdb_data(files, pop):
        yield UnreadData(
            UnreadKind.POP_ROCKSDB,
            pop,
            "POP messages in RocksDB that may not be acknowledged",
            "let the consumers of the 5.x broker acknowledge them, stop it, and move kvStore away",
        )


def _timers_and_pop(log: RawLog) -> Iterator[UnreadData]:
    timers = TimerReader(log, REVIVE_TOPIC_PREFIX)
    topic = f"{log.paths.consume_queue}/{TIMER_TOPIC}"
    in_wheel, before = timers.in_wheel(), timers.before_wheel()
    yield from _waiting(UnreadKind.TIMER_WHEEL, timers.wheel, log, in_wheel, "not due yet")
    yield from _waiting(UnreadKind.TIMER_TOPIC, topic, log, before, "not in the wheel yet")
    records = read_pop_records(log, timers.apart)
    groups = records.waiting()
    count = sum(groups.values()) + records.unread
    if count:
        topics = log.topics(REVIVE_TOPIC_PREFIX)
        yield UnreadData(
            UnreadKind.POP_RECORDS,
            f"{log.paths.consume_queue}/{topics[0]}" if topics else timers.wheel,
            f"{count} POP messages that were received and not acknowledged{_named(groups)}",
            "let the 5.x broker run until its consumers have acknowledged all POP messages",
            tuple(sorted(groups.items())),
        )


def _waiting(
    kind: UnreadKind, path: str, log: RawLog, waiting: WaitingTimers, why: str
) -> Iterator[UnreadData]:
    if waiting.count:
        lost = (
            f", {waiting.unread} of them not in the log"
            if waiting.topics and waiting.unread
            else ""
        )
        yield UnreadData(
            kind,
            path,
            f"{waiting.count} timer messages that are {why}{_named(waiting.topics)}{lost}"
            f"{_next(log, waiting)}",
            "let the 5.x broker deliver the timer messages first, or move timerwheel, timerlog, and"
            " config/timer* out of the store to give them up",
            tuple(sorted(waiting.topics.items())),
        )


def _next(log: RawLog, waiting: WaitingTimers) -> str:
    """Return which messages are due first."""
    named = []
    for due_ms, offset in waiting.next:
        message = log.record(offset)
        key = "" if message is None else message.properties.get(PROPERTY_UNIQ_KEY, "")
        named.append(f"{key or f'the one at offset {offset}'} at {time_text(due_ms)}")
    return f"; due first: {', '.join(named)}" if named else ""


def _named(counts: dict[str, int]) -> str:
    """Return the names with the highest counts, in parentheses."""
    if not counts:
        return ""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    shown = [f"{counts[name]} of {name}" for name in names[:_NAMED_MAX]]
    more = len(names) - len(shown)
    return f" ({', '.join([*shown, *([f'and {more} others'] if more else [])])})"


def _other_queues(log: RawLog) -> Iterator[UnreadData]:
    files, root = log.files, log.paths.root
    remedy = "read these topics with the 5.x broker, and delete them there"
    for kind, folder, what in (
        (UnreadKind.BATCH_QUEUES, "batchconsumequeue", "queues of batch topics"),
        (UnreadKind.COMPACTION, "compaction/compactionLog", "logs of compaction topics"),
    ):
        topics = [
            name
            for name in files.list_dir(f"{root}/{folder}")
            if _has_data(files, f"{root}/{folder}/{name}")
        ]
        if topics:
            yield UnreadData(kind, f"{root}/{folder}", f"{what}{_some(topics)}", remedy)
    light = [name for name in log.topics(LMQ_PREFIX) if log.queue_end(name, 0)]
    if light:
        yield UnreadData(
            UnreadKind.LIGHT_QUEUES,
            log.paths.consume_queue,
            f"light queues{_some(light)}",
            "read them with the Java broker: rmqpy would not add messages to them",
        )
    tiered = f"{log.paths.config}/tieredStoreMetadata.json"
    if files.exists(tiered) and files.size_of(tiered):
        yield UnreadData(
            UnreadKind.TIERED,
            tiered,
            "a tiered storage, which may have messages that are in no log",
            "keep the 5.x broker until all that its consumers need is in the log of the broker"
            " itself, and move tieredStoreMetadata.json out of the store",
        )


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    shown = [*names[:_NAMED_MAX], *([f"and {more} others"] if more > 0 else [])]
    return f" ({', '.join(shown)})"


def _has_data(files: FileSystem, path: str) -> bool:
    """Return whether a file, or any file of a directory tree, is not empty."""
    if not files.is_dir(path):
        return files.exists(path) and files.size_of(path) > 0
    return any(_has_data(files, f"{path}/{name}") for name in files.list_dir(path))
