"""What a switch changes in this broker: the preparation, the freeze, the exchange of the log, and
their undoing. When each of them happens is decided elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.broker.assembly.switch.exchange import (
    StandbyMember,
    SwitchingBroker,
    joined_configuration,
    log_is_durable,
)
from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.replication.switch_protocol import SwitchPlan
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.clock import Scheduler
from rmqpy.model.errors import ConfigError, StoreError
from rmqpy.remoting.channel import Network
from rmqpy.store.ledger.classic_prefix import ClassicPrefixMark, GrowingPrefix

POLL_MS: Final = 1
PIECE_BYTES: Final = 16 << 20
"""The part of the log that is read at once before the freeze."""
RETRY_MS: Final = 250
"""The interval at which what must happen after the decision, or questions about it, are
repeated.
"""
THROTTLE_POLL_MS: Final = 100
SYNC_POLL_MS: Final = 10
HELD_MS_MAX: Final = 2500
"""The longest time for which requests are held; clients wait 3 s by default."""
LEADER_MS: Final = 1000
"""The time that the other members leave to the former master. With one vote interval, which may be
50 ms, a member of a busy machine would be elected instead, and what is held be refused.
"""
FROZEN: Final = "the broker becomes a member of a DLedger group"

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class SwitchDependencies:
    """The dependencies of a switch. ``make_member`` constructs the DLedger side of the broker, and
    ``load_modules`` imports before, in a thread, what only members need: requests would wait for
    it. Its argument is the number of members that load before this one.
    """

    running: SwitchingBroker
    scheduler: Scheduler
    network: Network
    journal: SwitchJournal
    make_member: Callable[[BrokerConfiguration], StandbyMember]
    load_modules: Callable[[int], None]


@define(slots=True, eq=False, repr=False)
class Preparation:
    """What stands ready beside the classic log: the port of the group, and the log read ahead."""

    configuration: BrokerConfiguration
    member: StandbyMember
    prefix: GrowingPrefix


@define(slots=True, eq=False, repr=False)
class LocalSwitch:
    """The changes of one broker. ``pause_ms`` is the time for which requests were held, None before
    the end.
    """

    _deps: SwitchDependencies
    mark: ClassicPrefixMark = field(factory=ClassicPrefixMark, init=False)
    """The end and digests of the log at the freeze, on the master."""
    has_exchanged: bool = field(default=False, init=False)
    stopped: bool = field(default=False, init=False)
    pause_ms: int | None = field(default=None, init=False)
    throttle_bytes: int = field(default=0, init=False)
    """The number of bytes of the log to read per second before the freeze; 0 for no limit."""
    _wanted: object | None = field(default=None, init=False)
    """A token of the last preparation; None when it was undone."""
    _prepared: Preparation | None = field(default=None, init=False)
    _frozen_ms: int | None = field(default=None, init=False)

    def stop(self) -> None:
        """Answer what is held, and close the port of the group unless the broker has joined it."""
        self.stopped = True
        self._deps.running.broker.server.release_writes()
        if self._prepared is not None and not self.has_exchanged:
            self._prepared.member.close()

    def prepare(self, plan: SwitchPlan, self_id: str, done: Callable[[str], None]) -> None:
        """Save the topics, open the port of the group, and read the last files of the log; then
        call ``done`` with the reason why that failed, or an empty text. It is not called after
        :meth:`reopen`.
        """
        self.pause_ms = None
        try:
            present = self._deps.running.broker.identity.configuration
            configuration = joined_configuration(present, plan, self_id)
        except ConfigError as error:
            done(str(error))
            return
        wanted = self._wanted = object()
        former, self._prepared = self._prepared, None
        if former is not None:
            former.member.close()

        def loaded(_none: None, error: BaseException | None) -> None:
            if wanted is not self._wanted or self.stopped:
                return
            if error is not None:
                done(f"loading the modules of DLedger failed: {error}")
            else:
                topics.mark()
                topics.when_saved(saved)

        def saved(error: BaseException | None) -> None:
            if wanted is not self._wanted or self.stopped:
                return
            if error is not None:
                done(f"saving the topics failed: {error}")
            else:
                self._open(configuration, done)

        # A member without topics.json next to its old log does not lead.
        topics = self._deps.running.broker.tables.topics
        load = partial(self._deps.load_modules, sorted(plan.brokers).index(self_id))
        self._deps.scheduler.run_blocking(load, loaded)

    def _open(self, configuration: BrokerConfiguration, done: Callable[[str], None]) -> None:
        running, journal = self._deps.running, self._deps.journal
        log = running.store.opened.classic
        assert log is not None
        prepared = self._prepared = Preparation(
            configuration,
            self._deps.make_member(configuration),
            GrowingPrefix(journal.files, journal.folder, log),
        )

        def opened(reason: str) -> None:
            if prepared is not self._prepared:
                return
            if reason:
                done(reason)
            else:
                self._read_ahead(prepared, done)

        prepared.member.open(opened)

    def _read_ahead(self, prepared: Preparation, done: Callable[[str], None]) -> None:
        """Read the next piece of the log, and wait as long as the throttle demands."""
        begin_ms = self._deps.scheduler.monotonic_ms()

        def read(_none: None, error: BaseException | None) -> None:
            if prepared is not self._prepared or self.stopped:
                return
            if error is not None:
                done(f"reading the log failed: {error}")
            elif not prepared.prefix.unread_bytes:
                self._sync_ahead(prepared, self._deps.running.store.log.max_offset, done)
            elif (wait_ms := self._throttled_ms(begin_ms)) > 0:
                # The throttle may be changed meanwhile.
                again = partial(read, None, None)
                self._deps.scheduler.call_later(min(wait_ms, THROTTLE_POLL_MS), again)
            else:
                self._read_ahead(prepared, done)

        self._deps.scheduler.run_blocking(partial(prepared.prefix.read_ahead, PIECE_BYTES), read)

    def _sync_ahead(self, prepared: Preparation, end: int, done: Callable[[str], None]) -> None:
        """Call ``done`` when the log before ``end`` is on the disk, and no flush of the queues is
        running, which may take as long as there are many.
        """
        running = self._deps.running
        if prepared is not self._prepared or self.stopped:
            return
        durable = log_is_durable(running.broker, running.store, end)
        if durable and not running.broker.queue_flusher.running:
            done("")
        else:
            again = partial(self._sync_ahead, prepared, end, done)
            self._deps.scheduler.call_later(SYNC_POLL_MS, again)

    def _throttled_ms(self, begin_ms: int) -> int:
        """Return the time to wait after a piece whose reading began then."""
        if not self.throttle_bytes:
            return 0
        due_ms = begin_ms + 1000 * PIECE_BYTES // self.throttle_bytes
        return due_ms - self._deps.scheduler.monotonic_ms()

    @property
    def unread_bytes(self) -> int | None:
        """The bytes of the log that are to be read before the freeze; None before and after it."""
        prepared = self._prepared
        if prepared is None or self.has_exchanged:
            return None
        return prepared.prefix.unread_bytes

    def log_mark(self) -> ClassicPrefixMark:
        """Return end and digests of the log, of which all but the end has been read."""
        assert self._prepared is not None
        return self._prepared.prefix.mark()

    def freeze(self, drained: Callable[[], None]) -> None:
        """Hold the requests that write; call ``drained`` when everything that was accepted is
        confirmed and on the disk, but not after :meth:`reopen`.
        """
        running = self._deps.running
        self._frozen_ms = self._deps.scheduler.monotonic_ms()
        running.broker.server.hold_writes()
        running.broker.fence.freeze(FROZEN)
        self.hold_flushes()
        self._drain(drained)

    def hold_flushes(self) -> None:
        """Begin no flush of the queues, which the exchange would wait for, until it is over."""
        self._deps.running.broker.queue_flusher.held = True

    def _drain(self, drained: Callable[[], None]) -> None:
        if self._frozen_ms is None or self.stopped:
            return
        if self._deps.running.is_quiet():
            self.mark = self.log_mark()
            drained()
        else:
            self._deps.scheduler.call_later(POLL_MS, partial(self._drain, drained))

    def reopen(self) -> None:
        """Undo the preparation and the freeze."""
        running = self._deps.running
        running.broker.fence.freeze(None)
        self._release()
        running.group.role.unlock()
        self._wanted = None
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.member.close()

    def exchange(self, leader: str, exchanged: Callable[[], None]) -> None:
        """Exchange the log, and call ``exchanged``. It was decided, so it is tried until it
        succeeds, or the broker stops; the next start does it then.
        """
        if self.has_exchanged or self.stopped:
            return
        running, prepared = self._deps.running, self._prepared
        again = partial(self.exchange, leader, exchanged)
        if prepared is None:  # after a restart, the decision may arrive before the port is open
            self._deps.scheduler.call_later(RETRY_MS, again)
            return
        if running.store.opened.dledger is None and not running.is_quiet():
            failed = running.store.health.failure is not None
            self._deps.scheduler.call_later(RETRY_MS if failed else POLL_MS, again)
            return
        try:
            running.exchange(prepared.configuration, prepared.prefix, prepared.member, leader)
        except (OSError, StoreError) as error:
            logger.error("exchanging the log failed, it is tried again: %s", error)
            self._deps.scheduler.call_later(RETRY_MS, again)
            return
        self.has_exchanged = True
        running.broker.fence.freeze(None)
        prepared.member.joined()
        exchanged()

    def follow(self) -> None:
        """Start the member as a follower of the former master."""
        assert self._prepared is not None
        self._deps.running.broker.queue_flusher.held = False
        self._prepared.member.driver.start(wait_ms=LEADER_MS)

    def lead(self) -> None:
        """Start the member that becomes the leader, and answer what is held when it leads."""
        assert self._prepared is not None
        self._prepared.member.driver.start(announce=False)
        self._release_when_leading()

    def _release_when_leading(self) -> None:
        store, broker = self._deps.running.store, self._deps.running.broker
        now_ms = self._deps.scheduler.monotonic_ms()
        waited_ms = 0 if self._frozen_ms is None else now_ms - self._frozen_ms
        leads = not store.health.is_slave and store.appender.is_ready()
        if leads or broker.identity.is_slave or waited_ms >= HELD_MS_MAX:
            self._release()
            logger.warning("switched to DLedger; messages waited for %d ms", self.pause_ms)
        elif not self.stopped:
            self._deps.scheduler.call_later(POLL_MS, self._release_when_leading)

    def _release(self) -> None:
        self._deps.running.broker.queue_flusher.held = False
        self._deps.running.broker.server.release_writes()
        frozen_ms, self._frozen_ms = self._frozen_ms, None
        now_ms = self._deps.scheduler.monotonic_ms()
        self.pause_ms = 0 if frozen_ms is None else now_ms - frozen_ms
