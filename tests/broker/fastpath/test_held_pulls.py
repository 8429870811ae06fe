"""Pulls that wait in C are woken and answered like those that wait in Python."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import define, field
from harness.fastpath import (
    PULL_FIELDS,
    SEND_FIELDS,
    BrokerPair,
    FallbackDriver,
    FastPathDriver,
    MakeBrokerPair,
)

from rmqpy.acl.signature import Credentials
from rmqpy.broker.fastpath import hold
from rmqpy.codec.native.binding import lib
from rmqpy.config.keys import BrokerRole, FlushDiskType
from rmqpy.remoting.bodies import SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command, encode_command

SEEDS = int(os.environ.get("RMQPY_HOT_SEEDS", "60"))
TURNS = 60

REPLY_WORK: int = lib.RMQ_REPLY_WORK

SUSPEND = "6"
"""The flag of a pull that may wait and has an expression."""

DLEDGER = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}
LOGS: list[dict[str, Any]] = [{}, DLEDGER]
IDS = ["classic", "dledger"]

Side = FallbackDriver | FastPathDriver


def pull(offset: int, opaque: int = 1, **fields: Any) -> bytes:
    values = {**PULL_FIELDS, "queueOffset": str(offset), "sysFlag": SUSPEND, **fields}
    return encode_command(RemotingCommand(11, opaque, ext_fields=values))


def sends(count: int, properties: str = "UNIQ_KEY\x01u", queue_id: int = 0) -> bytes:
    fields = {**SEND_FIELDS, "e": str(queue_id), "i": properties}
    return b"".join(
        encode_command(RemotingCommand(310, n, ext_fields=fields, body=b"b" * 40))
        for n in range(count)
    )


def held_in_c(both: BrokerPair) -> int:
    count: int = both[1].feed.core.hold.count
    return count


def begin(both: BrokerPair, connections: int = 2) -> None:
    """Connect, store 40 messages, and let C learn the group."""
    for side in both:
        for number in range(connections):
            side.connect(("10.0.0.1", 1234 + number))
        turn(side, 0, sends(40))
        turn(side, 0, pull(0))
        side.channels[0].take()


def turn(side: Side, number: int, data: bytes) -> None:
    side.receive(number, data)
    side.end_turn()


def codes(side: Side, number: int) -> list[int]:
    return [answer.code for answer in side.channels[number].take()]


@pytest.fixture(params=LOGS, ids=IDS)
def both(
    request: pytest.FixtureRequest,
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
) -> Iterator[BrokerPair]:
    """Two brokers that must be equal after the test."""
    both = pair(**request.param)
    begin(both)
    yield both
    assert_same(both)


def test_a_message_wakes_a_pull_without_python(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40))
        assert side.channels[1].written == []
        assert side.harness.broker.hold.count == 1
    assert held_in_c(both) == 1
    for side in both:
        turn(side, 0, sends(3))
        (answer,) = side.channels[1].take()
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "43")
        assert side.harness.broker.hold.count == 0
        assert side.harness.broker.statistics.counters.get_miss == 1, "before it waited"
    assert both[1].handed_back[11] == 1, "the first pull of the group"


def test_each_group_and_queue_is_woken_by_its_own_messages(both: BrokerPair) -> None:
    for side in both:
        for queue_id in (1, 2):
            turn(side, 0, sends(2, queue_id=queue_id))
        for group in ("CG", "other"):
            for queue_id in (0, 1, 2):
                at = 40 if queue_id == 0 else 2
                for _ in range(2):  # the second one after C has learned the group and the queue
                    fields: dict[str, Any] = {"consumerGroup": group, "queueId": str(queue_id)}
                    turn(side, 1, pull(0, **fields))
                turn(side, 1, pull(at, 100 + queue_id, **fields))
        side.channels[1].take()
        turn(side, 0, sends(1, queue_id=1))
        assert [answer.opaque for answer in side.channels[1].take()] == [101, 101]
        assert side.harness.broker.hold.count == 4
    assert held_in_c(both) == 4


def test_tags_select_who_is_woken(both: BrokerPair) -> None:
    for side in both:
        for opaque, tags in enumerate(["TagA", "TagB || x", "*"]):
            turn(side, 1, pull(40, opaque, subscription=tags))
        turn(side, 0, sends(2, "TAGS\x01TagB"))
        assert sorted(answer.opaque for answer in side.channels[1].take()) == [1, 2]
        turn(side, 0, sends(2, "TAGS\x01TagA"))
        (answer,) = side.channels[1].take()
        assert (answer.opaque, answer.ext_fields["nextBeginOffset"]) == (0, "44")
    assert both[1].handed_back[11] == 1


SQL: dict[str, Any] = {"subscription": "a > 1 AND b = 'x'", "expressionType": "SQL92"}


@pytest.mark.parametrize("settings", LOGS, ids=IDS)
def test_an_sql92_expression_selects_who_is_woken(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], settings: dict[str, Any]
) -> None:
    both = pair(enable_property_filter=True, **settings)
    begin(both)
    other = {**SQL, "subscription": "a = 1"}
    for side in both:
        turn(side, 0, pull(0, **SQL))  # C learns the expression.
        turn(side, 1, pull(40, 1, **SQL) + pull(40, 2))
        turn(side, 0, sends(1, "a\x011\x02b\x01x"))
        assert [answer.opaque for answer in side.channels[1].take()] == [2]
        # The group's next expression does not change that of the pull that waits.
        turn(side, 0, pull(0, **other))
        turn(side, 1, pull(41, 3, **other))
        side.channels[0].take()
        # The scan of the dispatcher in C does not read these keys: Python reports the message.
        keys = " ".join(map(str, range(40)))
        turn(side, 0, sends(1, f"KEYS\x01{keys}\x02a\x011"))
        assert [answer.opaque for answer in side.channels[1].take()] == [3]
        turn(side, 0, sends(1, f"KEYS\x01{keys}\x02a\x015\x02b\x01x"))
        (answer,) = side.channels[1].take()
        assert (answer.opaque, answer.code, answer.ext_fields["nextBeginOffset"]) == (1, 0, "43")
        assert side.harness.broker.hold.count == 0
    assert_same(both)
    assert both[1].handed_back[11] == 3, "the first pull, and the first with each expression"


def test_the_sweep_answers_a_pull_whose_expression_no_message_matched(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(enable_property_filter=True)
    begin(both)
    data = SubscriptionData("T", "a > 1", sub_version=5, expression_type="SQL92")
    group: dict[str, Any] = {"consumerGroup": "SG", "sysFlag": "2", "subVersion": "5"}
    for side in both:
        side.harness.heartbeat(group="SG", subscriptions=(data,))
        turn(side, 1, pull(0, **group))
        turn(side, 1, pull(40, 7, **group))
        side.channels[1].take()
        turn(side, 0, sends(2, "a\x011"))
        assert codes(side, 1) == []
        assert side.harness.broker.hold.count == 1
    assert held_in_c(both) == 1
    for side in both:
        side.harness.scheduler.advance(5_000)
        (answer,) = side.channels[1].take()
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "42")
    assert_same(both)
    assert both[1].handed_back[11] == 2


def test_the_sweep_answers_a_pull_whose_tags_no_message_had(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40, subscription="TagB"))
        turn(side, 0, sends(2, "TAGS\x01TagA"))
        assert codes(side, 1) == []
        side.harness.scheduler.advance(5_000)
        (answer,) = side.channels[1].take()
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "42")


@pytest.mark.parametrize("binary", [0, 1])
def test_a_pull_waits_as_long_as_it_says(both: BrokerPair, binary: int) -> None:
    for side in both:
        frame = encode_command(
            RemotingCommand(
                11,
                -7,
                serialize_type=binary,
                ext_fields=_fields(pull(40, suspendTimeoutMillis="12000")),
            )
        )
        turn(side, 1, frame)
        side.harness.scheduler.advance(14_999)
        assert codes(side, 1) == []
        side.harness.scheduler.advance(1)
        (answer,) = side.channels[1].take()
        assert (answer.code, answer.opaque, answer.remark) == (19, -7, "OFFSET_OVERFLOW_ONE")
        assert side.harness.broker.statistics.counters.get_miss == 2
    assert both[1].handed_back[11] == 1


def _fields(frame: bytes) -> dict[str, str]:
    return decode_command(memoryview(frame)[4:]).ext_fields


def test_short_polling(pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]) -> None:
    both = pair(long_polling_enable=False)
    begin(both)
    for side in both:
        turn(side, 1, pull(40))
        side.harness.scheduler.advance(1_000)
        assert codes(side, 1) == [19]
    assert_same(both)
    assert both[1].handed_back[11] == 1


def test_a_pull_that_waits_commits_its_offset_once(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40, sysFlag="7", commitOffset="33"))
        side.harness.broker.offsets.commit("CG", "T", 0, 35)
        turn(side, 0, sends(1))
        assert codes(side, 1) == [0]
        assert side.harness.broker.offsets.get("CG", "T", 0) == 35


def test_a_closed_connection_gets_no_answer_and_nor_does_the_next_one_with_its_number(
    both: BrokerPair,
) -> None:
    for side in both:
        turn(side, 1, pull(40))
        turn(side, 1, pull(40, 2, queueId="0", subscription="TagA"))
        side.close(1)
        side.end_turn()
        side.connect(("10.0.0.1", 4321))
        turn(side, 2, pull(40, 3))
        turn(side, 0, sends(1))
        assert [answer.opaque for answer in side.channels[2].take()] == [3]
        assert side.harness.broker.hold.count == 1, "until the sweep"
        misses = side.harness.broker.statistics.counters.get_miss
        side.harness.scheduler.advance(5_000)
        assert side.harness.broker.hold.count == 0
        assert side.harness.broker.statistics.counters.get_miss == misses
    assert both[1].numbers[2] == both[1].numbers[1]


def test_a_pull_outlives_the_tables_that_it_was_found_in(both: BrokerPair) -> None:
    """A new topic discards them; the next pulls are learned from the one that Python resumes."""
    for side in both:
        for opaque in range(3):
            turn(side, 1, pull(40, opaque))
        side.harness.broker.topics.create_for_group("another", 4)
        turn(side, 0, sends(2))
        assert codes(side, 1) == [0, 0, 0]
        turn(side, 1, pull(42))
    assert held_in_c(both) == 1
    assert both[1].handed_back[11] == 1


def test_the_subscription_at_the_time_of_the_pull_decides_about_arrivals(
    both: BrokerPair,
) -> None:
    def subscribe(side: Side, tag: str, code: int, version: int) -> None:
        data = SubscriptionData("T", tag, [tag], [code], version)
        side.harness.heartbeat(group="SG", subscriptions=(data,))

    for side in both:
        subscribe(side, "TagA", 2598919, 1)
        for offset in (0, 40):
            turn(side, 1, pull(offset, offset, consumerGroup="SG", sysFlag="2", subVersion="1"))
        assert codes(side, 1) == [20]
        subscribe(side, "TagB", 2598920, 2)
        turn(side, 0, sends(1, "TAGS\x01TagB"))
        assert codes(side, 1) == [], "it waits for TagA"
        turn(side, 0, sends(1, "TAGS\x01TagA"))
        (answer,) = side.channels[1].take()
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "42")
    assert held_in_c(both) == 0


def test_a_deleted_topic_is_an_error_when_the_time_is_over(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40))
        side.harness.broker.topics.delete("T")
        side.harness.scheduler.advance(15_000)
        assert codes(side, 1) == [17]


def test_a_topic_that_is_created_again_wakes_those_who_waited_for_the_old_one(
    both: BrokerPair,
) -> None:
    for side in both:
        turn(side, 1, pull(40))
        turn(side, 0, encode_command(RemotingCommand(215, ext_fields={"topic": "T"})))
        side.harness.scheduler.advance(10)
        side.channels[0].take()
        turn(side, 0, sends(1))
        assert codes(side, 0) == [0]
        assert codes(side, 1) == [], "its offset is higher"
        turn(side, 0, sends(45))
        assert codes(side, 1) == [0]


def test_a_broker_that_may_not_be_read_any_more_refuses_held_pulls(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40))
        side.harness.broker.identity.note_diverged("it differs")
        side.harness.scheduler.advance(15_000)
        assert codes(side, 1) == [16]


def test_a_paused_feed_leaves_held_pulls_to_python(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40))
    both[1].feed.pause(True)
    for side in both:
        turn(side, 0, sends(2))
        assert codes(side, 1) == [0]
    both[1].feed.pause(False)


def test_a_full_hold_answers_at_once(both: BrokerPair) -> None:
    for side in both:
        side.harness.broker.hold._limit = 2
        side.end_turn()
        for opaque in range(4):
            turn(side, 1, pull(40, opaque))
        assert [answer.opaque for answer in side.channels[1].take()] == [2, 3]
    assert held_in_c(both) == 2


def test_python_holds_what_is_too_large_for_c(both: BrokerPair) -> None:
    for side in both:
        turn(side, 1, pull(40, subscription=" " * 800 + "TagA"))
        turn(side, 0, sends(1, "TAGS\x01TagA"))
        assert codes(side, 1) == [0]
    assert both[1].handed_back[11] == 2


@pytest.mark.parametrize("settings", LOGS, ids=IDS)
@pytest.mark.parametrize("connections", [1, 20, 80])
def test_a_message_for_many_groups_wakes_them_in_slices(
    pair: MakeBrokerPair,
    monkeypatch: pytest.MonkeyPatch,
    connections: int,
    settings: dict[str, Any],
) -> None:
    """In their order, with other work between the slices, of which each system call is a part."""
    work = 300
    monkeypatch.setattr(hold, "WORK_AT_ONCE", work)
    both = pair(**settings)
    begin(both, 1 + connections)
    sent_to = min(connections, work // (1 + REPLY_WORK))
    slice_count = sent_to + work - sent_to * (1 + REPLY_WORK)
    count = slice_count + connections
    for side in both:
        for opaque in range(count):
            side.receive(1 + opaque % connections, pull(40, opaque, maxMsgNums="1"))
        side.end_turn()
        turn(side, 0, sends(1))
    assert held_in_c(both) == 0
    fast = both[1]
    answered = [answer.opaque for channel in fast.channels[1:] for answer in channel.take()]
    assert sorted(answered) == [*range(slice_count)]
    turn(fast, 0, sends(1))
    turn(both[0], 0, sends(1))
    for side in both:
        side.harness.scheduler.run_until_idle()
        for channel in side.channels[1:]:
            channel.take()
        assert sum(len(channel.written) for channel in side.channels[1:]) == count
    assert fast.handed_back[11] == 1


def test_a_resumed_pull_gives_no_rights_under_new_rules(pair: MakeBrokerPair) -> None:
    """It was allowed before it waited, and is answered; C learns that the next one is not."""
    path = "/rocketmq/conf/plain_acl.yml"
    rules = """\
