"""Half messages: how a message of a transaction waits for its end, and how the end is recorded.

==================  =============================  ==============================================
message             topic, queue                   differences from what was sent
==================  =============================  ==============================================
half message        RMQ_SYS_TRANS_HALF_TOPIC, 0    REAL_TOPIC, REAL_QID; no transaction bits
op message          RMQ_SYS_TRANS_OP_HALF_TOPIC    tag ``d``; body: decimal queue offset of the half
final message       its own                        transaction bits: commit; the physical offset of
                                                   the half is in preparedTransactionOffset
discarded           TRANS_CHECK_MAX_TIME_TOPIC     none
==================  =============================  ==============================================

A half message is resolved by an op message that names it. Its own delay level, if any, takes effect
when it is committed.
"""

from __future__ import annotations

from typing import Final

from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.message_copy import copy_of, encode_java_properties, wait_store_msg_ok
from rmqpy.broker.state.delay_levels import redirect
from rmqpy.codec.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_WAIT,
)
from rmqpy.model.flags import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
)
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.model.names import (
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_HALF_TOPIC,
    TRANSACTION_OP_HALF_TOPIC,
)

HALF_QUEUE: Final = 0
REMOVE_TAG: Final = "d"
IPV6_BYTES: Final = 16


def is_half(properties: dict[str, str]) -> bool:
    """Return whether the producer has marked this message as a half message."""
    return properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"


def make_half(draft: OutgoingMessage, properties: dict[str, str]) -> None:
    """Turn ``draft`` into a half message; ``properties`` are changed accordingly."""
    properties[PROPERTY_REAL_TOPIC] = draft.topic.decode()
    properties[PROPERTY_REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic = TRANSACTION_HALF_TOPIC.encode()
    draft.queue_id = HALF_QUEUE
    draft.sys_flag &= ~TRANSACTION_MASK
    draft.properties = encode_java_properties(properties)


def final_message(half: StoredMessage, level_max: int) -> OutgoingMessage:
    """Return the message that consumers receive after a commit. Raises ValueError if the half
    message does not name its real topic and queue.
    """
    properties = dict(half.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC, "")
    if not topic:
        raise ValueError(f"the half message at {half.physical_offset} has no {PROPERTY_REAL_TOPIC}")
    draft = copy_of(half, topic, int(properties.get(PROPERTY_REAL_QUEUE_ID, "")), properties)
    draft.sys_flag = half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    draft.prepared_transaction_offset = half.physical_offset
    draft.wait_store_ok = wait_store_msg_ok(properties)
    redirect(draft, properties, level_max)
    return draft


def op_message(
    half_offset: int, queue_id: int, identity: BrokerContext, now_ms: int
) -> OutgoingMessage:
    """Return the op message that resolves the half message at queue offset ``half_offset``."""
    host = identity.store_host
    return OutgoingMessage(
        topic=TRANSACTION_OP_HALF_TOPIC.encode(),
        queue_id=queue_id,
        body=str(half_offset).encode(),
        properties=encode_java_properties({PROPERTY_TAGS: REMOVE_TAG, PROPERTY_WAIT: "true"}),
        sys_flag=BORN_HOST_V6 | STORE_HOST_V6 if len(host[0]) == IPV6_BYTES else 0,
        born_timestamp_ms=now_ms,
        born_host=host,
        store_host=host,
        wait_store_ok=False,
    )


def renew_half_message(half: StoredMessage, properties: dict[str, str]) -> OutgoingMessage:
    """Return a copy of the half message for the end of the half queue."""
    return copy_of(half, TRANSACTION_HALF_TOPIC, HALF_QUEUE, properties)


def discarded_message(half: StoredMessage) -> OutgoingMessage:
    """Return a copy of the half message for the topic of messages that are no longer checked."""
    return copy_of(half, TRANSACTION_CHECK_MAX_TIME_TOPIC, 0, half.properties)
