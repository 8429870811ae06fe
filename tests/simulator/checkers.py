"""Checkers of simulated brokers: of a group with DLedger, and of one broker with a classic log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Self
from zlib import crc32

from attrs import define, field

from rmqpy.store.retention import HOUR_MS
from simulator.broker_host import RESERVED_HOURS, ROOT, BrokerHost
from simulator.host import LEDGER_PORT
from simulator.invariants import InvariantChecker, InvariantViolationError, Queue
from simulator.member_view import MemberView
from simulator.network import Machine
from simulator.plan import SimulationPlan
from simulator.records import LedgerEntry, MessageRecord, record_at
from simulator.workload import TOPIC, HistoryRecorder, Sent

EPOCH = 1 << 40
"""The unit of a stamp that counts blackouts; the rest counts committed entries."""

VOTE_GRANTED = b'"voteResult":"ACCEPT"'


class Checker:
    """A checker of the invariants of a cluster, after each event and each write to the network."""

    @property
    def elections(self) -> int:
        """The number of leaders so far."""
        return 0

    def check(self, name: str) -> None:
        """Check machine ``name`` after one of its events."""

    def stamp(self, machine: Machine) -> int:
        """Return how many entries are committed when ``machine`` writes a piece."""
        return 0

    def on_write(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        """Check a piece that ``machine`` writes to the machine called ``to``."""

    def started(self, name: str) -> None:
        """Note that machine ``name`` has started."""

    def ended(self, name: str, *, power_lost: bool, working: bool) -> None:
        """Note that machine ``name`` is down, with ``working`` in the middle of an event."""

    def joined(self, name: str) -> None:
        """Note that an operator has removed entries of machine ``name``, which is down."""

    def after_blackout(self) -> None:
        """Note that all machines have lost their power at once, and what was not synced."""

    def recovered(self) -> None:
        """Note that the members are equal again after a blackout."""

    def audit(self) -> None:
        """Check everything at the end, when all members are equal."""

    def digest(self) -> str:
        """Return all that was committed and acknowledged, as text."""
        return ""


class BrokerChecker(Checker, HistoryRecorder):
    """A checker of brokers, and of the history that their clients record."""

    @classmethod
    @abstractmethod
    def of(cls, plan: SimulationPlan, hosts: tuple[BrokerHost, ...]) -> Self:
        """Return a checker of these machines."""

    @property
    def is_undamaged(self) -> bool:
        """Whether no member has a damaged entry."""
        return True

    @property
    def hidden(self) -> int:
        """The number of messages whose queue offset another one has."""
        return 0

    def start_from(self, records: Iterable[MessageRecord]) -> None:
        """Note the classic log with which every member starts."""

    def check_end(self, broker: str, queue_id: int, end: int) -> None:
        """Check that the last message of a queue that a reader got was before ``end``."""


@define(slots=True, eq=False, repr=False)
class GroupChecker(BrokerChecker):
    """A checker that compares the members of a group, also with the acknowledgements."""

    invariants: InvariantChecker
    views: dict[str, MemberView]
    audited: dict[Queue, int] = field(factory=dict)
    """The number of messages in each queue when all members were equal, at the end.

    Sends that were delayed for long may add to them during the last reads; then members differ for
    a while.
    """

    @classmethod
    def of(cls, plan: SimulationPlan, hosts: tuple[BrokerHost, ...]) -> Self:
        invariants = InvariantChecker(plan.members // 2 + 1)
        views: list[MemberView] = []
        views += (MemberView(host, invariants, views) for host in hosts)
        return cls(invariants, {view.host.name: view for view in views})

    @property
    def elections(self) -> int:
        return len(self.invariants.leaders)

    @property
    def is_undamaged(self) -> bool:
        return not any(view.damaged for view in self.views.values())

    @property
    def hidden(self) -> int:
        return self.invariants.hidden

    def check(self, name: str) -> None:
        self.views[name].check()

    def stamp(self, machine: Machine) -> int:
        view = self.views.get(machine.name)
        if view is not None:
            view.check()
        return self.epoch * EPOCH + len(self.invariants.committed)

    def after_blackout(self) -> None:
        views, invariants = list(self.views.values()), self.invariants
        for view in views:
            view.power_failed()
        count = len(invariants.committed)
        while count and not self._is_kept(invariants.committed[count - 1]):
            count -= 1
        invariants.forget(count)
        self.epoch += 1

    def _is_kept(self, entry: LedgerEntry) -> bool:
        """Return whether a majority has an entry; expired ones count."""
        views = self.views.values()
        count = sum(view.has(entry) or entry.index < view.begin for view in views)
        return count >= self.invariants.quorum

    def recovered(self) -> None:
        for view in self.views.values():
            view.recovered()
        self.epoch += 1

    def on_write(self, machine: Machine, port: int, to: str, piece: bytes) -> None:
        if port == LEDGER_PORT and VOTE_GRANTED in piece:
            self.views[machine.name].check_vote(to, piece)

    def started(self, name: str) -> None:
        self.views[name].started()

    def ended(self, name: str, *, power_lost: bool, working: bool) -> None:
        self.views[name].ended(power_lost=power_lost, working=working)

    def joined(self, name: str) -> None:
        self.views[name].joined()

    def start_from(self, records: Iterable[MessageRecord]) -> None:
        end = 0
        for record in records:
            self.invariants.add_classic_record(record)
            end = record.physical_offset + record.size
        file_size = next(iter(self.views.values())).host.plan.file_size
        self.invariants.divided_offset = -(-end // file_size) * file_size

    def audit(self) -> None:
        for view in self.views.values():
            view.audit()
        self.audited = {queue: len(places) for queue, places in self.invariants.queues.items()}

    def on_acknowledged(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        if stamp // EPOCH != self.epoch:
            return  # the answer was written before a blackout
        stamp %= EPOCH
        queue = TOPIC.encode(), sent.queue_id
        for number, body in enumerate(sent.bodies):
            self.invariants.check_visible(broker, queue, queue_offset + number, crc32(body), stamp)

    def on_read(
        self, broker: str, queue_id: int, offset: int, records: list[MessageRecord], stamp: int
    ) -> None:
        if any(view.remembers for view in self.views.values()):
            return
        stamp %= EPOCH
        queue = TOPIC.encode(), queue_id
        if records and self._have_expired(broker, queue, records[0].queue_offset):
            offset = records[0].queue_offset
        check_dense(broker, queue_id, offset, records)
        for record in records:
            if not record.whole:
                self._check_damaged(broker, queue, record)
                continue
            self.invariants.check_visible(broker, queue, record.queue_offset, record.body, stamp)

    def _have_expired(self, broker: str, queue: Queue, offset: int) -> bool:
        """Return whether the messages of ``queue`` before ``offset`` have expired."""
        running = self.views[broker].host.running
        places = self.invariants.queues.get(queue, [])
        if running is None or not 0 < offset <= len(places):
            return False
        return places[offset - 1].physical_offset < running.store.log.min_offset

    def _check_damaged(self, broker: str, queue: Queue, record: MessageRecord) -> None:
        """Accept a damaged body only where a bit has flipped: a read may precede the scrub."""
        places = self.invariants.queues.get(queue, [])
        number = places[record.queue_offset].number if record.queue_offset < len(places) else 0
        if number - 1 not in self.views[broker].host.disk.flipped:
            raise InvariantViolationError(f"{broker} returns a damaged message: {record}")

    def on_offset_moved(self, broker: str, queue_id: int, offset: int) -> None:
        if not self._have_expired(broker, (TOPIC.encode(), queue_id), offset):
            raise InvariantViolationError(
                f"{broker} skips messages of queue {queue_id} up to {offset}"
            )

    def check_end(self, broker: str, queue_id: int, end: int) -> None:
        queue = TOPIC.encode(), queue_id
        count = len(self.invariants.queues.get(queue, []))
        least = self.audited.get(queue, 0)
        if not least <= end <= count and not self._have_expired(broker, queue, least):
            expected = f"{least} to {count}"
            raise InvariantViolationError(
                f"{broker} returns {end} of {expected} messages of {queue_id}"
            )

    def digest(self) -> str:
        return repr((self.invariants.committed, sorted(self.invariants.votes.items())))


@define(slots=True, eq=False, repr=False)
class ClassicChecker(BrokerChecker):
    """A checker of one broker with a classic log.

    Acknowledged messages must be kept, and messages that were read unless the power failed.
    """

    plan: SimulationPlan
    hosts: dict[str, BrokerHost]
    before: dict[str, list[MessageRecord]] = field(factory=dict)
    """The log when the power failed, without syncs: a prefix of it survives."""

    acknowledged: dict[tuple[int, int], int] = field(factory=dict)
    """(queue, offset) → body of each acknowledged message."""

    read: dict[tuple[int, int], int] = field(factory=dict)
    has_expired_files: bool = False
    """Whether files have expired, and with them messages at the start of a queue."""

    @classmethod
    def of(cls, plan: SimulationPlan, hosts: tuple[BrokerHost, ...]) -> Self:
        return cls(plan, {host.name: host for host in hosts})

    def on_acknowledged(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        if stamp // EPOCH != self.epoch:
            return
        for number, body in enumerate(sent.bodies):
            place = sent.queue_id, queue_offset + number
            if self.acknowledged.setdefault(place, crc32(body)) != crc32(body):
                raise InvariantViolationError(f"{broker} has acknowledged two messages at {place}")

    def on_read(
        self, broker: str, queue_id: int, offset: int, records: list[MessageRecord], stamp: int
    ) -> None:
        if self.has_expired_files and records:
            offset = records[0].queue_offset
        check_dense(broker, queue_id, offset, records)
        for record in records:
            if not record.whole:
                raise InvariantViolationError(f"{broker} returns a damaged message: {record}")
            place = queue_id, record.queue_offset
            known = self.acknowledged.get(place)
            if known is None and not self.plan.power:
                known = self.read.setdefault(place, record.body)
            if known is not None and known != record.body:
                raise InvariantViolationError(f"{broker} returns another message at {place}")

    def on_offset_moved(self, broker: str, queue_id: int, offset: int) -> None:
        """Accept any offset: what a power failure left of a queue may start anywhere."""

    def stamp(self, machine: Machine) -> int:
        return self.epoch * EPOCH

    def check(self, name: str) -> None:
        host = self.hosts[name]
        removed, host.disk.removals = host.disk.removals, []
        for path, age_ms in removed:
            self.has_expired_files = True
            kept_ms = RESERVED_HOURS * HOUR_MS - host.expiry_lag_ms
            if host.running is not None and age_ms < kept_ms:
                raise InvariantViolationError(
                    f"{path} is removed {age_ms} ms after it was written to"
                )

    def ended(self, name: str, *, power_lost: bool, working: bool) -> None:
        if power_lost and not self.plan.sync_flush:
            self.before[name] = classic_records(self.hosts[name])

    def after_blackout(self) -> None:
        self.epoch += 1

    def recovered(self) -> None:
        self.epoch += 1

    def started(self, name: str) -> None:
        self.hosts[name].disk.removals.clear()
        before = self.before.pop(name, None)
        if before is None:
            return
        after = classic_records(self.hosts[name])
        if after != before[: len(after)]:
            raise InvariantViolationError(
                f"{name} has {len(after)} records, which are no prefix of the {len(before)} that"
                " it had when its power failed"
            )
        kept = {(record.queue_id, record.queue_offset) for record in after}
        self.acknowledged = {
            place: body for place, body in self.acknowledged.items() if place in kept
        }
        self.read.clear()

    def check_end(self, broker: str, queue_id: int, end: int) -> None:
        lost = [
            offset for queue, offset in self.acknowledged if queue == queue_id and offset >= end
        ]
        if lost:
            raise InvariantViolationError(
                f"{broker} has lost {sorted(lost)[:5]} of queue {queue_id}"
            )

    def digest(self) -> str:
        return repr(sorted(self.acknowledged.items()))


def check_dense(broker: str, queue_id: int, offset: int, records: list[MessageRecord]) -> None:
    """Check that a pull returned the messages from its offset on, without gaps."""
    for number, record in enumerate(records):
        if record.queue_offset != offset + number or record.queue_id != queue_id:
            raise InvariantViolationError(
                f"{broker} returns {record} at place {number} of a pull from {offset} of queue"
                f" {queue_id}"
            )


def classic_records(host: BrokerHost) -> list[MessageRecord]:
    """Return all records of the classic log on a disk."""
    found: list[MessageRecord] = []
    for path in host.disk.list_dir(f"{ROOT}/commitlog"):
        data, at = host.disk.content_of(f"{ROOT}/commitlog/{path}"), 0
        while (record := record_at(data, at)) is not None:
            found.append(record)
            at += record.size
    return found
