"""The copies of a message and what is known of each, for :mod:`rmqpy.why.questions.where`."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from attrs import define

from rmqpy.admin.commands.trace import Trace
from rmqpy.audit.checks.messages import host_text
from rmqpy.codec.message import offset_msg_id
from rmqpy.codec.properties import (
    PROPERTY_KEYS,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
)
from rmqpy.model.message import StoredMessage
from rmqpy.model.text import count_text, time_text
from rmqpy.why.sources.interface import LogPlace, QueueUnitPlace

__all__ = ["CopyKind", "GroupPosition", "MessageCopy", "WhereResult"]


class CopyKind(Enum):
    """What a copy of a message is for."""

    TOPIC = "message"
    DELAYED = "delayed message"
    HALF = "half message"
    GIVEN_UP = "given-up half message"
    RETRY = "retry"
    DEAD = "dead letter"


@define(slots=True, frozen=True)
class GroupPosition:
    """The offset of a consumer group in the queue of a copy."""

    group: str
    offset: int
    queue_offset: int

    @property
    def has_passed(self) -> bool:
        return self.offset > self.queue_offset

    @property
    def text(self) -> str:
        if self.has_passed:
            return f"{self.group} has passed it: its offset is {self.offset}"
        if self.offset == self.queue_offset:
            return f"{self.group} has it next: its offset is {self.offset}"
        behind = self.queue_offset - self.offset
        return f"{self.group} has not reached it: its offset is {self.offset}, {behind} before it"


@define(slots=True, frozen=True, kw_only=True)
class MessageCopy:
    """One record of the message.

    ``unit`` is what the queue has at the message's queue offset; ``unit_fault`` says what is wrong
    with it. ``index_file`` is "" if the index does not lead to the record. ``due_ms`` and
    ``delivered`` belong to a delayed message, ``resolved`` to a half message (None if unknown).
    """

    kind: CopyKind
    message: StoredMessage
    place: LogPlace
    unit: QueueUnitPlace | None = None
    unit_fault: str = ""
    index_file: str = ""
    groups: tuple[GroupPosition, ...] = ()
    due_ms: int = -1
    level: int = 0
    delivered: bool | None = None
    resolved: bool | None = None
    later_copies: int = 0
    """The number of later copies of a half message, which replace it. Each check writes one, and so
    does giving it up.
    """

    @property
    def real_topic(self) -> str:
        return self.message.properties.get(PROPERTY_REAL_TOPIC, self.message.topic)

    @property
    def real_queue_id(self) -> int:
        text = self.message.properties.get(PROPERTY_REAL_QUEUE_ID, "")
        return int(text) if text.isascii() and text.isdigit() else self.message.queue_id

    @property
    def state(self) -> str:
        """What the kind of the copy means for its delivery; "" for an ordinary message."""
        match self.kind:
            case CopyKind.DELAYED:
                due = f"due {time_text(self.due_ms)}" if self.due_ms >= 0 else "due time unknown"
                delivered = {True: "delivered", False: "not delivered yet", None: "unknown"}
                return (
                    f"for {self.real_topic}, level {self.level}, {due}: "
                    + (delivered[self.delivered])
                )
            case CopyKind.HALF:
                resolved = {True: "resolved", False: "pending", None: "resolved or pending"}
                state = "replaced by a later copy" if self.later_copies else resolved[self.resolved]
                return f"for {self.real_topic}: {state}"
            case _:
                return ""

    def as_json(self) -> dict[str, Any]:
        message, unit = self.message, self.unit
        tree: dict[str, Any] = {
            "kind": self.kind.value,
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "physical_offset": message.physical_offset,
            "size": message.size,
            "log": self.place.log,
            "file": self.place.file,
            "position": self.place.position,
            "message_id": message.properties.get(PROPERTY_UNIQ_KEY),
            "offset_message_id": offset_msg_id(message.store_host, message.physical_offset),
            "keys": message.properties.get(PROPERTY_KEYS, "").split(),
            "tags": message.properties.get(PROPERTY_TAGS),
            "born_timestamp_ms": message.born_timestamp_ms,
            "born_host": host_text(message.born_host),
            "store_timestamp_ms": message.store_timestamp_ms,
            "store_host": host_text(message.store_host),
            "reconsume_times": message.reconsume_times,
            "index_file": self.index_file or None,
            "unit_fault": self.unit_fault or None,
            "groups": [
                {"group": each.group, "offset": each.offset, "has_passed": each.has_passed}
                for each in self.groups
            ],
        }
        if self.place.index >= 0:
            tree |= {
                "entry_index": self.place.index,
                "term": self.place.term,
                "committed": self.place.committed,
            }
        if unit is not None:
            tree["unit"] = {
                "file": unit.file or None,
                "position": unit.position,
                "physical_offset": unit.physical_offset,
                "size": unit.size,
            }
        if self.kind is CopyKind.DELAYED:
            due_ms = self.due_ms if self.due_ms >= 0 else None
            tree |= {"real_topic": self.real_topic, "level": self.level}
            tree |= {"due_ms": due_ms, "delivered": self.delivered}
        if self.kind is CopyKind.HALF:
            tree |= {"real_topic": self.real_topic, "resolved": self.resolved}
        return tree

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of a name and a value for a person."""
        message, place = self.message, self.place
        queue = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        yield self.kind.value, queue
        if self.state:
            yield "state", self.state
        where = place.file or place.log
        text = f"{where} byte {place.position}" if place.position >= 0 else place.log
        yield "log", f"{text}: physical offset {message.physical_offset}, {message.size} bytes"
        if place.index >= 0:
            known = {True: "committed", False: "not known to be committed", None: "unknown"}
            yield "entry", f"index {place.index} term {place.term}, {known[place.committed]}"
        yield "queue unit", self._unit_text()
        yield "key index", self.index_file or "no entry leads to it"
        yield "sent", f"{time_text(message.born_timestamp_ms)} by {host_text(message.born_host)}"
        yield "stored", f"{time_text(message.store_timestamp_ms)}"
        tags = message.properties.get(PROPERTY_TAGS)
        keys = message.properties.get(PROPERTY_KEYS)
        if tags or keys:
            yield "tag, keys", f"{tags or '-'}, {keys or '-'}"
        if message.reconsume_times:
            yield "sent back", count_text(message.reconsume_times, "time")
        for each in self.groups:
            yield "group", each.text

    def _unit_text(self) -> str:
        if self.unit is None:
            return self.unit_fault
        at = f"{self.unit.file} byte {self.unit.position}" if self.unit.file else "found"
        return f"{at}: {self.unit_fault}" if self.unit_fault else at


@define(slots=True, frozen=True, kw_only=True)
class WhereResult:
    """The copies of a message in one source.

    ``searched`` says how they were searched for; ``incomplete`` what could not be searched.
    """

    source: str
    copies: tuple[MessageCopy, ...] = ()
    searched: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    traces: tuple[Trace, ...] = ()
    """What clients have recorded about the message in the trace topic."""

    def copies_of(self, *kinds: CopyKind) -> list[MessageCopy]:
        return [each for each in self.copies if each.kind in kinds]

    @property
    def current_copies(self) -> list[MessageCopy]:
        """The copies without those of half messages that a later copy replaces."""
        return [each for each in self.copies if not each.later_copies]

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "found": [each.as_json() for each in self.copies],
            "traces": [
                {
                    "kind": each.kind,
                    "group": each.group,
                    "client_host": each.client_host,
                    "time_ms": each.time_ms,
                    "success": each.success,
                }
                for each in self.traces
            ],
            "searched": list(self.searched),
            "not_examined": list(self.incomplete),
        }
