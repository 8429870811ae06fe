"""Stored messages that go into the log once more: under another topic, with other properties.

The copy keeps what the producer said (body, flag, born time and hosts) and the store host of the
first message, as Java's does; queue offset, position and store time are given by the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqpy.codec.properties import PROPERTY_WAIT, encode_properties
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.remoting.java_values import hashmap_ordered


def encode_java_properties(properties: Mapping[str, str]) -> bytes:
    """The property string of Java's map."""
    return encode_properties(dict(hashmap_ordered(properties)))


def copy_of(
    message: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str]
) -> OutgoingMessage:
    """A draft of the same message for another queue. It does not wait for flush or replica."""
    return OutgoingMessage(
        topic=topic.encode(),
        queue_id=queue_id,
        body=message.body,
        properties=encode_java_properties(properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        wait_store_ok=False,
    )


def wait_store_msg_ok(properties: Mapping[str, str]) -> bool:
    """Whether the put of a message waits for flush and replica: unless it says ``WAIT=false``."""
    wait = properties.get(PROPERTY_WAIT)
    return wait is None or wait.lower() == "true"
