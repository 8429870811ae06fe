"""Changes of groups: a reset of offsets after its effect was shown, and dead letters again."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.console import OPERATOR, page_of, post, writable

from rmqpy.acl.signature import Credentials
from rmqpy.admin.group_offsets import OffsetMove
from rmqpy.client import ConsumeResult, Message, MessageExt, Producer, PushConsumer, PushSettings
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.console.views.groups import subscriptions_view
from rmqpy.remoting.bodies import (
    ConsumerRunningInfo,
    MessageQueue,
    SubscriptionData,
)

HOSTILE = "<script>alert(1)</script>"
ACCOUNT = Credentials("operator", "operators-secret")
LONG_AGO = "2001-01-01T00:00"


def settings(name_server: str) -> ClientSettings:
    return ClientSettings(name_servers=name_server, credentials=ACCOUNT)


async def committed(name_server: str, queue: MessageQueue) -> int | None:
    instance = await ClientInstance.open(settings(name_server))
    async with PullConsumer("g", instance=instance) as consumer:
        offset = await consumer.committed_offset(queue)
    await instance.close()
    return offset


async def consumed_in_part(name_server: str) -> MessageQueue:
    """Send eight messages to a queue, of which the group ``g`` has consumed three."""
    instance = await ClientInstance.open(settings(name_server))
    async with (
        Producer("p", instance=instance) as producer,
        PullConsumer("g", instance=instance) as consumer,
    ):
        queue = (await producer.send(Message(topic="orders", body=b"0"))).queue
        for _ in range(7):
            await producer.send(Message(topic="orders", body=b"more"), queue)
        for each in await consumer.queues("orders"):
            await consumer.commit_offset(each, 0)
        await consumer.commit_offset(queue, 3)
    await instance.close()
    return queue


@pytest.mark.slow
def test_offsets_are_reset_after_the_effect_was_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with writable(tmp_path, checks=True) as (client, name_server):
            queue = await consumed_in_part(name_server)
            form = {"group": "g", "topic": "orders", "to": "end", "time": ""}
            assert (await post(client, "/reset", form))[0] == 403
            assert (await client.get("/reset?group=g", allow_redirects=False)).status == 303
            assert (await post(client, "/login", OPERATOR))[0] == 303
            assert 'name="to"' in await page_of(client, "/reset?group=g")
            status, page = await post(client, "/reset", {**form, "to": "time", "time": HOSTILE})
            assert status == 200 and "expected a time" in page and HOSTILE not in page
            _, page = await post(client, "/reset", {**form, "topic": "none"})
            assert 'class="alarm critical"' in page
            _, page = await post(client, "/reset", form)
            assert "<b>5</b> messages will be skipped, and <b>0</b> delivered again" in page
            assert await committed(name_server, queue) == 3
            _, page = await post(client, "/reset", {**form, "confirmed": "yes"})
            assert "its offsets are set on the brokers" in page, page
            assert await committed(name_server, queue) == 8
            back = {**form, "to": "time", "time": LONG_AGO}
            _, page = await post(client, "/reset", back)
            assert "<b>0</b> messages will be skipped, and <b>8</b> delivered again" in page
            await post(client, "/reset", {**back, "confirmed": "yes"})
            assert await committed(name_server, queue) == 0
            assert any("'operator' reset 'g' on 'orders'" in each for each in caplog.messages)

    with caplog.at_level(logging.INFO, "rmqpy.console"):
        asyncio.run(run())


@pytest.mark.slow
def test_a_dead_letter_is_delivered_again_to_its_group_only(tmp_path: Path) -> None:
    async def run() -> None:
        received: list[MessageExt] = []
        again = asyncio.Event()

        async def listen(messages: Sequence[MessageExt]) -> ConsumeResult:
            received.extend(messages)
            if len(received) == 1:
                return ConsumeResult.RECONSUME_LATER
            again.set()
            return ConsumeResult.SUCCESS

        async with writable(tmp_path, checks=True) as (client, name_server):
            instance = await ClientInstance.open(settings(name_server))
            async with Producer("p", instance=instance) as producer:
                message = Message(topic="orders", body=HOSTILE.encode(), keys="k1")
                await producer.send(message)
                consumer = PushConsumer(
                    "g",
                    instance=instance,
                    listener=listen,
                    settings=PushSettings(max_reconsume_times=0),
                )
                consumer.subscribe("orders", "*")
                async with consumer, asyncio.timeout(60):
                    page = ""
                    while "k1" not in page:
                        page = await page_of(client, "/dead-letters?group=g")
                    assert "&lt;script&gt;" in page and HOSTILE not in page and ">orders<" in page
                    found = re.search(r'name="id" value="(\w+)"', page)
                    assert found is not None
                    form = {"group": "g", "id": found[1]}
                    assert (await post(client, "/resend", form))[0] == 403
                    await post(client, "/login", OPERATOR)
                    _, page = await post(client, "/resend", form)
                    assert "<b>1</b> dead letters delivered again to g" in page
                    assert len(received) == 1
                    wrong = {"group": "other", "id": found[1], "confirmed": "yes"}
                    _, page = await post(client, "/resend", wrong)
                    assert "expected a dead letter of other" in page
                    _, page = await post(client, "/resend", {**form, "confirmed": "yes"})
                    assert "waits in the retry topic" in page, page
                    await again.wait()
            await instance.close()
            first, last = received
            assert (last.topic, last.keys, last.body) == (first.topic, first.keys, first.body)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("consumed", "result", "skipped", "repeated"),
    [(3, 8, 5, 0), (8, 3, 0, 5), (0, 8, 6, 0), (0, 2, 0, 0), (4, 4, 0, 0)],
)
def test_expired_messages_are_neither_skipped_nor_delivered_again(
    consumed: int, result: int, skipped: int, repeated: int
) -> None:
    queue = MessageQueue("orders", "a", 0)
    move = OffsetMove(queue=queue, begin=2, end=8, consumed=consumed, target=result, result=result)
    assert (move.skipped, move.repeated) == (skipped, repeated)


def test_members_with_different_subscriptions_are_named() -> None:
    def info(expression: str) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(subscription_set=[SubscriptionData("orders", expression)])

    view = subscriptions_view({"c1": info("a"), "c2": info("b"), "c3": info("a"), "c4": None}, 40)
    assert view.differs and view.silent == ["c4"] and view.not_asked == 36
    assert view.rows == [(("orders a",), ["c1", "c3"]), (("orders b",), ["c2"])]
    assert not subscriptions_view({"c1": info("a")}, 1).differs
