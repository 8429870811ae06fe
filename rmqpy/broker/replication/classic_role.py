"""The role of a broker of a classic group, which an administrator changes while it runs.

::

    slave ── become_master(role, end) ──► tables fetched, follower stopped ──► master
    master ── become_slave(end) ──► fenced and drained: slaves disconnected ──► slave, following

A group must never have two masters, so the old master becomes a slave first. It must be fenced and
drained (:mod:`rmqpy.broker.services.fence`), and each log must end where the administrator expects
it, so that a master's log contains every message that was acknowledged. Both changes are written to
the configuration file: a broker that starts again has its last role.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from attrs import define, evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.master_discovery import MasterAddress, MasterDiscovery
from rmqpy.broker.replication.metadata_sync import MetadataSync
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.services.fence import WriteFence
from rmqpy.config.keys import BrokerRole
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.ids import MASTER_ID, PhysicalOffset

logger = logging.getLogger(__name__)


class MasterFollower(Protocol):
    """The part of a slave that fetches the log of its master."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@define(slots=True, kw_only=True, eq=False, repr=False)
class ClassicRole:
    """The role of one broker of a classic group."""

    identity: BrokerContext
    change: RoleChange
    masters: MasterDiscovery
    tables: MetadataSync
    fence: WriteFence
    log_end: Callable[[], PhysicalOffset]
    configure: Callable[[BrokerConfiguration], None]
    """Applies changed settings."""
    make_follower: Callable[[], MasterFollower]
    disconnect: Callable[[str], None]
    """Disconnects the slaves of this broker, for the given reason."""
    follower: MasterFollower | None = field(default=None, init=False)
    """The follower of a slave; None before the broker is a slave for the first time."""
    _changing: bool = field(default=False, init=False)
    _locked: str = field(default="", init=False)
    """The reason why the broker neither follows a master nor changes its role, or empty."""

    def start(self) -> None:
        """Follow the master if the broker is a slave."""
        if self.identity.is_slave and not self._locked:
            self._follow()

    def lock(self, reason: str) -> None:
        """Follow no master and change no role, because of ``reason``, until :meth:`unlock`."""
        self._locked = reason
        self.stop()

    def unlock(self) -> None:
        """Follow the master again, as a slave. Has no effect unless the role is locked."""
        if self._locked:
            self._locked = ""
            self.start()

    def stop(self) -> None:
        if self.follower is not None:
            self.follower.stop()

    def become_master(
        self, role: BrokerRole, end: PhysicalOffset, done: Callable[[str], None]
    ) -> None:
        """Become master after fetching the tables of the old one; then call ``done`` with the
        reason why the role has not changed, or an empty text.

        Raises RequestRejectedError if the log does not end at ``end``, or a change is in progress.
        """
        assert role is not BrokerRole.SLAVE
        if not self.identity.is_slave:
            raise _refused(f"found {self.identity.role.value}, expected a slave")
        self._check_end(end)

        def fetched() -> None:
            self._changing = False
            if self._locked or self.log_end() != end:
                done(self._locked or f"the log has grown to {self.log_end()} in the meantime")
                return
            for fault in self.tables.faults:
                logger.warning("becoming master with an older table: %s", fault)
            self.take_over(role)
            done("")

        self._changing = True
        self.tables.fetch_now(fetched)

    def take_over(self, role: BrokerRole) -> None:
        """Become master at once, with the tables and the log as they are."""
        self.stop()
        self._locked = ""
        self._configure(role, MASTER_ID)
        self.change.become_master(role)

    def become_slave(self, broker_id: int, end: PhysicalOffset, master: MasterAddress) -> None:
        """Become a slave that follows ``master``, which may still be a slave itself; a slave only
        follows it.

        Raises RequestRejectedError if the log of a master does not end at ``end``, or the master is
        not fenced and drained, or a change is in progress.
        """
        if broker_id < 1:
            raise _refused(f"brokerId={broker_id}: expected 1 or more for a slave")
        was_master = not self.identity.is_slave
        self._check_end(end, exact=was_master)
        if was_master and not self.fence.state().is_drained:
            raise _refused(
                "found a master that accepts messages or has unconfirmed ones, expected a fenced"
                " one; run rmqpy admin fence first"
            )
        self._configure(BrokerRole.SLAVE, broker_id)
        self.change.become_slave(broker_id)
        if was_master:
            self.disconnect("this broker is no master any more")
        self.masters.follow(master)
        self.stop()
        self._follow()

    def _follow(self) -> None:
        if self.follower is None:
            self.follower = self.make_follower()
        self.follower.start()

    def _check_end(self, end: PhysicalOffset, *, exact: bool = True) -> None:
        if self._locked:
            raise _refused(self._locked)
        if self._changing:
            raise _refused("another change of role is in progress; repeat the request later")
        if exact and self.log_end() != end:
            raise _refused(f"found a log that ends at {self.log_end()}, expected {end}")

    def _configure(self, role: BrokerRole, broker_id: int) -> None:
        configuration = self.identity.configuration
        self.configure(
            evolve(
                configuration,
                broker=evolve(configuration.broker, broker_id=broker_id),
                store=evolve(configuration.store, broker_role=role),
            )
        )


def _refused(reason: str) -> RequestRejectedError:
    return RequestRejectedError(ResponseCode.SYSTEM_ERROR, reason)
