# pyright: strict
"""A user's program and its tests, which use most of the client and of the testing tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rmqpy.client import (
    ClientInstance,
    ClientSettings,
    ConsumeResult,
    ConsumeSettings,
    Credentials,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerSettings,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushSettings,
    SendResult,
    SendStatus,
    TlsSide,
    TransactionalProducer,
    TransactionState,
)
from rmqpy.client.blocking import BlockingProducer, BlockingPullConsumer, BlockingPushConsumer
from rmqpy.client.errors import (
    InvalidMessageError,
    NetworkError,
    RequestRejectedError,
    ResponseCode,
    RmqError,
)
from rmqpy.testing import Broker, NameServer


def settings(name_servers: str) -> ClientSettings:
    return ClientSettings(
        name_servers=name_servers,
        credentials=Credentials("shop", "secret"),
        tls=TlsSide(trust="ca.pem", verify=True),
        request_timeout_ms=500,
    )


async def send(name_server: str, order: bytes) -> int:
    plain = ProducerSettings(timeout_ms=5_000, trace_topic="RMQ_SYS_TRACE_TOPIC")
    async with Producer("shop", name_server, settings=plain) as producer:
        message = Message(topic="Orders", body=order, tags="new", keys="7", delay_level=1)
        result: SendResult = await producer.send(message)
        ordered = await producer.send_ordered(message, sharding_key="order-7")
        await producer.send_oneway(message)
        await producer.send_batch([message, message])
        assert result.status is SendStatus.SEND_OK
        queue: MessageQueue = ordered.queue
        return queue.queue_id + result.queue_offset


async def pay(name_server: str) -> TransactionState:
    async def transfer(message: Message, unique_id: str) -> TransactionState:
        return TransactionState.COMMIT if message.body and unique_id else TransactionState.ROLLBACK

    async def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if message.body else TransactionState.ROLLBACK

    async with TransactionalProducer("bank", name_server, check=check) as producer:
        outcome = await producer.send_in_transaction(Message(topic="Paid", body=b"10"), transfer)
        return outcome.state


async def listen(messages: Sequence[MessageExt]) -> ConsumeResult:
    bodies: list[bytes] = [message.body for message in messages]
    return ConsumeResult.SUCCESS if bodies else ConsumeResult.RECONSUME_LATER


async def consume(name_server: str) -> list[bytes]:
    found: list[bytes] = []
    chosen = PushSettings(from_where="CONSUME_FROM_FIRST_OFFSET", consuming=ConsumeSettings())
    async with PushConsumer("kitchen", name_server, listener=listen) as pushed:
        pushed.subscribe("Orders", "new || paid")
    async with PushConsumer("archive", name_server, settings=chosen) as consumer:
        consumer.subscribe("Orders", "a > 3", expression_type="SQL92")
        async for message in consumer:
            found.append(message.body)
            for queue in consumer.assignment():
                consumer.pause(queue)
                consumer.resume(queue)
                await consumer.seek(queue, message.queue_offset)
            consumer.acknowledge()
            break
    return found


async def read(name_server: str) -> list[bytes]:
    found: list[bytes] = []
    shared = await ClientInstance.open(settings(name_server))
    async with PullConsumer("audit", instance=shared) as consumer:
        for queue in await consumer.queues("Orders"):
            offset: int = await consumer.min_offset(queue)
            page = await consumer.pull(queue, offset)
            if page.status is PullStatus.FOUND:
                found += [message.body for message in page.messages]
            await consumer.commit_offset(queue, page.next_begin_offset)
    await shared.close()
    return found


def send_without_a_loop(name_server: str) -> str:
    with BlockingProducer("shop", name_server) as producer:
        try:
            sent = producer.send(Message(topic="Orders", body=b"order 8"))
        except InvalidMessageError as error:
            return str(error)
        except RequestRejectedError as error:
            code: ResponseCode | None = error.response_code
            return f"{code} {error.remark}"
        except (NetworkError, RmqError) as error:
            return "again" if error.retriable else "never"
    with BlockingPullConsumer("audit", name_server) as reader:
        bodies = [message.body for message in reader.pull(sent.queue, 0).messages]
    with BlockingPushConsumer("kitchen", name_server) as consumer:
        consumer.subscribe("Orders")
        for message in consumer:
            bodies.append(message.body)
            break
    return b" ".join(bodies).decode()


@pytest.fixture
def rmq_settings() -> Mapping[str, str]:
    return {"flushDiskType": "SYNC_FLUSH"}


def test_orders(rmq_broker: Broker, rmq_namesrv: NameServer) -> None:
    rmq_broker.create_topic("Orders", 8)
    sent: SendResult = rmq_broker.send("Orders", b"order 7", keys="7")
    with rmq_broker.paused():
        rmq_broker.slow_disk(0.1)
    rmq_broker.advance(3600)
    store: Path = rmq_broker.store
    assert rmq_namesrv.address == rmq_broker.name_server and store.is_dir()
    assert [message.body for message in rmq_broker.messages("Orders")][sent.queue_offset]


async def start_a_group() -> dict[str, str]:
    async with Broker(members=3, topics=["Orders"], process=True) as group:
        group.kill(group.leader())
        return group.addresses
