"""The context of a broker: its settings, addresses and role. A change of role or settings writes
only this object.

Processors keep a reference and read it for each request, so that a change takes effect at once.
"""

from __future__ import annotations

import ipaddress
import logging
from functools import lru_cache

from attrs import field

from rmqpy.config.broker import BrokerSettings
from rmqpy.config.keys import BrokerRole, host_and_port
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.config.store import StoreSettings
from rmqpy.model.flags import PERM_READ, PERM_WRITE
from rmqpy.model.ids import MASTER_ID
from rmqpy.model.message import Host
from rmqpy.model.values import define

FAST_PORT_DISTANCE = 2
HA_PORT_DISTANCE = 1


logger = logging.getLogger(__name__)


@define(slots=True)
class BrokerContext:
    """The settings, addresses and role of a broker. ``host`` is the address that clients connect to
    (``brokerIP1``).
    """

    configuration: BrokerConfiguration
    host: str
    broker_id: int
    role: BrokerRole
    store_host: Host
    broker_settings: BrokerSettings = field(init=False)
    store: StoreSettings = field(init=False)
    name: str = field(init=False)
    cluster: str = field(init=False)
    is_readable: bool = field(init=False)
    is_writeable: bool = field(init=False)
    slaves_awaited: int = field(init=False)
    """The number of slaves that must have a message before its sender is answered; 0 unless this
    is a synchronous master (:mod:`rmqpy.broker.state.replication_status`).
    """
    slaves_required: int = field(init=False)
    """With fewer slaves in sync, a message that waits for slaves is refused; 0 without such a
    limit.
    """
    diverged: str = field(default="", init=False)
    """The reason why the log of this broker is not that of its group, or empty. While it is set,
    the broker serves no messages, and a member of a DLedger group does not register.
    """

    @classmethod
    def from_configuration(cls, configuration: BrokerConfiguration, host: str) -> BrokerContext:
        """Return the context of a broker with these settings. A member of a DLedger group starts
        as a slave without an id (-1). Raises ValueError if ``host`` is not an IP address.
        """
        store = configuration.store
        role, broker_id = store.broker_role, configuration.broker.broker_id
        if store.enable_dledger_commit_log:
            role, broker_id = BrokerRole.SLAVE, -1
        elif role is not BrokerRole.SLAVE:
            broker_id = MASTER_ID
        store_host = host_of(host, configuration.remoting.listen_port)
        return cls(configuration, host, broker_id, role, store_host)

    def __attrs_post_init__(self) -> None:
        self.change_configuration(self.configuration)

    def change_configuration(self, configuration: BrokerConfiguration) -> None:
        """Apply new settings; role, id and host remain."""
        self.configuration = configuration
        self.broker_settings = configuration.broker
        self.store = configuration.store
        self.name = configuration.broker.broker_name
        self.cluster = configuration.broker.broker_cluster_name
        self._update_readable()
        self.is_writeable = configuration.broker.broker_permission & PERM_WRITE != 0
        self._update_slaves()

    def note_diverged(self, reason: str) -> None:
        """Stop serving messages because of ``reason``, or serve them again if it is empty."""
        if reason != self.diverged:
            if reason:
                logger.error("this broker serves no messages: %s", reason)
            else:
                logger.info("this broker serves messages again")
        self.diverged = reason
        self._update_readable()

    def _update_readable(self) -> None:
        permission = self.broker_settings.broker_permission
        self.is_readable = permission & PERM_READ != 0 and not self.diverged

    def change_role(self, role: BrokerRole, broker_id: int) -> None:
        """Set the role, and the id under which the broker registers with the name servers."""
        self.role, self.broker_id = role, broker_id
        self._update_slaves()

    def _update_slaves(self) -> None:
        store = self.store
        waits = self.role is BrokerRole.SYNC_MASTER and not store.enable_dledger_commit_log
        self.slaves_awaited = store.replicas_required - 1 if waits else 0
        self.slaves_required = store.min_in_sync_replicas - 1 if waits else 0

    @property
    def listen_port(self) -> int:
        return self.configuration.remoting.listen_port

    @property
    def fast_port(self) -> int:
        return self.listen_port - FAST_PORT_DISTANCE

    @property
    def address(self) -> str:
        """The address that clients connect to and that is registered with the name servers."""
        return host_and_port(self.host, self.listen_port)

    @property
    def ha_address(self) -> str:
        """The address that slaves replicate from."""
        return host_and_port(
            self.broker_settings.broker_ip2 or self.host, self.listen_port + HA_PORT_DISTANCE
        )

    @property
    def is_slave(self) -> bool:
        return self.role is BrokerRole.SLAVE


CACHED_PEERS = 4096


@lru_cache(maxsize=CACHED_PEERS)
def born_host(peer: tuple[str, int]) -> Host:
    """Return the remote end of a connection as a host; see :func:`host_of`."""
    return host_of(*peer)


def host_of(address: str, port: int) -> Host:
    """Return the host of a textual IP address; an IPv4-mapped IPv6 address becomes the IPv4
    address. Raises ValueError for a host name.
    """
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed, port
