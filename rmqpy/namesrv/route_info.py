"""The route tables: pure state, with one method per request; the time is an argument.

=================  ===========================================  ===================================
table              key -> value                                 filled by; emptied by
=================  ===========================================  ===================================
clusters           cluster -> broker names                      register; last id of a name removed
brokers            broker name -> cluster, {broker id: addr}    register; unregister, expiry, close
topics             topic -> {broker name: QueueData}            masters' registrations; delete
rows               broker name -> text of its topics            master's registration; see below
live               broker addr -> time, version, channel        register; unregister, expiry, close
filter servers     broker addr -> list                          register, replaced as a whole
versions           topic, broker name -> version                with each change of the two
=================  ===========================================  ===================================

A registration follows these rules. Any other id of the same address is removed, so that a change of
role leaves no stale entry. Topics are taken only from masters, and only if the DataVersion differs
from the one stored for the address, or the address is new as the master of its name. Topics that
are missing from the body are kept.

The text in ``rows`` is kept to compare the next registration with. Invariant: ``topics`` shows each
row of it. It is therefore dropped when queues of that name are removed or get other permissions.

Invariants: a broker name is in exactly one cluster while it has an address, and in none afterwards;
a topic has at least one broker name; every address in ``live`` belongs to a broker name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from attrs import define, evolve, field

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import PERM_READ, PERM_WRITE
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicList,
    TopicRouteData,
)
from rmqpy.remoting.channel import Channel

T = TypeVar("T")

BROKER_EXPIRED_MS = 120_000
"""The time without a registration after which a broker is removed (Java
BROKER_CHANNEL_EXPIRED_TIME).
"""

EXPIRY_LONGEST_MS = 3_600_000
"""The maximum expiry that a 5.x broker may request."""

KNOWN_ROWS_BYTES_MAX = 64 << 20
"""The maximum size of all texts of topics that are kept for comparison; a table of 20,000 topics
has 3 MB. Registrations beyond it are decoded as a whole.
"""

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
_UNIT_FLAGS = UNIT_FLAG | UNIT_SUB_FLAG


@define(slots=True, frozen=True)
class NamesrvLimits:
    """The limits of the tables. A registration that exceeds them is refused and changes nothing."""

    addresses: int = 10_000
    topics: int = 200_000
    filter_servers: int = 64
    settings: int = 20_000


OWNER_ALIVE_MS = 45_000
"""The time without a registration after which another broker may replace a broker. Brokers register
every 30 s.
"""


@define(slots=True, frozen=True, kw_only=True)
class BrokerRegistration:
    """The registration of a broker.

    ``topics`` is None if they are not decoded; see ``RouteInfoTable.needs_topics``. They may leave
    out those of ``RouteInfoTable.known_rows``. ``rows`` is the text of all topics if the next
    registration can be compared with it.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    topics: Mapping[str, QueueData] | None = None
    rows: bytes | None = None
    filter_servers: tuple[str, ...] = ()
    expiry_ms: int = BROKER_EXPIRED_MS


@define(slots=True)
class BrokerLiveInfo:
    """A registered address."""

    broker_name: str
    last_ms: int
    expiry_ms: int
    data_version: DataVersion
    ha_address: str
    channel: Channel


@define(slots=True, frozen=True)
class Registered:
    """The addresses of the master, which a slave receives in response to its registration."""

    master_address: str | None = None
    ha_address: str | None = None


