"""TransactionalProducer: sends messages that become visible only if a local transaction succeeds.

::

    half message stored ──► execute ──COMMIT───► END_TRANSACTION: visible
                                ├────ROLLBACK──► END_TRANSACTION: removed
                                └────UNKNOWN, an exception──► the broker calls check later

The broker sends its check to any member of the producer group, so ``check`` must find the outcome
of the transaction in shared state, such as a table of the application's database. END_TRANSACTION
has no answer; if it is lost, the broker checks the transaction later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum

from attrs import define

from rmqpy.client.core.instance import ClientInstance, NameServers
from rmqpy.client.core.message import Message, MessageExt, SendResult, SendStatus
from rmqpy.client.producer import Producer, ProducerSettings
from rmqpy.codec.message import decode_message, parse_offset_msg_id
from rmqpy.codec.properties import PROPERTY_UNIQ_KEY
from rmqpy.config.keys import host_and_port
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.model.flags import TRANSACTION_COMMIT, TRANSACTION_NOT_TYPE, TRANSACTION_ROLLBACK
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)

logger = logging.getLogger(__name__)


class TransactionState(Enum):
    """The outcome of a local transaction (Java: LocalTransactionState). The values are those of the
    protocol.
    """

    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK
    UNKNOWN = TRANSACTION_NOT_TYPE


Execute = Callable[[Message, str], Awaitable[TransactionState]]
"""Runs the local transaction for (message, its unique id) after the half message is stored."""

Check = Callable[[MessageExt], Awaitable[TransactionState]]
"""Returns the outcome of the transaction to which this half message belongs."""


@define(frozen=True, kw_only=True)
class TransactionSendResult:
    """The result of sending a half message, and the outcome of the local transaction."""

    sent: SendResult
    state: TransactionState


@define(slots=True, frozen=True)
class _HalfMessage:
    """A half message as END_TRANSACTION identifies it."""

    queue_offset: int
    physical_offset: int
    unique_id: str
    broker_name: str | None


class TransactionalProducer(Producer):
    """A producer of half messages that answers the broker's checks (Java: TransactionMQProducer).

    ``check`` is a coroutine function that takes a :class:`MessageExt` and returns the state of its
    transaction. It is called at the request of the broker, for half messages whose end the broker
    has not received::

        async def check(message):
            committed = await is_order_committed(message.keys)
            return TransactionState.COMMIT if committed else TransactionState.ROLLBACK

        async def execute(message, unique_id):
            await commit_order(message.keys)
            return TransactionState.COMMIT

        async with TransactionalProducer("orders", "127.0.0.1:9876", check=check) as producer:
            outcome = await producer.send_in_transaction(message, execute)
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        check: Check,
        settings: ProducerSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        super().__init__(group, name_servers, settings=settings, instance=instance)
        self._check = check

    async def send_in_transaction(
        self, message: Message, execute: Execute
    ) -> TransactionSendResult:
        """Store a half message, run ``execute``, and report its outcome to the broker.

        ``execute(message, unique_id)`` runs the local transaction. If it raises, the state is
        UNKNOWN and the broker calls ``check`` later. A half message whose status is not SEND_OK is
        rolled back without running ``execute``. (Java: sendMessageInTransaction.)

        Raises as :meth:`Producer.send` does while the half message is sent. An END_TRANSACTION that
        cannot be sent is logged: the broker checks the transaction later.
        """
        sent = await self._traced(message, self._encode(message, half=True))
        state = TransactionState.ROLLBACK
        if sent.status is SendStatus.SEND_OK:
            try:
                state = await execute(message, sent.msg_id)
            except Exception:
                logger.exception(
                    "the transaction of message %s raised; the broker checks its state later",
                    sent.msg_id,
                )
                state = TransactionState.UNKNOWN
        _, physical_offset = parse_offset_msg_id(sent.offset_msg_id)
        half = _HalfMessage(sent.queue_offset, physical_offset, sent.msg_id, sent.queue.broker_name)
        try:
            await self._end(await self._master(sent.queue), half, state, is_check=False)
        except NetworkError as fault:
            logger.warning(
                "the end of transaction %s was not sent; the broker will check it: %s",
                sent.msg_id,
                fault,
            )
        return TransactionSendResult(sent=sent, state=state)

    async def _join(self, instance: ClientInstance) -> None:
        await super()._join(instance)
        instance.pushed.answer(self.group, {RequestCode.CHECK_TRANSACTION_STATE: self._on_check})

    async def _leave(self, instance: ClientInstance) -> None:
        instance.pushed.forget(self.group, [RequestCode.CHECK_TRANSACTION_STATE])
        await super()._leave(instance)

    async def _on_check(self, channel: Channel, request: RemotingCommand) -> None:
        header = CheckTransactionStateRequestHeader.decode(request.ext_fields)
        stored = decode_message(memoryview(request.body))
        queue = MessageQueue(stored.topic, header.bname or "", stored.queue_id)
        unique_id = stored.properties.get(PROPERTY_UNIQ_KEY) or header.msg_id or ""
        try:
            state = await self._check(MessageExt(queue=queue, stored=stored))
        except Exception:
            logger.exception(
                "the transaction check of message %s raised; its state stays unknown", unique_id
            )
            state = TransactionState.UNKNOWN
        half = _HalfMessage(
            header.tran_state_table_offset, header.commit_log_offset, unique_id, header.bname
        )
        await self._end(host_and_port(*channel.peer), half, state, is_check=True)

    async def _end(
        self, address: str, half: _HalfMessage, state: TransactionState, *, is_check: bool
    ) -> None:
        instance = self._open()
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            commit_or_rollback=state.value,
            from_transaction_check=is_check,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            bname=half.broker_name,
        )
        request = instance.request(RequestCode.END_TRANSACTION, header)
        await instance.transport.invoke_oneway(address, request)
