"""OpenTelemetry (extra ``otel``): spans for sends and for listener calls, joined through the
messages.

A send is a span of kind PRODUCER, whose context travels in the properties of the message
(``traceparent``). A listener call is a span of kind CONSUMER with a link to the context of each
message; that of a single message is also its parent. Names and attributes are those of the semantic
conventions for messaging.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    get_tracer,
)

from rmqpy import __version__
from rmqpy.client.consuming.consume_service import ConsumeResult, Listener
from rmqpy.client.core.message import Message, MessageExt, SendResult
from rmqpy.client.producer import Producer

SYSTEM = "rocketmq"


class Telemetry:
    """Creates spans with the tracer of ``provider``, or of the global one. ::

    telemetry = Telemetry()
    await telemetry.send(producer, Message(topic="orders", body=b"order 7"))
    consumer = PushConsumer("billing", servers, listener=telemetry.listener("billing", listen))
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = get_tracer("rmqpy.client", __version__, provider)

    async def send(self, producer: Producer, message: Message, **options: Any) -> SendResult:
        """Send one message in a span; ``options`` are those of :meth:`Producer.send`."""
        with self._tracer.start_as_current_span(
            f"send {message.topic}", kind=SpanKind.PRODUCER, attributes=_attributes(message)
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            traced = evolve(message, properties={**message.properties, **carrier})
            result = await producer.send(traced, **options)
            span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
            return result

    def listener(self, group: str, listener: Listener) -> Listener:
        """Return a listener that calls ``listener`` in a span."""

        async def listen(messages: Sequence[MessageExt]) -> ConsumeResult | None:
            contexts = [propagate.extract(message.properties) for message in messages]
            links = [
                Link(sent)
                for context in contexts
                if (sent := get_current_span(context).get_span_context()).is_valid
            ]
            parent = contexts[0] if len(contexts) == 1 else Context()
            first = messages[0]
            attributes: dict[str, str | int] = {
                "messaging.system": SYSTEM,
                "messaging.operation.type": "process",
                "messaging.destination.name": first.topic,
                "messaging.consumer.group.name": group,
                "messaging.destination.partition.id": str(first.queue.queue_id),
                "messaging.batch.message_count": len(messages),
            }
            if len(messages) == 1:
                attributes["messaging.message.id"] = first.msg_id
            with self._tracer.start_as_current_span(
                f"process {first.topic}",
                context=parent,
                kind=SpanKind.CONSUMER,
                links=links,
                attributes=attributes,
            ) as span:
                result = await listener(messages)
                if result is ConsumeResult.RECONSUME_LATER:
                    span.set_status(StatusCode.ERROR, result.name)
                return result

        return listen


def _attributes(message: Message) -> dict[str, str | int | Sequence[str]]:
    attributes: dict[str, str | int | Sequence[str]] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.destination.name": message.topic,
        "messaging.message.body.size": len(message.body),
    }
    if message.tags:
        attributes["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys.split()
    if message.delay_level:
        attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    return attributes
