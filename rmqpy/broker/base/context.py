"""Who this broker is: its settings, its addresses, its role. The only object that a change of role
or settings writes.

Processors keep a reference and read it for each request, so that a change is seen at once.
"""

from __future__ import annotations

from attrs import define

from rmqpy.broker.base.hosts import host_of
from rmqpy.config.broker import BrokerSettings
from rmqpy.config.keys import BrokerRole, host_and_port
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.config.store import StoreSettings
from rmqpy.model.flags import PERM_READ, PERM_WRITE
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.message import Host

FAST_PORT_DISTANCE = 2
HA_PORT_DISTANCE = 1


@define(slots=True)
class BrokerContext:
    """``host`` is the address that clients are told (brokerIP1)."""

    configuration: BrokerConfiguration
    host: str
    broker_id: int
    role: BrokerRole
    store_host: Host

    @classmethod
    def from_configuration(cls, configuration: BrokerConfiguration, host: str) -> BrokerContext:
        """The identity that the settings give; with DLedger a member begins without a role."""
        store = configuration.store
        role, broker_id = store.broker_role, configuration.broker.broker_id
        if store.enable_dledger_commit_log:
            role, broker_id = BrokerRole.SLAVE, -1
        elif role is not BrokerRole.SLAVE:
            broker_id = MASTER_ID
        store_host = host_of(host, configuration.remoting.listen_port)
        return cls(configuration, host, broker_id, role, store_host)

    @property
    def broker_settings(self) -> BrokerSettings:
        return self.configuration.broker

    @property
    def store(self) -> StoreSettings:
        return self.configuration.store

    @property
    def listen_port(self) -> int:
        return self.configuration.remoting.listen_port

    @property
    def fast_port(self) -> int:
        return self.listen_port - FAST_PORT_DISTANCE

    @property
    def name(self) -> str:
        return self.broker_settings.broker_name

    @property
    def cluster(self) -> str:
        return self.broker_settings.broker_cluster_name

    @property
    def address(self) -> str:
        """What clients connect to and name servers know the broker by."""
        return host_and_port(self.host, self.listen_port)

    @property
    def ha_address(self) -> str:
        """Where slaves replicate from."""
        return host_and_port(
            self.broker_settings.broker_ip2 or self.host, self.listen_port + HA_PORT_DISTANCE
        )

    @property
    def is_slave(self) -> bool:
        return self.role is BrokerRole.SLAVE

    @property
    def readable(self) -> bool:
        return self.broker_settings.broker_permission & PERM_READ != 0

    @property
    def writeable(self) -> bool:
        return self.broker_settings.broker_permission & PERM_WRITE != 0
