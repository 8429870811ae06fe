"""The interface of a store that can be searched: a directory, or a running broker.

A method that returns None has no answer: the part does not exist, or this source cannot show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from attrs import define

from rmqpy.acl.rules import Account
from rmqpy.model.message import StoredMessage
from rmqpy.store.unread.pop import PopReceipt

__all__ = [
    "AccessAccounts",
    "ClientGroup",
    "DeletedFile",
    "KnownAccount",
    "LogPlace",
    "MessageSource",
    "OrderlyQueue",
    "QueueUnitPlace",
    "StoreRange",
]


@define(slots=True, frozen=True, kw_only=True)
class LogPlace:
    """Where a record is: file and position. ``index`` and ``term`` are -1 outside of DLedger.

    ``committed`` is None where it is not known, or does not apply.
    """

    log: str
    file: str
    position: int
    index: int = -1
    term: int = -1
    committed: bool | None = None


@define(slots=True, frozen=True, kw_only=True)
class QueueUnitPlace:
    """A consume queue unit and where it is."""

    physical_offset: int
    size: int
    tags_code: int
    file: str = ""
    position: int = -1


@define(slots=True, frozen=True, kw_only=True)
class StoreRange:
    """The offsets that a store has, and the store times of its first and last message (-1 if
    unknown).
    """

    begin: int
    end: int
    first_ms: int = -1
    last_ms: int = -1


@define(slots=True, frozen=True, kw_only=True)
class OrderlyQueue:
    """A queue of the topic as an orderly client sees it: it consumes only while it is locked."""

    client: str
    queue_id: int
    is_locked: bool
    last_lock_ms: int


@define(slots=True, frozen=True, kw_only=True)
class ClientGroup:
    """The members of a consumer group that are online.

    ``subscriptions`` are the subscription expressions of each client by client id, ``expression``
    is the one that the broker has registered for the topic. ``locks`` are the queues of this broker
    that orderly clients have.
    """

    clients: tuple[str, ...] = ()
    message_model: str = ""
    consume_type: str = ""
    consume_from: str = ""
    expression: str | None = None
    expression_type: str = "TAG"
    subscriptions: tuple[tuple[str, str], ...] = ()
    locks: tuple[OrderlyQueue, ...] = ()


@define(slots=True, frozen=True)
class KnownAccount:
    """An account of access control, and the file that it is in, or the broker that has it."""

    account: Account
    place: str


@define(slots=True, frozen=True)
class AccessAccounts:
    """The accounts of access control. ``fault`` says why they are not known."""

    accounts: tuple[KnownAccount, ...] = ()
    has_white_addresses: bool = False
    """Whether clients at some addresses need no account, or no right."""
    fault: str = ""


@define(slots=True, frozen=True)
class DeletedFile:
    """A file without a name, whose space is free only when the process closes it."""

    path: str
    bytes: int


class MessageSource(Protocol):
    """A store to search in."""

    @property
    def name(self) -> str:
        """What the operator has named: a directory or an address."""

    @property
    def is_live(self) -> bool:
        """True for a running broker that answers requests."""

    def settings(self) -> tuple[Mapping[str, str], str]:
        """Return the settings by their names in broker.conf, and where they come from."""

    def range(self) -> StoreRange | None: ...

    def topics(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the topics with the fields of topics.json."""

    def groups(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the consumer groups with the fields of subscriptionGroup.json."""

    def consumer_offsets(self) -> Mapping[tuple[str, str], Mapping[int, int]] | None:
        """Return queue id to offset by (topic, group)."""

    def delay_offsets(self) -> Mapping[int, int] | None:
        """Return delay level to the queue offset delivered up to."""

    def filters(self) -> Mapping[tuple[str, str], tuple[str, bool]] | None:
        """Return (SQL92 expression, whether it is in use) by (topic, group)."""

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        """Return the first queue offset and the one after the last."""

    def unit(self, topic: str, queue_id: int, queue_offset: int) -> QueueUnitPlace | None: ...

    def message(self, physical_offset: int) -> StoredMessage | None: ...

    def place(self, message: StoredMessage) -> LogPlace: ...

    def with_key(self, topic: str, key: str, *, unique: bool) -> list[tuple[StoredMessage, str]]:
        """Return the messages of a topic with this key, and the index file of each."""

    def scan(self, key: str) -> list[StoredMessage] | None:
        """Return the messages with this key or id, found by reading the log."""

    def unindexed(self, key: str) -> list[StoredMessage]:
        """Return the messages with this key in the parts of the log that no index file covers."""

    def resolved_halves(self, queue_id: int) -> set[int] | None:
        """Return the queue offsets of half messages that were committed or rolled back."""

    def pop_records_in_rocksdb(self) -> list[PopReceipt] | None:
        """Return what clients have received by POP according to ``kvStore``; None if that cannot be
        read. Raises StoreError.
        """

    def members(self, group: str, topic: str) -> ClientGroup | None:
        """Return the online members of a group; one without clients if nobody is online."""

    def accounts(self) -> AccessAccounts | None:
        """Return the accounts of access control, or None if it is off."""
