"""The port from which classic slaves follow a member of a DLedger group: classic replication of the
:class:`~rmqpy.store.commitlog.classic_view.ClassicView` of its log.

Every member serves the same bytes while it leads or follows. A change of its role ends all
connections, so that the slaves look for the master again; a member that has no leader accepts none.
Slaves are no members: what they report confirms no message.

The view does not contain the last record of the log. If nothing follows it for ``IDLE_MS``, the
leader appends a marker, which no consumer receives, so that slaves get the last message, too.
"""

from __future__ import annotations

import logging
from typing import Final

from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.base.context import HA_PORT_DISTANCE
from rmqpy.broker.processors.admin.replication_queries import LogCompareProcessor
from rmqpy.broker.replication.access import GroupAddresses
from rmqpy.broker.replication.slave_discovery import SlaveDiscovery
from rmqpy.dledger.state import Role
from rmqpy.ha.link import LinkSettings
from rmqpy.model.clock import Timer
from rmqpy.model.message import marker
from rmqpy.net.ha import HaServer
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import Tls
from rmqpy.store.commitlog.classic_view import PAGE_BYTES, ClassicView
from rmqpy.store.commitlog.dledger import DLedgerCommitLog
from rmqpy.store.commitlog.joined import JoinedCommitLog
from rmqpy.store.message_store import MessageStore

IDLE_MS: Final = 200

logger = logging.getLogger(__name__)


class SlavePort:
    """The port of one member, which is closed until :meth:`listen`."""

    def __init__(
        self, broker: Broker, store: MessageStore, scheduler: AsyncioScheduler, tls: Tls
    ) -> None:
        identity = broker.identity
        log = store.log
        assert isinstance(log, JoinedCommitLog | DLedgerCommitLog)
        self._broker = broker
        self._store = store
        self._scheduler = scheduler
        self._role = Role.CANDIDATE
        self._seen_end = self._marked_end = 0
        """The end of the log as of the last tick, and after the last marker."""
        self._timer: Timer | None = None
        self._port = identity.listen_port + HA_PORT_DISTANCE
        self.view = ClassicView(log)
        self._addresses = GroupAddresses.from_settings(
            identity.configuration.security,
            scheduler,
            "it may fetch the log as a classic one",
            lookup=SlaveDiscovery(identity, broker.registration.network).look,
        )
        self.server = HaServer(
            self.view,
            LinkSettings.from_settings(identity.store),
            scheduler,
            ListenerSecurity(tls.replication, self._allows),
            self._addresses.knows,
            turn_bytes=PAGE_BYTES,
        )
        self._addresses.subscribe(self.server.count_again)
        broker.replication.serve(self.server)
        broker.fence.serve(self)
        broker.server.register_handlers(LogCompareProcessor(lambda: self.view).handlers())

    @property
    def end(self) -> int:
        return self.view.confirm_offset

    @property
    def is_complete(self) -> bool:
        """True if the last record is a marker of this member, and committed."""
        log = self._store.log
        return log.max_offset == self._marked_end == log.confirm_offset

    def complete(self) -> None:
        """Append a marker after the last message, in this turn, if there is a slave to see it."""
        if self._lacks_marker and self._store.appender.is_ready():
            host = self._broker.identity.store_host
            self._store.appender.put([marker("for slaves", host, self._scheduler.now_ms())])
            self._seen_end = self._marked_end = self._store.log.max_offset

    async def listen(self, host: str) -> None:
        """Open the port. Raises ConfigError if that fails."""
        await self.server.listen(host, self._port)
        self._timer = self._scheduler.call_later(IDLE_MS, self._tick)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self.server.close()

    def changed(self, role: Role) -> None:
        """Handle a change of the core's role."""
        self._role = role
        self.server.disconnect(f"the role of this member has changed to {role.name}")

    def _allows(self, host: str) -> bool:
        return self._role is not Role.CANDIDATE and self._addresses.allows(host)

    def _tick(self) -> None:
        self._timer = self._scheduler.call_later(IDLE_MS, self._tick)
        end = self._store.log.max_offset
        is_idle, self._seen_end = end == self._seen_end, end
        if is_idle and self._lacks_marker:
            self._broker.server.run_in_turn(self.complete)

    @property
    def _lacks_marker(self) -> bool:
        """True if this member leads, and slaves wait for the last message."""
        leads = self._role is Role.LEADER
        return leads and self._store.log.max_offset != self._marked_end and self.server.is_connected
