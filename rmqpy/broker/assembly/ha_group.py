"""A broker's part in a classic group: the port that slaves replicate from, and a slave's connection
to its master.

The port is open in every classic role, as in Java, because a slave may have slaves itself.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.base.context import HA_PORT_DISTANCE
from rmqpy.broker.processors.admin.change_role import ChangeRoleProcessor
from rmqpy.broker.replication.access import GroupAddresses
from rmqpy.broker.replication.classic_role import ClassicRole
from rmqpy.broker.replication.role import RoleChange
from rmqpy.broker.replication.slave_discovery import SlaveDiscovery
from rmqpy.broker.state.replication_status import ReplicationStatus
from rmqpy.ha.follower import ReconnectBackoff
from rmqpy.ha.link import LinkSettings
from rmqpy.model.values import define
from rmqpy.net.ha import HaServer, dial
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import Tls
from rmqpy.remoting.channel import Network
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:  # imported only on a slave
    from rmqpy.broker.replication.ha_follower import HaFollower


@define(slots=True, frozen=True, eq=False, repr=False)
class HaTransport:
    """The client for outgoing requests, and the TLS contexts of this process."""

    network: Network
    tls: Tls = Tls()


@define(slots=True, eq=False)
class CopyRate:
    """The number of bytes of its master's log that a slave reads per second; 0 for no limit."""

    bytes_per_second: int = 0


@define(slots=True, frozen=True, eq=False, repr=False)
class HaGroup:
    """The replication port, and the role of the broker."""

    server: HaServer
    port: int
    role: ClassicRole
    addresses: GroupAddresses
    replication: ReplicationStatus
    rate: CopyRate

    async def listen(self, host: str) -> None:
        """Open the replication port. Raises ConfigError if that fails."""
        await self.server.listen(host, self.port)

    def start(self) -> None:
        self.addresses.refresh()
        self.role.start()

    def retire(self, reason: str) -> None:
        """Disconnect the slaves and the master, and refuse changes of the role, for good."""
        self.role.lock(reason)
        self.server.stop(reason)
        self.replication.serve(None)

    async def close(self) -> None:
        self.role.stop()
        await self.server.close()


def build_ha_group(
    broker: Broker, store: MessageStore, scheduler: AsyncioScheduler, transport: HaTransport
) -> HaGroup | None:
    """Return the replication port and follower of ``broker``, or None with DLedger, which has its
    own replication.
    """
    identity = broker.identity
    log = store.opened.classic
    if identity.store.enable_dledger_commit_log:
        return None
    assert log is not None
    addresses = GroupAddresses.from_settings(
        identity.configuration.security,
        scheduler,
        "it may fetch the log, but its reports do not count as those of a slave",
        lookup=SlaveDiscovery(identity, transport.network).look,
    )
    broker.replication.register_report(addresses.runtime_info)
    security = ListenerSecurity(transport.tls.replication, addresses.allows)
    settings = LinkSettings.from_settings(identity.store)
    replication = broker.replication
    server = HaServer(
        *(log, settings, scheduler, security, addresses.knows),
        slaves_needed=replication.slaves_needed,
    )
    addresses.subscribe(server.count_again)
    broker.replication.serve(server)
    if identity.is_slave:
        store.set_role(slave=True)
    rate = CopyRate()

    def make_follower() -> HaFollower:
        follower = _follower(broker, store, scheduler, transport, rate)
        broker.replication.register_report(
            lambda: follower.runtime_info() if identity.is_slave else {}
        )
        return follower

    change = RoleChange(
        identity, store, broker.registration, broker.services, broker.server.leadership_lost
    )
    role = ClassicRole(
        identity=identity,
        change=change,
        masters=broker.masters,
        tables=broker.metadata_sync,
        fence=broker.fence,
        log_end=lambda: log.max_offset,
        configure=broker.settings.apply,
        make_follower=make_follower,
        disconnect=server.disconnect,
    )
    broker.server.register_handlers(ChangeRoleProcessor(role, broker.settings).handlers())
    return HaGroup(
        *(server, identity.listen_port + HA_PORT_DISTANCE, role, addresses, broker.replication),
        rate=rate,
    )


def _follower(
    broker: Broker,
    store: MessageStore,
    scheduler: AsyncioScheduler,
    transport: HaTransport,
    rate: CopyRate,
) -> HaFollower:
    from rmqpy.broker.replication.ha_follower import HaFollower  # A master never needs it.

    return HaFollower(
        identity=broker.identity,
        store=store,
        scheduler=scheduler,
        network=transport.network,
        dial=lambda address, handler: dial(
            *(address, handler, scheduler, transport.tls.to_master),
            bytes_per_second=lambda: rate.bytes_per_second,
        ),
        choice=broker.masters,
        redial=ReconnectBackoff(random.SystemRandom().randrange),
    )
