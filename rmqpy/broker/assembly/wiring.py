"""The composition root of the broker: constructs tables, services, processors and the server, and
ties them together.

Only :func:`build_broker` refers to all of them. Each part receives the parts that it uses through
its constructor, or subscribes to a part that was constructed before it::

    context, tables ──► gate, flushers, registration ──► processors ──► server ──► master services

The master services come last: they write messages in turns of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field

from rmqpy.broker.assembly.resource_limits import CHECK_PERIOD_MS, Demand, ResourceLimits
from rmqpy.broker.assembly.server import BrokerServer, FastPort
from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.scheduling import PeriodicWork
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.broker.processors.admin.broker_config import BrokerConfigProcessor, SettingsFile
from rmqpy.broker.processors.admin.client_relay import ClientRelayProcessor
from rmqpy.broker.processors.admin.fence import FenceProcessor
from rmqpy.broker.processors.admin.replication_queries import LogCompareProcessor
from rmqpy.broker.processors.admin.runtime_info import RuntimeInfoProcessor
from rmqpy.broker.processors.admin.stats_queries import StatsQueryProcessor
from rmqpy.broker.processors.admin.topics_and_groups import TopicAdminProcessor
from rmqpy.broker.processors.client_manage import HeartbeatProcessor
from rmqpy.broker.processors.end_transaction import TransactionProcessor
from rmqpy.broker.processors.fast_failure import FastFailure
from rmqpy.broker.processors.pull import OffsetMovedEvents, PullProcessor
from rmqpy.broker.processors.query import QueryProcessor
from rmqpy.broker.processors.reply import ReplyMessageProcessor
from rmqpy.broker.processors.send import SendProcessor, SendReplies
from rmqpy.broker.processors.send_back import SendBackProcessor
from rmqpy.broker.processors.send_request import SendRequestParser
from rmqpy.broker.processors.slow_consumers import PERIOD_MS as SLOW_CONSUMERS_PERIOD_MS
from rmqpy.broker.processors.slow_consumers import SlowConsumerGuard
from rmqpy.broker.replication.master_discovery import MasterDiscovery
from rmqpy.broker.replication.metadata_sync import MetadataSync
from rmqpy.broker.replication.role import MasterServices
from rmqpy.broker.services.fence import WriteFence
from rmqpy.broker.services.flush import LogFlusher, QueueFlusher, StoreFailureHandler
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.services.pull_hold import (
    SHORT_SWEEP_PERIOD_MS,
    SWEEP_PERIOD_MS,
    PullRequestHold,
)
from rmqpy.broker.services.registration import RegistrationAnswer, RegistrationService
from rmqpy.broker.services.retention import StoreCleaning
from rmqpy.broker.services.schedule import ScheduleMessageService, delay_progress
from rmqpy.broker.services.transaction_check import TransactionCheckService
from rmqpy.broker.state.broker_stats import ItemStatistics
from rmqpy.broker.state.client_calls import ClientRequests
from rmqpy.broker.state.clients import SCAN_PERIOD_MS, ClientTable
from rmqpy.broker.state.consumer_filters import ConsumerFilterTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable, OffsetProcessor
from rmqpy.broker.state.delay_levels import DelayOffsetTable
from rmqpy.broker.state.handed_clients import HandedClients
from rmqpy.broker.state.known_heartbeats import KnownHeartbeats
from rmqpy.broker.state.persistence import FILTERS_PERIOD_MS, PersistentTables, Tables
from rmqpy.broker.state.queue_locks import QueueLockTable
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.broker.state.statistics import SAMPLE_PERIOD_MS, Statistics
from rmqpy.broker.state.subscription_groups import SubscriptionGroupTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.codec import backend
from rmqpy.config.loading import BrokerConfiguration, StoreSettings
from rmqpy.model.clock import Clock, Scheduler
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem
from rmqpy.net.pending_replies import AckTimeout, PendingReplies, SendGate
from rmqpy.net.unsent import UnsentBytes
from rmqpy.remoting.bodies import DataVersion
from rmqpy.remoting.channel import Network
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:  # imported only where the feature is switched on
    from rmqpy.broker.assembly.metrics import Metrics
    from rmqpy.broker.processors.access_control import BrokerAccessControl
    from rmqpy.broker.processors.put_hooks import PutHook
    from rmqpy.net.server.feed_api import Feed

logger = logging.getLogger(__name__)

INDEX_STEP_PERIOD_MS: Final = 10
ROOM_PERIOD_MS: Final = 1000
"""The period in which writes to a full disk are retried, and lost pages are looked for."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class BrokerDependencies:
    """The dependencies of a broker. ``host`` is the address that clients connect to."""

    configuration: BrokerConfiguration
    host: str
    store: MessageStore
    scheduler: Scheduler
    network: Network
    files: FileSystem
    pick_queue: Callable[[int], int]
    """Returns a random number below its argument."""

    settings_file: SettingsFile | None = None
    """The file for changed settings; None keeps them in memory only."""

    hooks: Mapping[str, PutHook] = field(factory=dict)
    """The put-message hooks, by name, in their order (:func:`put_hooks_of`)."""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class Broker:
    """The parts of one broker, and their start and stop."""

    identity: BrokerContext
    store: MessageStore
    scheduler: Scheduler
    topics: TopicTable
    groups: SubscriptionGroupTable
    offsets: ConsumerOffsetTable
    delay_offsets: DelayOffsetTable
    filters: ConsumerFilterTable
    clients: ClientTable
    handed_clients: HandedClients
    locks: QueueLockTable
    tables: PersistentTables
    statistics: Statistics
    item_statistics: ItemStatistics
    information: RuntimeInfoProcessor
    replication: ReplicationStatus
    registration: RegistrationService
    masters: MasterDiscovery
    metadata_sync: MetadataSync
    gate: SendGate
    hold: PullRequestHold
    log_flusher: LogFlusher
    queue_flusher: QueueFlusher
    failures: StoreFailureHandler
    cleaning: StoreCleaning
    slow_consumers: SlowConsumerGuard
    fast_failure: FastFailure
    access: BrokerAccessControl | None
    periodic: PeriodicWork
    server: BrokerServer
    fast_port: FastPort
    messages: InternalMessageWriter
    delivery: ScheduleMessageService
    services: MasterServices
    fence: WriteFence
    settings: BrokerConfigProcessor
    limits: ResourceLimits

    def start(self) -> None:
        """Start the periodic work and register. The ports may be open before or after."""
        self.store.dispatcher.subscribe(self.hold.notify_message_arriving)
        self.server.watch_log()
        self._start_periodic_work()
        self.item_statistics.start()
        self._catch_up_index()
        if not self.identity.is_slave:
            self.services.start()
        self.metadata_sync.start()
        self.registration.start()

    def stop(self, done: Callable[[], None]) -> None:
        """Unregister, wait for a running flush, answer the waiting senders and save the tables;
        then call ``done``.

        The ports may be open until then. The owner of the store shuts it down afterwards.
        """
        if self.access is not None:
            self.access.stop()
        self.fence.stop()
        self.services.stop()
        self.item_statistics.stop()
        self.metadata_sync.stop()
        self.periodic.stop()
        self.cleaning.stop()

        def flushed() -> None:
            self.gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
            self.queue_flusher.stop(lambda: self.tables.close(done))

        self.registration.stop(lambda: self.log_flusher.stop(flushed))

    def _start_periodic_work(self) -> None:
        """Start the periodic work. Periods are read before each round, so that changed settings
        take effect.
        """
        identity, tables, each = self.identity, self.tables, self.periodic.every
        self.log_flusher.start()
        each(
            "queues",
            lambda: identity.store.flush_consume_queue_thorough_interval,
            self.queue_flusher.begin,
        )
        each("room", lambda: ROOM_PERIOD_MS, self._retry_full_disk)
        self.limits.check()
        each("limits", lambda: CHECK_PERIOD_MS, self.limits.check)
        each("lost pages", lambda: ROOM_PERIOD_MS, self.failures.check_pages)
        each("cleaning", lambda: identity.store.clean_resource_interval, self.cleaning.begin)
        each(
            "offsets",
            lambda: identity.broker_settings.flush_consumer_offset_interval,
            tables.offsets.write,
        )
        each("delays", lambda: identity.store.flush_delay_offset_interval, tables.delays.write)
        each("filters", lambda: FILTERS_PERIOD_MS, tables.filters.write)
        each("clients", lambda: SCAN_PERIOD_MS, self._scan_clients)
        each("hold", self._sweep_period_ms, self.server.sweep)
        each("slow consumers", lambda: SLOW_CONSUMERS_PERIOD_MS, self.slow_consumers.check)
        each("statistics", lambda: SAMPLE_PERIOD_MS, self._sample)

    def _sweep_period_ms(self) -> int:
        long = self.identity.broker_settings.long_polling_enable
        return SWEEP_PERIOD_MS if long else SHORT_SWEEP_PERIOD_MS

    def _sample(self) -> None:
        self.statistics.sample(self.scheduler.monotonic_ms(), self.scheduler.now_ms())

    def _scan_clients(self) -> None:
        self.clients.scan()
        self.locks.expire()
        self.filters.expire(self.identity.broker_settings.filter_data_clean_time_span)

    def _catch_up_index(self) -> None:
        if self.store.catch_up_index():
            self.periodic.once("index", INDEX_STEP_PERIOD_MS, self._catch_up_index)

    def _retry_full_disk(self) -> None:
        """Commit again if the disk was full; otherwise report that space is available."""
        if self.store.health.disk_full_reason is not None:
            self.server.turn_ended()
        else:
            self.failures.on_room()


