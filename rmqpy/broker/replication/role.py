"""What a role means for a broker: which id it registers with, and whether it accepts messages (Java
DLedgerRoleChangeHandler).

A member becomes master only when every entry that it has is committed and dispatched: from then on
its queue offsets continue from those of its consume queues. The services of a master start and stop
here (:mod:`.master_services`).

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
from collections.abc import Callable
from typing import Protocol

from attrs import define

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.master_services import MasterServices
from rmqpy.broker.services.registration import RegistrationService
from rmqpy.config.keys import BrokerRole
from rmqpy.dledger.member import Role
from rmqpy.model.clock import Scheduler
from rmqpy.model.ids import MASTER_ID
from rmqpy.store.ledger.entry_store import EntryStore

logger = logging.getLogger(__name__)


class RoleStore(Protocol):
    """The part of the store that a role change affects."""

    def dispatch(self) -> None: ...

    def set_role(self, *, slave: bool) -> None: ...


@define(slots=True, frozen=True)
class RoleChange:
    """Applies a role to the broker's parts, in the order that keeps queue offsets dense."""

    identity: BrokerContext
    store: RoleStore
    registration: RegistrationService
    services: MasterServices
    leadership_lost: Callable[[], None]
    """Notifies senders whose messages no quorum has confirmed."""

    def become_master(self) -> None:
        """Dispatch the readable log, then accept puts, then register with the name servers."""
        self.store.dispatch()
        self.store.set_role(slave=False)
        self.identity.role = BrokerRole.SYNC_MASTER
        self.identity.broker_id = MASTER_ID
        self.services.start()
        logger.info("%s became master at %s", self.identity.name, self.identity.address)
        self.registration.register()

    def become_slave(self, broker_id: int) -> None:
        """Become a slave; ``broker_id`` is the member's number plus 1."""
        self.store.set_role(slave=True)
        self.services.stop()
        self.leadership_lost()
        if self.identity.is_slave and self.identity.broker_id == broker_id:
            return
        self.identity.role = BrokerRole.SLAVE
        self.identity.broker_id = broker_id
        logger.info(
            "%s became slave %d at %s", self.identity.name, broker_id, self.identity.address
        )
        self.registration.register()


class GroupRole:
    """Follows the role of the core, as the table above describes."""

    def __init__(
        self, change: RoleChange, entries: EntryStore, scheduler: Scheduler, slave_id: int
    ) -> None:
        self._change = change
        self._entries = entries
        self._scheduler = scheduler
        self._slave_id = slave_id
        self._waiting = False
        """Whether the core leads and the log is not yet committed to its end."""
        entries.committed.subscribe(self._committed)

    def changed(self, role: Role) -> None:
        """Follow the new role of the core."""
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
