"""The hosts of the slaves of this master, as the name servers know them.

Each name server is asked for its table of brokers (106), and each slave in it for its settings
(26): it may connect from another address than the one that it registers (``brokerIP2``, a network
for replication, the address inside of a container). A slave that does not answer counts with the
address that it has registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.config.keys import split_address
from rmqpy.config.properties_file import parse_properties
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.channel import Network
from rmqpy.remoting.command import RemotingCommand

TIMEOUT_MS: Final = 3_000
SLAVES_ASKED_MAX: Final = 64

_ADDRESS_KEYS: Final = ("brokerIP1", "brokerIP2")
_OWN_HOST: Final = ("127.", "localhost", "::1")
"""How the names of loopback addresses begin: they mean another host than for the slave."""

Found = Callable[[Iterable[str], bool], None]
"""A function that receives the hosts found so far, and whether the search has ended."""


@define(slots=True, frozen=True, eq=False, repr=False)
class SlaveDiscovery:
    """The questions to the name servers and slaves."""

    identity: BrokerContext
    network: Network

    def look(self, found: Found) -> None:
        """Call ``found`` with the hosts of the slaves after each answer, and once more when all
        questions have been answered or have timed out.
        """
        search = _Search(self.identity, self.network, found)
        for server in self.identity.broker_settings.name_servers:
            search.ask(server, RequestCode.GET_BROKER_CLUSTER_INFO, search.take_brokers)
        search.asked_all()


@define(slots=True, eq=False, repr=False)
class _Search:
    identity: BrokerContext
    network: Network
    found: Found
    _hosts: dict[str, None] = field(factory=dict)
    _slaves: set[str] = field(factory=set)
    _waiting: int = 1

    def ask(self, address: str, code: RequestCode, take: Callable[[bytes], None]) -> None:
        self._waiting += 1

        def answered(response: RemotingCommand | None, _error: RmqError | None) -> None:
            if response is not None and response.code == ResponseCode.SUCCESS:
                with suppress(RmqError, ValueError):  # it names no slave then
                    take(response.body)
                    self.found(tuple(self._hosts), False)
            self.asked_all()

        self.network.request(address, RemotingCommand.request(code), TIMEOUT_MS, answered)

    def asked_all(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self.found(tuple(self._hosts), True)

    def take_brokers(self, body: bytes) -> None:
        """Read a name server's table of brokers, and ask the slaves of this group."""
        identity = self.identity
        group = ClusterInfo.decode(body).broker_addr_table.get(identity.name)
        if group is None or group.cluster != identity.cluster:
            return
        for broker_id, address in group.broker_addrs.items():
            if broker_id == 0 or address == identity.address or address in self._slaves:
                continue
            if len(self._slaves) >= SLAVES_ASKED_MAX:
                return
            host, _port = split_address(address)
            self._slaves.add(address)
            self._hosts[host] = None
            self.ask(address, RequestCode.GET_BROKER_CONFIG, self._take_settings)

    def _take_settings(self, body: bytes) -> None:
        text = body.decode("utf-8", "replace")
        for line in parse_properties(text, "the settings of a slave"):
            if line.key in _ADDRESS_KEYS and line.value and not line.value.startswith(_OWN_HOST):
                self._hosts[line.value] = None
