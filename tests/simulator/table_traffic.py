"""Topics and groups that a simulated administrator creates, changes, deletes and cleans, with
their checks.

===================  ===========================================================================
moment               checked
===================  ===========================================================================
a broker answers     with success: the change is in the durable content of the table's file, so
                     that neither a kill nor a power failure takes it
topics are cleaned   no queue goes that has messages: the other checkers miss them
a broker starts      it has exactly the entries of the file, or of its backup if the file is
                     damaged; and no damaged file has replaced a backup
the end              the slaves have all entries of the leader
===================  ===========================================================================
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, evolve, field

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
)
from rmqpy.testing.memory_channel import MemoryChannel
from simulator.broker_host import PORT, ROOT, BrokerHost
from simulator.invariants import InvariantViolationError
from simulator.network import NetworkClient
from simulator.virtual_time import ProcessLifetime
from simulator.workload import TOPIC

CLIENT: Final = "admin"
TIMEOUT_MS: Final = 3000
PREFIX: Final = "Admin"
NAMES: Final = 40
LATE_MS: Final = 30_000
"""The time after which a request is not executed any more, not even a repeated one."""

TOPICS, GROUPS = "topics.json", "subscriptionGroup.json"
_TABLES: Final = {
    TOPICS: ("topicConfigTable", "writeQueueNums"),
    GROUPS: ("subscriptionGroupTable", "retryQueueNums"),
}
"""The member of each file that contains the entries, and the value of an entry that changes."""

Entries = dict[str, int]


@define(slots=True, frozen=True)
class _Change:
    """A change of one entry; without a ``value`` it is deleted."""

    broker: str
    file: str
    name: str
    value: int | None
    sent_ms: int


@define(slots=True, eq=False, repr=False)
class TableTraffic:
    """The administrator. ``leader`` returns the name of the broker that accepts changes."""

    interval_ms: int
    life: ProcessLifetime
    client: NetworkClient
    hosts: Mapping[str, BrokerHost]
    leader: Callable[[], str | None]
    rng: random.Random
    running: bool = True
    acknowledged: int = 0
    _changes: dict[int, _Change] = field(factory=dict)
    """The changes without an answer, by the number of their request."""

    _sent_ms: dict[tuple[str, str], list[int]] = field(factory=dict)
    """When a change of each entry (file, name) was requested."""

    def start(self) -> None:
        delay_ms = 1 + int(self.rng.expovariate(1 / self.interval_ms))
        self.life.call_later(delay_ms, self._go)

    def on_write(self, broker: str, port: int, to: str, piece: bytes) -> None:
        """Check the answers in a piece that a broker sends."""
        if to != CLIENT or port != PORT:
            return
        for answer in FrameDecoder().receive(piece):
            change = self._changes.pop(answer.opaque, None)
            if change is not None and answer.code == ResponseCode.SUCCESS:
                self.acknowledged += 1
                self._check_durable(change)

    @staticmethod
    def tables_of(host: BrokerHost) -> dict[str, Entries]:
        """Return the tables on the disk of a broker that is stopped."""
        found: dict[str, Entries] = {}
        for path in sorted(host.disk.nodes):
            if path.endswith(".json.bak") and not host.disk.read_bytes(path).isascii():
                raise InvariantViolationError(f"{path} of {host.name} is damaged")
        for file in _TABLES:
            for path in (f"{ROOT}/config/{file}", f"{ROOT}/config/{file}.bak"):
                content = host.disk.read_bytes(path) if path in host.disk.nodes else b""
                entries = _entries(file, content)
                if file not in found and entries is not None:
                    found[file] = entries
        return found

    @staticmethod
    def check_started(host: BrokerHost, expected: Mapping[str, Entries]) -> None:
        """Check the tables of a broker that has started; on the disk there were ``expected``."""
        for file, entries in expected.items() if host.running is not None else ():
            found = _loaded(host, file)
            if found != entries:
                raise InvariantViolationError(
                    f"{host.name} starts with {found}; {file} contains {entries}"
                )

    def are_equal(self) -> bool:
        """Return whether all brokers have what the leader has."""
        leader = self.hosts[self.leader() or next(iter(self.hosts))]
        if any(host.running is None for host in self.hosts.values()):
            return False
        return all(
            _loaded(leader, file).items() <= _loaded(host, file).items()
            for file in _TABLES
            for host in self.hosts.values()
        )

    # Inside

    def _go(self) -> None:
        if not self.running:
            return
        self.start()
        name = self.leader() or self.rng.choice(list(self.hosts))
        file = self.rng.choice((TOPICS, GROUPS))
        value = self.rng.randrange(1, 9)
        change = _Change(
            name, file, f"{PREFIX}{self.rng.randrange(NAMES)}", value, self.life.now_ms()
        )
        known = sorted(each for table, each in self._sent_ms if table == file)
        if known and self.rng.random() < 0.3:
            change = evolve(change, name=self.rng.choice(known), value=None)
        self._sent_ms.setdefault((file, change.name), []).append(change.sent_ms)
        command = _command(file, change.name, change.value)
        self.client.request(self.hosts[name].address, command, TIMEOUT_MS, _ignore)
        self._changes[self.client.opaque] = change
        if change.value is None:
            self._clean_unused_topics(self.hosts[name])

    def _clean_unused_topics(self, host: BrokerHost) -> None:
        """Delete the queues of topics that are not configured, on a broker that has the topic of
        the workload.
        """
        running = host.running
        if running is None:
            return
        broker, request = running.broker, RemotingCommand.request(RequestCode.CLEAN_UNUSED_TOPIC)

        def clean() -> None:
            if broker.topics.get(TOPIC) is not None:
                broker.server.handle(MemoryChannel(), [request])
                broker.server.turn_ended()

        self.client.network.run_on(running.life, clean)

    def _check_durable(self, change: _Change) -> None:
        path = f"{ROOT}/config/{change.file}"
        entries = _entries(change.file, self.hosts[change.broker].disk.durable_content(path))
        others = self._sent_ms[change.file, change.name]
        if sum(abs(each - change.sent_ms) < LATE_MS for each in others) > 1:
            return  # Another change of the same entry may have been written before or after it.
        if entries is None or entries.get(change.name) != change.value:
            raise InvariantViolationError(
                f"{change.broker} acknowledges {change}; {change.file} contains {entries}"
            )


def _command(file: str, name: str, value: int | None) -> RemotingCommand:
    if file == GROUPS:
        if value is None:
            deleted = DeleteSubscriptionGroupRequestHeader(group_name=name)
            return RemotingCommand.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, deleted)
        body = SubscriptionGroupConfig(name, retry_queue_nums=value).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return RemotingCommand.request(code, body=body)
    if value is None:
        header = DeleteTopicRequestHeader(topic=name)
        return RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)
    return RemotingCommand.request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicRequestHeader(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=value,
            write_queue_nums=value,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        ),
    )


def _entries(file: str, content: bytes) -> Entries | None:
    """Return the administrator's entries in a file, or None if it cannot be read."""
    member, value = _TABLES[file]
    try:
        table = json.loads(content)[member]
    except ValueError:
        return None
    return {name: entry[value] for name, entry in table.items() if name.startswith(PREFIX)}


def _loaded(host: BrokerHost, file: str) -> Entries:
    assert host.running is not None
    broker = host.running.broker
    if file == TOPICS:
        topics = broker.topics.topics.items()
        return {name: each.write_queue_nums for name, each in topics if name.startswith(PREFIX)}
    groups = broker.groups.groups.items()
    return {name: each.retry_queue_nums for name, each in groups if name.startswith(PREFIX)}


def _ignore(_response: RemotingCommand | None, _fault: RmqError | None) -> None:
    pass
