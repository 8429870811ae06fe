"""The dependencies of a DLedger driver: log, store, clock, network, and the receiver of its role.

The driver knows nothing else of the broker.
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
"""The period of the state loop (Java StateMaintainer)."""


class DriverStore(Protocol):
    """The operations of the store that a driver needs in addition to the log (``MessageStore``)."""

    @property
    def failure(self) -> str | None:
        """The reason why nothing is accepted any more, or None."""

    @property
    def disk_full(self) -> bool: ...

    @property
    def old_log(self) -> ClassicPrefix | None: ...

    @property
    def divided_offset(self) -> int | None:
        """The offset at which the old commit log ends, if there is one."""

    def commit(self) -> None:
        """Write the staged puts; ``failure`` reports an error."""

    def log_write_failed(self, error: OSError) -> None:
        """Log that a write found the disk full; the next successful :meth:`commit` logs its end."""

    def fail(self, reason: str) -> None: ...

    @property
    def queue_ends(self) -> ExpiredQueueEnds: ...

    def delete_classic_prefix(self) -> None:
        """Remove the commit log before the divide, if it still exists."""

    def discard_through(self, index: int) -> None:
        """Discard entries up to ``index``, which the leader no longer has."""

    def on_log_reset(self) -> None:
        """Handle the loss of all entries of the DLedger log."""

    def encode_queue_ends(self) -> bytes:
        """Return the queue ends that other members request."""

    def put_record(self, record: bytes) -> PutResult:
        """Append a complete record that a client has encoded."""


@define(slots=True, frozen=True, kw_only=True)
class DriverDependencies:
    """The collaborators of a driver.

    ``on_role`` is called with every role at the right moment (see ``ready_processor``); ``flush``
    starts to make the log durable unless that is in progress; ``store_host`` is written into the
    marker; ``vouch`` returns why a Java member may not be joined, ``lacks_tables`` whether this
    member would lead without knowing topics and offsets.
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
