"""A slave's side of classic replication: the choice of a master, and the retries after failures.

::

    waiting ──time, or a new name──► checking ─one good master─► connecting ──► streaming
       ▲                                │                             │             │
       └──── refused, none, several ────┴───────── failed ────────────┴─── ended ───┘

The slave checks the master that it followed last; after ``FAILURES_MAX`` failures in a row, it
checks all masters that a name server names. If several of them pass, none is chosen, unless one is
the followed master: the operator must resolve a conflict of two masters with one name. Nothing is
streamed from a broker that has not passed the check (:mod:`.master_log_check`), and a refused
broker is retried at growing intervals.

Invariant: at most one check or connection is in progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.master_discovery import MasterAddress, MasterDiscovery
from rmqpy.broker.replication.master_log_check import LogCheckResult, MasterLogCheck
from rmqpy.config.keys import split_address
from rmqpy.ha.follower import FollowerLink, ReconnectBackoff, SlaveLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.ha.link import LinkSettings
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net.ha import HaClientHandler, HaConnection
from rmqpy.remoting.channel import Network
from rmqpy.store.commitlog.interface import CommitLog
from rmqpy.store.health import StoreHealth

FAILURES_MAX: Final = 2
FIRST_TRY_MS: Final = 100

Dial = Callable[[tuple[str, int], HaClientHandler], HaConnection]

logger = logging.getLogger(__name__)


class SlaveStore(Protocol):
    """The parts of the store that a follower reads and changes."""

    @property
    def log(self) -> CommitLog: ...

    @property
    def health(self) -> StoreHealth: ...

    def append_raw(self, offset: PhysicalOffset, data: bytes) -> None: ...


@define(slots=True, kw_only=True, eq=False, repr=False)
class HaFollower:
    """The follower of a slave: an ``rmqpy.net.ha.HaClientHandler``."""

    identity: BrokerContext
    _store: SlaveStore
    scheduler: Scheduler
    network: Network
    dial: Dial
    choice: MasterDiscovery
    _redial: ReconnectBackoff = field(factory=ReconnectBackoff)
    _state: str = field(default="not started", init=False)
    _last_fault: str = field(default="", init=False)
    _compared: str = field(default="", init=False)
    _failures: int = field(default=0, init=False)
    _timer: Timer | None = field(default=None, init=False)
    _check: MasterLogCheck | None = field(default=None, init=False)
    _connection: HaConnection | None = field(default=None, init=False)
    _verdict: LogCheckResult | None = field(default=None, init=False)
    _stopped: bool = field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.choice.subscribe(self._named)

    def start(self) -> None:
        self._stopped = False
        self._wait(FIRST_TRY_MS, "waiting for a master's address")

    def stop(self) -> None:
        """Disconnect from the master and store nothing more."""
        self._stopped = True
        self._state = "stopped"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _named(self) -> None:
        """Check a newly named master at once if the slave is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._try()

    def runtime_info(self) -> dict[str, str]:
        """Return the lines of the runtime information about the master, the state of the
        connection, and the last failure.
        """
        followed = self.choice.followed
        info = {
            "haMaster": followed.address if followed is not None else "",
            "haState": self._state,
            "haLogsCompared": self._compared,
        }
        if self._last_fault:
            info["haLastFault"] = self._last_fault
        disagreement = self.choice.current_master(self.scheduler.monotonic_ms())
        if disagreement:
            info["haNameServersDisagree"] = disagreement
        return info

    # Candidates

    def _try(self) -> None:
        self._timer = None
        choice = self.choice
        candidates = choice.candidates(self.scheduler.monotonic_ms())
        if not candidates:
            self._wait(self._redial.after(None), "no name server names a master")
            return
        if candidates[0] == choice.followed and self._failures < FAILURES_MAX:
            candidates = candidates[:1]
        self._check_next(candidates, [])

    def _check_next(self, rest: list[MasterAddress], results: list[LogCheckResult]) -> None:
        """Check the brokers one after the other, then call :meth:`_choose`."""
        if not rest:
            self._choose(results)
            return

        def done(verdict: LogCheckResult) -> None:
            self._check = None
            if not self._stopped:
                self._check_next(rest[1:], [*results, verdict])

        self._state = f"checking {rest[0].address}"
        self._check = MasterLogCheck(self.identity, self._store.log, self.network, rest[0], done)
        self._check.start()

    def _choose(self, results: list[LogCheckResult]) -> None:
        good = [verdict for verdict in results if verdict.good]
        if good:
            self.identity.note_diverged("")
        elif all(verdict.diverged for verdict in results):
            self.identity.note_diverged("; ".join(verdict.refused for verdict in results))
        followed = [verdict for verdict in good if verdict.master == self.choice.followed]
        if followed:
            good = followed
        if len(good) == 1:
            self._connect(good[0])
            return
        if good:
            names = ", ".join(verdict.master.address for verdict in good)
            reason = f"several masters are named {self.identity.name}: {names}; stop all but one"
        else:
            reason = "; ".join(verdict.refused for verdict in results)
        self._failed(reason, refused=not any(verdict.unreachable for verdict in results))

    # Connection

    def _connect(self, verdict: LogCheckResult) -> None:
        try:
            address = split_address(verdict.master.ha_address)
        except ValueError as error:
            self._failed(f"{verdict.master.address} reports no valid address for slaves: {error}")
            return
        if verdict.compared != self._compared:
            logger.info(
                "log compared with that of %s: %s", verdict.master.address, verdict.compared
            )
        self._compared = verdict.compared
        self._verdict = verdict
        self.choice.follow(verdict.master)
        self._state = f"connecting to {verdict.master.ha_address}"
        self._connection = self.dial(address, self)

    def connected(self, now_ms: int) -> SlaveLink:
        verdict = self._verdict
        assert verdict is not None
        self._state = f"connected to {verdict.master.ha_address}"
        logger.info("following %s", verdict.master.ha_address)
        settings = LinkSettings.from_settings(self.identity.store)
        return SlaveLink(
            settings,
            self._store.log.max_offset,
            now_ms,
            begin_at=self._begin_at(verdict, settings),
        )

    def store(self, transfer: TransferFrame) -> None:
        """Store a transfer. Raises StoreError."""
        self._failures = 0
        self._last_fault = ""
        self._store.append_raw(transfer.offset, transfer.body)

    def ended(self, link: FollowerLink | None, reason: str) -> None:
        self._connection = None
        if self._stopped:
            return
        self._record_fault(reason)
        self._failures += 1
        failure = self._store.health.failure
        if failure is not None:
            self._state = f"stopped: {failure}"
            return
        self._wait(self._redial.after(link), reason)

    def _begin_at(self, verdict: LogCheckResult, settings: LinkSettings) -> PhysicalOffset | None:
        """Return the offset from which an empty slave fetches the whole log, or None if it starts
        with the last file. A log of one file may have another one when the master reads the report,
        so only an empty log is requested by its last file.
        """
        if not self.identity.store.ha_fetch_from_beginning:
            return None
        begin = settings.file_start(verdict.begin)
        return begin if begin < verdict.end else None

    # Waiting

    def _failed(self, reason: str, *, refused: bool = True) -> None:
        self._record_fault(reason)
        self._failures += 1
        delay_ms = self._redial.after_refusal() if refused else self._redial.after(None)
        self._wait(delay_ms, reason)

    def _wait(self, delay_ms: int, reason: str) -> None:
        self._state = f"waiting {delay_ms} ms: {reason}"
        self._timer = self.scheduler.call_later(delay_ms, self._try)

    def _record_fault(self, reason: str) -> None:
        if reason != self._last_fault:
            logger.warning("not following any master: %s", reason)
        self._last_fault = reason
