"""What the tests of the broker read back: stored messages, and those of a pull response."""

from __future__ import annotations

from rmqpy.codec.message import decode_message
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.harness import BrokerHarness

BODY_AT = 88
"""The position of the body in a record with IPv4 hosts."""


def stored_message(store: MessageStore, physical_offset: int) -> StoredMessage:
    """Return the message at an offset of the log; there must be one."""
    record = store.reader.message_at(physical_offset)
    assert record is not None, physical_offset
    return decode_message(record)


def queue_messages(store: MessageStore, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Return every message of a queue."""
    start = store.reader.min_queue_offset(topic, queue_id)
    end = store.reader.max_queue_offset(topic, queue_id)
    found: list[StoredMessage] = []
    while start < end:
        units = store.reader.queue_units(topic, queue_id, start, end - start)
        found += [stored_message(store, unit[0]) for unit in units]
        start += len(units)
    return found


def flip_body(harness: BrokerHarness, physical_offset: int) -> None:
    """Flip a bit in the body of a message in the first file of a classic log."""
    harness.files.nodes[f"/store/commitlog/{0:020d}"].data[physical_offset + BODY_AT] ^= 1


def response_bodies(response: RemotingCommand) -> list[bytes]:
    """Return the bodies of the messages in a response to a pull or a query."""
    found, position = [], 0
    while position < len(response.body):
        message = decode_message(response.body, position)
        found.append(message.body)
        position += message.size
    return found
