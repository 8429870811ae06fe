"""The state of classic replication: the slaves that a synchronous master waits for, and the lines
of both sides in the runtime information.

============================================  =====================================================
a synchronous master, a send with WAIT        result
============================================  =====================================================
no slave has reported, or all of them lag     stored, SLAVE_NOT_AVAILABLE (11) at once
by ``haSlaveFallbehindMax`` or more
a slave has it within ``slaveTimeout``        0
otherwise                                     stored, FLUSH_SLAVE_TIMEOUT (12)
============================================  =====================================================

One slave is enough, as in Java. Slaves are the connections from addresses that belong to the group
(:mod:`rmqpy.broker.replication.access`); what others report counts for nothing. With DLedger there
is no classic replication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.config.keys import BrokerRole
from rmqpy.net.ha import SlaveView
from rmqpy.store.files.watermark import Watermark

ALONE = Watermark("replicated")


class ConnectedSlaves(Protocol):
    """The connected slaves (implemented by ``HaServer`` in :mod:`rmqpy.net.ha`)."""

    replicated: Watermark
    last_refused: str

    @property
    def slaves(self) -> Sequence[SlaveView]: ...

    @property
    def has_slaves(self) -> bool: ...


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
        identity = self.identity
        return (
            identity.role is BrokerRole.SYNC_MASTER and not identity.store.enable_dledger_commit_log
        )

    def serve(self, slaves: ConnectedSlaves | None) -> None:
        """Use ``slaves``, the connections of the HA port, from now on; None without one."""
        self.slaves = slaves

    def register_report(self, report: Callable[[], Mapping[str, str]]) -> None:
        """Add the lines that ``report`` returns to the runtime information."""
        self._reports.append(report)

    @property
    def not_enough_replicas(self) -> bool:
        """True for a synchronous master without a slave that is close enough to wait for."""
        if not self.waits:
            return False
        slaves = self.slaves
        if slaves is None or not slaves.has_slaves:
            return True
        behind_bytes = self.log_end() - slaves.replicated.value
        return behind_bytes >= self.identity.store.ha_slave_fallbehind_max

    @property
    def marks(self) -> tuple[Watermark, ...]:
        """The watermarks that a send waits for in addition to the store's, if enough slaves are
        connected.
        """
        if not self.waits:
            return ()
        return (self.slaves.replicated if self.slaves is not None else ALONE,)

    def required_marks(self) -> tuple[Watermark, ...]:
        """Return the ``marks`` that a send waits for now: none if slaves are missing."""
        return () if not self.waits or self.not_enough_replicas else self.marks

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
