"""Clients of the simulated brokers: a producer and a reader on machines of their own, in frames.

The producer sends to the master that a name server names, or to whoever took its last message, and
to the next broker after a refusal. The reader pulls any queue from any broker, from where it
stopped, from an older offset, or waiting for what is still to come; it never stops to compare.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from zlib import crc32

from attrs import define, field

from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    CreateTopicRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from simulator.network import MachineNetwork
from simulator.plan import SimulationPlan
from simulator.records import MessageRecord, records_in
from simulator.routes import Routes
from simulator.virtual_time import ProcessLifetime

TOPIC = "T"
SEND_TIMEOUT_MS = 3_000
PULL_TIMEOUT_MS = 5_000
SUSPEND_MS = 2_000
PULL_COUNT = 32
SUSPEND_FLAG, SUBSCRIPTION_FLAG = 2, 4
ANSWERED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
PERM_READ_WRITE = 6
QUEUES_USED_MS = 8000
REREAD = 0.1
BY_ROUTE = 0.8
"""Sends that go where a name server says, when one has said something."""

WAIT = 0.3


@define(slots=True, frozen=True)
class Sent:
    """What a producer asked for: bodies for one queue, in one request."""

    queue_id: int
    bodies: tuple[bytes, ...]


class HistoryRecorder(ABC):
    """Hears what clients are told (``checker``). ``stamp`` is that of the answer's writing."""

    @abstractmethod
    def told_stored(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        """A broker has acknowledged these bodies, the first of them at ``queue_offset``."""

    @abstractmethod
    def was_read(
        self, broker: str, queue_id: int, offset: int, records: list[MessageRecord], stamp: int
    ) -> None:
        """A broker has given these records to a reader that asked from ``offset`` on."""

    @abstractmethod
    def was_sent_on(self, broker: str, queue_id: int, offset: int) -> None:
        """A reader was told to go on at ``offset``, which is not behind what it was given."""


@define(slots=True, eq=False, repr=False)
class WorkloadProducer:
    """``addresses`` by name of the broker."""

    plan: SimulationPlan
    life: ProcessLifetime
    network: MachineNetwork
    addresses: dict[str, str]
    rng: random.Random
    witness: HistoryRecorder
    routes: Routes
    sent: int = 0
    stored: int = 0
    refused: int = 0
    unanswered: int = 0
    _target: int = 0
    running: bool = True
    _names: dict[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._names = {address: name for name, address in self.addresses.items()}

    def start(self) -> None:
        delay_ms = self.rng.expovariate(1 / self.plan.send_interval_ms)
        self.life.call_later(1 + int(delay_ms), self._go)

    def _go(self) -> None:
        if self.running:
            self.start()
            self.send()

    def send(self) -> None:
        """One request, somewhere."""
        rng, plan = self.rng, self.plan
        count = rng.randrange(2, 5) if rng.random() < plan.batch else 1
        bodies = tuple(self._body() for _ in range(count))
        sent = Sent(self._queue(), bodies)
        names = list(self.addresses)
        name = names[self._target % len(names)]
        if self.routes.master is not None and rng.random() < BY_ROUTE:
            name = self._names.get(self.routes.master, name)
        network, address = self.network, self.addresses[name]

        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            if response is None:
                self.unanswered += 1
                self._target = rng.randrange(len(names))
            elif response.code == ResponseCode.SUCCESS:
                self.stored += 1
                offset = int(response.ext_fields["queueOffset"])
                self.witness.told_stored(name, sent, offset, network.stamp)
            else:
                self.refused += 1
                self._target = rng.randrange(len(names))

        self.sent += 1
        network.request(address, self._command(sent), SEND_TIMEOUT_MS, done)

    def _queue(self) -> int:
        """One of two that are in use now: others are silent for a while."""
        period = self.life.monotonic_ms() // QUEUES_USED_MS
        return (period + self.rng.randrange(2)) % self.plan.queues

    def _body(self) -> bytes:
        self._bodies += 1
        return b"%d " % self._bodies + b"." * self.rng.randrange(self.plan.body_bytes)

    _bodies: int = 0

    def _command(self, sent: Sent) -> RemotingCommand:
        properties = f"KEYS\x01k{self.sent}\x02UNIQ_KEY\x01U{self.sent}\x02"
        header = SendMessageRequestHeaderV2(
            producer_group="PG",
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=self.plan.queues,
            queue_id=sent.queue_id,
            sys_flag=0,
            born_timestamp=self.life.now_ms(),
            flag=0,
            properties=properties,
            reconsume_times=0,
            batch=len(sent.bodies) > 1,
        )
        if len(sent.bodies) == 1:
            return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, sent.bodies[0])
        items = [BatchItem(0, body, properties.encode()) for body in sent.bodies]
        return RemotingCommand.request(
            RequestCode.SEND_BATCH_MESSAGE, header, encode_batch_body(items)
        )


@define(slots=True, eq=False, repr=False)
class WorkloadReader:
    """Where it stands is kept per broker and queue."""

    plan: SimulationPlan
    life: ProcessLifetime
    network: MachineNetwork
    addresses: dict[str, str]
    rng: random.Random
    witness: HistoryRecorder
    pulls: int = 0
    found: int = 0
    found_last: int = 0
    """Messages of the answer that is being handed on."""

    running: bool = True
    _next: dict[tuple[str, int], int] = field(factory=dict)

    def start(self) -> None:
        delay_ms = self.rng.expovariate(1 / self.plan.pull_interval_ms)
        self.life.call_later(1 + int(delay_ms), self._go)

    def _go(self) -> None:
        if self.running:
            self.start()
            name = self.rng.choice(list(self.addresses))
            queue_id = self.rng.randrange(self.plan.queues)
            offset = self._next.get((name, queue_id), 0)
            if self.rng.random() < REREAD:
                offset = self.rng.randrange(offset + 1)
            suspend_ms = SUSPEND_MS if self.rng.random() < WAIT else 0
            self.pull(name, queue_id, offset, suspend_ms, self._nothing)

    def make_topic(self, name: str) -> None:
        """What an administrator does where a broker has forgotten the topic."""
        header = CreateTopicRequestHeader(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=self.plan.queues,
            write_queue_nums=self.plan.queues,
            perm=PERM_READ_WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self.network.request(self.addresses[name], command, PULL_TIMEOUT_MS, self._ignore)

    @staticmethod
    def _ignore(_response: RemotingCommand | None, _fault: RmqError | None) -> None:
        pass

    @staticmethod
    def _nothing(_next: int, _found: bool) -> None:
        pass

    def pull(
        self,
        name: str,
        queue_id: int,
        offset: int,
        suspend_ms: int,
        then: Callable[[int, bool], None],
    ) -> None:
        """One pull; ``then(next offset, whether something was found)``, -1 where it was neither
        found nor missing.
        """
        header = PullMessageRequestHeader(
            consumer_group="CG",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=SUBSCRIPTION_FLAG | (SUSPEND_FLAG if suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        network = self.network

        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            if response is None or response.code not in ANSWERED:
                then(-1, False)
                return
            after = int(response.ext_fields.get("nextBeginOffset", offset))
            found = response.code == ResponseCode.SUCCESS
            if found:
                records = records_in(response.body)
                self.found_last = len(records)
                self.found += self.found_last
                self.witness.was_read(name, queue_id, offset, records, network.stamp)
                if records and after != records[-1].queue_offset + 1:
                    self.witness.was_sent_on(name, queue_id, after)
            self._next[name, queue_id] = after
            then(after, found)

        self.pulls += 1
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        network.request(self.addresses[name], command, PULL_TIMEOUT_MS, done)


def digest(body: bytes | memoryview) -> int:
    """What checkers remember of a body."""
    return crc32(body)
