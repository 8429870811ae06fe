"""The state of classic replication: the slaves that a synchronous master waits for, and the lines
of both sides in the runtime information.

============================================  =====================================================
a synchronous master, a send with WAIT        result
============================================  =====================================================
fewer than ``minInSyncReplicas`` in sync      refused, IN_SYNC_REPLICAS_NOT_ENOUGH (1)
fewer than ``inSyncReplicas`` in sync         stored, SLAVE_NOT_AVAILABLE (11) at once
``inSyncReplicas`` have it within             0
``slaveTimeout``
otherwise                                     stored, FLUSH_SLAVE_TIMEOUT (12)
============================================  =====================================================

Both settings count the master, as in 5.x; the defaults, 2 and 1, are the behaviour of 4.9: one
slave is enough, and nothing is refused. A slave is in sync if it has reported and lags by less than
``haSlaveFallbehindMax``. With ``enableAutoInSyncReplicas`` a send waits for the slaves that are in
sync when that are fewer than ``inSyncReplicas``, so there is no code 11.

:class:`BrokerContext` derives the numbers of slaves from the settings and the role when one of them
changes. Nothing here is called for a send if they are 0.

Slaves are the connections from addresses that belong to the group
(:mod:`rmqpy.broker.replication.access`); what others report counts for nothing. With DLedger there
is no classic replication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.net.ha import SlaveView
from rmqpy.store.files.watermark import Watermark

ALONE = Watermark("replicated")


class ConnectedSlaves(Protocol):
    """The connected slaves (implemented by ``HaServer`` in :mod:`rmqpy.net.ha`)."""

    replicated: Watermark
    last_refused: str

    @property
    def slaves(self) -> Sequence[SlaveView]: ...

    def count_at(self, offset: int) -> int:
        """Return how many slaves of the group have the log up to ``offset``."""


@define(slots=True, eq=False, repr=False)
class ReplicationStatus:
    """The state of classic replication. ``slaves`` is None without an HA port."""

    identity: BrokerContext
    log_end: Callable[[], int]
    slaves: ConnectedSlaves | None = field(default=None, init=False)
    _reports: list[Callable[[], Mapping[str, str]]] = field(factory=list, init=False)

    @property
    def waits(self) -> bool:
        """True if sends wait for slaves at all."""
        return self.identity.slaves_awaited > 0

    def serve(self, slaves: ConnectedSlaves | None) -> None:
        """Use ``slaves``, the connections of the HA port, from now on; None without one."""
        self.slaves = slaves

    def register_report(self, report: Callable[[], Mapping[str, str]]) -> None:
        """Add the lines that ``report`` returns to the runtime information."""
        self._reports.append(report)

    @property
    def in_sync_count(self) -> int:
        """The number of slaves that are close enough to wait for."""
        if self.slaves is None:
            return 0
        lag_bytes = self.identity.store.ha_slave_fallbehind_max
        return self.slaves.count_at(self.log_end() - lag_bytes + 1)

    def slaves_needed(self) -> int:
        """Return the number of slaves that must have a message now before its sender is
        answered.
        """
        identity = self.identity
        needed = identity.slaves_awaited
        if identity.store.enable_auto_in_sync_replicas:
            needed = max(min(needed, self.in_sync_count), identity.slaves_required)
        return needed

    @property
    def refuses(self) -> bool:
        """True for a synchronous master with too few slaves to store a message at all."""
        return self.in_sync_count < self.identity.slaves_required

    @property
    def marks(self) -> tuple[Watermark, ...]:
        """The watermarks that a send waits for in addition to the store's, if enough slaves are
        connected.
        """
        if not self.waits:
            return ()
        return (self.slaves.replicated if self.slaves is not None else ALONE,)

    def required_marks(self) -> tuple[Watermark, ...] | None:
        """Return the ``marks`` that a send waits for now, or None if slaves are missing."""
        awaited = self.identity.slaves_awaited
        if not awaited:
            return ()
        found = self.in_sync_count
        if found < awaited:
            needed = self.slaves_needed()
            if found < needed:
                return None
            if not needed:
                return ()
        return (self.slaves.replicated,) if self.slaves is not None else None

    def lags(self) -> list[tuple[str, int]]:
        """Return the address of each slave and by how many bytes it lags."""
        if self.slaves is None:
            return []
        end = self.log_end()
        return [
            (view.address, max(0, end - view.acknowledged))
            for view in self.slaves.slaves
            if view.counts
        ]

    def runtime_info(self) -> dict[str, str]:
        """Return rmqpy's own lines of the runtime information; none if nothing is replicated."""
        info: dict[str, str] = {}
        if self.slaves is not None:
            end = self.log_end()
            views = self.slaves.slaves
            count = sum(view.counts for view in views)
            info["haSlaveCount"] = str(count)
            if self.waits:
                info["haInSyncReplicas"] = str(1 + self.in_sync_count)
            if count:
                info["haReplicatedOffset"] = str(self.slaves.replicated.value)
            if self.slaves.last_refused:
                info["haLastRefused"] = self.slaves.last_refused
            for view in views:
                info[f"haSlave_{view.address}"] = (
                    f"acknowledged {view.acknowledged}, sent {view.sent},"
                    f" behind {max(0, end - view.acknowledged)} B,"
                    f" connected {view.connected_ms // 1000} s"
                    + ("" if view.counts else ", no slave of this group: its reports do not count")
                )
        for report in self._reports:
            info.update(report())
        return info
