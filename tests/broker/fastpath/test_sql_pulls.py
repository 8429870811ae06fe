"""Pulls with SQL92 filters on the fast path: the same answers, until the filters change."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from harness.broker import response_bodies
from harness.fastpath import BrokerPair, MakeBrokerPair

from rmqpy.broker.fastpath.poller import CAN_WATCH
from rmqpy.broker.filter.sql_program import UNITS_MIN, WORK_MAX
from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.net.server.feed_api import FeedStatus
from rmqpy.remoting.bodies import SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.testing.memory_channel import MemoryChannel

PULL = 11
SHARE_MIN, SHARE_MAX = 300, 500
"""Limits of the messages that are the share of the pulls of these tests in a turn."""

SETTINGS: dict[str, Any] = {
    "enable_property_filter": True,
    "mapped_file_size_consume_queue": 20 * 4_000,
    "mapped_file_size_commit_log": 1 << 21,
}
EXPRESSION = "a BETWEEN 10 AND 20 AND b='x'"
ASSERT = Callable[[BrokerPair], None]


def properties_of(number: int) -> bytes:
    return f"a\x01{number % 200}\x02KEYS\x01k{number}\x02b\x01{'xy'[number // 7 % 2]}".encode()


def fill(both: BrokerPair, count: int, properties: Callable[[int], bytes] = properties_of) -> None:
    """Store messages in queue 0 of topic T."""
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for first in range(0, count, 100):
            numbers = range(first, min(first + 100, count))
            items = [BatchItem(0, b"%d" % number, properties(number)) for number in numbers]
            command = side.harness.send_command(encode_batch_body(items), batch=True)
            side.receive(0, encode_command(command))
            side.end_turn()
        side.channels[0].take()


def pull(both: BrokerPair, offset: int = 0, **fields: Any) -> list[RemotingCommand]:
    """Let both answer a pull, and return the two answers."""
    answers = []
    for side in both:
        fields = {"sys_flag": 4, "subscription": EXPRESSION, "expression_type": "SQL92"} | fields
        command = side.harness.pull_command(queue_offset=offset, max_msg_nums=32, **fields)
        side.receive(0, encode_command(command))
        side.end_turn()
        answers += side.channels[0].take()
    return answers


def pull_all(both: BrokerPair, **fields: Any) -> list[tuple[int, str]]:
    """Pull to the end of the queue and return codes and next offsets, which both agree on."""
    seen = []
    offset = 0
    while True:
        expected, answer = pull(both, offset, **fields)
        assert (answer.code, answer.ext_fields, answer.body) == (
            expected.code,
            expected.ext_fields,
            expected.body,
        )
        seen.append((answer.code, answer.ext_fields["nextBeginOffset"]))
        if answer.code == 19:
            return seen
        offset = int(answer.ext_fields["nextBeginOffset"])


def handed_back(both: BrokerPair) -> int:
    return both[1].handed_back[PULL]


def test_an_expression_of_requests_takes_the_fast_path(
    pair: MakeBrokerPair, assert_same: ASSERT
) -> None:
    both = pair(**SETTINGS)
    fill(both, 2_000)
    assert len(pull_all(both)) == 4
    assert handed_back(both) == 1, "the first one"
    for text in ("a = 7", "a =\t7 -- \\seven\n", "b = '\U0001f600' OR a = 'ü' OR a = 8"):
        before = handed_back(both)
        pull_all(both, subscription=text)
        assert handed_back(both) == before + 1
    assert_same(both)


def test_nothing_matches_so_the_consumer_continues_after_the_window(
    pair: MakeBrokerPair, assert_same: ASSERT
) -> None:
    both = pair(**SETTINGS)
    fill(both, 2_000)
    seen = pull_all(both, subscription="c = 1")
    assert seen == [(20, "800"), (20, "1600"), (20, "2000"), (19, "2000")]
    assert handed_back(both) == 1
    assert_same(both)


def test_an_expensive_expression_examines_fewer_messages(
    pair: MakeBrokerPair, assert_same: ASSERT
) -> None:
    both = pair(**SETTINGS)
    fill(both, 100)
    for count, limit in ((200, WORK_MAX // (32 + 5 * 200 - 2)), (1_000, UNITS_MIN)):
        text = " OR ".join(f"c = {number}" for number in range(count))
        seen = pull_all(both, subscription=text)
        assert seen[0] == (20, str(limit))
        assert len(seen) == -(-100 // limit) + 1
    assert_same(both)


@pytest.mark.parametrize("change", ["expression", "version", "switched off"])
def test_a_registered_filter_is_used_until_it_changes(
    pair: MakeBrokerPair, assert_same: ASSERT, change: str
) -> None:
    both = pair(**SETTINGS)
    fill(both, 100)

    def register(text: str, version: int) -> None:
        data = SubscriptionData("T", text, sub_version=version, expression_type="SQL92")
        for side in both:
            side.harness.heartbeat(MemoryChannel(), subscriptions=(data,))

    def answers(version: int) -> list[int]:
        return [answer.code for answer in pull(both, sys_flag=0, sub_version=version)]

    register("a = 7", 5)
    for _ in range(3):
        assert answers(5) == [0, 0]
    assert answers(6) == [25, 25], "the broker's subscription is older"
    assert handed_back(both) == 2, "the first one, and the refused one"
    if change == "expression":
        register("a = 700", 6)
    elif change == "version":
        register("a = 7", 6)
    else:
        for side in both:
            identity = side.harness.broker.identity
            settings = evolve(identity.broker_settings, enable_property_filter=False)
            identity.change_configuration(evolve(identity.configuration, broker=settings))
    assert answers(5) == {"expression": [20] * 2, "version": [0] * 2}.get(change, [1, 1])
    assert handed_back(both) == 3
    assert_same(both)


@pytest.mark.parametrize("text", ["0x10p0", "٣"])
def test_values_that_only_python_converts(
    pair: MakeBrokerPair, assert_same: ASSERT, text: str
) -> None:
    both = pair(**SETTINGS)
    fill(both, 100, lambda number: f"a\x01{text if number == 50 else 1}".encode())
    for expression in ("a = 1", "a > 0.5"):
        pull_all(both, subscription=expression)
    assert_same(both)
    assert handed_back(both) > 2


def test_filters_have_their_share_of_a_turn(pair: MakeBrokerPair) -> None:
    _, fast = both = pair(**SETTINGS)
    fill(both, 1_000)
    pull(both, subscription="c = 1")
    command = fast.harness.pull_command(sys_flag=4, subscription="c = 1", expression_type="SQL92")
    feed = fast.feed
    feed.refresh()
    feed.feed(encode_command(command) * 9)
    assert feed.resume(0) == FeedStatus.OUT_SHARE
    assert feed.core.in_position == len(encode_command(command))
    other = fast.harness.pull_command(queue_offset=999, sys_flag=4)
    rest = feed.rest()
    for frame, status in (
        (encode_command(other), FeedStatus.DONE),
        (encode_command(command), FeedStatus.OUT_SHARE),
    ):
        feed.feed(frame)
        assert feed.resume(0) == status
    for _ in range(8):
        fast.end_turn()
        feed.refresh()
        feed.feed(rest)
        assert feed.resume(0) in (FeedStatus.OUT_SHARE, FeedStatus.PARTIAL, FeedStatus.DONE)
        rest = feed.rest()
    assert not rest
    fast.end_turn()
    assert len(fast.channels[0].take()) == 9 + 1


def test_waiting_pulls_that_filter_have_their_share_of_a_slice(
    pair: MakeBrokerPair, assert_same: ASSERT
) -> None:
    """Each examines what has arrived since it waits, which no message limits."""
    both = pair(**SETTINGS)
    fill(both, 100)
    pull_all(both, subscription="c = 1")
    count = 40
    for side in both:
        command = side.harness.pull_command(
            queue_offset=100, sys_flag=6, subscription="c = 1", expression_type="SQL92"
        )
        side.receive(0, encode_command(command) * count)
        side.end_turn()
    state = both[1].feed.core.hold
    assert state.count == count
    fill(both, 1_000)
    before = state.slice
    for side in both:
        side.harness.scheduler.advance(5_000)
        assert [answer.code for answer in side.channels[0].take()] == [20] * count
    assert state.slice - before >= count // 2
    assert_same(both)


@pytest.mark.skipif(not CAN_WATCH, reason="this system has no epoll")
def test_a_pull_ends_after_its_share_if_another_connection_waits(pair: MakeBrokerPair) -> None:
    _, fast = both = pair(**SETTINGS)
    fill(both, 1_000)
    pull(both, subscription="c = 1")
    ready = fast.feed.ready
    assert ready is not None
    command = fast.harness.pull_command(sys_flag=4, subscription="c = 1", expression_type="SQL92")

    def examined() -> int:
        fast.receive(0, encode_command(command))
        fast.end_turn()
        (answer,) = fast.channels[0].take()
        return int(answer.ext_fields["nextBeginOffset"])

    near, far = socket.socketpair()
    with near, far:
        number = fast.feed.attach(fast.channels[0], far.fileno())
        ready.watch(number, True)
        assert examined() == 800
        near.send(b"x")
        assert SHARE_MIN < examined() < SHARE_MAX
        fast.feed.core.peers[number].filters = 1
        assert examined() == 800


def test_a_pull_ends_after_its_share_if_a_message_is_staged(pair: MakeBrokerPair) -> None:
    _, fast = both = pair(**SETTINGS)
    fill(both, 1_000)
    pull(both, subscription="c = 1")
    command = fast.harness.pull_command(sys_flag=4, subscription="c = 1", expression_type="SQL92")
    send = fast.harness.send_command(encode_batch_body([BatchItem(0, b"", b"")]), batch=True)
    fast.receive(0, encode_command(send) + encode_command(command))
    fast.end_turn()
    examined = [
        int(answer.ext_fields["nextBeginOffset"])
        for answer in fast.channels[0].take()
        if "nextBeginOffset" in answer.ext_fields
    ]
    assert len(examined) == 1 and SHARE_MIN < examined[0] < SHARE_MAX


@pytest.mark.skipif(not CAN_WATCH, reason="this system has no epoll")
def test_connections_that_filter_are_read_after_the_others_and_within_their_share(
    pair: MakeBrokerPair,
) -> None:
    _, fast = both = pair(**SETTINGS)
    fill(both, 1_000)
    pull(both, subscription="c = 1")
    feed, ready = fast.feed, fast.feed.ready
    assert ready is not None
    filtered = fast.harness.pull_command(sys_flag=4, subscription="c = 1", expression_type="SQL92")
    plain = fast.harness.pull_command(queue_offset=999, sys_flag=4)
    pairs = [socket.socketpair() for _ in range(2)]
    try:
        first, second = (feed.attach(fast.channels[0], far.fileno()) for _, far in pairs)
        for (near, _), number, command in zip(
            pairs, (first, second), (filtered, plain), strict=True
        ):
            ready.watch(number, True)
            near.send(encode_command(command))
        feed.core.peers[first].filters = 1
        feed.core.scan_work = feed.core.scan_work_max
        for readable in ([pairs[0][1]], []):
            feed.refresh()
            assert ready.receive(feed.core, True) == FeedStatus.NONE_LEFT
            fast.end_turn()
            assert select.select([far for _, far in pairs], [], [], 0)[0] == readable
        feed.core.peers[first].filters = 1
        for near, _ in pairs:
            near.send(encode_command(plain))
        feed.refresh()
        assert ready.receive(feed.core, True) == FeedStatus.NONE_LEFT
        assert ready.drained() == [second, first]
        fast.end_turn()
    finally:
        for each in (*pairs[0], *pairs[1]):
            each.close()


def test_retries_are_filtered_by_their_original_topic(
    pair: MakeBrokerPair, assert_same: ASSERT
) -> None:
    both = pair(filter_support_retry=True, **SETTINGS)
    subscriptions = (
        SubscriptionData("T", "n = 1", sub_version=1, expression_type="SQL92"),
        SubscriptionData("%RETRY%CG", "*", sub_version=1),
    )
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.harness.heartbeat(MemoryChannel(), subscriptions=subscriptions)
        for number in range(3):
            properties = f"n\x01{number}\x02RETRY_TOPIC\x01T"
            side.harness.send(b"%d" % number, topic="%RETRY%CG", properties=properties)
    for _ in range(3):
        expected, answer = pull(both, topic="%RETRY%CG", sys_flag=0, sub_version=1)
        assert response_bodies(answer) == response_bodies(expected) == [b"1"]
    assert_same(both)
