"""``ProcessQueue``: messages are handed out in order and committed once they are consumed."""

from __future__ import annotations

from harness.client import encode_record

from rmqpy.client.consuming.process_queue import FlowControlLimits, ProcessQueue
from rmqpy.client.core.message import MessageExt
from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import MessageQueue


def received(*offsets: int) -> list[MessageExt]:
    return [
        MessageExt(
            queue=MessageQueue("T", "a", 0),
            stored=decode_message(memoryview(encode_record(offset))),
        )
        for offset in offsets
    ]


def put_pulled(queue: ProcessQueue, messages: list[MessageExt], next_offset: int) -> int:
    """Put the messages of a pull whose next offset is ``next_offset``."""
    count = queue.put(messages)
    queue.next_offset = next_offset
    return count


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_the_commit_offset_is_that_of_the_oldest_unfinished_message() -> None:
    queue = ProcessQueue(5)
    assert queue.commit_offset == 5
    put_pulled(queue, received(5, 6, 8), 10)
    first, second, third = queue.take(3)
    queue.done([second])
    assert queue.commit_offset == 5
    queue.done([first])
    assert queue.commit_offset == 8  # The broker has filtered out 7.
    queue.done([third])
    assert queue.commit_offset == 10


def test_a_repeated_pull_adds_nothing() -> None:
    queue = ProcessQueue(0)
    assert put_pulled(queue, received(0, 1, 2), 3) == 3
    queue.done(queue.take(1))
    assert put_pulled(queue, received(0, 1, 2, 3), 4) == 1
    assert offsets(queue.take(9)) == [1, 2, 3]


def test_requeued_messages_come_first() -> None:
    queue = ProcessQueue(0)
    put_pulled(queue, received(0, 1, 2), 3)
    taken = queue.take(2)
    queue.requeue(taken)
    assert offsets(queue.take(9)) == [0, 1, 2]
    assert queue.commit_offset == 0


def test_a_dropped_queue_hands_out_nothing_and_still_commits() -> None:
    queue = ProcessQueue(0)
    put_pulled(queue, received(0, 1), 2)
    running = queue.take(1)
    queue.dropped = True
    assert queue.take(1) == []
    queue.done(running)
    assert queue.commit_offset == 1


def test_a_reset_queue_accepts_the_same_messages_again() -> None:
    queue = ProcessQueue(0)
    put_pulled(queue, received(0, 1), 2)
    queue.done(queue.take(2))
    queue.reset_to(0)
    assert queue.commit_offset == 0
    assert put_pulled(queue, received(0, 1), 2) == 2


def test_a_queue_is_full_by_count_by_bytes_or_by_span() -> None:
    queue = ProcessQueue(0)
    put_pulled(queue, received(0, 1, 9), 10)
    assert queue.is_full(FlowControlLimits(messages_max=3), False)
    assert not queue.is_full(FlowControlLimits(messages_max=4), False)
    assert queue.byte_count == 3 * len(b"body")
    assert queue.is_full(FlowControlLimits(bytes_max=12), False)
    assert queue.is_full(FlowControlLimits(span_max=8), False)
    assert not queue.is_full(FlowControlLimits(span_max=8), True)
    assert not queue.is_full(FlowControlLimits(span_max=9), False)
    queue.done(queue.take(9))
    assert queue.byte_count == 0 and queue.count == 0 and queue.offsets == (0, 0)
