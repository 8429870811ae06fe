"""Checks of transactions that have not ended, with their producers: CHECK_TRANSACTION_STATE (39).

Runs on masters only, each ``transactionCheckInterval``. A round reads the half queue from the
offset of CID_RMQ_SYS_TRANS, together with all op messages::

    half message ── named by an op message ──────────────► done
        ├─ checked transactionCheckMax times, or older
        │  than fileReservedTime ────────────────────────► copy to TRANS_CHECK_MAX_TIME_TOPIC, done
        ├─ stored after the round started ───────────────► end of the round
        ├─ put back while immune, its first offset is
        │  named by an op message ───────────────────────► done
        ├─ younger than transactionTimeOut ──────────────► end of the round
        ├─ younger than its own immunity (CHECK_
        │  IMMUNITY_TIME_IN_SECONDS) ────────────────────► again at the end of the queue, done
        └─ else ───────────────► again at the end of the queue (count + 1), checked now, done

The two offsets are committed when every message that the round wrote is stored. The half offset
passes the messages that are done, the op offset the op messages that are used up. A failed write
ends the round before its message.

Bounds: ``STEP_MESSAGES`` messages per step, ``ROUND_MS`` per round, ``OPS_MAX`` op messages held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define, evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import MessageReader
from rmqpy.broker.services.half_messages import REMOVE_TAG, discarded_message, renew_half_message
from rmqpy.broker.services.internal_messages import InternalMessageWriter
from rmqpy.broker.services.schedule import Turn
from rmqpy.broker.state.clients import ClientTable
from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
from rmqpy.broker.state.topics import TopicTable
from rmqpy.codec.message import (
    InvalidRecordError,
    decode_intact,
    encode_stored,
    offset_msg_id,
)
from rmqpy.codec.properties import (
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rmqpy.model.clock import Scheduler, Timer
from rmqpy.model.codes import PutMessageStatus, RequestCode
from rmqpy.model.ids import PhysicalOffset, QueueOffset
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.model.names import (
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_HALF_TOPIC,
)
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import CheckTransactionStateRequestHeader
from rmqpy.remoting.java_values import hashmap_ordered
from rmqpy.store.results import PutResult

STEP_MESSAGES: Final = 128
STEP_PAUSE_MS: Final = 1
ROUND_MS: Final = 60_000
OPS_MAX: Final = 200_000
HOUR_MS: Final = 3_600_000

logger = logging.getLogger(__name__)


@define(slots=True, kw_only=True, eq=False, repr=False)
class TransactionCheckService:
    """The rounds of checks, one at a time for each half queue."""

    identity: BrokerContext
    topics: TopicTable
    clients: ClientTable
    offsets: ConsumerOffsetTable
    queues: MessageReader
    messages: InternalMessageWriter
    scheduler: Scheduler
    turn: Turn
    _timer: Timer | None = field(default=None, init=False)
    _rounds: dict[int, _CheckRound] = field(factory=dict, init=False)
    """The round in progress, by the id of the half queue."""
    _checks_sent: int = field(default=0, init=False)

    def start(self) -> None:
        """Start, because this broker is a master now: the first round starts after one interval."""
        if self._timer is None:
            self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for running in self._rounds.values():
            running.abandon()
        self._rounds.clear()

    def _plan(self) -> None:
        interval_ms = self.identity.broker_settings.transaction_check_interval
        self._timer = self.scheduler.call_later(interval_ms, self._begin)

    def _begin(self) -> None:
        self._plan()
        topic = self.topics.create_for_group(TRANSACTION_HALF_TOPIC, 1)
        for queue_id in range(topic.read_queue_nums if topic is not None else 0):
            if queue_id not in self._rounds:
                running = _CheckRound(self, queue_id)
                self._rounds[queue_id] = running
                running.step()

    def round_ended(self, queue_id: int) -> None:
        self._rounds.pop(queue_id, None)

    def ask_producer(self, half: StoredMessage) -> None:
        """Send a check request to one of the producers that are online, in rotation."""
        group = half.properties.get(PROPERTY_PRODUCER_GROUP, "")
        channels = [each for each in self.clients.producers(group) if not each.closed]
        if not channels:
            logger.info("transaction check: no producer of group %s is online", group)
            return
        self._checks_sent += 1
        channels[self._checks_sent % len(channels)].write(encode_command(check_request(half)))


def check_request(half: StoredMessage) -> RemotingCommand:
    """Return the one-way check request for ``half``. Its body is the message as it will be
    delivered, not as it is stored.
    """
    unique_id = half.properties.get(PROPERTY_UNIQ_KEY)
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        msg_id=unique_id,
        transaction_id=unique_id,
        offset_msg_id=offset_msg_id(half.store_host, half.physical_offset),
    )
    properties = dict(hashmap_ordered({**half.properties, PROPERTY_WAIT: "false"}))
    body = encode_stored(
        evolve(
            half,
            topic=half.properties.get(PROPERTY_REAL_TOPIC, ""),
            queue_id=_number(half.properties.get(PROPERTY_REAL_QUEUE_ID), 0),
            properties=properties,
        )
    )
    command = RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, header, body)
    command.flag |= FLAG_ONEWAY
    return command


class _CheckRound:
    """One pass over one half queue."""

    def __init__(self, service: TransactionCheckService, queue_id: int) -> None:
        self._service = service
        self._queue_id = queue_id
        self._began_ms = service.scheduler.now_ms()
        self._deadline_ms = service.scheduler.monotonic_ms() + ROUND_MS
        begins = self._begins()
        self._half_begin = self._next = begins[0]
        self._op_begin = self._op_next = begins[1]
        self._named: dict[int, int] = {}
        """Half offset to the offset of the op message that names it."""
        self._named_before: set[int] = set()
        """Half offsets before the start of the round that op messages name."""
        self._op_names: dict[int, int] = {}
        """Op offset to the number of half messages that it names and that are not reached yet."""
        self._ops_done: set[int] = set()
        self._ops_read = False
        self._all_ops = True
        self._scanned = False
        self._writing = 0
        self._failed_at: int | None = None
        self._abandoned = False

    def abandon(self) -> None:
        """Stop, because the role has ended: nothing more is written or committed."""
        self._abandoned = True

    def step(self) -> None:
        """Run one bounded piece of the round."""
        if self._abandoned:
            return
        self._service.turn(self._step)

    def _step(self) -> None:
        if self._abandoned:
            return
        if self._service.scheduler.monotonic_ms() > self._deadline_ms:
            self._scanned = True
        for _ in range(STEP_MESSAGES):
            if self._scanned:
                break
            if not self._ops_read:
                self._read_ops()
                break
            self._scanned = not self._take_one() or self._failed_at is not None
        if self._scanned:
            self._end_if_written()
        else:
            self._service.scheduler.call_later(STEP_PAUSE_MS, self.step)

    # Op messages

    def _read_ops(self) -> None:
        units = self._service.queues.queue_units(
            TRANSACTION_OP_HALF_TOPIC, self._queue_id, self._op_next, STEP_MESSAGES
        )
        for physical_offset, _, _ in units:
            if not self._take_op(physical_offset):
                self._ops_read, self._all_ops = True, False
                return
            self._op_next += 1
        full = len(self._named) >= OPS_MAX
        if full:
            logger.warning(
                "limit of %d op messages reached: the rest follow in the next round",
                OPS_MAX,
            )
        self._ops_read = full or not units
        self._all_ops = not full

    def _take_op(self, physical_offset: int) -> bool:
        """Record the half offsets that an op message names: one, or several with RocketMQ 5.x.
        Return False if the message is damaged and will be repaired.
        """
        op = self._message(physical_offset)
        if op is None and self._service.queues.is_awaiting_repair(physical_offset):
            return False
        named: list[int] = []
        if op is not None and op.properties.get(PROPERTY_TAGS) == REMOVE_TAG:
            named = [_number(text, -1) for text in op.body.decode("ascii", "replace").split(",")]
        for half_offset in named:
            if half_offset >= self._half_begin:
                self._named[half_offset] = self._op_next
                self._op_names[self._op_next] = self._op_names.get(self._op_next, 0) + 1
            else:
                self._named_before.add(half_offset)
        if self._op_next not in self._op_names:
            self._ops_done.add(self._op_next)
        return True

    # Half messages

    def _take_one(self) -> bool:
        """Handle the half message at ``_next``; return False if the round ends before it."""
        op_offset = self._named.pop(self._next, None)
        if op_offset is not None:
            self._use_op(op_offset)
            self._next += 1
            return True
        units = self._service.queues.queue_units(
            TRANSACTION_HALF_TOPIC, self._queue_id, self._next, 1
        )
        if not units:
            return False
        half = self._message(units[0][0])
        if half is None and self._service.queues.is_awaiting_repair(units[0][0]):
            return False
        if half is None or half.topic != TRANSACTION_HALF_TOPIC:
            self._next += 1
            return True
        return self._decide(half)

    def _decide(self, half: StoredMessage) -> bool:
        now_ms = self._service.scheduler.now_ms()
        age_ms = now_ms - half.born_timestamp_ms
        times = _number(half.properties.get(PROPERTY_TRANSACTION_CHECK_TIMES), 0)
        if self._is_expired(times, age_ms):
            return self._give_up(half)
        if half.store_timestamp_ms >= self._began_ms:
            return False
        if self._is_first_offset_named(half):
            self._next += 1
            return True
        own_immunity_ms = self._own_immunity_ms(half)
        if own_immunity_ms is None:
            if 0 <= age_ms < self._service.identity.broker_settings.transaction_time_out:
                return False
        elif age_ms < own_immunity_ms:
            return self._write_again(half, immune=True)
        if not self._all_ops:
            return False  # An op message that was not read may name it.
        return self._write_again(half, immune=False)

    def _is_expired(self, times: int, age_ms: int) -> bool:
        identity = self._service.identity
        too_often = times >= identity.broker_settings.transaction_check_max
        return too_often or age_ms > identity.store.file_reserved_time * HOUR_MS

    def _own_immunity_ms(self, half: StoredMessage) -> int | None:
        text = half.properties.get(PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS)
        if text is None:
            return None
        seconds = _number(text, -1)
        if seconds == -1:
            return self._service.identity.broker_settings.transaction_time_out
        return seconds * 1000

    def _is_first_offset_named(self, half: StoredMessage) -> bool:
        """Return whether an op message names the first queue offset of an immune message that was
        put back.
        """
        text = half.properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET)
        first = _number(text, -1)
        op_offset = self._named.pop(first, None)
        if op_offset is not None:
            self._use_op(op_offset)
        return op_offset is not None or (first >= 0 and first in self._named_before)

    def _use_op(self, op_offset: int) -> None:
        """Record that the round has reached one of the half messages that an op message names."""
        self._op_names[op_offset] -= 1
        if not self._op_names[op_offset]:
            del self._op_names[op_offset]
            self._ops_done.add(op_offset)

    # Writing

    def _write_again(self, half: StoredMessage, immune: bool) -> bool:
        properties = dict(half.properties)
        times = _number(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES), 0)
        properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times + 1)
        if immune:
            properties.setdefault(
                PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset)
            )
        placed: list[PutResult] = []

        def stored() -> None:
            if not immune:
                (result,) = placed
                self._service.ask_producer(
                    evolve(
                        half,
                        queue_offset=QueueOffset(result.queue_offset),
                        physical_offset=PhysicalOffset(result.physical_offsets[0]),
                        properties=properties,
                    )
                )

        return self._write(renew_half_message(half, properties), stored, placed)

    def _give_up(self, half: StoredMessage) -> bool:
        if self._service.topics.create_for_group(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1) is None:
            return False
        logger.warning("half message at %d discarded: %s", half.physical_offset, half.properties)
        return self._write(discarded_message(half), lambda: None, [])

    def _write(
        self, draft: OutgoingMessage, stored: Callable[[], None], placed: list[PutResult]
    ) -> bool:
        """Write ``draft``, which completes the half message at ``_next``. Return False if the round
        ends before it.
        """
        offset = self._next
        if not self._service.messages.has_room:
            return False
        self._writing += 1

        def done(status: PutMessageStatus) -> None:
            self._writing -= 1
            if self._abandoned:
                return
            if status is PutMessageStatus.PUT_OK:
                stored()
            else:
                logger.warning(
                    "half message at queue offset %d not handled: %s", offset, status.value
                )
                failed_at = self._failed_at
                self._failed_at = offset if failed_at is None else min(offset, failed_at)
            if self._scanned:
                self._end_if_written()

        placed += self._service.messages.submit([draft], done)
        if self._failed_at is not None:
            return False
        self._next += 1
        return True

    # The end

    def _end_if_written(self) -> None:
        if self._writing or self._abandoned:
            return
        self._abandoned = True
        half_end = self._next if self._failed_at is None else min(self._next, self._failed_at)
        self._commit(TRANSACTION_HALF_TOPIC, self._half_begin, half_end)
        op_end = self._op_begin
        while op_end in self._ops_done:
            op_end += 1
        self._commit(TRANSACTION_OP_HALF_TOPIC, self._op_begin, op_end)
        self._service.round_ended(self._queue_id)

    def _begins(self) -> tuple[int, int]:
        """Return where the half queue and the op queue are read from: the committed offsets of the
        group, or the start of a queue if that is later.

        If a power loss has shortened a queue below its committed offset, new messages have lower
        offsets. Both queues are then read from their starts; the ops tell which halves are done.
        """
        queues, queue_id = self._service.queues, self._queue_id
        begins: list[int] = []
        starts: list[int] = []
        is_cut = False
        for topic in (TRANSACTION_HALF_TOPIC, TRANSACTION_OP_HALF_TOPIC):
            committed = self._service.offsets.get(TRANSACTION_GROUP, topic, queue_id)
            starts.append(queues.min_queue_offset(topic, queue_id))
            begins.append(max(committed, starts[-1]))
            is_cut |= committed > queues.max_queue_offset(topic, queue_id)
        half, op = starts if is_cut else begins
        return half, op

    def _commit(self, topic: str, former: int, offset: int) -> None:
        if offset != former:
            self._service.offsets.commit(TRANSACTION_GROUP, topic, self._queue_id, offset)

    def _message(self, physical_offset: int) -> StoredMessage | None:
        record = self._service.queues.message_at(physical_offset)
        try:
            return decode_intact(record, physical_offset) if record is not None else None
        except InvalidRecordError as fault:
            logger.error("message at %d cannot be read: %s", physical_offset, fault)
            return None


def _number(text: str | None, default: int) -> int:
    try:
        return int(text) if text is not None else default
    except ValueError:
        return default
