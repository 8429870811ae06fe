"""Client of name servers and brokers: produce, pull, look up. Coroutines on one asyncio loop.

``Producer`` and ``PullConsumer`` are asynchronous context managers; both work through a
``ClientInstance``, their own or one that is shared.
"""

from __future__ import annotations

from rmqpy.client.consumer import PullResult, PullSettings, PullStatus
from rmqpy.client.instance import ClientInstance, ClientSettings
from rmqpy.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmqpy.client.producer import Producer, ProducerSettings, split_batch
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.remoting.bodies import MessageQueue

__all__ = [
    "ClientInstance",
    "ClientSettings",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullResult",
    "PullSettings",
    "PullStatus",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "split_batch",
]