@define(slots=True)
class RouteInfoTable:
    """The route tables. ``version`` increases with every change that a route or list shows."""

    limits: NamesrvLimits = NamesrvLimits()  # noqa: RUF009 - a frozen value
    version: int = 0
    _clusters: dict[str, dict[str, None]] = field(factory=dict)
    _brokers: dict[str, BrokerData] = field(factory=dict)
    _topics: dict[str, dict[str, QueueData]] = field(factory=dict)
    _rows: dict[str, bytes] = field(factory=dict)
    _rows_bytes: int = 0
    _live: dict[str, BrokerLiveInfo] = field(factory=dict)
    _filter_servers: dict[str, list[str]] = field(factory=dict)
    _topic_versions: dict[str, int] = field(factory=dict)
    _broker_versions: dict[str, int] = field(factory=dict)

    # -- registration and removal of brokers

    def needs_topics(self, registration: BrokerRegistration) -> bool:
        """Return whether :meth:`register` needs the topics of this registration."""
        if registration.broker_id != MASTER_ID:
            return False
        broker = self._brokers.get(registration.broker_name)
        if broker is None or broker.broker_addrs.get(MASTER_ID) != registration.address:
            return True
        return self.topics_changed(registration.address, registration.data_version)

    def known_rows(self, broker_name: str) -> bytes:
        """Return the text of topics that all are in the tables as topics of this name."""
        return self._rows.get(broker_name, b"")

    def register(
        self, registration: BrokerRegistration, channel: Channel, now_ms: int
    ) -> Registered:
        needs_topics = self.needs_topics(registration)
        assert not needs_topics or registration.topics is not None
        self._check_limits(registration)
        self._check_taken(registration, now_ms)
        self._place(registration)
        if needs_topics:
            self._take_topics(registration)
        self._live[registration.address] = BrokerLiveInfo(
            registration.broker_name,
            now_ms,
            registration.expiry_ms,
            registration.data_version,
            registration.ha_address,
            channel,
        )
        self._replace_filter_servers(registration)
        if registration.broker_id == MASTER_ID:
            return Registered()
        master = self._brokers[registration.broker_name].broker_addrs.get(MASTER_ID)
        live = self._live.get(master) if master is not None else None
        return Registered(master, live.ha_address) if live is not None else Registered()

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Remove an address, unless its id belongs to another address by now."""
        broker = self._brokers.get(broker_name)
        if broker is not None and broker.broker_addrs.get(broker_id) == address:
            self._remove(address)

    def channel_closed(self, channel: Channel) -> list[str]:
        """Remove and return every address whose last registration used ``channel``."""
        removed = [address for address, live in self._live.items() if live.channel is channel]
        for address in removed:
            self._remove(address)
        return removed

    def tick(self, now_ms: int) -> list[tuple[str, Channel]]:
        """Remove overdue brokers. Return their addresses and the channels to close."""
        overdue = [
            (address, live.channel)
            for address, live in self._live.items()
            if now_ms - live.last_ms > live.expiry_ms
        ]
        for address, _ in overdue:
            self._remove(address)
        return overdue

    # -- data versions

    def topics_changed(self, address: str, data_version: DataVersion) -> bool:
        live = self._live.get(address)
        return live is None or not live.data_version.same_as(data_version)

    def data_version(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.data_version if live is not None else None

    def touch(self, address: str, now_ms: int) -> None:
        """Renew the registration of a broker that has reported no change."""
        live = self._live.get(address)
        if live is not None:
            live.last_ms = now_ms

    # -- administration

    def wipe_write_perm(self, broker_name: str) -> int:
        return self._set_perms(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        return self._set_perms(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic, or only its queues in one cluster."""
        if not cluster:
            for broker_name in list(self._topics.get(topic, ())):
                self._drop_queues(topic, broker_name)
            return
        for broker_name in self._clusters.get(cluster, {}):
            self._drop_queues(topic, broker_name)

    # -- answers

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic, or None if it has no queues on a broker with an address."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        addresses = [address for each in brokers for address in each.broker_addrs.values()]
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=[_copy(each) for each in brokers],
            filter_server_table={
                address: list(self._filter_servers[address])
                for address in addresses
                if address in self._filter_servers
            },
        )

    def route_version(self, topic: str) -> int:
        """Return the version since which :meth:`route` has returned the same for a topic, or -1
        for a topic without queues.
        """
        queues = self._topics.get(topic)
        if not queues:
            return -1
        known = self._broker_versions
        return max(self._topic_versions[topic], *(known.get(name, 0) for name in queues))

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            {name: _copy(each) for name, each in self._brokers.items()},
            {cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def all_topics(self) -> TopicList:
        return TopicList(list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        names = self._clusters.get(cluster, {})
        return TopicList(
            [topic for topic, queues in self._topics.items() if not names.keys().isdisjoint(queues)]
        )

    def system_topics(self) -> TopicList:
        """Return the cluster and broker names, which are always topics, and the address of any
        broker.
        """
        names: dict[str, None] = {}
        for cluster, brokers in self._clusters.items():
            names[cluster] = None
            names.update(brokers)
        return TopicList(list(names), next(iter(self._live), None))

    def unit_topics(self) -> TopicList:
        return self._topics_by_flag(lambda flag: flag & UNIT_FLAG != 0)

    def unit_sub_topics(self) -> TopicList:
        return self._topics_by_flag(lambda flag: flag & UNIT_SUB_FLAG != 0)

    def unit_sub_ununit_topics(self) -> TopicList:
        return self._topics_by_flag(lambda flag: flag & _UNIT_FLAGS == UNIT_SUB_FLAG)

    # -- internal

    def _check_taken(self, registration: BrokerRegistration, now_ms: int) -> None:
        """Refuse an unknown address for an id whose owner is alive.

        An address that already belongs to the broker (a new leader, a slave that becomes master)
        may change its id.
        """
        broker = self._brokers.get(registration.broker_name)
        if broker is None or registration.address in broker.broker_addrs.values():
            return
        owner = broker.broker_addrs.get(registration.broker_id)
        live = self._live.get(owner) if owner is not None else None
        if live is not None and now_ms - live.last_ms < OWNER_ALIVE_MS:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"id {registration.broker_id} of broker {registration.broker_name} belongs to "
                f"{owner}, which is alive; stop it, or wait until it has been silent for "
                f"{OWNER_ALIVE_MS // 1000} s",
            )

    def _check_limits(self, registration: BrokerRegistration) -> None:
        limits = self.limits
        if registration.address not in self._live and len(self._live) >= limits.addresses:
            raise _too_many(f"{limits.addresses} broker addresses")
        if len(registration.filter_servers) > limits.filter_servers:
            raise _too_many(f"{limits.filter_servers} filter servers per broker")
        new = sum(1 for topic in registration.topics or () if topic not in self._topics)
        if len(self._topics) + new > limits.topics:
            raise _too_many(f"{limits.topics} topics")

    def _place(self, registration: BrokerRegistration) -> None:
        """Add id -> address, and remove conflicting entries."""
        name, address = registration.broker_name, registration.address
        before = self._live.get(address)
        if before is not None and before.broker_name != name:
            self._remove(address)
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = BrokerData(registration.cluster, name)
        self._clusters.setdefault(broker.cluster, {})[name] = None
        addresses = broker.broker_addrs
        if addresses.get(registration.broker_id) == address:
            return
        for broker_id in _ids_of(addresses, address):
            del addresses[broker_id]
        replaced = addresses.get(registration.broker_id)
        if replaced is not None:
            self._live.pop(replaced, None)
            self._filter_servers.pop(replaced, None)
        addresses[registration.broker_id] = address
        self._broker_changed(name)

    def _take_topics(self, registration: BrokerRegistration) -> None:
        assert registration.topics is not None
        name = registration.broker_name
        table, version = self._topics, self.version + 1
        # Many topics share one object: each pair of objects is compared once.
        equal: dict[tuple[int, int], bool] = {}
        for topic, queue_data in registration.topics.items():
            queues = table.get(topic)
            if queues is None:
                queues = table[topic] = {}
            known = queues.get(name)
            pair = (id(known), id(queue_data))
            is_equal = equal.get(pair)
            if is_equal is None:
                is_equal = equal[pair] = known == queue_data
            if not is_equal:
                queues[name] = queue_data
                self._topic_versions[topic] = self.version = version
        self._forget_rows(name)
        rows = registration.rows
        if rows is not None and self._rows_bytes + len(rows) <= KNOWN_ROWS_BYTES_MAX:
            self._rows[name] = rows
            self._rows_bytes += len(rows)

    def _broker_changed(self, broker_name: str) -> None:
        self.version += 1
        self._broker_versions[broker_name] = self.version

    def _forget_rows(self, broker_name: str) -> None:
        self._rows_bytes -= len(self._rows.pop(broker_name, b""))

    def _replace_filter_servers(self, registration: BrokerRegistration) -> None:
        servers = list(registration.filter_servers)
        if servers == self._filter_servers.get(registration.address, []):
            return
        self._broker_changed(registration.broker_name)
        if servers:
            self._filter_servers[registration.address] = servers
        else:
            del self._filter_servers[registration.address]

    def _remove(self, address: str) -> None:
        """Remove an address from every table, and its broker name if it has no other address."""
        live = self._live.pop(address)
        self._filter_servers.pop(address, None)
        self._broker_changed(live.broker_name)
        broker = self._brokers[live.broker_name]
        for broker_id in _ids_of(broker.broker_addrs, address):
            del broker.broker_addrs[broker_id]
        if broker.broker_addrs:
            return
        del self._brokers[live.broker_name], self._broker_versions[live.broker_name]
        names = self._clusters[broker.cluster]
        del names[live.broker_name]
        if not names:
            del self._clusters[broker.cluster]
        for topic in [each for each, queues in self._topics.items() if live.broker_name in queues]:
            self._drop_queues(topic, live.broker_name)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self._forget_rows(broker_name)
        self.version += 1
        self._topic_versions[topic] = self.version
        if not queues:
            del self._topics[topic], self._topic_versions[topic]

    def _set_perms(self, broker_name: str, perm_of: Callable[[int], int]) -> int:
        count = 0
        self._forget_rows(broker_name)
        self.version += 1
        for topic, queues in self._topics.items():
            queue_data = queues.get(broker_name)
            if queue_data is not None:
                queues[broker_name] = evolve(queue_data, perm=perm_of(queue_data.perm))
                self._topic_versions[topic] = self.version
                count += 1
        return count

    def _topics_by_flag(self, matches: Callable[[int], bool]) -> TopicList:
        return TopicList(
            [
                topic
                for topic, queues in self._topics.items()
                if matches(_first(queues.values()).topic_sys_flag)
            ]
        )


def _ids_of(addresses: Mapping[int, str], address: str) -> list[int]:
    return [broker_id for broker_id, each in addresses.items() if each == address]


def _first(values: Iterable[T]) -> T:
    return next(iter(values))


def _copy(broker: BrokerData) -> BrokerData:
    return BrokerData(broker.cluster, broker.broker_name, dict(broker.broker_addrs))


def _too_many(what: str) -> RequestRejectedError:
    return RequestRejectedError(
        ResponseCode.SYSTEM_BUSY, f"registration refused: the name server is limited to {what}"
    )
