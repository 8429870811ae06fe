"""The conditions under which the fast path may answer sends, and the changes that invalidate its
tables.

The entries that the fast path has learned from requests of the processors are valid until
:meth:`FastPathEligibility.take_changes` names their topic or group, or reports that everything may
have changed: the settings, the role, the consume queues (some may have been removed), the table of
next queue offsets, or the rules of access control.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.services.pull_hold import PullRequestHold
from rmqpy.broker.state.clients import ClientTable
from rmqpy.broker.state.consumer_filters import ConsumerFilterTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.statistics import Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.values import define
from rmqpy.net.pending_replies import SendGate
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmqpy.broker.processors.access_control import BrokerAccessControl

REPLIES_AT_ONCE: Final = 8192
"""The fast path accepts no sends unless the gate can hold this many more replies."""

SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }
)

_NEVER_MS: Final = 1 << 62


@define(slots=True, frozen=True, kw_only=True)
class FastPathInputs:
    """The tables that the fast path reads."""

    identity: BrokerContext
    topics: TopicTable
    groups: SubscriptionGroupTable
    clients: ClientTable
    filters: ConsumerFilterTable
    store: MessageStore
    access: BrokerAccessControl | None


@define(slots=True, frozen=True, kw_only=True)
class FastPathDependencies:
    """The services that the fast path uses in addition to the tables."""

    gate: SendGate
    messages: InternalMessageWriter
    replication: ReplicationStatus
    statistics: Statistics
    offsets: ConsumerOffsetTable
    hold: PullRequestHold
    clock: Clock


@define(slots=True, frozen=True)
class EntryChanges:
    """The topics and consumer groups that have changed, and the topics whose queues have lost
    files, or were removed.
    """

    topics: Collection[str] = ()
    groups: Collection[str] = ()
    shortened: Collection[str] = ()


_NO_CHANGES: Final = EntryChanges()


class FastPathEligibility:
    """The decision whether the fast path may answer sends and whether its tables
    are still valid.
    """

    def __init__(self, sources: FastPathInputs, deps: FastPathDependencies) -> None:
        self._sources = sources
        self._deps = deps
        self._queue_table = sources.store.queues
        self._tails = sources.store.appender.tails
        self._stamp: tuple[object, ...] = (None,) * 4
        self._counts = (-1,) * 5
        """The numbers of changes that were reported: topics, groups, members, filters, queues."""
        self._sends_from_ms = _NEVER_MS
        self._needs_slaves = False
        self.marks: Sequence[Watermark] = ()
        """The watermarks that the reply to a send waits for."""
        self.paused = self._retired = False
        """True while requests have waited too long, so that the processors answer them."""
        self.allows_wait_false = False
        """True if the reply to a message with ``WAIT=false`` waits for the same watermarks as other
        replies.
        """

    def take_changes(self) -> EntryChanges | None:
        """Return the changes since the last call, or None if every entry must be discarded."""
        sources = self._sources
        topics, groups = sources.topics.changes, sources.groups.changes
        members, filters = sources.clients.changes, sources.filters.changes
        queues = self._queue_table.changes
        counts = topics.count, groups.count, members.count, filters.count, queues.count
        known, self._counts = self._counts, counts
        if self._everything_changed():
            return None
        if known == counts:
            return _NO_CHANGES
        of_topics, of_queues = topics.since(known[0]), queues.since(known[4])
        if of_topics is None or of_queues is None:
            return None
        of_groups: set[str] = set()
        for table, count in ((groups, known[1]), (members, known[2]), (filters, known[3])):
            changed = table.since(count)
            if changed is None:
                return None
            of_groups.update(changed)
        return EntryChanges(of_topics, of_groups, of_queues)

    def _everything_changed(self) -> bool:
        sources = self._sources
        identity = sources.identity
        configuration, role, generation, rules = self._stamp
        access = sources.access.rules if sources.access is not None else None
        if (
            configuration is identity.configuration
            and role is identity.role
            and generation == self._tails.generation
            and rules is access
        ):
            return False
        self._stamp = (
            identity.configuration,
            identity.role,
            self._tails.generation,
            access,
        )
        store = sources.store
        self.marks = (*store.log.acknowledged(True), *self._deps.replication.marks)
        self.allows_wait_false = self.marks == (*store.log.acknowledged(False),)
        self._needs_slaves = self._deps.replication.waits
        self._sends_from_ms = _NEVER_MS
        if identity.is_writeable and not identity.store.rmqpy_put_message_hooks:
            self._sends_from_ms = identity.broker_settings.start_accept_send_request_time_stamp
        return True

    def pause(self, is_paused: bool) -> None:
        """Set whether the processors answer every request."""
        self.paused = is_paused or self._retired

    def retire(self) -> None:
        """Let the processors answer every request from now on."""
        self.paused = self._retired = True

    def may_handle_sends(self, now_ms: int) -> bool:
        """Return whether plain sends can be stored and answered as usual now."""
        store, deps = self._sources.store, self._deps
        return (
            now_ms >= self._sends_from_ms
            and not self.paused
            and (not self._needs_slaves or bool(deps.replication.required_marks()))
            and not store.appender.appends_crc
            and store.appender.is_ready()
            and deps.gate.has_room(REPLIES_AT_ONCE)
        )

    @property
    def may_copy_for_clients(self) -> bool:
        """Whether transactions may be ended and messages be sent back now."""
        identity = self._sources.identity
        return (
            self.may_copy
            and not self.paused
            and identity.is_writeable
            and not identity.is_slave
            and self._deps.messages.has_room_for(REPLIES_AT_ONCE)
        )

    @property
    def may_copy(self) -> bool:
        """Whether copies of stored messages can be stored now."""
        store = self._sources.store
        appender = store.appender
        return not appender.appends_crc and store.health.is_healthy and appender.is_ready()

    @property
    def acknowledged_offset(self) -> int:
        """The log offset up to which replies may leave."""
        marks = self.marks
        return marks[0].value if len(marks) == 1 else min([mark.value for mark in marks])


def may_send(topic: str) -> bool:
    """Return whether clients may send to a topic of this name."""
    try:
        names.check_send_topic(topic)
    except RequestRejectedError:
        return False
    return True
