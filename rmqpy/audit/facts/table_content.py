"""The content of the configuration tables that replicas must agree on.

=====================  =====================  =====================================================
table                  under                  content
=====================  =====================  =====================================================
topics.json            topicConfigTable       topic → its configuration
subscriptionGroup.json subscriptionGroupTable group → its configuration
consumerOffset.json    offsetTable            "topic@group queue" → queue offset
delayOffset.json       offsetTable            delay level → queue offset in SCHEDULE_TOPIC_XXXX
any other              (whole)                the members of the object
=====================  =====================  =====================================================

``dataVersion`` is no content. It counts the changes of topics and of groups and has the time of the
last one; a slave takes it over with the table, so of two versions it shows which one is earlier.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import define, field

from rmqpy.audit.facts.log_reader import LogReader
from rmqpy.audit.facts.small_files import DATA_VERSION, read_table, table_digest
from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.queue_units import QueueUnits, unit_at
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.names import SCHEDULE_TOPIC
from rmqpy.remoting.fastjson import loads

__all__ = [
    "DELAYS",
    "GROUPS",
    "MEMBERS",
    "OFFSETS",
    "TOPICS",
    "TableFacts",
    "TableVersion",
    "content_of",
    "delay_queue_id",
    "parse_content",
    "read_table_facts",
    "split_offset_key",
    "version_of",
]

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
OFFSETS: Final = "consumerOffset.json"
DELAYS: Final = "delayOffset.json"
MEMBERS: Final = {
    TOPICS: "topicConfigTable",
    GROUPS: "subscriptionGroupTable",
    OFFSETS: "offsetTable",
    DELAYS: "offsetTable",
}
DEFAULTS_OF_5X: Final = {
    "attributes": {},
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
}
"""The settings of a topic or group that only 5.x writes (5.3.3: tests/golden/config_v533)."""

Position = tuple[int, int]
"""(queue offset, a time in ms of the message there, or -1 if there is none)."""


@define(slots=True, frozen=True)
class TableVersion:
    """The DataVersion of a table: the number of its changes, and the time of the last one."""

    counter: int
    timestamp_ms: int

    def is_earlier(self, other: TableVersion) -> bool:
        """Return whether a table of this version is an earlier state of one of ``other``.

        Two tables that were changed independently of each other are neither.
        """
        return self.counter < other.counter and self.timestamp_ms <= other.timestamp_ms


@define(slots=True, frozen=True, kw_only=True)
class TableFacts:
    """The tables of a store as they are compared with those of another.

    ``topics`` and ``groups`` map names to digests of their configuration; ``versions`` has the
    versions of these two tables by file name. The time in ``offsets`` is the store time of the
    first message that the group has not consumed, the time in ``delays`` the due time of the first
    message that has not been delivered.
    """

    topics: dict[str, str] = field(factory=dict)
    groups: dict[str, str] = field(factory=dict)
    offsets: dict[str, Position] = field(factory=dict)
    delays: dict[str, Position] = field(factory=dict)
    versions: dict[str, TableVersion] = field(factory=dict)

    @classmethod
    def of_json(cls, tree: dict[str, Any]) -> TableFacts:
        def positions(table: dict[str, list[int]]) -> dict[str, Position]:
            return {key: (offset, time_ms) for key, (offset, time_ms) in table.items()}

        return cls(
            topics=tree["topics"],
            groups=tree["groups"],
            offsets=positions(tree["offsets"]),
            delays=positions(tree["delays"]),
            versions={
                name: TableVersion(**each) for name, each in tree.get("versions", {}).items()
            },
        )


def parse_content(name: str, text: str | bytes | None) -> dict[str, Any]:
    """Return the content of a table without nesting, or {} if it cannot be parsed."""
    if not text:
        return {}
    try:
        return content_of(name, loads(text))
    except (RmqError, ValueError):
        return {}


def content_of(name: str, value: object) -> dict[str, Any]:
    """Return the content of a parsed table; {} if it has another form.

    Raise ValueError for a queue, level, or offset that is not a number.
    """
    if not isinstance(value, dict):
        return {}
    member = MEMBERS.get(name)
    if member is None:
        return {key: each for key, each in value.items() if key != DATA_VERSION}
    table = value.get(member) or {}
    if not isinstance(table, dict):
        return {}
    if name == OFFSETS:
        return {
            f"{key} {int(queue)}": int(offset)
            for key, queues in table.items()
            if isinstance(queues, dict)
            for queue, offset in queues.items()
        }
    if name == DELAYS:
        return {str(int(level)): int(offset) for level, offset in table.items()}
    return dict(table)


def version_of(value: object) -> TableVersion | None:
    """Return the version of a parsed table, or None if it has none."""
    version = value.get(DATA_VERSION) if isinstance(value, dict) else None
    if not isinstance(version, dict):
        return None
    try:
        return TableVersion(int(version.get("counter", 0)), int(version.get("timestamp", 0)))
    except (TypeError, ValueError):
        return None


def split_offset_key(key: str) -> tuple[str, str, int]:
    """Return (topic, group, queue id) of a key of the consumer offsets."""
    topic_and_group, _, queue = key.rpartition(" ")
    topic, _, group = topic_and_group.partition("@")
    return topic, group, int(queue)


def delay_queue_id(level: str) -> int:
    """Return the queue of SCHEDULE_TOPIC_XXXX that has the messages of a delay level."""
    return int(level) - 1


def read_table_facts(files: FileSystem, directory: StoreDirectory) -> TableFacts:
    """Return the tables of a store, read as a broker reads them: from the file or its backup."""
    units, log = QueueUnits(files, directory), LogReader(files, directory)

    values = {name: read_table(files, f"{directory.paths.config}/{name}") for name in MEMBERS}

    def content(name: str) -> dict[str, Any]:
        try:
            return content_of(name, values[name])
        except ValueError:
            return {}

    def stored_ms(key: str, offset: int) -> int:
        topic, _, queue_id = split_offset_key(key)
        row = units(topic.encode("utf-8", "surrogateescape"), queue_id)
        unit = unit_at(row, offset) if row is not None and offset >= 0 else None
        message = log.message(unit[0]) if unit is not None and unit[1] > 0 else None
        return message.store_timestamp_ms if message is not None else -1

    def due_ms(level: str, offset: int) -> int:
        row = units(SCHEDULE_TOPIC.encode(), delay_queue_id(level))
        unit = unit_at(row, offset) if row is not None and offset >= 0 else None
        return unit[2] if unit is not None and unit[1] > 0 else -1

    return TableFacts(
        topics={name: _settings_digest(each) for name, each in content(TOPICS).items()},
        groups={name: _settings_digest(each) for name, each in content(GROUPS).items()},
        offsets={key: (each, stored_ms(key, each)) for key, each in content(OFFSETS).items()},
        delays={key: (each, due_ms(key, each)) for key, each in content(DELAYS).items()},
        versions={
            name: version
            for name in (TOPICS, GROUPS)
            if (version := version_of(values[name])) is not None
        },
    )


def _settings_digest(settings: object) -> str:
    """Return the digest of the configuration of a topic or group.

    5.x writes settings also where they have their defaults that 4.9 and rmqpy do not know. A broker
    of 4.9 that takes a store of 5.x over writes a table only after its next change, so its slave
    may do so earlier; and a slave of 5.x writes them into the table of an rmqpy leader.
    """
    if isinstance(settings, dict):
        settings = {
            key: each
            for key, each in settings.items()
            if key not in DEFAULTS_OF_5X or each != DEFAULTS_OF_5X[key]
        }
    return table_digest(settings)
