"""The broker as a whole: tables, processors, periodic work, and the way of a request through them.

``handle`` answers every request by one table (request code to handler); sends are collected and put
together at its end. ``turn_ended`` is the moment of commit: write what was staged, let go the
replies that waited for it, dispatch what has become readable, wake the readers who wait for it::

    handle*  ──►  commit  ──►  gate.release  ──►  dispatch  ──►  hold.wake

A refused request is answered with its code; any other error of one request is logged and answered
with code 1, and the connection lives on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from attrs import define

from rmqpy.broker.assembly.fast_port import FastPort, not_supported
from rmqpy.broker.assembly.tools import runtime_information, tool_handlers
from rmqpy.broker.assembly.wiring import Traffic
from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import PeriodicWork
from rmqpy.broker.base.store_api import Handler, Store
from rmqpy.broker.base.turn_slice import AdminTimeBudget
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.broker.processors.fast_failure import FastFailure, reject_if_page_cache_busy
from rmqpy.broker.processors.settling import reject_while_rebuilding
from rmqpy.broker.processors.slow_consumers import PERIOD_MS as SLOW_READERS_PERIOD_MS
from rmqpy.broker.processors.slow_consumers import SlowConsumerGuard
from rmqpy.broker.replication.master_discovery import MasterDiscovery
from rmqpy.broker.replication.master_services import MasterServices
from rmqpy.broker.replication.metadata_sync import MetadataSync
from rmqpy.broker.services.flush import LogFlusher, QueueFlusher
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.services.pull_hold import (
    SHORT_SWEEP_PERIOD_MS,
    SWEEP_PERIOD_MS,
    HeldPullRequest,
    PullRequestHold,
)
from rmqpy.broker.services.registration import RegistrationService
from rmqpy.broker.services.retention import StoreCleaning
from rmqpy.broker.services.schedule import ScheduleMessageService
from rmqpy.broker.services.transaction_check import TransactionCheckService
from rmqpy.broker.state.broker_stats import ItemStatistics
from rmqpy.broker.state.client_calls import ClientRequests
from rmqpy.broker.state.clients import SCAN_PERIOD_MS, ClientTable
from rmqpy.broker.state.consumer_filters import ConsumerFilterTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.broker.state.persistence import FILTERS_PERIOD_MS, PersistentTables, Tables
from rmqpy.broker.state.queue_locks import QueueLockTable
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.statistics import SAMPLE_PERIOD_MS, Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import PutMessageStatus, ResponseCode
from rmqpy.model.errors import ConfigError, RequestRejectedError
from rmqpy.model.files import FileSystem
from rmqpy.net.pending_replies import AckTimeout, PendingReplies, SendGate
from rmqpy.remoting.channel import Channel, Network
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

if TYPE_CHECKING:
    from rmqpy.broker.processors.access_control import BrokerAccessControl

INDEX_STEP_PERIOD_MS: Final = 10
ROOM_PERIOD_MS: Final = 1000
"""How often a full disk is tried again."""
UNAWAITED_DISPATCH_MS: Final = 5
"""A slave at which nobody waits makes readable in one piece what its log got in this time."""
WRITE_AT: Final = 256 * 1024
"""Bytes of answers from which a channel is given them before all requests of a read are done."""

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class BrokerDependencies:
    """What a broker gets from outside. ``host`` is the address that clients are told."""

    configuration: BrokerConfiguration
    host: str
    store: Store
    scheduler: Scheduler
    network: Network
    files: FileSystem
    pick_queue: Callable[[int], int]
    """A number below its argument, at random."""

    settings_file: SettingsFile | None = None
    """Where changed settings are kept; None: in memory only."""


class FastPathReplies(Protocol):
    """The hot path, as a turn ends. ``needs_refresh`` is set when frames were handled beside it."""

    needs_refresh: bool

    def flush_replies(self) -> None:
        """What was appended is committed: send the replies that may leave."""


class BrokerServer:
    """Implements ``remoting.channel.RequestHandler`` for the main port; ``fast_port`` does for the
    other.
    """

    def __init__(self, deps: BrokerDependencies) -> None:
        self._scheduler = deps.scheduler
        self.store = deps.store
        try:
            self.identity = BrokerContext.from_configuration(deps.configuration, deps.host)
        except ValueError as error:
            raise ConfigError(f"brokerIP1={deps.host}: an IP address is needed: {error}") from error
        clock = deps.scheduler
        self.replication = ReplicationStatus(self.identity, lambda: self.store.max_physical_offset)
        self.statistics = Statistics()
        self.topics = TopicTable(self.identity, clock)
        self.groups = SubscriptionGroupTable(self.identity, clock)
        self.offsets = ConsumerOffsetTable()
        self.delay_offsets = DelayOffsetTable()
        self.filters = ConsumerFilterTable(clock)
        self.clients = ClientTable(clock)
        self.calls = ClientRequests(clock)
        self.locks = QueueLockTable(clock)
        self.slow_readers = SlowConsumerGuard(self.identity, self.groups)
        self.hold = PullRequestHold(clock, self._resume)
        self.gate: SendGate = PendingReplies(clock, self._on_ack_timeout, self._ack_timeouts())
        self.registration = RegistrationService(
            identity=self.identity,
            topics=self.topics,
            scheduler=deps.scheduler,
            network=deps.network,
        )
        self._flushing = LogFlusher(self.store, self.gate, deps.scheduler, self._store_failed)
        self._queue_flushing = QueueFlusher(self.store, deps.scheduler, self._store_failed)
        self.own_messages = InternalMessageWriter(self.store, clock, self.statistics)
        self.cleaning = StoreCleaning(
            self.identity, self.store, self.topics, deps.scheduler, self._queue_flushing.begin
        )
        self.masters = MasterDiscovery(self.identity)
        self.registration.on_answer = lambda server, answer: self.masters.on_registration_answer(
            server, answer, clock.monotonic_ms()
        )
        self.slave_sync = MetadataSync.of(self, deps)
        self.replication.others.append(self.slave_sync.runtime_info)
        self._tables = PersistentTables.load(
            Tables(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                delays=self.delay_offsets,
                filters=self.filters,
            ),
            deps.files,
            self.identity.store.store_path_root_dir,
            deps.scheduler,
            self.registration.announce,
            self.store.queues(),
        )
        self.delivery = ScheduleMessageService.of(self, deps)
        self.item_statistics = ItemStatistics(self.identity, self.store, self.statistics, clock)
        self.checks = TransactionCheckService.of(self, deps)
        self.services = MasterServices((self.delivery, self.checks), self.own_messages.fail)
        traffic = Traffic.of(self, deps)
        self._send, self._pull = traffic.sends, traffic.pulls
        self.information = runtime_information(self, deps)
        self.member_status: Callable[[], Mapping[str, object]] | None = None
        """What a member of a DLedger group tells of itself."""
        self._handlers = {**traffic.handlers, **tool_handlers(self, deps)}
        self._brief = frozenset(traffic.handlers)
        """Request codes of producers and consumers, which are answered in the turn they come in."""
        self._slice = AdminTimeBudget(clock)
        self.queue_age = FastFailure(self.identity, self.store, clock)
        self._periodic = PeriodicWork(deps.scheduler)
        self.hot: FastPathReplies | None = None
        """What answers hot frames beside ``handle``, where there is one (``broker.hot``)."""
        self._turning = False
        self._dispatch_planned = False
        self._behind_bytes = 0
        self._reported_failure: str | None = None
        self.fast_port = FastPort(self)
        self.access: BrokerAccessControl | None = None
        if deps.configuration.broker.acl_enable:
            from rmqpy.broker.processors.access_control import BrokerAccessControl

            self.access = BrokerAccessControl.of(self, deps)

    def register_handler(self, code: int, handler: Handler) -> None:
        """Answer one more request code, of what is put beside the broker."""
        self._handlers[code] = handler

    def suspend_topic_writes(self, held: bool) -> None:
        """Whether topics.json is not written; it is, as soon as it may be again."""
        self._tables.topics.held = held
        self._tables.topics.changed()

    # -------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Begin periodic work and register. The ports may be open before or after."""
        self.store.on_arrival = self.hold.notify_message_arriving
        for mark in self.store.acknowledged(True):
            mark.subscribe(self._log_grown)
        identity, each = self.identity, self._periodic.every
        each("flush", lambda: identity.store.flush_interval_commit_log, self._flushing.begin)
        each(
            "queues",
            lambda: identity.store.flush_consume_queue_thorough_interval,
            self._queue_flushing.begin,
        )
        each("room", lambda: ROOM_PERIOD_MS, self._retry_full_disk)
        each("cleaning", lambda: identity.store.clean_resource_interval, self.cleaning.begin)
        each(
            "offsets",
            lambda: identity.broker_settings.flush_consumer_offset_interval,
            self._tables.offsets.write,
        )
        each(
            "delays", lambda: identity.store.flush_delay_offset_interval, self._tables.delays.write
        )
        each("filters", lambda: FILTERS_PERIOD_MS, self._tables.filters.write)
        each("clients", lambda: SCAN_PERIOD_MS, self._scan_clients)
        each("hold", self._sweep_period_ms, self._sweep)
        each("slow readers", lambda: SLOW_READERS_PERIOD_MS, self.slow_readers.check)
        each("statistics", lambda: SAMPLE_PERIOD_MS, self._sample)
        self.item_statistics.start()
        self._catch_up_index()
        if not self.identity.is_slave:
            self.services.start()
        self.slave_sync.start()
        self.registration.start()

    def stop(self, done: Callable[[], None]) -> None:
        """Unregister, let the flush that runs end, answer who waits, save the tables; then
        ``done``.

        The ports may be open until then. The store is shut down by its owner, afterwards.
        """
        if self.access is not None:
            self.access.stop()
        self.services.stop()
        self.item_statistics.stop()
        self.slave_sync.stop()
        self._periodic.stop()
        self.cleaning.stop()

        def flushed() -> None:
            self.gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
            self._queue_flushing.stop(lambda: self._tables.close(done))

        self.registration.stop(lambda: self._flushing.stop(flushed))

    # ---------------------------------------------------------------------------------- requests

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        self._turning = True
        if self.hot is not None:
            self.hot.needs_refresh = True
        answers: list[bytes] = []
        collected = 0
        rest = None
        for number, command in enumerate(commands):
            if command.is_response:
                self.calls.answered(channel, command)
                continue
            if command.code not in self._brief and not self._slice.begin():
                rest = commands[number:]
                break
            response = self._answer(channel, command)
            if response is None:
                continue
            answers.append(response)
            collected += len(response)
            if collected >= WRITE_AT:
                channel.write(b"".join(answers))
                answers.clear()
                collected = 0
                if channel.closed:  # cut off: it asks for more than it reads
                    break
        answers += self._finish_sends(channel)
        if answers:
            channel.write(answers[0] if len(answers) == 1 else b"".join(answers))
        return rest

    def turn_ended(self) -> None:
        hot = self.hot
        if hot is not None and not self._turning and self.store.is_idle and self.gate.is_empty:
            # Only pulls were answered, as in most turns of a broker that is only read.
            hot.flush_replies()
            return
        self._turning = True
        self._slice.end()
        self.queue_age.turn_ended()
        self.store.commit()
        if hot is not None:
            hot.flush_replies()
        if not self.store.is_healthy:
            self._store_failed()
        self.gate.release()
        if self.store.dispatch_due:
            self.dispatch()
        else:
            self.hold.resume_ready()
        self._turning = False
        if not self.gate.is_empty:
            self._flushing.begin_if_awaited()

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Run work that may write messages as a turn of its own: they are committed at its end."""
        if self._turning:
            self._scheduler.call_soon(lambda: self.run_in_turn(work))
            return
        self._turning = True
        if self.hot is not None:
            self.hot.needs_refresh = True
        try:
            work()
        finally:
            self.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        self.clients.channel_closed(channel)
        self.calls.channel_closed(channel)

    def begin_flush(self) -> None:
        """Begin to make the log durable, unless that is under way."""
        self._flushing.begin()

    def dispatch(self) -> None:
        """Make readable what is confirmed, and wake who waits for it."""
        self._dispatch_planned = False
        try:
            self.store.dispatch()
        except Exception:
            logger.exception("dispatching to the consume queues failed")
            self._store_failed()
        self.hold.resume_ready()
        self._dispatch_rest()

    def _dispatch_rest(self) -> None:
        """A long way is gone in short steps, with others in between."""
        behind = self.store.dispatch_behind_bytes
        if behind and behind != self._behind_bytes and self.store.failure is None:
            self._dispatch_planned = True
            self._scheduler.call_soon(self.dispatch)
        elif self.store.checkpoint_due():
            self._queue_flushing.begin()
        self._behind_bytes = behind

    def leadership_lost(self) -> None:
        """Messages that no quorum has confirmed may be gone: tell their senders."""
        if self.hot is not None:
            self.hot.flush_replies()  # what it has answered in this turn waits for the quorum too
        self.gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)

    def _answer(self, channel: Channel, request: RemotingCommand) -> bytes | None:
        """The frame that answers ``request`` now; None when none does."""
        handler = self._handlers.get(request.code)
        if handler is None:
            return encode_command(not_supported(request))
        if self.access is None:
            return self._run(handler, channel, request)
        return self._run(self._guarded(self.access, handler), channel, request)

    def _guarded(self, access: BrokerAccessControl, handler: Handler) -> Handler:
        def checked(channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
            access.check(channel, request)
            return handler(channel, request)

        return checked

    def _run(self, handler: Handler, channel: Channel, request: RemotingCommand) -> bytes | None:
        try:
            reject_while_rebuilding(self.store, request.code)
            reject_if_page_cache_busy(self.store, request.code)
            response = handler(channel, request)
            if response is None or request.is_oneway:
                return None
            return encode_command(response)
        except RequestRejectedError as refusal:
            response = RemotingCommand.response_to(request, refusal.code, refusal.remark)
        except Exception as error:
            logger.exception("request %d from %s failed", request.code, channel.peer)
            response = _failure(request, error)
        return None if request.is_oneway else encode_command(response)

    def _finish_sends(self, channel: Channel) -> list[bytes]:
        try:
            return self._send.put_collected(channel)
        except Exception:
            logger.exception("answering the senders at %s failed", channel.peer)
            return []

    def _resume(self, pull: HeldPullRequest) -> None:
        frame = self._run(self._pull.resume, pull.channel, pull.request)
        if frame is not None:
            pull.channel.write(frame)

    def _on_ack_timeout(self, ticket: RemotingCommand | bytes, status: PutMessageStatus) -> bytes:
        if isinstance(ticket, bytes):
            return self._send.late_frames(ticket, status)
        return self._send.on_ack_timeout(ticket, status)

    def _ack_timeouts(self) -> dict[str, AckTimeout]:
        store = self.identity.store
        return {
            "written": AckTimeout(store.sync_flush_timeout, PutMessageStatus.UNKNOWN_ERROR),
            "flushed": AckTimeout(store.sync_flush_timeout, PutMessageStatus.FLUSH_DISK_TIMEOUT),
            "replicated": AckTimeout(store.slave_timeout, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
            "committed": AckTimeout(
                self.identity.configuration.dledger.max_wait_ack_time_ms,
                PutMessageStatus.OS_PAGECACHE_BUSY,
            ),
        }

    # ----------------------------------------------------------------------------- periodic work

    def settings_changed(self, changed: BrokerConfiguration) -> None:
        self.store.change_settings(changed.store)
        self.gate.change_patience(self._ack_timeouts())

    def _sweep_period_ms(self) -> int:
        long = self.identity.broker_settings.long_polling_enable
        return SWEEP_PERIOD_MS if long else SHORT_SWEEP_PERIOD_MS

    def _sweep(self) -> None:
        self.dispatch()
        self.hold.sweep(self.store.max_queue_offset)

    def _sample(self) -> None:
        self.statistics.sample(self._scheduler.monotonic_ms(), self._scheduler.now_ms())

    def _scan_clients(self) -> None:
        self.clients.scan()
        self.locks.expire()
        self.filters.expire(self.identity.broker_settings.filter_data_clean_time_span)

    def _catch_up_index(self) -> None:
        if self.store.catch_up_index():
            self._periodic.once("index", INDEX_STEP_PERIOD_MS, self._catch_up_index)

    def _log_grown(self, _offset: int) -> None:
        """A watermark has grown outside of a turn (a quorum has confirmed): there may be news for
        readers.
        """
        if self._turning or self._dispatch_planned:
            return
        self._dispatch_planned = True
        if self.identity.is_slave and not self.hold.count:
            self._periodic.once("dispatch", UNAWAITED_DISPATCH_MS, self.dispatch)
        else:
            self._scheduler.call_soon(self.dispatch)

    def _store_failed(self) -> None:
        """What was not acknowledged will never be."""
        reason = self.store.failure or self.store.disk_full_reason
        if reason != self._reported_failure:
            self._reported_failure = reason
            logger.error("the store takes no messages: %s", reason)
        self.gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
        self.own_messages.fail()

    def _retry_full_disk(self) -> None:
        """What found no room on the disk is written as soon as there is some."""
        if self.store.disk_full_reason is not None:
            self.turn_ended()
        elif self._reported_failure is not None and self.store.failure is None:
            self._reported_failure = None
            logger.warning("there is room on the disk again: messages are taken")


def _failure(request: RemotingCommand, error: Exception) -> RemotingCommand:
    return RemotingCommand.response_to(
        request, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
    )
