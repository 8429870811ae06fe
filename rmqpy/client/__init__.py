"""A client for RocketMQ name servers and brokers: produce, consume, and look up messages.

All classes are coroutine-based and run on one asyncio loop; :mod:`rmqpy.client.blocking` wraps them
for programs without a loop.

=========================  ================================================================
class                      purpose
=========================  ================================================================
``Producer``               send messages: one, ordered by a key, in batches, or one-way
``TransactionalProducer``  send messages that become visible with a local transaction
``PushConsumer``           have messages delivered to a listener, with the group's queues
                           shared between its members
``PullConsumer``           read queues at offsets that the caller chooses
=========================  ================================================================

Producers and consumers are asynchronous context managers. Each opens a ``ClientInstance`` for
itself or works through one that is passed in and shared.

Their errors are listed in :mod:`rmqpy.client.errors`.
"""

from __future__ import annotations

from rmqpy.acl.signature import Credentials
from rmqpy.client.consuming.consume_service import ConsumeResult, ConsumeSettings
from rmqpy.client.core.base_consumer import PullResult, PullSettings, PullStatus
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.core.message import Message, MessageExt, SendResult, SendStatus
from rmqpy.client.producer import Producer, ProducerSettings, split_batch
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.client.push_consumer import PushConsumer, PushSettings
from rmqpy.client.transactional_producer import (
    TransactionalProducer,
    TransactionSendResult,
    TransactionState,
)
from rmqpy.model.deprecation import deprecated_names
from rmqpy.net.tls import TlsSide
from rmqpy.remoting.bodies import MessageQueue

__all__ = [
    "ClientInstance",
    "ClientSettings",
    "ConsumeResult",
    "ConsumeSettings",
    "Credentials",
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullResult",
    "PullSettings",
    "PullStatus",
    "PushConsumer",
    "PushSettings",
    "SendResult",
    "SendStatus",
    "TlsSide",
    "TransactionSendResult",
    "TransactionState",
    "TransactionalProducer",
    "split_batch",
]

__getattr__ = deprecated_names(
    __name__,
    {"ReceivedMessage": "MessageExt"},
)
