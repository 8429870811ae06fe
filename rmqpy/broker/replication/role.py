"""The role of a broker: the id that it registers, and whether it accepts messages (Java
DLedgerRoleChangeHandler).

A member becomes master only when every entry that it has is committed and dispatched, so that its
next queue offsets follow from its consume queues. The services that only a master runs are started
and stopped here (:class:`MasterServices`).

===========  ==========================================================================
core         broker
===========  ==========================================================================
LEADER       slave until the whole log is committed and dispatched, then master (id 0)
FOLLOWER,    slave with the member's number + 1; senders that wait for a quorum are
CANDIDATE    refused
===========  ==========================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from attrs import field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.services.registration import RegistrationService
from rmqpy.config.keys import BrokerRole
from rmqpy.model.clock import Scheduler
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.values import define


class MasterService(Protocol):
    """Work that only a master does, such as the delivery of delayed messages."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@define(slots=True, eq=False, repr=False)
class MasterServices:
    """The services that only a master runs: delayed messages and transaction checks.

    ``start`` is called when this broker has become master and its queue offsets are known, ``stop``
    before it gives up the role. Both are idempotent. Services start in their order and stop in the
    reverse order.
    """

    _services: Sequence[MasterService]
    _abandon: Callable[[], None]
    """Fails the internal messages that still wait to be confirmed."""
    running: bool = field(default=False, init=False)

    def start(self) -> None:
        if not self.running:
            self.running = True
            for service in self._services:
                service.start()

    def stop(self) -> None:
        if self.running:
            self.running = False
            for service in reversed(self._services):
                service.stop()
            self._abandon()


if TYPE_CHECKING:  # loaded only by brokers with DLedger
    from rmqpy.dledger.state import Role
    from rmqpy.store.ledger.entry_store import EntryStore

logger = logging.getLogger(__name__)


class RoleStore(Protocol):
    """The part of the store that a role change affects."""

    def dispatch(self) -> None: ...

    def set_role(self, *, slave: bool) -> None: ...


@define(slots=True, frozen=True)
class RoleChange:
    """The steps of a role change, in the order that keeps queue offsets dense."""

    identity: BrokerContext
    store: RoleStore
    registration: RegistrationService
    services: MasterServices
    leadership_lost: Callable[[], None]
    """Refuses the senders whose messages no quorum has confirmed."""

    def become_master(self, role: BrokerRole = BrokerRole.SYNC_MASTER) -> None:
        """Dispatch the readable log, then accept puts, then register with the name servers."""
        self.store.dispatch()
        self.store.set_role(slave=False)
        self.identity.change_role(role, MASTER_ID)
        self.services.start()
        logger.info("%s became master at %s", self.identity.name, self.identity.address)
        self.registration.register()

    def become_slave(self, broker_id: int) -> None:
        """Become a slave; ``broker_id`` is the member's number plus 1."""
        self.store.set_role(slave=True)
        self.leadership_lost()
        self.services.stop()
        if self.identity.is_slave and self.identity.broker_id == broker_id:
            return
        self.identity.change_role(BrokerRole.SLAVE, broker_id)
        logger.info("%s is slave %d at %s", self.identity.name, broker_id, self.identity.address)
        self.registration.register()


class GroupRole:
    """The role of a group member, which follows the role of the core as in the module's table."""

    def __init__(
        self, change: RoleChange, entries: EntryStore, scheduler: Scheduler, slave_id: int
    ) -> None:
        self._change = change
        self._entries = entries
        self._scheduler = scheduler
        self._slave_id = slave_id
        self._waiting = False
        """True while the core leads and the log is not yet committed to its end."""
        entries.committed.subscribe(self._committed)

    def changed(self, role: Role) -> None:
        """Handle a change of the core's role."""
        from rmqpy.dledger.state import Role  # A classic broker never needs it.

        self._waiting = role is Role.LEADER
        if self._waiting:
            self._try()
        else:
            self._change.become_slave(self._slave_id)

    def _committed(self, _offset: int) -> None:
        if self._waiting:
            self._scheduler.call_soon(self._try)

    def _try(self) -> None:
        if self._waiting and self._entries.committed_index == self._entries.end.index:
            self._waiting = False
            self._change.become_master()
