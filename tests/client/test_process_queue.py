"""What a consumer holds of one queue: handed out in order, committed only when it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqpy.client.consuming.process_queue import FlowControlLimits, ProcessQueue
from rmqpy.client.core.message import MessageExt
from rmqpy.codec.message import decode_message
from rmqpy.remoting.bodies import MessageQueue

Received = Callable[..., list[MessageExt]]


@pytest.fixture
def received(record: Callable[..., bytes]) -> Received:
    def made(*offsets: int) -> list[MessageExt]:
        queue = MessageQueue("T", "a", 0)
        return [
            MessageExt(queue=queue, stored=decode_message(memoryview(record(offset))))
            for offset in offsets
        ]

    return made


def pulled(held: ProcessQueue, messages: list[MessageExt], next_offset: int) -> int:
    count = held.put(messages)
    held.next_offset = next_offset
    return count


def offsets(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_commits_behind_the_oldest_message_that_is_not_done(received: Received) -> None:
    held = ProcessQueue(5)
    assert held.commit_offset == 5
    pulled(held, received(5, 6, 8), 10)
    first, second, third = held.take(3)
    held.done([second])
    assert held.commit_offset == 5
    held.done([first])
    assert held.commit_offset == 8  # 7 was filtered out by the broker
    held.done([third])
    assert held.commit_offset == 10


def test_a_repeated_pull_adds_nothing(received: Received) -> None:
    held = ProcessQueue(0)
    assert pulled(held, received(0, 1, 2), 3) == 3
    held.done(held.take(1))
    assert pulled(held, received(0, 1, 2, 3), 4) == 1
    assert offsets(held.take(9)) == [1, 2, 3]


def test_again_comes_before_what_waits(received: Received) -> None:
    held = ProcessQueue(0)
    pulled(held, received(0, 1, 2), 3)
    taken = held.take(2)
    held.requeue(taken)
    assert offsets(held.take(9)) == [0, 1, 2]
    assert held.commit_offset == 0


def test_a_dropped_queue_hands_out_nothing_and_still_commits_what_ends(received: Received) -> None:
    held = ProcessQueue(0)
    pulled(held, received(0, 1), 2)
    running = held.take(1)
    held.dropped = True
    assert held.take(1) == []
    held.done(running)
    assert held.commit_offset == 1


def test_moved_back_takes_the_same_messages_again(received: Received) -> None:
    held = ProcessQueue(0)
    pulled(held, received(0, 1), 2)
    held.done(held.take(2))
    held.reset_to(0)
    assert held.commit_offset == 0
    assert pulled(held, received(0, 1), 2) == 2


def test_full_by_count_by_bytes_and_by_span(received: Received) -> None:
    held = ProcessQueue(0)
    pulled(held, received(0, 1, 9), 10)
    assert held.is_full(FlowControlLimits(messages_max=3), False)
    assert not held.is_full(FlowControlLimits(messages_max=4), False)
    assert held.byte_count == 3 * len(b"body")
    assert held.is_full(FlowControlLimits(bytes_max=12), False)
    assert held.is_full(FlowControlLimits(span_max=8), False)
    assert not held.is_full(FlowControlLimits(span_max=8), True)
    assert not held.is_full(FlowControlLimits(span_max=9), False)
    held.done(held.take(9))
    assert held.byte_count == 0 and held.count == 0 and held.offsets == (0, 0)
