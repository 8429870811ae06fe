"""What a role means for a broker: which id it registers with, whether it takes messages (Java
DLedgerRoleChangeHandler).

A member becomes master only when every entry that it has is committed and dispatched: from then on
its queue offsets go on from what its consume queues say. What only a master does by itself starts
and stops here (:mod:`.master_services`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from attrs import define

from rmqpy.broker.identity import Identity
from rmqpy.broker.master_services import MasterServices
from rmqpy.broker.registration import Registration
from rmqpy.model.config_keys import BrokerRole
from rmqpy.model.ids import MASTER_ID

_log = logging.getLogger(__name__)


class RoleStore(Protocol):
    """The part of the store that a role touches."""

    def dispatch(self) -> None: ...

    def become(self, *, slave: bool) -> None: ...


@define(slots=True, frozen=True)
class RoleChange:
    """Applies a role to the broker's parts, in the order that keeps queue offsets dense."""

    identity: Identity
    store: RoleStore
    registration: Registration
    services: MasterServices
    leadership_lost: Callable[[], None]
    """Tells senders whose messages no quorum has confirmed."""

    def become_master(self) -> None:
        """Readable log is dispatched first, then puts are accepted, then the name servers hear of
        it.
        """
        self.store.dispatch()
        self.store.become(slave=False)
        self.identity.role = BrokerRole.SYNC_MASTER
        self.identity.broker_id = MASTER_ID
        self.services.start()
        _log.info("%s is master at %s", self.identity.name, self.identity.address)
        self.registration.register()

    def become_slave(self, broker_id: int) -> None:
        """``broker_id`` is the member's number plus 1."""
        self.store.become(slave=True)
        self.services.stop()
        self.leadership_lost()
        self.identity.role = BrokerRole.SLAVE
        self.identity.broker_id = broker_id
        _log.info("%s is slave %d at %s", self.identity.name, broker_id, self.identity.address)
        self.registration.register()
