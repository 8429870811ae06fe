"""The dependencies of a DLedger driver: log, store, clock, network, and the callback for its role.

The driver uses no other part of the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from attrs import define, field

from rmqpy.dledger.state import Role
from rmqpy.model.clock import Scheduler
from rmqpy.model.message import Host
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.remoting.channel import Network
from rmqpy.store.appender import MessageAppender
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.opening import OpenedLog
from rmqpy.store.health import StoreHealth
from rmqpy.store.queues.expired_ends import ExpiredQueueEnds

TICK_MS: Final = 10
"""The period of the state loop in ms (Java StateMaintainer)."""


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
        """Return the encoded ends of the queues without messages, for another member."""

    def delete_classic_prefix(self) -> None:
        """Remove the commit log before the divide, if it still exists."""

    def discard_through(self, index: int) -> None:
        """Allow retention to remove the files of all entries up to ``index``. Raises OSError."""

    def on_log_reset(self) -> None:
        """Adapt to a DLedger log that now starts at another offset."""


@define(slots=True, frozen=True, kw_only=True)
class DriverDependencies:
    """The collaborators of a driver.

    ``on_role`` is called with every new role (``ready_processor`` defines when); ``flush`` starts
    to make the log durable unless that is in progress; ``store_host`` is the store host of the
    marker; ``on_excluded`` is called with the reason when this member can be part of no quorum
    because the files of the others differ, and with "" when that is over; ``vouch`` returns the
    reason why a Java member may not be joined, or "";
    ``lacks_tables`` returns whether this member lacks the topics and offsets that a leader needs;
    ``serves_client`` returns whether DLedger's own clients at an address may read and append;
    ``admission`` decides which connections speak for members; ``is_open`` returns whether there is
    a connection to an address.
    """

    log: DLedgerCommitLog
    store: DriverStore
    scheduler: Scheduler
    network: Network
    store_host: Host
    on_role: Callable[[Role], None]
    flush: Callable[[], None]
    on_excluded: Callable[[str], None] = lambda _reason: None
    vouch: Callable[[str], str] = lambda _member: ""
    lacks_tables: Callable[[], bool] = lambda: False
    serves_client: Callable[[str], bool] = lambda _address: True
    admission: PeerAdmission = field(factory=PeerAdmission)
    is_open: Callable[[str], bool] = lambda _address: True
    tick_ms: int = TICK_MS