def build_broker(deps: BrokerDependencies) -> Broker:
    """Construct a broker on an open store; it does nothing before ``start``.

    Raises ConfigError for settings that contradict each other, and StoreError for a table in
    ``config/`` that cannot be read.
    """
    store, scheduler, configuration = deps.store, deps.scheduler, deps.configuration
    try:
        identity = BrokerContext.from_configuration(configuration, deps.host)
    except ValueError as error:
        raise ConfigError(f"brokerIP1={deps.host}: an IP address is needed: {error}") from error

    replication = ReplicationStatus(identity, lambda: store.log.max_offset)
    statistics = Statistics()
    topics = TopicTable(identity, scheduler)
    groups = SubscriptionGroupTable(identity, scheduler)
    offsets = ConsumerOffsetTable()
    delay_offsets = DelayOffsetTable()
    filters = ConsumerFilterTable(scheduler)
    clients = ClientTable(scheduler)
    calls = ClientRequests(scheduler)
    locks = QueueLockTable(scheduler)
    hold = PullRequestHold(scheduler)
    send_replies = SendReplies(identity)
    gate: SendGate = PendingReplies(
        scheduler, send_replies.on_ack_timeout, _ack_timeouts(configuration)
    )

    internal_messages = InternalMessageWriter(store.appender, scheduler, statistics)
    fence = WriteFence(lambda: store.log, store.health, gate, internal_messages, scheduler)
    failures = StoreFailureHandler(store.health, gate, internal_messages, store.note_lost_pages)

    def flush_period_ms() -> int:
        if identity.store.enable_dledger_commit_log:  # It ignores flushIntervalCommitLog, in Java.
            return configuration.dledger.flush_file_interval
        return identity.store.flush_interval_commit_log

    log_flusher = LogFlusher(
        store.flush_tracker, gate, scheduler, failures.on_failure, flush_period_ms
    )
    queue_flusher = QueueFlusher(store.flush_tracker, scheduler, failures.on_failure)
    cleaning = StoreCleaning(identity, store, topics, scheduler, queue_flusher.begin)
    registration = RegistrationService(
        identity=identity, topics=topics, scheduler=scheduler, network=deps.network
    )
    masters = MasterDiscovery(identity)

    def master_named(server: str, answer: RegistrationAnswer) -> None:
        masters.on_registration_answer(server, answer, scheduler.monotonic_ms())

    registration.subscribe(master_named)
    metadata_sync = MetadataSync(
        identity=identity,
        choice=masters,
        topics=topics,
        groups=groups,
        offsets=offsets,
        delays=delay_offsets,
        scheduler=scheduler,
        network=deps.network,
        register=registration.register,
    )
    replication.register_report(metadata_sync.runtime_info)
    tables = PersistentTables.load(
        Tables(
            topics=topics, groups=groups, offsets=offsets, delays=delay_offsets, filters=filters
        ),
        deps.files,
        identity.store.store_path_root_dir,
        scheduler,
        registration.announce,
        store.reader.queue_names(),
    )
    item_statistics = ItemStatistics(identity, store.reader, statistics, scheduler)
    slow_consumers = SlowConsumerGuard(identity, groups)
    fast_failure = FastFailure(identity, store.appender, scheduler)
    periodic = PeriodicWork(scheduler)

    # Requests of producers and consumers

    parser = SendRequestParser(
        identity=identity, topics=topics, groups=groups, clock=scheduler, pick_queue=deps.pick_queue
    )
    if deps.hooks:
        parser = _hooked(parser, deps.hooks)
    sends = SendProcessor(
        identity=identity,
        drafts=parser,
        sink=store.appender,
        gate=gate,
        replies=send_replies,
        replication=replication,
        statistics=statistics,
        clock=scheduler,
    )
    pulls = PullProcessor(
        identity=identity,
        topics=topics,
        groups=groups,
        clients=clients,
        offsets=offsets,
        filters=filters,
        queues=store.reader,
        hold=hold,
        slow_readers=slow_consumers,
        statistics=statistics,
        clock=scheduler,
        events=OffsetMovedEvents(identity, internal_messages, scheduler),
    )
    heartbeats = HeartbeatProcessor(
        *(scheduler, clients, topics, groups, locks, filters),
        known=KnownHeartbeats(scheduler, clients, topics, groups),
    )
    clients.subscribe(heartbeats.notify)
    send_back = SendBackProcessor(
        identity=identity,
        topics=topics,
        groups=groups,
        queues=store.reader,
        messages=internal_messages,
        statistics=statistics,
        pick_queue=deps.pick_queue,
    )
    transactions = TransactionProcessor(
        identity=identity, queues=store.reader, messages=internal_messages, clock=scheduler
    )
    replies = ReplyMessageProcessor(
        identity=identity,
        clients=clients,
        calls=calls,
        drafts=parser,
        messages=internal_messages,
        clock=scheduler,
    )
    client_handlers: HandlerTable = {
        **sends.handlers(),
        **pulls.handlers(),
        **heartbeats.handlers(),
        **QueryProcessor(identity, store.reader).handlers(),
        **OffsetProcessor(offsets, store.reader).handlers(),
        **delay_offsets.handlers(),
        **send_back.handlers(),
        **transactions.handlers(),
        **LogCompareProcessor(lambda: store.log).handlers(),
        **replies.handlers(),
    }

    # Requests of administrators

    information = RuntimeInfoProcessor(
        identity=identity,
        store=store,
        statistics=statistics,
        gate=gate,
        replication=replication,
        files=deps.files,
        clock=scheduler,
        delays=partial(
            delay_progress, delay_offsets, store.reader, len(identity.store.delay_levels_ms)
        ),
        booted_ms=scheduler.now_ms(),
    )
    positions = StatsQueryProcessor(
        identity=identity,
        topics=topics,
        clients=clients,
        offsets=offsets,
        statistics=statistics,
        queues=store.reader,
        groups=groups,
        clock=scheduler,
    )
    administration = TopicAdminProcessor(
        identity=identity,
        topics=topics,
        groups=groups,
        offsets=offsets,
        statistics=statistics,
        store=store,
        saved=tables,
        tell=registration.tell,
    )
    relays = ClientRelayProcessor(
        identity=identity,
        topics=topics,
        clients=clients,
        offsets=offsets,
        queues=store.reader,
        calls=calls,
    )

    def settings_changed(changed: BrokerConfiguration) -> None:
        store.change_settings(changed.store)
        gate.change_patience(_ack_timeouts(changed))

    settings = BrokerConfigProcessor(
        identity=identity,
        registration=registration,
        file=deps.settings_file,
        changed=settings_changed,
        version=DataVersion(scheduler.now_ms()),
    )
    admin_handlers: HandlerTable = {
        **relays.handlers(),
        **item_statistics.handlers(),
        **positions.handlers(),
        **settings.handlers(),
        **administration.handlers(),
        **information.handlers(),
        **cleaning.handlers(),
        **FenceProcessor(identity, fence).handlers(),
    }
    access = None
    if configuration.broker.acl_enable:
        access, account_handlers = _build_access_control(deps, identity)
        admin_handlers = {**admin_handlers, **account_handlers}
        replication.register_report(access.runtime_info)

    server = BrokerServer(
        identity=identity,
        store=store,
        scheduler=scheduler,
        periodic=periodic,
        gate=gate,
        hold=hold,
        clients=clients,
        calls=calls,
        sends=sends,
        resume_pull=pulls.resume,
        handlers={**client_handlers, **admin_handlers},
        immediate_codes=frozenset(client_handlers),
        access=access,
        log_flusher=log_flusher,
        queue_flusher=queue_flusher,
        failures=failures,
    )

    # Services that write messages in turns of the server

    delivery = ScheduleMessageService(
        delays_ms=identity.store.delay_levels_ms,
        offsets=delay_offsets,
        queues=store.reader,
        messages=internal_messages,
        scheduler=scheduler,
        turn=server.run_in_turn,
    )
    transaction_checks = TransactionCheckService(
        identity=identity,
        topics=topics,
        clients=clients,
        offsets=offsets,
        queues=store.reader,
        messages=internal_messages,
        scheduler=scheduler,
        turn=server.run_in_turn,
    )
    return Broker(
        identity=identity,
        store=store,
        scheduler=scheduler,
        topics=topics,
        groups=groups,
        offsets=offsets,
        delay_offsets=delay_offsets,
        filters=filters,
        clients=clients,
        handed_clients=HandedClients(clients, heartbeats.heartbeat),
        locks=locks,
        tables=tables,
        statistics=statistics,
        item_statistics=item_statistics,
        information=information,
        replication=replication,
        registration=registration,
        masters=masters,
        metadata_sync=metadata_sync,
        gate=gate,
        hold=hold,
        log_flusher=log_flusher,
        queue_flusher=queue_flusher,
        failures=failures,
        cleaning=cleaning,
        slow_consumers=slow_consumers,
        fast_failure=fast_failure,
        access=access,
        periodic=periodic,
        server=server,
        fast_port=FastPort(server),
        messages=internal_messages,
        delivery=delivery,
        services=MasterServices((delivery, transaction_checks), internal_messages.fail),
        fence=fence,
        settings=settings,
        limits=ResourceLimits(
            scheduler, lambda: Demand.of(identity.configuration, store.log, deps.files)
        ),
    )


