"""Copies of stored messages that are appended to the log with another topic and other properties.

A copy keeps the producer's data (body, flag, born time and host) and the store host of the first
message, as in Java; the log assigns queue offset, position and store time.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmqpy.codec.properties import PROPERTY_WAIT, encode_properties
from rmqpy.model.message import OutgoingMessage, StoredMessage
from rmqpy.remoting.java_values import hashmap_ordered


def encode_java_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property string, in the order of Java's ``HashMap``."""
    return encode_properties(dict(hashmap_ordered(properties)))


def copy_of(
    message: StoredMessage, topic: str, queue_id: int, properties: Mapping[str, str]
) -> OutgoingMessage:
    """Return a draft of the message for another queue, which waits for no flush and no replica."""
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
    """Return whether the put of a message waits for flush and replica: only ``WAIT`` with a value
    other than "true" prevents that.
    """
    wait = properties.get(PROPERTY_WAIT)
    return wait is None or wait.lower() == "true"
