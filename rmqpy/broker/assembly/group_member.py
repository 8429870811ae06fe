"""The DLedger side of a broker process: the peers' port, and the connections to the other members.

The port can be open before the broker has a DLedger log; its requests are refused until
:meth:`DLedgerMember.join`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from attrs import evolve

from rmqpy.broker.assembly.addresses import is_local
from rmqpy.broker.assembly.dledger_group import DLedgerDependencies, start_dledger_member
from rmqpy.broker.assembly.slave_port import SlavePort
from rmqpy.broker.assembly.wiring import Broker
from rmqpy.broker.replication.access import GroupAddresses
from rmqpy.broker.replication.group_secret import group_secret
from rmqpy.broker.replication.group_status import status_of
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.dledger.state import Role
from rmqpy.model.codes import ResponseCode
from rmqpy.net.client import ClientLimits, RemotingClient
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.dledger.admission import PeerAdmission
from rmqpy.net.dledger.driver import DLedgerDriver
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.net.server.server import ListenerSecurity, RemotingServer, allow_all
from rmqpy.net.tls import Tls
from rmqpy.net.unsent import UnsentBytes
from rmqpy.remoting.channel import Channel, RequestHandler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.store.message_store import MessageStore

PUSHES_WAITING_MAX = 64 * 1024 * 1024
"""The limit on the bytes that wait to be sent to one member of the group."""

PUSH_BYTES = 768 * 1024
"""The read buffer of the peers' port: the frame of a full push fits and is read in one piece."""


class PeerPort:
    """The ``RequestHandler`` of the peers' port: the driver, once there is one."""

    def __init__(self) -> None:
        self.driver: RequestHandler | None = None

    def handle(
        self, channel: Channel, commands: Sequence[RemotingCommand]
    ) -> Sequence[RemotingCommand] | None:
        if self.driver is not None:
            return self.driver.handle(channel, commands)
        for command in commands:
            if not command.is_response and not command.is_oneway:
                reason = "this broker has not joined its group yet"
                answer = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, reason)
                channel.write(encode_command(answer))
        return None

    def turn_ended(self) -> None:
        if self.driver is not None:
            self.driver.turn_ended()

    def channel_closed(self, channel: Channel) -> None:
        if self.driver is not None:
            self.driver.channel_closed(channel)


class DLedgerMember:
    """A member of a DLedger group with these settings."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        scheduler: AsyncioScheduler,
        tls: Tls,
        unsent: UnsentBytes,
    ) -> None:
        self._configuration = configuration
        self._scheduler = scheduler
        # The pushes of one turn to a follower that lags may be large.
        limits = ConnectionLimits(high_water=PUSHES_WAITING_MAX)
        self.network = RemotingClient(scheduler, ClientLimits(connection=limits), tls=tls.client)
        self._addresses = GroupAddresses.from_settings(
            configuration.security,
            scheduler,
            "it speaks for no member",
            [peer.host for peer in configuration.store.dledger_members],
        )
        self._port = PeerPort()
        self.server = RemotingServer(
            self._port,
            scheduler,
            evolve(
                ConnectionLimits.from_settings(configuration.remoting),
                read_bytes=PUSH_BYTES,
                turn_bytes=4 * PUSH_BYTES,
            ),
            ListenerSecurity(tls.server, self._addresses.allows),
        )
        self.server.turns.unsent = unsent
        self._tls = tls
        self._driver: DLedgerDriver | None = None
        self.slave_port: SlavePort | None = None
        """The port for classic slaves, after :meth:`join`, with ``haServeEntries``."""

    @property
    def driver(self) -> DLedgerDriver:
        """The driver; available after :meth:`join`."""
        assert self._driver is not None
        return self._driver

    async def listen(self, bind: str) -> None:
        """Listen on the member's own address in ``dLegerPeers``, or on ``bind``, the address of the
        other ports, if ``bindAddress`` is set or the member's address does not belong to this host.
        """
        settings = self._configuration.store
        (own,) = (
            peer for peer in settings.dledger_members if peer.peer_id == settings.dledger_self_id
        )
        if not self._configuration.remoting.bind_address and is_local(own.host, numeric=False):
            bind = own.host
        await self.server.listen(bind, own.port, "dLegerPeers (on every member)")

    def join(self, broker: Broker, store: MessageStore) -> None:
        """Create the driver, which is not started, for the DLedger log that ``store`` has now."""
        configuration = self._configuration
        if configuration.store.ha_serve_entries:
            self.slave_port = SlavePort(broker, store, self._scheduler, self._tls)
        admission = PeerAdmission(self._addresses.knows, group_secret(configuration.store))
        self._driver = self._port.driver = start_dledger_member(
            broker,
            store,
            DLedgerDependencies(
                scheduler=self._scheduler,
                network=self.network,
                rng=random.SystemRandom().randrange,
                on_role=self._changed,
                serves_client=(
                    self._addresses.knows if configuration.broker.acl_enable else allow_all
                ),
                admission=admission,
                is_open=self.network.is_open,
            ),
        )
        broker.replication.register_report(self._addresses.runtime_info)
        broker.replication.register_report(admission.runtime_info)

    def _changed(self, role: Role) -> None:
        if self.slave_port is not None:
            self.slave_port.changed(role)

    def status(self) -> Mapping[str, object]:
        return status_of(self.driver)

    async def close(self) -> None:
        if self.slave_port is not None:
            await self.slave_port.close()
        await self.server.close()
        await self.network.close()
