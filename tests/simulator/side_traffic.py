"""Transactions, delayed messages, and consumer offsets of simulated clients, with their checks.

====================  ==========================================================================
request               checked
====================  ==========================================================================
delayed message       it is delivered not before its delay, and after it if it was acknowledged
half message          if it was acknowledged and its transaction is committed, it is delivered;
                      if the transaction is rolled back, it never is. Half of the producers end
                      their transactions only when the broker checks their state
consumer offset       no broker returns an offset after the end of the queue
====================  ==========================================================================

The clocks of the machines must not jump meanwhile, and nothing may expire.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

from attrs import define, field

from rmqpy.codec.message import parse_offset_msg_id
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.bodies import HeartbeatData, ProducerData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageRequestHeaderV2,
    UpdateConsumerOffsetRequestHeader,
)
from simulator.invariants import InvariantChecker, InvariantViolationError
from simulator.network import NetworkClient
from simulator.plan import SimulationPlan
from simulator.records import MessageRecord
from simulator.virtual_time import ProcessLifetime
from simulator.workload import TOPIC, HistoryRecorder

PRODUCER_GROUP, CONSUMER_GROUP = "TPG", "OCG"
TIMEOUT_MS = 3000
HEARTBEAT_MS = 2000
DELAY_MS = 1000
DELAY_LEVEL = 1
PREPARED = 4
COMMIT, ROLLBACK = 8, 12
ENDED_BY_CHECK = 0.5


@define(slots=True, eq=False, repr=False)
class SideTraffic:
    """The clients. ``leader`` returns the name of the leader, or None."""

    plan: SimulationPlan
    life: ProcessLifetime
    client: NetworkClient
    addresses: dict[str, str]
    leader: Callable[[], str | None]
    rng: random.Random
    invariants: InvariantChecker
    recorder: HistoryRecorder
    running: bool = True
    delivered: int = 0
    _numbers: int = 0
    _epoch: int = 0
    _expected: dict[int, int] = field(factory=dict)
    """The time at which each acknowledged message may be delivered, by the checksum of its body."""

    _not_before: dict[int, int] = field(factory=dict)
    _decisions: dict[str, int] = field(factory=dict)
    """COMMIT or ROLLBACK by unique key."""

    _rolled_back: set[int] = field(factory=set)
    _placed: set[int] = field(factory=set)

    def start(self) -> None:
        self.client.on_request = self._on_request
        self.invariants.on_placed = self._on_placed
        self._beat()
        self._later()

    def check_done(self) -> bool:
        """Return whether everything that was acknowledged has been delivered."""
        self._forget_lost()
        return not self._expected

    def describe(self) -> str:
        return f"{len(self._expected)} acknowledged messages are not delivered"

    # Inside

    def _later(self) -> None:
        delay_ms = 1 + int(self.rng.expovariate(1 / self.plan.side_interval_ms))
        self.life.call_later(delay_ms, self._go)

    def _go(self) -> None:
        if not self.running:
            return
        self._later()
        self._forget_lost()
        name = self.leader() or self.rng.choice(list(self.addresses))
        self.rng.choice((self._send_delayed, self._send_half, self._use_offset))(name)

    def _forget_lost(self) -> None:
        """After a blackout without syncs, acknowledged messages may be lost."""
        if self._epoch != self.recorder.epoch:
            self._epoch = self.recorder.epoch
            self._expected.clear()

    def _beat(self) -> None:
        self.life.call_later(HEARTBEAT_MS, self._beat)
        body = HeartbeatData(
            client_id="side", producer_data_set=[ProducerData(group_name=PRODUCER_GROUP)]
        ).encode()
        for address in self.addresses.values():
            command = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
            self.client.request(address, command, TIMEOUT_MS, _ignore)

    def _send_delayed(self, name: str) -> None:
        key, body = self._next()
        self._not_before[crc32(body)] = self.life.monotonic_ms() + DELAY_MS
        self._send(name, key, body, f"DELAY\x01{DELAY_LEVEL}\x02", 0, lambda _response: None)

    def _send_half(self, name: str) -> None:
        key, body = self._next()
        decision = self._decisions[key] = self.rng.choice((COMMIT, COMMIT, ROLLBACK))
        if decision == ROLLBACK:
            self._rolled_back.add(crc32(body))
        address = self.addresses[name]

        def stored(response: RemotingCommand) -> None:
            if self.rng.random() >= ENDED_BY_CHECK:
                _, offset = parse_offset_msg_id(response.ext_fields["msgId"])
                queue_offset = int(response.ext_fields["queueOffset"])
                self._end(address, key, queue_offset, offset, is_check=False)

        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCER_GROUP}\x02"
        self._send(name, key, body, properties, PREPARED, stored)

    def _next(self) -> tuple[str, bytes]:
        self._numbers += 1
        return f"S{self._numbers}", b"side %d" % self._numbers

    def _send(
        self,
        name: str,
        key: str,
        body: bytes,
        properties: str,
        sys_flag: int,
        stored: Callable[[RemotingCommand], None],
    ) -> None:
        header = SendMessageRequestHeaderV2(
            producer_group=PRODUCER_GROUP,
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=self.plan.queues,
            queue_id=0,
            sys_flag=sys_flag,
            born_timestamp=self.life.now_ms(),
            flag=0,
            properties=f"UNIQ_KEY\x01{key}\x02{properties}",
            reconsume_times=0,
            batch=False,
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, body)
        epoch = self.recorder.epoch

        def done(response: RemotingCommand | None, _fault: RmqError | None) -> None:
            if response is None or response.code != ResponseCode.SUCCESS:
                return
            number = crc32(body)
            kept = epoch == self.recorder.epoch == self._epoch
            # The answer may be slower than the delivery.
            if kept and number not in self._rolled_back | self._placed:
                self._expected[number] = self.life.monotonic_ms()
            stored(response)

        self.client.request(self.addresses[name], command, TIMEOUT_MS, done)

    def _end(
        self, address: str, key: str, queue_offset: int, offset: int, *, is_check: bool
    ) -> None:
        header = EndTransactionRequestHeader(
            producer_group=PRODUCER_GROUP,
            tran_state_table_offset=queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=self._decisions[key],
            from_transaction_check=is_check,
            msg_id=key,
            transaction_id=key,
        )
        self.client.oneway(address, RemotingCommand.request(RequestCode.END_TRANSACTION, header))

    def _on_request(self, address: str, command: RemotingCommand) -> None:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        header = CheckTransactionStateRequestHeader.decode(command.ext_fields)
        key = header.transaction_id or header.msg_id or ""
        if key in self._decisions:
            queue_offset, offset = header.tran_state_table_offset, header.commit_log_offset
            self._end(address, key, queue_offset, offset, is_check=True)

    def _on_placed(self, record: MessageRecord) -> None:
        """Check a message that was committed in its own topic."""
        if record.topic != TOPIC.encode():
            return
        number, now_ms = record.body, self.life.monotonic_ms()
        if now_ms < self._not_before.get(number, 0):
            raise InvariantViolationError(f"{record} is delivered before its delay")
        if number in self._rolled_back:
            raise InvariantViolationError(f"{record} is delivered and was rolled back")
        self._placed.add(number)
        if self._expected.pop(number, None) is not None:
            self.delivered += 1

    def _use_offset(self, name: str) -> None:
        """Commit the offset at the end of a queue, and ask any broker for it."""
        queue = TOPIC.encode(), 0
        end = len(self.invariants.queues.get(queue, []))
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=CONSUMER_GROUP, topic=TOPIC, queue_id=0, commit_offset=end
        )
        command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        self.client.request(self.addresses[name], command, TIMEOUT_MS, _ignore)
        query = QueryConsumerOffsetRequestHeader(
            consumer_group=CONSUMER_GROUP, topic=TOPIC, queue_id=0
        )
        other, epoch = self.rng.choice(list(self.addresses)), self.recorder.epoch

        def answered(response: RemotingCommand | None, _fault: RmqError | None) -> None:
            if response is None or response.code != ResponseCode.SUCCESS:
                return
            offset = int(response.ext_fields["offset"])
            count = len(self.invariants.queues.get(queue, []))
            if offset > count and epoch == self.recorder.epoch == 0:
                raise InvariantViolationError(
                    f"{other} returns the consumer offset {offset} of a queue of {count}"
                )

        command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, query)
        self.client.request(self.addresses[other], command, TIMEOUT_MS, answered)


def _ignore(_response: RemotingCommand | None, _fault: RmqError | None) -> None:
    pass