def put_hooks_of(settings: StoreSettings) -> Mapping[str, PutHook]:
    """Return the put-message hooks of a broker, which are loaded before its store is opened.

    Raises ConfigError if one is missing or cannot be loaded.
    """
    if not settings.rmqpy_put_message_hooks:
        return {}
    from rmqpy.broker.processors.put_hooks import load_hooks

    return load_hooks(settings.rmqpy_put_message_hooks)


def _hooked(parser: SendRequestParser, hooks: Mapping[str, PutHook]) -> SendRequestParser:
    """Return a parser whose messages pass ``hooks``."""
    from rmqpy.broker.processors.put_hooks import HookedSendRequestParser

    logger.info("messages pass the put-message hooks %s before they are stored", ", ".join(hooks))
    return HookedSendRequestParser(
        identity=parser.identity,
        topics=parser.topics,
        groups=parser.groups,
        clock=parser.clock,
        pick_queue=parser.pick_queue,
        hooks=hooks,
    )


def _build_access_control(
    deps: BrokerDependencies, identity: BrokerContext
) -> tuple[BrokerAccessControl, HandlerTable]:
    """Construct access control and the handlers of its administration, for ``aclEnable=true``.

    Raises ConfigError for access files that cannot be read.
    """
    from rmqpy.acl.signature import AccessChecker
    from rmqpy.acl.watcher import AccessFiles, access_paths
    from rmqpy.broker.processors.access_control import BrokerAccessControl
    from rmqpy.broker.processors.access_demands import broker_demands
    from rmqpy.broker.processors.admin.acl import AccessAdminProcessor
    from rmqpy.config.security import SecurityMode

    configuration, security = deps.configuration, deps.configuration.security
    checker = AccessChecker(broker_demands(deps.store.reader))
    files = AccessFiles(
        *access_paths(configuration.broker.rocketmq_home, security.acl_plain_file),
        deps.files,
        deps.scheduler,
        checker.use,
        security.security_mode is SecurityMode.SECURE,
    )
    files.start()
    administration = AccessAdminProcessor(identity=identity, files=files, clock=deps.scheduler)
    return BrokerAccessControl(checker, files, deps.scheduler), administration.handlers()


