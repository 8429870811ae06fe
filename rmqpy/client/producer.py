"""Producer: sends messages, and retries on another broker when one does not accept them.

A send makes up to 1 + ``retries`` attempts within its overall timeout:

==========================================  ===================================================
answer                                      reaction
==========================================  ===================================================
0, 10, 11, 12 (stored)                      the result; a warning status is retried only with
                                            ``retry_warnings``
1, 16, 17, 204, 205                         the next queue, of another broker
14 (an election, a full disk)               the same, and it does not count as an attempt: the
                                            broker is expected to accept messages again
no answer, connection lost                  the next queue, of another broker; the route is suspect
no connection, no name server, no route     the same, and it does not count as an attempt, because
                                            nothing was sent
any other code                              RequestRejectedError at once
==========================================  ===================================================

Before a broker is tried again there is a pause (``retry_backoff_ms``); another broker is tried at
once. Without ``retries`` there is one attempt, whatever happens. A send to a queue that the caller
chose is repeated only if nothing was sent, and a one-way send never. A retry after a lost answer
can store a message twice; both copies carry the same UNIQ_KEY.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from attrs import define

from rmqpy.client.core.group_member import GroupMember
from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.latency_fault import FAILURE_MS, LatencyFaultTolerance
from rmqpy.client.core.message import (
    COMPRESSION_ZLIB,
    Message,
    SendResult,
    SendStatus,
    check_message,
    is_plain,
    plain_batch_body,
    property_string,
    send_result,
)
from rmqpy.client.core.routes import next_queue, publish_queues, queue_of
from rmqpy.client.errors import InvalidMessageError
from rmqpy.client.trace import DELAYED, HALF, NORMAL, SendTrace, Tracer
from rmqpy.codec.message import encode_batch_item
from rmqpy.codec.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
)
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import (
    ConnectFailedError,
    NetworkError,
    RequestRejectedError,
    RequestTimeoutError,
    RmqError,
)
from rmqpy.model.flags import COMPRESSED, TRANSACTION_PREPARED
from rmqpy.model.names import is_retry_topic
from rmqpy.model.text import count_text
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.remoting.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from rmqpy.remoting.request_template import (
    TEMPLATES_MAX,
    RequestTemplate,
    TemplatedRequest,
    varying_fields,
)

RETRIED_CODES = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)

_STORED: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}

_NUMBERS = varying_fields(
    SendMessageRequestHeaderV2, ("queue_id", "sys_flag", "born_timestamp", "flag")
)
_TEXTS = varying_fields(SendMessageRequestHeaderV2, ("properties",))
"""The fields in which the sends of one topic to one broker differ. Only those of single messages
differ in the properties: a batch says with them whether it waits for the disk.
"""

_WAIT, _WAIT_NOT = f"{PROPERTY_WAIT}\x01true", f"{PROPERTY_WAIT}\x01false"
_BATCH_ITEM_OVERHEAD = 22
TRACE_GROUP = "_INNER_TRACE_PRODUCER"


@define(frozen=True, kw_only=True)
class ProducerSettings:
    """The settings of a producer; the defaults are those of Java's DefaultMQProducer.

    * ``timeout_ms``: the time for one send, all attempts included (Java: sendMsgTimeout).
    * ``retries``: attempts after the first (Java: retryTimesWhenSendFailed). Attempts that did not
      reach a broker, or met an election, do not count; 0 makes one attempt in any case.
    * ``retry_backoff_ms``, ``retry_backoff_max_ms``: the pause before a broker is tried again,
      which doubles each time, and its maximum.
    * ``retry_warnings``: whether a message that is stored with a status other than SEND_OK is sent
      again (Java: retryAnotherBrokerWhenNotStoreOK).
    * ``avoid_faults``: whether slow or failing brokers are avoided for a while (Java:
      sendLatencyFaultEnable); see :mod:`rmqpy.client.core.latency_fault`.
    * ``compress_from_bytes``: the body size from which bodies are compressed with zlib (Java:
      compressMsgBodyOverHowmuch); None never compresses.
    * ``compress_level``: the zlib level, 0 to 9.
    * ``body_bytes_max``: the largest body or batch body, in bytes (Java: maxMessageSize).
    * ``delay_level_max``: the number of levels of the brokers (messageDelayLevel).
    * ``template_topic``, ``template_queue_count``: the topic after which a broker creates an
      unknown topic, and the largest number of its queues (Java: createTopicKey,
      defaultTopicQueueNums).
    * ``trace_topic``: the topic that receives the message trace (:mod:`rmqpy.client.trace`); None
      writes no trace.
    """

    timeout_ms: int = 3_000
    retries: int = 2
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    retry_warnings: bool = False
    avoid_faults: bool = False
    compress_from_bytes: int | None = 4_096
    compress_level: int = 5
    body_bytes_max: int = 4 << 20
    delay_level_max: int = 18
    template_topic: str = "TBW102"
    template_queue_count: int = 4
    trace_topic: str | None = None


@define(slots=True)
class _EncodedMessage:
    """The request data of one send, which is the same in every attempt."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    msg_id: str
    batch: bool


