"""OpenTelemetry spans of sends and listener calls, against a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from rmqpy.client import (
    ConsumeResult,
    ConsumeSettings,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushSettings,
)
from rmqpy.client.errors import InvalidMessageError
from rmqpy.client.telemetry import Telemetry
from rmqpy.testing import Broker


def spans_of(batch_max: int, count: int, answer: ConsumeResult | None) -> list[ReadableSpan]:
    """Send and consume ``count`` messages, and return the spans in the order of their ends."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(provider)

    async def main(broker: Broker) -> None:
        heard: asyncio.Queue[MessageExt] = asyncio.Queue()

        async def listen(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            for message in messages:
                heard.put_nowait(message)
            return answer

        async with asyncio.timeout(30), Producer("P", broker.name_server) as producer:
            for number in range(count):
                message = Message(topic="T", body=b"%d" % number, tags="a", keys="k l")
                await telemetry.send(producer, message)
            with pytest.raises(InvalidMessageError):
                await telemetry.send(producer, Message(topic="T", body=b""))
            settings = PushSettings(
                from_where="CONSUME_FROM_FIRST_OFFSET",
                consuming=ConsumeSettings(batch_max=batch_max),
            )
            listener = telemetry.listener("G", listen)
            consumer = PushConsumer("G", broker.name_server, listener=listener, settings=settings)
            consumer.subscribe("T")
            async with consumer:
                for _ in range(count):
                    message_ext = await heard.get()
                    assert message_ext.properties["traceparent"]

    with Broker(topics=["T:1"]) as broker:
        asyncio.run(main(broker))
    return list(exporter.get_finished_spans())


def test_the_span_of_a_send_is_the_parent_of_its_consumption() -> None:
    sent, failed, processed = spans_of(1, 1, None)[:3]
    assert (sent.name, sent.kind) == ("send T", SpanKind.PRODUCER)
    assert sent.attributes is not None
    assert sent.attributes["messaging.rocketmq.message.keys"] == ("k", "l")
    assert failed.status.status_code is StatusCode.ERROR
    assert (processed.name, processed.kind) == ("process T", SpanKind.CONSUMER)
    assert processed.parent is not None and sent.context is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.attributes is not None
    assert processed.attributes["messaging.message.id"] == sent.attributes["messaging.message.id"]


def test_a_batch_links_to_its_messages_and_a_refusal_is_an_error() -> None:
    found = spans_of(8, 3, ConsumeResult.RECONSUME_LATER)
    sent = {each.context.span_id for each in found[:3] if each.context is not None}
    processed = [each for each in found if each.kind is SpanKind.CONSUMER]
    assert processed[0].status.status_code is StatusCode.ERROR
    assert {link.context.span_id for each in processed for link in each.links} >= sent
    batches = [each for each in processed if len(each.links) > 1]
    assert all(each.parent is None for each in batches)