def _ack_timeouts(configuration: BrokerConfiguration) -> dict[str, AckTimeout]:
    """Return how long a reply waits for each watermark, and its status after that time."""
    store = configuration.store
    return {
        "written": AckTimeout(store.sync_flush_timeout, PutMessageStatus.UNKNOWN_ERROR),
        "flushed": AckTimeout(store.sync_flush_timeout, PutMessageStatus.FLUSH_DISK_TIMEOUT),
        "replicated": AckTimeout(store.slave_timeout, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
        "committed": AckTimeout(
            configuration.dledger.max_wait_ack_time_ms, PutMessageStatus.OS_PAGECACHE_BUSY
        ),
    }


def build_metrics(
    broker: Broker,
    unsent: UnsentBytes,
    member_status: Callable[[], Mapping[str, object]],
) -> Metrics:
    """Return the metrics of ``broker``, whose servers share ``unsent``. ``member_status`` returns
    the status of a group member, and nothing outside of a group.
    """
    from rmqpy.broker.assembly.metrics import Metrics

    return Metrics(
        identity=broker.identity,
        store=broker.store.reader,
        topics=broker.topics,
        offsets=broker.offsets,
        clients=broker.clients,
        item_statistics=broker.item_statistics,
        information=broker.information,
        gate=broker.gate,
        replication=broker.replication,
        unsent=unsent,
        limits=broker.limits,
        member_status=member_status,
    )


def install_fast_path(broker: Broker, store: MessageStore, clock: Clock) -> Feed | None:
    """Let the C core answer sends and pulls of ``broker`` and dispatch records, as far as it can.
    Without the C core, return None; the broker then handles every request in Python.
    """
    if backend.implementation != "c":
        return None
    from rmqpy.broker.fastpath.eligibility import FastPathDependencies, FastPathInputs
    from rmqpy.broker.fastpath.engine import FastPath

    sources = FastPathInputs(
        identity=broker.identity,
        topics=broker.topics,
        groups=broker.groups,
        clients=broker.clients,
        filters=broker.filters,
        store=store,
        access=broker.access,
    )
    deps = FastPathDependencies(
        gate=broker.gate,
        messages=broker.messages,
        replication=broker.replication,
        statistics=broker.statistics,
        offsets=broker.offsets,
        hold=broker.hold,
        clock=clock,
    )
    fast = FastPath(sources, deps)
    broker.server.install_fast_path(fast)
    broker.hold.watch_queues(fast.watch)
    store.dispatcher.install_accelerator(fast)
    broker.delivery.install_accelerator(fast)
    broker.messages.subscribe(fast.learn_copies)
    return fast
