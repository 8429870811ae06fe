"""Who watches a simulated cluster: a group with DLedger, or one broker with the classic log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Self
from zlib import crc32

from attrs import define, field

from rmqpy.testing.simulation.broker_host import LEDGER_PORT, ROOT, BrokerHost
from rmqpy.testing.simulation.member_view import MemberView
from rmqpy.testing.simulation.plan import Plan
from rmqpy.testing.simulation.promises import Promises, Violation
from rmqpy.testing.simulation.records import Record, record_at
from rmqpy.testing.simulation.traffic import TOPIC, Sent, Witness
from rmqpy.testing.simulation.wires import Machine

VOTED = b'"voteResult":"ACCEPT"'


class Watch(Witness):
    """What the world tells whoever watches it."""

    @classmethod
    @abstractmethod
    def of(cls, plan: Plan, hosts: tuple[BrokerHost, ...]) -> Self:
        """A watch over these machines."""

    @property
    def elections(self) -> int:
        """How many leaders there were."""
        return 0

    def look(self, host: BrokerHost) -> None:
        """An event of that machine has ended."""

    def stamp(self, machine: Machine) -> int:
        """That machine writes to somebody: how far the promises go by now."""
        return 0

    def overhears(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        """That machine writes this piece to the machine called ``to``."""

    def started(self, host: BrokerHost) -> None: ...

    def ended(self, host: BrokerHost, *, power_lost: bool, working: bool) -> None:
        """That machine is down; ``working``: it was in the middle of an event."""

    def begins_with(self, records: Iterable[Record]) -> None:
        """What the classic log holds that every member begins with."""

    def audit(self) -> None:
        """At the end, all members equal."""

    def read_to_end(self, broker: str, queue_id: int, count: int) -> None:
        """A reader has found so many messages in that queue, and then its end."""

    @abstractmethod
    def digest(self) -> str:
        """Everything that was promised, as a text."""


@define(slots=True, eq=False, repr=False)
class GroupWatch(Watch):
    """Members of a group are held against each other and against their promises."""

    promises: Promises
    views: dict[str, MemberView]

    @classmethod
    def of(cls, plan: Plan, hosts: tuple[BrokerHost, ...]) -> Self:
        promises = Promises(plan.members // 2 + 1)
        views: list[MemberView] = []
        views += (MemberView(host, promises, views) for host in hosts)
        return cls(promises, {view.host.name: view for view in views})

    @property
    def elections(self) -> int:
        return len(self.promises.leaders)

    def look(self, host: BrokerHost) -> None:
        self.views[host.name].look()

    def stamp(self, machine: Machine) -> int:
        view = self.views.get(machine.name)
        if view is not None:
            view.look()
        return len(self.promises.committed)

    def overhears(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        if port == LEDGER_PORT and VOTED in piece:
            self.views[machine.name].answers_vote(to, piece)

    def started(self, host: BrokerHost) -> None:
        self.views[host.name].started()

    def ended(self, host: BrokerHost, *, power_lost: bool, working: bool) -> None:
        self.views[host.name].ended(power_lost=power_lost, working=working)

    def begins_with(self, records: Iterable[Record]) -> None:
        end = 0
        for record in records:
            self.promises.starts_with(record)
            end = record.physical_offset + record.size
        file_size = next(iter(self.views.values())).host.plan.file_size
        self.promises.divided_offset = -(-end // file_size) * file_size

    def audit(self) -> None:
        for view in self.views.values():
            view.audit()

    def told_stored(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        queue = TOPIC.encode(), sent.queue_id
        for number, body in enumerate(sent.bodies):
            self.promises.was_told(broker, queue, queue_offset + number, crc32(body), stamp)

    def was_read(
        self, broker: str, queue_id: int, offset: int, records: list[Record], stamp: int
    ) -> None:
        queue = TOPIC.encode(), queue_id
        check_dense(broker, queue_id, offset, records)
        for record in records:
            self.promises.was_told(broker, queue, record.queue_offset, record.body, stamp)

    def read_to_end(self, broker: str, queue_id: int, count: int) -> None:
        places = self.promises.queues.get((TOPIC.encode(), queue_id), [])
        if count != len(places):
            raise Violation(
                f"{broker} gives out {count} of {len(places)} messages of queue {queue_id}"
            )

    def digest(self) -> str:
        return repr((self.promises.committed, sorted(self.promises.votes.items())))


@define(slots=True, eq=False, repr=False)
class ClassicWatch(Watch):
    """One broker with the classic log: what is acknowledged stays, what was read stays unless the
    power failed.
    """

    plan: Plan
    told: dict[tuple[int, int], int] = field(factory=dict)
    """(queue, offset) → body, of what was acknowledged."""

    read: dict[tuple[int, int], int] = field(factory=dict)

    @classmethod
    def of(cls, plan: Plan, hosts: tuple[BrokerHost, ...]) -> Self:
        return cls(plan)

    def told_stored(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        for number, body in enumerate(sent.bodies):
            place = sent.queue_id, queue_offset + number
            if self.told.setdefault(place, crc32(body)) != crc32(body):
                raise Violation(f"{broker} has acknowledged two messages at {place}")

    def was_read(
        self, broker: str, queue_id: int, offset: int, records: list[Record], stamp: int
    ) -> None:
        check_dense(broker, queue_id, offset, records)
        for record in records:
            place = queue_id, record.queue_offset
            known = self.told.get(place)
            if known is None and not self.plan.power:
                known = self.read.setdefault(place, record.body)
            if known is not None and known != record.body:
                raise Violation(f"{broker} gives out another message at {place}")

    def read_to_end(self, broker: str, queue_id: int, count: int) -> None:
        lost = [offset for queue, offset in self.told if queue == queue_id and offset >= count]
        if lost:
            raise Violation(f"{broker} has lost {sorted(lost)[:5]} of queue {queue_id}")

    def digest(self) -> str:
        return repr(sorted(self.told.items()))


def check_dense(broker: str, queue_id: int, offset: int, records: list[Record]) -> None:
    """A pull gives the messages from its offset on, none left out."""
    for number, record in enumerate(records):
        if record.queue_offset != offset + number or record.queue_id != queue_id:
            raise Violation(
                f"{broker} gives out {record} at place {number} of a pull from {offset} of queue"
                f" {queue_id}"
            )
        if not record.whole:
            raise Violation(f"{broker} gives out a damaged message: {record}")


def classic_records(host: BrokerHost) -> list[Record]:
    """All records of the classic log on a disk."""
    found: list[Record] = []
    for path in host.disk.list_dir(f"{ROOT}/commitlog"):
        data, at = host.disk.content_of(f"{ROOT}/commitlog/{path}"), 0
        while (record := record_at(data, at)) is not None:
            found.append(record)
            at += record.size
    return found
