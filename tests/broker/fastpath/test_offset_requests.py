"""C shows offsets of queues and messages, and stores the offsets of consumers, as Python does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from harness.fastpath import BrokerPair, MakeBrokerPair

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import SubscriptionGroupConfig
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

VIEW = int(RequestCode.VIEW_MESSAGE_BY_ID)
UPDATE, SEARCH, MAX, MIN, QUERY = (
    int(RequestCode.UPDATE_CONSUMER_OFFSET),
    int(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    int(RequestCode.GET_MAX_OFFSET),
    int(RequestCode.GET_MIN_OFFSET),
    int(RequestCode.QUERY_CONSUMER_OFFSET),
)


def frame(code: int, fields: dict[str, str], *, body: bytes = b"", binary: bool = False) -> bytes:
    command = RemotingCommand(code, 7, ext_fields=fields, body=body)
    command.serialize_type = int(binary)
    return bytes(encode_command(command))


def send(queue_id: int, topic: str = "T") -> bytes:
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    return frame(310, {**fields, "g": "1", "h": "0"}, body=b"body")


def about_queue(rng: random.Random, now_ms: int) -> bytes:
    fields = {
        "topic": rng.choice(["T"] * 8 + ["U", "none", "b@d"]),
        "queueId": rng.choice(["0", "0", "1", "2", "3"] * 3 + ["9", "-1", "70000", "x"]),
    }
    code = rng.choice([UPDATE, UPDATE, SEARCH, SEARCH, MAX, MIN, QUERY])
    if code == SEARCH:
        fields["timestamp"] = str(rng.choice([now_ms - rng.randrange(-9, 70)] * 9 + [0, -1]))
    if code in (UPDATE, QUERY):
        fields["consumerGroup"] = rng.choice(["CG"] * 6 + ["other", "b@d"])
        fields["commitOffset"] = rng.choice(["0", "5", "77"] * 4 + ["-1", "", "1" * 19])
    if rng.random() < 0.1:
        del fields[rng.choice([*fields])]
    command = RemotingCommand(code, rng.randrange(99), ext_fields=fields)
    command.serialize_type = rng.randrange(2)
    command.flag = rng.choice([0, 0, 2])
    return bytes(encode_command(command))


@pytest.mark.parametrize("settings", [{}, {"mapped_file_size_consume_queue": 200}])
def test_random_requests_are_answered_alike(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], settings: dict[str, Any]
) -> None:
    both = pair(**settings)
    both[1].feed.core.fallback_capacity = 1  # only the frame itself falls back
    rng = random.Random(4)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, frame(200, {}, body=SubscriptionGroupConfig(group_name="CG").encode()))
    for turn in range(30):
        frames = [about_queue(rng, both[0].harness.scheduler.now_ms()) for _ in range(16)]
        frames += [send(rng.randrange(4), rng.choice("TU")) for _ in range(3)]
        if turn % 10 == 9:
            config = SubscriptionGroupConfig(group_name="CG", consume_enable=turn != 9)
            frames.append(frame(200, {}, body=config.encode()))
            frames.append(frame(215, {"topic": "U"}))
        rng.shuffle(frames)
        for side in both:
            side.receive(0, b"".join(frames))
            side.end_turn()
            side.harness.scheduler.advance(2)
    assert_same(both)
    assert sum(both[1].handed_back[code] for code in (UPDATE, SEARCH, MAX, MIN)) < 300, "of 410"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("code", [UPDATE, SEARCH, MAX, MIN])
def test_after_the_first_one_c_answers(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], code: int, binary: bool
) -> None:
    both = pair()
    fields = {"topic": "T", "queueId": "0"}
    if code == UPDATE:
        fields |= {"consumerGroup": "CG", "commitOffset": "1"}
    if code == SEARCH:
        fields["timestamp"] = str(both[0].harness.scheduler.now_ms() + 1)
    config = SubscriptionGroupConfig(group_name="CG").encode()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, send(0) + frame(200, {}, body=config))
        side.end_turn()
        for number in range(4):
            if code == UPDATE:
                fields["commitOffset"] = str(number)
            side.receive(0, send(0) + frame(code, fields, binary=binary))
            side.end_turn()
    assert_same(both)
    assert both[1].handed_back[code] == 1
    for side in both:
        side.receive(0, frame(215, {"topic": "T"}) + frame(code, fields, binary=binary))
        side.end_turn()
    assert_same(both)
    assert both[1].handed_back[code] == 2


@pytest.mark.parametrize("binary", [False, True])
def test_messages_are_shown_by_their_offset(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], binary: bool
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, send(0) + send(1))
        side.end_turn()
    units = both[0].harness.store.reader.queue_units("T", 1, 0, 1)
    offsets = [0, units[0][0], units[0][0] + 1, 99_999, -1]
    for side in both:
        for offset in [*offsets, *offsets]:
            side.receive(0, frame(VIEW, {"offset": str(offset)}, binary=binary))
            side.end_turn()
    assert_same(both)
    assert [len(answer.body) for answer in both[1].channels[0].take()[-5:-2]] == [105, 105, 0]
    assert both[1].handed_back[VIEW] == 1 + 3 * 2, "the first one, and those that find nothing"
