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
BY_KEY = int(RequestCode.QUERY_MESSAGE)
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


def send(queue_id: int, topic: str = "T", properties: str = "") -> bytes:
    fields = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": properties} if properties else {"g": "1", "h": "0"}
    return frame(310, fields, body=b"body")


def by_key(key: str, **changed: str) -> dict[str, str]:
    times = {"beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    return {"topic": "T", "key": key, "maxNum": "32", **times, **changed}


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
    assert sum(both[1].handed_back[code] for code in (UPDATE, SEARCH, MAX, MIN, QUERY)) < 350, (
        "of 480"
    )


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("code", [UPDATE, SEARCH, MAX, MIN, QUERY])
def test_after_the_first_one_c_answers(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], code: int, binary: bool
) -> None:
    both = pair()
    fields = {"topic": "T", "queueId": "0"}
    if code in (UPDATE, QUERY):
        fields |= {"consumerGroup": "CG", "commitOffset": "1"}
    if code == SEARCH:
        fields["timestamp"] = str(both[0].harness.scheduler.now_ms() + 1)
    config = SubscriptionGroupConfig(group_name="CG").encode()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, send(0) + frame(200, {}, body=config))
        side.end_turn()
        if code == QUERY:
            side.receive(0, frame(UPDATE, fields))
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


@pytest.mark.parametrize("binary", [False, True])
def test_a_committed_offset_is_shown_as_soon_as_it_changes(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], binary: bool
) -> None:
    both = pair()
    queue = {"topic": "T", "queueId": "0", "consumerGroup": "CG"}
    query = frame(QUERY, queue, binary=binary)
    group = frame(200, {}, body=SubscriptionGroupConfig(group_name="CG").encode())
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, send(0) + group)
        side.end_turn()
        for offset in (3, 5):
            side.receive(0, frame(UPDATE, {**queue, "commitOffset": str(offset)}) + query)
            side.end_turn()
        # C commits within one buffer, then Python does; then the offset is removed.
        side.receive(0, frame(UPDATE, {**queue, "commitOffset": "8"}) + query)
        side.end_turn()
        side.harness.broker.offsets.commit("CG", "T", 0, 13)
        side.receive(0, query)
        side.end_turn()
    assert_same(both)
    assert both[1].handed_back[QUERY] == 1
    for side in both:
        side.harness.broker.offsets.remove_group("CG")
        side.receive(0, query)
        side.end_turn()
    assert_same(both)
    assert both[1].handed_back[QUERY] == 2


@pytest.mark.parametrize("settings", [{}, {"max_index_num": 20, "max_hash_slot_num": 5}])
@pytest.mark.parametrize("binary", [False, True])
def test_messages_are_found_by_key(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    settings: dict[str, Any],
    binary: bool,
) -> None:
    both = pair(**settings)
    both[1].feed.core.fallback_capacity = 1
    rng = random.Random(7)
    start_ms = both[0].harness.scheduler.now_ms()
    for side in both:
        side.connect(("10.0.0.1", 1234))
    for _ in range(40):
        properties = f"KEYS\x01{rng.choice('abc')} {rng.choice('abc')}\x02"
        properties += f"UNIQ_KEY\x01{rng.randrange(30)}\x02"
        requests = [send(rng.randrange(4), rng.choice("TTU"), properties)]
        for _ in range(3):
            key, unique = rng.choice([(rng.choice("abcd"), "false"), ("7", "true"), ("8", "TRUE")])
            changed = {"_UNIQUE_KEY_QUERY": unique, "maxNum": rng.choice(["1", "5", "32", "99"])}
            if rng.random() < 0.3:
                begin = start_ms + rng.randrange(-9, 40) * 1000
                changed |= {
                    "beginTimestamp": str(begin),
                    "endTimestamp": str(begin + rng.randrange(20_000)),
                }
            if rng.random() < 0.1:
                changed[rng.choice(["maxNum", "beginTimestamp", "topic"])] = rng.choice(["x", "-1"])
            requests.append(frame(BY_KEY, by_key(key, **changed), binary=binary))
        for side in both:
            side.receive(0, b"".join(requests))
            side.end_turn()
            side.harness.scheduler.advance(997)
    assert_same(both)
    assert both[1].handed_back[BY_KEY] < 60, "of 120, 40 of them with TRUE"


def test_deleted_messages_and_damaged_chains_are_found_alike(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(mapped_file_size_commit_log=1000, max_index_num=200, max_hash_slot_num=5)
    query = frame(BY_KEY, by_key("k"))
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for number in range(40):
            side.receive(0, send(number % 4, "T", "KEYS\x01k\x02"))
            side.end_turn()
        side.receive(0, query)
        side.end_turn()
    assert_same(both)
    for side in both:
        log = side.harness.store.log
        for _ in range(3):
            log.release_oldest()
        side.receive(0, query)
        side.end_turn()
    assert_same(both)
    assert both[1].handed_back[BY_KEY] == 1
    rng = random.Random(3)
    for _ in range(60):
        number, place = rng.randrange(1, 45), rng.choice([4, 8, 12, 15, 16, 19])
        value = rng.randrange(256)
        for side in both:
            index = side.harness.store.index
            assert index is not None and index.newest is not None
            index.newest.writable[40 + 5 * 4 + number * 20 + place] = value
            side.receive(0, query)
            side.end_turn()
    assert_same(both)