accounts:
- {accessKey: plain-user, secretKey: plain-secret, topicPerms: [T=PUB|SUB], groupPerms: [CG=SUB]}
"""
    both = pair(acl_enable=True, rocketmq_home="/rocketmq", given_files={path: rules})
    signer = Credentials("plain-user", "plain-secret")

    def signed(frame: bytes) -> bytes:
        command = decode_command(memoryview(frame)[4:])
        return encode_command(signer.signed(command))

    for side in both:
        side.connect(("10.0.0.1", 1234))
        turn(side, 0, signed(sends(1)))
        for offset in (0, 1):
            turn(side, 0, signed(pull(offset)))
    assert held_in_c(both) == 1
    for side in both:
        side.harness.files.put(path, rules.replace("CG=SUB", "CG=DENY").encode())
        side.harness.scheduler.advance(6_000)
        side.channels[0].take()
        turn(side, 0, signed(sends(1)))
        assert codes(side, 0) == [0, 0], "the send and the pull that waited"
        turn(side, 0, signed(pull(0)))
        assert codes(side, 0) == [1]


# ------------------------------------------------------------------------------ random streams

SETTINGS: list[dict[str, Any]] = [
    {},
    {},
    {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"broker_role": BrokerRole.SYNC_MASTER},
    {"mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 200},
    {"max_transfer_bytes_on_message_in_memory": 900, "message_index_enable": False},
    {"long_polling_enable": False, "short_polling_time_mills": 300},
    {"enable_property_filter": True},
    {"enable_property_filter": True, "mapped_file_size_consume_queue": 200},
    DLEDGER,
    {**DLEDGER, "mapped_file_size_commit_log": 1 << 13},
]
CONNECTIONS = 4


@define
class Tail:
    """Consumers that wait at the ends of queues, senders, and everything that changes meanwhile;
    repeatable by its seed.
    """

    both: BrokerPair
    rng: random.Random
    opaque: int = 0
    open: list[int] = field(factory=list)

    def run(self, check: Callable[[BrokerPair], None]) -> None:
        for _ in range(CONNECTIONS):
            self.connect()
        for _ in range(TURNS):
            for _ in range(self.rng.choice([1, 1, 2, 4])):
                number = self.rng.choice(self.open)
                data = b"".join(self.frame() for _ in range(self.rng.choice([1, 1, 2, 5])))
                for side in self.both:
                    side.receive(number, data)
            wait_ms = self.rng.choice([0, 1, 2, 2, 10, 900, 5_000])
            for side in self.both:
                side.end_turn()
            self.change()
            for side in self.both:
                side.harness.scheduler.advance(wait_ms)
            check(self.both)

    def connect(self) -> None:
        self.open.append(len(self.both[0].channels))
        for side in self.both:
            side.connect(("10.0.0.1", 1000 + self.open[-1]))

    def frame(self) -> bytes:
        self.opaque += 1
        if self.rng.random() < 0.35:
            tags = self.rng.choice(
                ["", "TAGS\x01TagA", "TAGS\x01TagB", "DELAY\x011", "a\x011", "a\x012\x02b\x01x"]
            )
            return self.marked(sends(self.rng.choice([1, 1, 3]), tags, self.rng.choice([0, 0, 1])))
        return self.marked(self.tailing_pull())

    def marked(self, frames: bytes) -> bytes:
        return frames

    def tailing_pull(self) -> bytes:
        rng = self.rng
        queue_id = rng.choice([0, 0, 0, 1, 3])
        end = self.both[0].harness.store.reader.max_queue_offset("T", queue_id)
        fields: dict[str, Any] = {
            "consumerGroup": rng.choice(["CG", "CG", "TG", "G2", "BG", "SG", "nobody"]),
            "queueId": str(queue_id),
            "sysFlag": rng.choice(["6", "6", "6", "2", "2", "3", "7", "4"]),
            "commitOffset": str(rng.choice([0, 3, end])),
            "suspendTimeoutMillis": str(rng.choice([0, 100, 5_000, 15_000, 1 << 50])),
            "subscription": rng.choice(["*", "*", "TagA", "TagB||TagA", "none", " || "]),
            "maxMsgNums": str(rng.choice([32, 1])),
            "subVersion": str(rng.choice([0, 0, 5])),
        }
        if rng.random() < 0.3:
            fields["expressionType"] = "SQL92"
            fields["subscription"] = rng.choice(["a > 1", "a = 1 OR b = 'x'", "b IS NULL", "a >"])
        command = RemotingCommand(
            11,
            self.opaque,
            ext_fields=_fields(pull(max(0, end + rng.choice([0, 0, 0, 0, 1, -2])), **fields)),
            serialize_type=int(rng.random() < 0.3),
        )
        if rng.random() < 0.04:
            command.flag = 2
        return encode_command(command)

    def change(self) -> None:
        """Perhaps change something on which held pulls depend."""
        kind = self.rng.random()
        if kind < 0.05:
            tag, code = self.rng.choice([("TagA", 2598919), ("TagB", 2598920)])
            data = SubscriptionData("T", tag, [tag], [code], self.rng.choice([1, 5, 9]))
            for side in self.both:
                side.harness.heartbeat(group="TG", subscriptions=(data,))
        elif kind < 0.07:
            text = self.rng.choice(["a > 1", "a = 1", "b = 'x'"])
            data = SubscriptionData("T", text, sub_version=self.opaque, expression_type="SQL92")
            for side in self.both:
                side.harness.heartbeat(group="SG", subscriptions=(data,))
        elif kind < 0.1:
            number = self.open.pop(self.rng.randrange(len(self.open)))
            for side in self.both:
                side.close(number)
            self.connect()
        elif kind < 0.12:
            for side in self.both:
                side.harness.broker.topics.create_for_group(f"another-{self.opaque}", 4)
        elif kind < 0.14:
            for side in self.both:
                side.harness.broker.topics.delete("T")
        elif kind < 0.16:
            self.both[1].feed.pause(self.rng.random() < 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_on_random_tails(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], seed: int
) -> None:
    rng = random.Random(seed)
    both = pair(**rng.choice(SETTINGS))
    both[1].feed.core.fallback_capacity = rng.choice([1, 3, 32])
    everything = (SubscriptionData("T", "*", sub_version=5),)
    for side in both:
        side.harness.heartbeat(group="CG", subscriptions=everything)
        side.harness.heartbeat(
            group="BG", client_id="c3", message_model="BROADCASTING", subscriptions=everything
        )
    Tail(both, rng).run(assert_same)
