"""The hosts of slaves, as name servers and the slaves themselves report them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.replication.slave_discovery import SlaveDiscovery
from rmqpy.config.loading import BrokerConfiguration, BrokerSettings
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import BrokerData, ClusterInfo
from rmqpy.remoting.channel import Reply
from rmqpy.remoting.command import RemotingCommand


@define
class Answers:
    """A network in which each server gives one answer, when the test wants it to."""

    bodies: dict[str, bytes] = field(factory=dict)
    asked: list[tuple[str, int]] = field(factory=list)
    waiting: dict[str, Reply] = field(factory=dict)
    """The requests to servers without an answer."""

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int,
        done: Reply,
        pieces: Sequence[bytes] = (),
    ) -> None:
        self.asked.append((address, command.code))
        body = self.bodies.get(address)
        if body is None:
            self.waiting[address] = done
        else:
            done(RemotingCommand(0, flag=1, body=body), None)

    def oneway(self, address: str, command: RemotingCommand) -> None:
        raise AssertionError("no request is oneway")


def table(name: str = "broker-a", cluster: str = "c", **addresses: str) -> bytes:
    """Return the table of a name server; the names of ``addresses`` are ``id<number>``."""
    brokers = {int(key[2:]): address for key, address in addresses.items()}
    return ClusterInfo({name: BrokerData(cluster, name, brokers)}, {cluster: [name]}).encode()


@define
class Found:
    """What a search has reported."""

    hosts: tuple[str, ...] = ()
    ends: list[bool] = field(factory=list)

    def __call__(self, hosts: object, ended: bool) -> None:
        assert isinstance(hosts, tuple)
        self.hosts = hosts
        if ended:
            self.ends.append(True)


def look(network: Answers, servers: str = "n:9876") -> Found:
    settings = BrokerSettings(broker_name="broker-a", broker_cluster_name="c", namesrv_addr=servers)
    identity = BrokerContext.from_configuration(BrokerConfiguration(broker=settings), "10.0.0.1")
    found = Found()
    SlaveDiscovery(identity, network).look(found)
    return found


def test_a_slave_is_known_by_all_of_its_addresses() -> None:
    network = Answers(
        {
            "n:9876": table(id0="10.0.0.1:10911", id1="10.0.0.2:10911"),
            "10.0.0.2:10911": b"brokerIP1=10.0.0.2\nbrokerIP2=192.168.7.2\nbrokerId=1\n",
        }
    )
    found = look(network)
    assert found.hosts == ("10.0.0.2", "192.168.7.2") and len(found.ends) == 1
    codes = [RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_CONFIG]
    assert [code for _, code in network.asked] == codes


def test_an_address_that_means_the_asked_host_itself_is_not_taken_over() -> None:
    network = Answers(
        {"n:9876": table(id1="10.0.0.2:10911"), "10.0.0.2:10911": b"brokerIP2=127.0.0.1\n"}
    )
    assert look(network).hosts == ("10.0.0.2",)


def test_a_silent_server_delays_nothing() -> None:
    network = Answers({"n:9876": table(id1="10.0.0.2:10911")})
    found = look(network, "dead:9876;n:9876")
    assert found.hosts == ("10.0.0.2",) and not found.ends
    for done in network.waiting.values():
        done(None, NetworkError("no answer"))
    assert len(found.ends) == 1


def test_other_groups_and_unreadable_answers_name_no_slaves() -> None:
    for body in (
        table("broker-b", id1="10.0.0.2:1"),
        table(cluster="d", id1="10.0.0.2:1"),
        table(id1="no address"),
        b"[]",
        b"{",
    ):
        found = look(Answers({"n:9876": body}))
        assert found.hosts == () and len(found.ends) == 1


def test_without_name_servers_nothing_is_known() -> None:
    found = look(Answers(), "")
    assert found.hosts == () and len(found.ends) == 1
