"""Client of name servers and brokers: produce, consume, look up. Coroutines on one asyncio loop.

=========================  ==========================================================
``WorkloadProducer``               send, ordered by a key, in batches, one-way
``TransactionalProducer``  send what becomes visible with a local transaction
``PushConsumer``           messages come to a listener; queues are shared in the group
``PullConsumer``           read queues at offsets of your own
=========================  ==========================================================

All are asynchronous context managers and work through a ``ClientInstance``, their own or one that
is shared.
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
