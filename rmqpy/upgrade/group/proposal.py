"""Derive ``group.toml`` from the brokers' own configuration.

What the configuration does not say is proposed: ids ``n0``, ``n1``, ...; the DLedger port
``PORT_STEP`` above listenPort, or the next one that nothing else of the group uses and that is free
on its host; one master. The proposal is text for a person, who corrects it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define

from rmqpy.config.keys import BrokerRole, DLedgerPeer, parse_dledger_peers
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import RmqError
from rmqpy.upgrade.checks.config_checks import ephemeral_ports, taken_ports
from rmqpy.upgrade.group.group_file import LOCAL, GroupFile, MemberSpec

PORT_STEP: Final = 10_000
"""The distance of the proposed DLedger port from listenPort: 20911 for 10911."""
PORTS_TRIED: Final = 100
LOOPBACK: Final = "127.0.0.1"


@define(slots=True, frozen=True, kw_only=True)
class FoundBroker:
    """A broker's configuration and where it was found; ``keys`` are the pairs of its file."""

    host: str
    path: str
    configuration: BrokerConfiguration
    keys: Mapping[str, str]
    directory: str

    @property
    def listen_port(self) -> int:
        return self.configuration.remoting.listen_port

    @property
    def host_name(self) -> str:
        """The name or address at which others reach its host."""
        given = self.configuration.broker.broker_ip1
        if given:
            return given
        if self.host == LOCAL:
            return LOOPBACK
        name = self.host.partition("://")[2].rpartition("@")[2]
        return name.rpartition(":")[0] if name.rpartition(":")[2].isdecimal() else name

    @property
    def role(self) -> str | None:
        """The role that its file gives it, or None."""
        return self.keys.get("brokerRole")


@define(slots=True, frozen=True)
class ProposedGroup:
    """The group, and by member what was assumed."""

    group: GroupFile
    remarks: Mapping[str, Sequence[str]]


IsFree = Callable[[FoundBroker, int], bool]
"""Returns whether no process listens on a port of the broker's host."""


def propose_group(found: Sequence[FoundBroker], is_free: IsFree) -> ProposedGroup:
    """Return the group of these brokers. Raise RmqError if they cannot be one group."""
    if len(found) < 2:
        raise RmqError(
            f"found {len(found)} broker.conf, expected one for each member of the group: two at"
            " least, and three for a group that survives the loss of one"
        )
    broker = _common(found, "brokerName", lambda each: each.configuration.broker.broker_name)
    cluster = _common(
        found, "brokerClusterName", lambda each: each.configuration.broker.broker_cluster_name
    )
    ids = _ids(found)
    peers, remarks = _peers(found, ids, is_free)
    roles = _roles(found)
    members = tuple(
        MemberSpec(
            name=ids[number],
            host=each.host,
            config=each.path,
            directory=each.directory,
            address=f"{each.host_name}:{each.listen_port}",
            id=ids[number],
            peer=peers[number],
            role=roles[number],
        )
        for number, each in enumerate(found)
    )
    groups = {name for each in found if (name := each.keys.get("dLegerGroup"))}
    dledger_group = groups.pop() if len(groups) == 1 else broker
    group = GroupFile(broker=broker, cluster=cluster, dledger_group=dledger_group, members=members)
    return ProposedGroup(group, {members[number].name: texts for number, texts in remarks.items()})


def _common(found: Sequence[FoundBroker], key: str, value_of: Callable[[FoundBroker], str]) -> str:
    values = {each.path: value_of(each) for each in found}
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{value} in {path}" for path, value in values.items())
        raise RmqError(
            f"found {key} {listed}, expected one for the whole group; give the broker.conf files"
            " of one group"
        )
    return next(iter(values.values()))


def _ids(found: Sequence[FoundBroker]) -> list[str]:
    given = [each.keys.get("dLegerSelfId", "") for each in found]
    if all(given) and len(set(given)) == len(given):
        return given
    return [f"n{number}" for number in range(len(found))]


def _peers(
    found: Sequence[FoundBroker], ids: Sequence[str], is_free: IsFree
) -> tuple[list[str], dict[int, list[str]]]:
    """Return HOST:PORT of each member, and remarks by its number."""
    used = Counter(
        (each.host_name, port) for each in found for port in taken_ports(each.listen_port)
    )
    peers: list[str] = []
    remarks: dict[int, list[str]] = {}
    for number, each in enumerate(found):
        configured = _configured_peer(each, ids[number])
        if configured is not None:
            peers.append(f"{configured.host}:{configured.port}")
            continue
        port = _free_port(each, used, is_free)
        used[each.host_name, port] += 1
        peers.append(f"{each.host_name}:{port}")
        remarks[number] = [
            f"The port {port} is a proposal: listenPort + {port - each.listen_port}."
        ]
        if not each.configuration.broker.broker_ip1:
            remarks[number].append(
                f"brokerIP1 is not set: {each.host_name} must be the address of this host for"
                " the others."
            )
    return peers, remarks


def _configured_peer(broker: FoundBroker, self_id: str) -> DLedgerPeer | None:
    try:
        peers = parse_dledger_peers(broker.keys.get("dLegerPeers", ""))
    except ValueError:
        return None
    return next((each for each in peers if each.peer_id == self_id), None)


def _free_port(broker: FoundBroker, used: Counter[tuple[str, int]], is_free: IsFree) -> int:
    """Return a port that nothing of the group uses, below the ports of outgoing connections."""
    for port in _candidates(broker.listen_port):
        if not used[broker.host_name, port] and is_free(broker, port):
            return port
    raise RmqError(
        f"{broker.path}: found no free port for DLedger within {PORTS_TRIED} ports of listenPort"
        f" {broker.listen_port}; free one, or set dLegerPeers and dLegerSelfId in broker.conf"
    )


def _candidates(listen: int) -> Iterator[int]:
    low, high = ephemeral_ports()
    for first in (listen + PORT_STEP, listen + 10):
        for port in range(first, first + PORTS_TRIED):
            if port < 1 << 16 and not low <= port <= high:
                yield port
    yield from (port for port in range(listen + 10, listen + 10 + PORTS_TRIED) if port < 1 << 16)


def _roles(found: Sequence[FoundBroker]) -> list[str]:
    """Return the role of each: the first that is a master by its file stays the only one."""
    slave = BrokerRole.SLAVE.name
    masters = [number for number, each in enumerate(found) if each.role not in (None, slave)]
    free = [number for number, each in enumerate(found) if each.role is None]
    (master, *_) = masters or free or [0]
    said = found[master].role
    kept = said if said not in (None, slave) else BrokerRole.SYNC_MASTER.name
    return [str(kept) if number == master else slave for number in range(len(found))]
