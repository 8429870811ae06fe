"""What the driver of a DLedger member is given: log, store, clock and network, and whom it tells of
its role. It knows nothing else of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from attrs import define

from rmqpy.dledger.member import Role
from rmqpy.model.clock import Scheduler
from rmqpy.model.message import Host
from rmqpy.remoting.channel import Network
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.ledger.classic_prefix import ClassicPrefix
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds
from rmqpy.store.results import PutResult

TICK_MS: Final = 10
"""Period of the state loop (Java StateMaintainer)."""


class DriverStore(Protocol):
    """What a driver needs of the store besides its log; ``MessageStore`` has it."""

    @property
    def failure(self) -> str | None:
        """Why nothing is accepted any more."""

    @property
    def disk_full(self) -> bool: ...

    @property
    def old_log(self) -> ClassicPrefix | None: ...

    @property
    def divided_offset(self) -> int | None:
        """Where the old commit log ends, if there is one."""

    def commit(self) -> None:
        """Write what the puts have staged; a failure is told by ``failure``."""

    def log_write_failed(self, error: OSError) -> None:
        """A write found the disk full; the next :meth:`commit` that finds room says that it is
        over.
        """

    def fail(self, reason: str) -> None: ...

    @property
    def queue_ends(self) -> ExpiredQueueEnds: ...

    def delete_classic_prefix(self) -> None:
        """Remove the commit log before the divide, if there still is one."""

    def discard_through(self, index: int) -> None:
        """The leader has no entry up to ``index`` any more."""

    def on_log_reset(self) -> None:
        """What was in the DLedger log is gone."""

    def encode_queue_ends(self) -> bytes:
        """What ``queue_ends`` of another member wants to be told."""

    def put_record(self, record: bytes) -> PutResult:
        """Append a complete record that somebody else has encoded."""


@define(slots=True, frozen=True, kw_only=True)
class DriverDependencies:
    """``on_role`` hears of every role at the right moment (see the module); ``flush`` begins to
    make the log durable, unless that is under way; ``store_host`` is in the marker; ``vouch``
    says why a Java member may not be joined, ``lacks_tables`` whether this member would lead
    without knowing topics and offsets.
    """

    log: DLedgerCommitLog
    store: DriverStore
    scheduler: Scheduler
    network: Network
    store_host: Host
    on_role: Callable[[Role], None]
    flush: Callable[[], None]
    vouch: Callable[[str], str] = lambda _member: ""
    lacks_tables: Callable[[], bool] = lambda: False
    tick_ms: int = TICK_MS