class Producer(GroupMember):
    """A member of a producer group that sends messages (Java: DefaultMQProducer).

    ``name_servers`` is ``host:port;host:port``, a sequence of addresses, or
    :class:`ClientSettings`. With ``instance`` the producer shares that client instead of opening
    one. A producer works between ``start()`` and ``close()``; as an asynchronous context manager it
    does both::

        async with Producer("order-service", "127.0.0.1:9876") as producer:
            result = await producer.send(Message(topic="orders", body=b"order 7", keys="7"))
            print(result.status, result.queue, result.queue_offset)
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        settings: ProducerSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        super().__init__(group, name_servers, instance=instance)
        self._settings = settings or ProducerSettings()
        self._rotation: int | None = None
        self._faults = LatencyFaultTolerance() if self._settings.avoid_faults else None
        self._tracer: Tracer | None = None
        self._templates: dict[tuple[str, str, str | None], RequestTemplate] = {}

    async def _join(self, instance: ClientInstance) -> None:
        instance.join_producer(self.group)
        if self._settings.trace_topic is not None:
            self._tracer = await trace_context(self._settings.trace_topic, instance, self.group)

    async def _leave(self, instance: ClientInstance) -> None:
        if self._tracer is not None:
            await self._tracer.close()
        await instance.leave_producer(self.group)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues to which messages of ``topic`` are sent, in order of rotation.

        Callers that choose the queue use this method. Raises RequestRejectedError with
        TOPIC_NOT_EXIST if no name server has the topic, and NetworkError if no name server answers.
        """
        return publish_queues(topic, await self._open().route(topic))

    async def send(
        self, message: Message, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and return after a broker has reported it as stored.

        Without ``queue`` the queues of the topic take turns, and a failed attempt is repeated on
        another broker; with ``queue`` there is one attempt. ``timeout_ms`` replaces the timeout of
        the settings and covers all attempts.

        Any returned status means that the message is stored; see :class:`SendStatus`. Raises
        RequestRejectedError if the message is illegal or the broker refuses it, and NetworkError if
        no attempt was answered in time.
        """
        encoded = self._encode(message)
        if self._tracer is None:
            return await self._send_encoded(encoded, queue, timeout_ms)
        return await self._traced(message, encoded, queue, timeout_ms)

    async def send_ordered(
        self, message: Message, sharding_key: str, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message to the queue that its ``sharding_key`` selects.

        Messages with the same key are stored in one queue, in the order of their sends, as long as
        the number of the topic's queues does not change (Java: SelectMessageQueueByHash). Makes one
        attempt, and raises as :meth:`send` does.
        """
        queue = queue_of(await self._publish_queues(message.topic), sharding_key)
        return await self.send(message, queue, timeout_ms)

    async def send_batch(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store several messages of one topic in one queue: all of them or none.

        The messages must have the same topic and ``wait_store_ok``, no delay, and no retry topic,
        and together fit into ``body_bytes_max``; split a longer list with :func:`split_batch`.
        Raises as :meth:`send` does.
        """
        return await self._send_encoded(self._encode_batch(messages), queue, timeout_ms)

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send one message without waiting for an answer (Java: sendOneway).

        Returns when the request is written; a message that the broker refuses is lost silently.
        """
        instance = self._open()
        encoded = self._encode(message)
        if queue is None:
            queues = instance.known_publish_queues(encoded.topic)
            queue = self._choose(queues or await self._publish_queues(encoded.topic), None)
        address = instance.known_address(queue.broker_name) or await self._master(queue)
        request = self._request(instance, encoded, queue)
        await instance.transport.invoke_oneway(address, request)

    # -- sending

    async def _traced(
        self,
        message: Message,
        encoded: _EncodedMessage,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Deliver the message and record the outcome in the trace, if there is one."""
        tracer = self._tracer
        if tracer is None:
            return await self._send_encoded(encoded, queue, timeout_ms)
        start_ms = self._open().clock.now_ms()
        result: SendResult | None = None
        try:
            result = await self._send_encoded(encoded, queue, timeout_ms)
            return result
        finally:
            cost_ms = self._open().clock.now_ms() - start_ms
            tracer.add(self._send_trace(message, encoded, result).record(start_ms, cost_ms))

    def _send_trace(
        self, message: Message, encoded: _EncodedMessage, result: SendResult | None
    ) -> SendTrace:
        half = encoded.sys_flag & TRANSACTION_PREPARED
        broker = result.queue.broker_name if result is not None else None
        address = self._open().known_address(broker) if broker is not None else None
        return SendTrace(
            group=self.group,
            topic=message.topic,
            msg_id=encoded.msg_id,
            tags=message.tags or "",
            keys=message.keys,
            store_host=address or "",
            body_bytes=len(message.body),
            kind=HALF if half else DELAYED if message.delay_level else NORMAL,
            offset_msg_id=result.offset_msg_id if result is not None else "",
            success=result is not None,
        )

    async def _send_encoded(
        self, encoded: _EncodedMessage, queue: MessageQueue | None, timeout_ms: int | None
    ) -> SendResult:
        instance = self._open()
        if queue is not None and queue.topic != encoded.topic:
            raise InvalidMessageError(
                f"the queue belongs to {queue.topic}, the message to {encoded.topic}"
            )
        timeout_ms = self._settings.timeout_ms if timeout_ms is None else timeout_ms
        start_ms = now_ms = instance.clock.monotonic_ms()
        attempts = 1 if queue is not None else 1 + self._settings.retries
        brokers: list[str] = []
        fault: RmqError | None = None
        stored: SendResult | None = None
        while True:
            left_ms = timeout_ms - (now_ms - start_ms)
            if left_ms <= 0:
                break
            chosen = queue
            if chosen is None:
                queues = instance.known_publish_queues(encoded.topic)
                if not queues:
                    try:
                        queues = await self._publish_queues(encoded.topic)
                    except (NetworkError, RequestRejectedError) as error:
                        if not _may_appear(error):
                            raise
                        fault = error
                        if not self._settings.retries:
                            break
                        brokers.append("")
                        await self._back_off(instance, brokers, left_ms)
                        now_ms = instance.clock.monotonic_ms()
                        continue
                chosen = self._choose(queues, brokers[-1] if brokers else None)
            if brokers and chosen.broker_name in brokers:
                await self._back_off(instance, brokers, left_ms)
                now_ms = instance.clock.monotonic_ms()
                left_ms = timeout_ms - (now_ms - start_ms)
                if left_ms <= 0:
                    break
            brokers.append(chosen.broker_name)
            if self._faults is not None:
                now_ms = instance.clock.monotonic_ms()
            outcome = await self._attempt(instance, encoded, chosen, left_ms)
            if self._faults is not None:
                failed = isinstance(outcome, RmqError)
                self._record_latency(self._faults, chosen.broker_name, now_ms, failed)
            if isinstance(outcome, RmqError):
                fault = outcome
            else:
                stored = outcome
                if stored.status is SendStatus.SEND_OK or not self._settings.retry_warnings:
                    break
            if not _is_uncounted(outcome) or not self._settings.retries:
                attempts -= 1
                if attempts <= 0:
                    break
            now_ms = instance.clock.monotonic_ms()
        if stored is not None:
            return stored
        spent_ms = instance.clock.monotonic_ms() - start_ms
        raise _send_error(encoded, brokers, fault, spent_ms) from fault

    async def _back_off(self, instance: ClientInstance, tried: list[str], left_ms: int) -> None:
        """Pause before a broker is tried again; longer with each attempt of the same send."""
        settings = self._settings
        doubled = min(16, max(0, len(tried) - len(set(tried))))
        pause_ms = min(settings.retry_backoff_max_ms, settings.retry_backoff_ms << doubled)
        await instance.pause(min(left_ms, round(pause_ms * instance.randomness.uniform(0.8, 1.2))))

    async def _attempt(
        self,
        instance: ClientInstance,
        encoded: _EncodedMessage,
        queue: MessageQueue,
        timeout_ms: int,
    ) -> RmqError | SendResult:
        """Return the result of one attempt, or the error after which another broker may be tried.
        Raises RequestRejectedError if no other broker may be tried.
        """
        try:
            address = instance.known_address(queue.broker_name) or await self._master(queue)
            request = self._request(instance, encoded, queue)
            response = await instance.transport.invoke(address, request, timeout_ms)
        except NetworkError as fault:
            instance.invalidate_route(encoded.topic)
            return fault
        status = _STORED.get(response.code)
        if status is not None:
            return _result(encoded, queue, status, response.ext_fields)
        refusal = RequestRejectedError(response.code, response.remark or "no remark")
        if response.code not in RETRIED_CODES:
            raise refusal
        instance.invalidate_route(encoded.topic)
        return refusal

    async def _publish_queues(self, topic: str) -> list[MessageQueue]:
        queues = await self._open().publish_queues(
            topic, self._settings.template_topic, self._settings.template_queue_count
        )
        if not queues:
            self._open().invalidate_route(topic)
            raise NetworkError(f"no broker accepts messages of {topic}: none is a writable master")
        return queues

    def _choose(self, queues: list[MessageQueue], last_broker: str | None) -> MessageQueue:
        if self._rotation is None:
            self._rotation = self._open().randomness.randrange(len(queues))
        if self._faults is not None:
            now_ms = self._open().clock.monotonic_ms()
            queue, self._rotation = self._faults.choose(queues, self._rotation, now_ms)
        elif last_broker is None:
            queue = queues[self._rotation % len(queues)]
            self._rotation += 1
        else:
            queue, self._rotation = next_queue(queues, self._rotation, last_broker)
        return queue

    def _record_latency(
        self, faults: LatencyFaultTolerance, broker: str, sent_ms: int, failed: bool
    ) -> None:
        now_ms = self._open().clock.monotonic_ms()
        faults.update_latency(broker, FAILURE_MS if failed else now_ms - sent_ms, now_ms)

    async def _master(self, queue: MessageQueue) -> str:
        instance = self._open()
        address = instance.known_address(queue.broker_name)
        if address is None:
            instance.invalidate_route(queue.topic)
            await instance.route(queue.topic)
            address = instance.known_address(queue.broker_name)
        if address is None:
            raise NetworkError(f"the broker {queue.broker_name} has no master at the moment")
        return address

    def _request(
        self, instance: ClientInstance, encoded: _EncodedMessage, queue: MessageQueue
    ) -> TemplatedRequest:
        batch_properties = encoded.properties if encoded.batch else None
        key = encoded.topic, queue.broker_name, batch_properties
        template = self._templates.get(key) or self._new_template(key)
        born_ms = instance.clock.now_ms()
        numbers = queue.queue_id, encoded.sys_flag, born_ms, encoded.flag
        values = numbers if encoded.batch else (*numbers, encoded.properties)
        return TemplatedRequest(template, values, encoded.body)

    def _new_template(self, key: tuple[str, str, str | None]) -> RequestTemplate:
        topic, broker_name, batch_properties = key
        batch = batch_properties is not None
        header = SendMessageRequestHeaderV2(
            producer_group=self.group,
            topic=topic,
            default_topic=self._settings.template_topic,
            default_topic_queue_nums=self._settings.template_queue_count,
            queue_id=0,
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties=batch_properties or "",
            reconsume_times=0,
            batch=batch,
            bname=broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        while len(self._templates) >= TEMPLATES_MAX:
            del self._templates[next(iter(self._templates))]
        request = self._open().request(code, header)
        template = RequestTemplate(request, _NUMBERS, () if batch else _TEXTS)
        self._templates[key] = template
        return template

    # -- encoding

    def _encode(self, message: Message, half: bool = False) -> _EncodedMessage:
        """Check and encode a message; with ``half``, as the half message of a transaction."""
        check_message(message, self._settings.body_bytes_max, self._settings.delay_level_max)
        unique_id = self._open().unique_ids.next()
        body, sys_flag = bytes(message.body), 0  # No copy of bytes.
        threshold = self._settings.compress_from_bytes
        if threshold is not None and len(body) >= threshold:
            body = zlib.compress(body, self._settings.compress_level)
            sys_flag = COMPRESSED | COMPRESSION_ZLIB
        reserved = {}
        if half:
            reserved = {PROPERTY_TRANSACTION_PREPARED: "true", PROPERTY_PRODUCER_GROUP: self.group}
            sys_flag |= TRANSACTION_PREPARED
        properties = property_string(message, unique_id, reserved)
        flag = 0 if is_plain(message) else message.flag
        return _EncodedMessage(message.topic, body, properties, sys_flag, flag, unique_id, False)

    def _encode_batch(self, messages: Sequence[Message]) -> _EncodedMessage:
        if not messages:
            raise InvalidMessageError("the batch has no messages")
        first, bytes_max = messages[0], self._settings.body_bytes_max
        check_message(first, bytes_max, self._settings.delay_level_max)
        id_start, id_ends = self._open().unique_ids.take(len(messages))
        unique_ids = id_start + id_ends.replace(",", f",{id_start}")
        body = None
        if not is_retry_topic(first.topic):
            body = plain_batch_body(messages, id_start, id_ends, bytes_max)
        if body is None:
            body = self._checked_batch_body(messages, unique_ids.split(","))
        if len(body) > self._settings.body_bytes_max:
            raise InvalidMessageError(
                f"the batch has {len(body)} bytes, more than {self._settings.body_bytes_max};"
                " send it in parts (split_batch)"
            )
        return _EncodedMessage(
            topic=first.topic,
            body=body,
            properties=_WAIT if is_plain(first) or first.wait_store_ok else _WAIT_NOT,
            sys_flag=0,
            flag=0,
            msg_id=unique_ids,
            batch=True,
        )

    def _checked_batch_body(self, messages: Sequence[Message], unique_ids: Sequence[str]) -> bytes:
        parts: list[bytes] = []
        for message, unique_id in zip(messages, unique_ids, strict=True):
            check_message(message, self._settings.body_bytes_max, self._settings.delay_level_max)
            _check_batched(message, messages[0])
            properties = property_string(message, unique_id).encode()
            parts.append(encode_batch_item(message.flag, bytes(message.body), properties))
        return b"".join(parts)


async def trace_context(topic: str, instance: ClientInstance, group: str) -> Tracer:
    """Return a started tracer for a member of ``group``; it sends through its own producer."""
    producer = Producer(f"{TRACE_GROUP}-{group}", instance=instance)
    await producer.start()
    tracer = Tracer(topic, instance.clock, producer.send, producer.close)
    tracer.start()
    return tracer


def split_batch(messages: Sequence[Message], bytes_max: int) -> list[list[Message]]:
    """Split ``messages``, in order, into batches whose encoded bodies have at most ``bytes_max``
    bytes.

    The unique id of each message is counted as 56 digits. Raises RequestRejectedError if a single
    message is larger than that. ::

        for batch in split_batch(messages, 4 << 20):
            await producer.send_batch(batch)
    """
    parts: list[list[Message]] = []
    used = 0
    for message in messages:
        properties = property_string(message, "0" * 56).encode()
        size = _BATCH_ITEM_OVERHEAD + len(message.body) + len(properties)
        if size > bytes_max:
            raise InvalidMessageError(
                f"one message of the batch needs {size} bytes, more than {bytes_max}"
            )
        if not parts or used + size > bytes_max:
            parts.append([])
            used = 0
        parts[-1].append(message)
        used += size
    return parts


def _may_appear(error: RmqError) -> bool:
    """Return whether a route that was not found may be there soon: no name server answered, or none
    has a broker of the topic, because it has not registered yet.
    """
    if isinstance(error, RequestRejectedError):
        return error.code == ResponseCode.TOPIC_NOT_EXIST
    return True


def _is_uncounted(outcome: RmqError | SendResult) -> bool:
    """Return whether an attempt stored nothing, and the broker may accept the message soon."""
    if isinstance(outcome, RequestRejectedError):
        return outcome.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(outcome, ConnectFailedError)


def _check_batched(message: Message, first: Message) -> None:
    if message.delay_level:
        raise InvalidMessageError("a delayed message cannot be in a batch")
    if is_retry_topic(message.topic):
        raise InvalidMessageError("a message of a retry topic cannot be in a batch")
    if message.topic != first.topic:
        raise InvalidMessageError(
            f"a batch has one topic; this one has {first.topic} and {message.topic}"
        )
    if message.wait_store_ok != first.wait_store_ok:
        raise InvalidMessageError(
            "all messages of a batch have the same wait_store_ok; these differ"
        )


def _result(
    encoded: _EncodedMessage, queue: MessageQueue, status: SendStatus, fields: Mapping[str, str]
) -> SendResult:
    id_text, offset_text = fields.get("queueId", ""), fields.get("queueOffset", "")
    if (
        "msgId" in fields
        and id_text.isdecimal()
        and offset_text.isdecimal()
        and len(id_text) < 10
        and len(offset_text) < 19
    ):
        queue_id, offset, msg_id = int(id_text), int(offset_text), fields["msgId"]
    else:  # The numbers are rare ones, or something is missing: this raises then.
        header = SendMessageResponseHeader.decode(fields)
        queue_id, offset, msg_id = header.queue_id, header.queue_offset, header.msg_id
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return send_result(status, encoded.msg_id, msg_id, queue, offset)


def _send_error(
    encoded: _EncodedMessage, brokers: list[str], last: RmqError | None, spent_ms: int
) -> RmqError:
    tried = ", ".join(dict.fromkeys(filter(None, brokers))) or "none"
    text = (
        f"sending failed after {count_text(len(brokers), 'attempt')} in {spent_ms} ms,"
        f" topic {encoded.topic}, brokers {tried}: {last or 'no time left'}"
    )
    if isinstance(last, RequestRejectedError):
        return RequestRejectedError(last.code, text)
    if isinstance(last, NetworkError):
        return type(last)(text)
    return RequestTimeoutError(text)
