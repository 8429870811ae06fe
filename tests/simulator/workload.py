"""The workload of simulated brokers: a producer and a reader on separate machines.

The producer sends to the master that a name server names, or to the broker that accepted its last
message, and to a random broker after a refusal. The reader pulls any queue from any broker: from
where it stopped, from an older offset, or with a long poll for the next message.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

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
from simulator.network import NetworkClient
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
"""The share of the sends that go to the master of the last route, if there is one."""

WAIT = 0.3


@define(slots=True, frozen=True)
class Sent:
    """A request of a producer: bodies for one queue."""

    queue_id: int
    bodies: tuple[bytes, ...]


class HistoryRecorder(ABC):
    """A recorder of the history of the clients, which the checkers implement.

    ``stamp`` is the value when the broker wrote the answer.
    """

    epoch: int = 0
    """The number of blackouts and recoveries so far. A blackout may take what is not synced."""

    @abstractmethod
    def on_acknowledged(self, broker: str, sent: Sent, queue_offset: int, stamp: int) -> None:
        """Note that a broker acknowledged these bodies, the first of them at ``queue_offset``."""

    @abstractmethod
    def on_read(
        self, broker: str, queue_id: int, offset: int, records: list[MessageRecord], stamp: int
    ) -> None:
        """Note that a pull from ``offset`` returned these records."""

    @abstractmethod
    def on_offset_moved(self, broker: str, queue_id: int, offset: int) -> None:
        """Note that a reader must continue at ``offset``, which does not follow its last record."""


@define(slots=True, eq=False, repr=False)
class WorkloadProducer:
    """A producer; ``addresses`` are by name of the broker."""

    plan: SimulationPlan
    life: ProcessLifetime
    client: NetworkClient
    addresses: dict[str, str]
    rng: random.Random
    recorder: HistoryRecorder
    routes: Routes
    sent: int = 0
    stored: int = 0
    refused: int = 0
    unanswered: int = 0
    is_paused: Callable[[], bool] = lambda: False
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
            if not self.is_paused():
                self.send()

    def send(self, to: str | None = None, stored: Callable[[], None] = lambda: None) -> None:
        """Send one request to a broker, by default to one that may lead. Call ``stored`` when it is
        acknowledged.
        """
        rng, plan = self.rng, self.plan
        count = rng.randrange(2, 5) if rng.random() < plan.batch else 1
        bodies = tuple(self._body() for _ in range(count))
        # A topic that was lost and rebuilt from the log may have fewer queues.
        sent = Sent(self._queue() if to is None else 0, bodies)
        names = list(self.addresses)
        name = names[self._target % len(names)]
        if self.routes.master is not None and rng.random() < BY_ROUTE:
            name = self._names.get(self.routes.master, name)
        name = to or name
        client, address = self.client, self.addresses[name]

        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            if response is None:
                self.unanswered += 1
                self._target = rng.randrange(len(names))
            elif response.code == ResponseCode.SUCCESS:
                self.stored += 1
                stored()
                offset = int(response.ext_fields["queueOffset"])
                self.recorder.on_acknowledged(name, sent, offset, client.stamp)
            else:
                self.refused += 1
                self._target = rng.randrange(len(names))

        self.sent += 1
        client.request(address, self._command(sent), SEND_TIMEOUT_MS, done)

    def _queue(self) -> int:
        """Return one of the two queues in use; the others are idle for a while."""
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
    """A reader that pulls messages; it keeps its next offset per broker and queue."""

    plan: SimulationPlan
    life: ProcessLifetime
    client: NetworkClient
    addresses: dict[str, str]
    rng: random.Random
    recorder: HistoryRecorder
    pulls: int = 0
    found: int = 0
    found_last: int = 0
    """The number of messages in the last answer."""

    running: bool = True
    _epoch: int = 0
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

    def create_topic(self, name: str) -> None:
        """Create the topic, as an operator does on a broker that has lost it."""
        header = CreateTopicRequestHeader(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=self.plan.queues,
            write_queue_nums=self.plan.queues,
            perm=PERM_READ_WRITE,
            topic_filter_type="SINGLE_TAG",
        )
        command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        self.client.request(self.addresses[name], command, PULL_TIMEOUT_MS, self._ignore)

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
        """Pull once, then call ``then(next offset, whether messages were found)``.

        The offset is -1 without an answer or after an error.
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
        client, epoch = self.client, self.recorder.epoch
        if self._epoch != epoch:
            self._epoch = epoch
            self._next.clear()

        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            if epoch != self.recorder.epoch or response is None or response.code not in ANSWERED:
                then(-1, False)
                return
            after = int(response.ext_fields.get("nextBeginOffset", offset))
            found = response.code == ResponseCode.SUCCESS
            if found:
                records = records_in(response.body)
                self.found_last = len(records)
                self.found += self.found_last
                self.recorder.on_read(name, queue_id, offset, records, client.stamp)
                if records and after != records[-1].queue_offset + 1:
                    self.recorder.on_offset_moved(name, queue_id, after)
            self._next[name, queue_id] = after
            then(after, found)

        self.pulls += 1
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        client.request(self.addresses[name], command, PULL_TIMEOUT_MS, done)
