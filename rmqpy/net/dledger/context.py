"""The dependencies of a DLedger driver: log, store, clock, network, and the receiver of its role.

The driver knows nothing else of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from attrs import define

from rmqpy.dledger.state import Role
from rmqpy.model.clock import Scheduler
from rmqpy.model.message import Host
from rmqpy.remoting.channel import Network
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.health import StoreHealth
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds

TICK_MS: Final = 10
"""The period of the state loop (Java StateMaintainer)."""


class DriverStore(Protocol):
    """The parts of the store that a driver uses in addition to its log."""

    @property
    def opened(self) -> OpenedLog: ...

    @property
    def health(self) -> StoreHealth: ...

    @property
    def appender(self) -> MessageAppender: ...

    @property
    def queue_ends(self) -> ExpiredQueueEnds: ...

    def encode_queue_ends(self) -> bytes:
        """Return the ends of the queues without a message, for another member."""

    def delete_classic_prefix(self) -> None:
        """Remove the commit log before the divide, if it still exists."""

    def discard_through(self, index: int) -> None:
        """Let the files of all entries up to ``index`` be removed."""

    def on_log_reset(self) -> None:
        """Follow a DLedger log that starts elsewhere now."""


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
