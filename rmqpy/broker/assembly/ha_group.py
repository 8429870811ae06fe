"""A broker's part in a classic group, put together: the port that slaves replicate from, and a
slave's way to its master.

The port is open in every classic role, as Java's is: a slave may have slaves of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.broker.base.context import HA_PORT_DISTANCE
from rmqpy.broker.replication.access import ReplicationAllowList
from rmqpy.ha.link import LinkSettings
from rmqpy.net.ha import HaServer, dial
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import Tls
from rmqpy.remoting.channel import Network
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:
    from rmqpy.broker.replication.ha_follower import HaFollower


@define(slots=True, frozen=True, eq=False, repr=False)
class HaTransport:
    """Outgoing requests, and the TLS of this process."""

    network: Network
    tls: Tls = Tls()  # noqa: RUF009 - a frozen value


@define(slots=True, frozen=True, eq=False, repr=False)
class HaGroup:
    """See the module's text. ``following`` is a slave's."""

    broker: BrokerServer
    server: HaServer
    following: HaFollower | None

    @classmethod
    def of(
        cls,
        broker: BrokerServer,
        store: MessageStore,
        scheduler: AsyncioScheduler,
        transport: HaTransport,
    ) -> HaGroup | None:
        """None with DLedger, which replicates by itself."""
        identity = broker.identity
        log = store.opened.classic
        if identity.store.enable_dledger_commit_log:
            return None
        assert log is not None
        door = ReplicationAllowList.from_settings(identity.configuration.security)
        broker.replication.others.append(door.runtime_info)
        tls = transport.tls
        doors = ListenerSecurity(tls.replication, door.allows)
        server = HaServer(log, LinkSettings.from_settings(identity.store), scheduler, doors)
        broker.replication.slaves = server
        following = None
        if identity.is_slave:
            # A master shall not pay for it when it starts.
            from rmqpy.broker.replication.ha_follower import FollowingSurroundings, HaFollower

            store.set_role(slave=True)
            following = HaFollower(
                FollowingSurroundings(
                    identity=identity,
                    store=store,
                    scheduler=scheduler,
                    network=transport.network,
                    dial=lambda address, follower: dial(
                        address, follower, scheduler, tls.to_master
                    ),
                    choice=broker.masters,
                )
            )
            broker.replication.others.append(following.runtime_info)
        return cls(broker, server, following)

    async def listen(self, host: str) -> None:
        """Raises ConfigError when the port cannot be had."""
        await self.server.listen(host, self.broker.identity.listen_port + HA_PORT_DISTANCE)

    def start(self) -> None:
        if self.following is not None:
            self.following.start()

    async def close(self) -> None:
        if self.following is not None:
            self.following.stop()
        await self.server.close()
