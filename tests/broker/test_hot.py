"""The hot path against Python: the same frames to two brokers, one with C and one without; equal
replies, equal files, equal state. Random streams come from a seed that a failure names.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve, field

from rmqpy.codec import chosen
from rmqpy.codec.message import BatchItem, encode_batch_body
from rmqpy.dledger.node import Proposal, Refused
from rmqpy.model.config_keys import BrokerRole, FlushDiskType
from rmqpy.model.errors import RemoteFault
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.net.fast_server import FeedStatus
from rmqpy.remoting.bodies import SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.connection import FrameReceiver
from rmqpy.remoting.frame import decode_command, encode_command
from rmqpy.store.watermark import Watermark
from rmqpy.testing.memory_channel import MemoryChannel

pytestmark = pytest.mark.skipif(
    chosen.implementation != "c", reason=f"no C to compare with: {chosen.reason}"
)

SEEDS = int(os.environ.get("RMQPY_HOT_SEEDS", "40"))
FRAMES = 120
GOLDEN_FRAMES = Path(__file__).parents[1] / "golden" / "wire" / "frames.jsonl"
CHUNK = 1 << 16


class _HotChannel(MemoryChannel):
    """Takes what the hot path could not send: everything, as there is no socket."""

    def unsent(self, data: bytes) -> None:
        self.write(data)

    def send_failed(self, code: int) -> None:
        raise AssertionError(code)


@define
class Pure:
    """Frames by way of Python alone."""

    kit: Any
    channels: list[MemoryChannel] = field(factory=list)
    receivers: list[FrameReceiver] = field(factory=list)

    def connect(self, peer: tuple[str, int]) -> None:
        self.channels.append(MemoryChannel(peer=peer))
        self.receivers.append(FrameReceiver())

    def receive(self, number: int, data: bytes) -> None:
        """One frame's worth at a time: what stands in front of a fault is answered."""
        channel = self.channels[number]
        if channel.closed:
            return
        commands = []
        position = 0
        try:
            while position < len(data):
                end = _frame_end(self.receivers[number], data, position)
                commands += self.receivers[number].receive(data[position:end])
                position = end
        except RemoteFault:
            self._handle(channel, commands)
            channel.closed = True
            return
        self._handle(channel, commands)

    def _handle(self, channel: MemoryChannel, commands: list[RemotingCommand]) -> None:
        # One by one: the event of a moved offset is stored before the sends of the same call.
        for command in commands:
            self.kit.broker.handle(channel, [command])

    def end_turn(self) -> None:
        self.kit.broker.turn_ended()


@define
class Hot:
    """The same by way of C, in the driver's order of steps."""

    kit: Any
    feed: Any
    channels: list[_HotChannel] = field(factory=list)
    rests: list[bytes] = field(factory=list)
    numbers: list[int] = field(factory=list)
    handed_back: Counter[int] = field(factory=Counter)
    _open: bool = False

    def connect(self, peer: tuple[str, int]) -> None:
        channel = _HotChannel(peer=peer)
        self.channels.append(channel)
        self.rests.append(b"")
        self.numbers.append(self.feed.attach(channel, -1))

    def receive(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), CHUNK):
            self._receive(number, data[start : start + CHUNK])

    def _receive(self, number: int, data: bytes) -> None:
        channel, feed = self.channels[number], self.feed
        if channel.closed:
            return
        if not self._open:
            self._open = True
            feed.open_turn()
        rest = self.rests[number]
        assert feed.put_front(rest) or not rest
        feed.give(data, len(rest))
        while (status := feed.go_on(self.numbers[number])) > FeedStatus.PARTIAL:
            if status == FeedStatus.COLD:
                if not self._cold(channel):
                    return
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            elif status == FeedStatus.OUT_FULL:
                self.kit.broker.turn_ended()
                feed.open_turn()
            else:
                assert status == FeedStatus.BAD_FRAME
                feed.flush_now(self.numbers[number])
                channel.closed = True
                return
        self.rests[number] = feed.rest()

    def _cold(self, channel: _HotChannel) -> bool:
        commands = []
        closed = False
        for frame in self.feed.cold_frames():
            try:
                commands.append(decode_command(frame))
            except RemoteFault:
                closed = True
                break
        self.feed.before_cold()
        self.handed_back.update(command.code for command in commands)
        for command in commands:
            self.kit.broker.handle(channel, [command])
        self.feed.after_cold(commands)
        if closed:
            self.feed.flush_now(self.feed_number(channel))
            channel.closed = True
        return not closed

    def feed_number(self, channel: _HotChannel) -> int:
        return self.numbers[self.channels.index(channel)]

    def end_turn(self) -> None:
        self.kit.broker.turn_ended()
        self._open = False


Pair = tuple[Pure, Hot]


@define
class Alone:
    """A group of one: what is stored is committed. Implements the log's ``Proposer``."""

    entries: Any
    limit: int
    proposed: int = -1

    def propose(self, count: int) -> Proposal | Refused:
        proposal, room = self.grant()
        if not room:
            return Refused.LEADER_PENDING_FULL
        self.proposed += count
        return proposal

    def grant(self) -> tuple[Proposal, int]:
        waiting = self.proposed - self.entries.committed_index
        return Proposal(Term(3), LedgerIndex(self.proposed + 1)), max(0, self.limit + 1 - waiting)


def lead(kit: Any, limit: int = 10_000) -> None:
    """Make the broker of a DLedger store its master."""
    log = kit.store.dledger
    log.proposer = Alone(log.entries, limit)
    log.entries.on_stored = log.entries.commit_to
    kit.store.become(slave=False)
    kit.broker.identity.role = BrokerRole.SYNC_MASTER


class Slave:
    """A slave that has every byte one turn later."""

    has_slaves = True
    slaves = ()

    def __init__(self, kit: Any) -> None:
        self.replicated = Watermark("replicated")
        kit.broker.replication.slaves = self
        kit.store.log.written.subscribe(
            lambda end: kit.scheduler.call_soon(lambda: self.replicated.advance(end))
        )


DLEDGER = {
    "enable_dledger_commit_log": True,
    "dledger_group": "broker-a",
    "dledger_peers": "n0-127.0.0.1:40911",
    "dledger_self_id": "n0",
}


@pytest.fixture
def pair(build: Callable[..., Any]) -> Iterator[Callable[..., Pair]]:
    """Makes two brokers of the same settings."""
    hots = []

    def make(**settings: Any) -> Pair:
        from rmqpy.broker.hot_setup import accelerate

        pending_limit = settings.pop("pending_limit", 10_000)
        pure, hot = build(**settings), build(**settings)
        if "enable_dledger_commit_log" in settings:
            lead(pure, pending_limit)
            lead(hot, pending_limit)
        if settings.get("broker_role") is BrokerRole.SYNC_MASTER:
            Slave(pure)
            Slave(hot)
        feed = accelerate(hot.broker, hot.store, hot.scheduler)
        feed.core.frame_max = (1 << 24) - 4
        hots.append(feed)
        return Pure(pure), Hot(hot, feed)

    yield make
    for feed in hots:
        feed.close()


def same(pair: Pair) -> None:
    """Both have said and stored the same, and know the same."""
    pure, hot = pair
    for mine, theirs in zip(pure.channels, hot.channels, strict=True):
        assert theirs.closed == mine.closed
        if mine.closed:
            # A full file commits in the middle of Python's turn: replies leave before the fault.
            assert Counter(theirs.written) <= Counter(mine.written)
        else:
            assert sorted(theirs.written) == sorted(mine.written)
    assert _files(hot.kit) == _files(pure.kit)
    mine, theirs = pure.kit.store, hot.kit.store
    assert _tails(theirs) == _tails(mine)
    assert theirs.max_physical_offset == mine.max_physical_offset
    assert theirs.confirm_offset == mine.confirm_offset
    if mine.entries is not None:
        assert theirs.entries.end == mine.entries.end
        assert theirs.entries.begin_index == mine.entries.begin_index
    counters = hot.kit.broker.statistics.counters
    expected = pure.kit.broker.statistics.counters
    for name in (
        "put_messages",
        "put_bytes",
        "put_failed",
        "get_found",
        "get_miss",
        "get_messages",
    ):
        assert getattr(counters, name) == getattr(expected, name), name
    offsets = hot.kit.broker.offsets.wrapper().encode()
    assert offsets == pure.kit.broker.offsets.wrapper().encode()
    assert hot.kit.broker.hold.count == pure.kit.broker.hold.count


def _tails(store: Any) -> dict[Any, int]:
    return {key: offset for key, offset in store.tails.items() if offset}


def _files(kit: Any) -> dict[str, bytes]:
    return {
        path: bytes(memoryview(node.data)[: node.extent]).rstrip(b"\0")
        for path, node in kit.files.nodes.items()
        if "/config/" not in path
    }


def _frame_end(receiver: FrameReceiver, data: bytes, position: int) -> int:
    """Where the frame that ``position`` is in ends in ``data``, as far as can be told."""
    needed = receiver._needed - receiver.pending_bytes
    if position + needed > len(data):
        return len(data)
    if receiver.pending_bytes == 0 and needed == 4:
        length = int.from_bytes(data[position : position + 4])
        return min(len(data), position + 4 + length)
    return position + needed


# ---- random streams

SETTINGS: list[dict[str, Any]] = [
    {},
    {},
    {"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"broker_role": BrokerRole.SYNC_MASTER},
    {"broker_role": BrokerRole.SYNC_MASTER, "flush_disk_type": FlushDiskType.SYNC_FLUSH},
    {"region_id": 'Ré"gion', "trace_on": False, "max_message_size": 700},
    {"mapped_file_size_commit_log": 1 << 13, "mapped_file_size_consume_queue": 200},
    {"max_transfer_bytes_on_message_in_memory": 900, "max_index_num": 30},
    {"message_index_enable": False, "reject_transaction_message": True},
    DLEDGER,
    {**DLEDGER, "pending_limit": 5},
    {**DLEDGER, "mapped_file_size_commit_log": 1 << 13},
]
TOPICS = ["T"] * 12 + ["U", "U", "new-topic", "SELF_TEST_TOPIC", "%RETRY%G", "é", ""]
NAMES = ["UNIQ_KEY", "WAIT", "TAGS", "KEYS", "CLUSTER", "a", "Aa", "BB", "key-1", "ключ", "b" * 40]
VALUES = [
    "x",
    "true",
    "false",
    "TagA",
    "k1 k2",
    "k1  k2 ",
    "日本",
    "a\x01b",
    "x" * 300,
    '"q"\\',
    "0",
]
RARE = ["DELAY", "TRAN_MSG", "INNER_MULTI_DISPATCH"]


@define
class Stream:
    """What a seed makes of clients."""

    dice: random.Random
    opaque: int = 0

    def frame(self) -> bytes:
        kind = self.dice.random()
        if kind < 0.55:
            command = self.send()
        elif kind < 0.7:
            command = self.batch()
        elif kind < 0.95:
            command = self.pull()
        else:
            command = self.other()
        self.opaque += 1
        command.opaque = self.dice.choice([self.opaque, -self.opaque, self.opaque << 12])
        command.serialize_type = int(self.dice.random() < 0.4)
        command.language = self.dice.choice([0, 1, 9])
        if self.dice.random() < 0.05:
            command.flag = self.dice.choice([2, 2, 4, 3])
        frame = encode_command(command)
        if command.serialize_type == 0 and self.dice.random() < 0.2:
            frame = _loosened(frame)
        return self.mutated(frame) if self.dice.random() < 0.04 else frame

    def send(self) -> RemotingCommand:
        code = self.dice.choice([310, 310, 310, 310, 320, 10])
        body = self.dice.randbytes(self.dice.choice([0, 1, 16, 128, 128, 128, 900]))
        return self._sent(code, self.header(), body)

    def batch(self) -> RemotingCommand:
        count = self.dice.choice([1, 2, 5, 16])
        items = [
            BatchItem(
                self.dice.choice([0, 7]),
                self.dice.randbytes(self.dice.choice([0, 9, 100])),
                self.properties().encode(),
            )
            for _ in range(count)
        ]
        body = encode_batch_body(items)
        if self.dice.random() < 0.1:
            body = body[: self.dice.randrange(len(body) + 1)]
        return self._sent(
            self.dice.choice([320, 320, 310, 10]), {**self.header(), "m": "true"}, body
        )

    def header(self) -> dict[str, str]:
        dice = self.dice
        fields = {
            "a": "PG",
            "b": dice.choice(TOPICS),
            "c": "TBW102",
            "d": "4",
            "e": str(dice.choice([0] * 8 + [1, 2, 3, 3, 3, 4, 99, -1])),
            "f": str(dice.choice([0] * 12 + [1, 2, 8, 4, 0x10, 0x700])),
            "g": str(dice.choice([1_600_000_000_000, 0, -5])),
            "h": str(dice.choice([0, 0, 12, -1])),
            "i": self.properties(),
            "j": str(dice.choice([0, 0, 3])),
            "k": dice.choice(["false", "true"]),
            "l": "16",
            "m": dice.choice(["false"] * 9 + ["FALSE"]),
            "n": "broker-a",
        }
        for _ in range(dice.choice([0, 0, 0, 1, 2])):
            fields.pop(dice.choice(list("ijklmn")), None)
        if dice.random() < 0.03:
            fields[dice.choice(list("abcdefgh"))] = dice.choice(
                ["", "x", "+1", "99999999999", "07"]
            )
        if dice.random() < 0.02:
            fields.pop(dice.choice(list("abcdefgh")))
        return fields

    def properties(self) -> str:
        dice = self.dice
        names = [dice.choice(NAMES) for _ in range(dice.choice([0, 1, 2, 2, 3, 3, 6, 14]))]
        if dice.random() < 0.03:
            names.append(dice.choice(RARE))
        pieces = [f"{name}\x01{dice.choice(VALUES)}" for name in names]
        if dice.random() < 0.05:
            pieces.append(dice.choice(["", "\x01", "noname", "a\x01", "\x01b"]))
        return "\x02".join(pieces) + dice.choice(["", "", "\x02"])

    def pull(self) -> RemotingCommand:
        dice = self.dice
        fields = {
            "consumerGroup": dice.choice(["CG", "CG", "CG", "TG", "BG", "nobody", "g g"]),
            "topic": dice.choice(["T", "T", "T", "U", "none"]),
            "queueId": str(dice.choice([0, 0, 1, 2, 3, 5, -1])),
            "queueOffset": str(dice.choice([0, 0, 1, 5, 20, 50, 400, -3])),
            "maxMsgNums": str(dice.choice([32, 32, 1, 5, 0, 1000])),
            "sysFlag": str(dice.choice([4, 4, 0, 1, 2, 3, 5, 7, 16, 8])),
            "commitOffset": str(dice.choice([0, 3, 77])),
            "suspendTimeoutMillis": "15000",
            "subscription": dice.choice(["*", "*", "", "TagA", "TagA || x"]),
            "subVersion": str(dice.choice([0, 0, 5, 100])),
            "expressionType": dice.choice(["TAG", "TAG", "", "SQL92"]),
        }
        for name in ("subscription", "expressionType"):
            if dice.random() < 0.2:
                del fields[name]
        return RemotingCommand(dice.choice([11, 11, 11, 361]), ext_fields=fields)

    def other(self) -> RemotingCommand:
        code, fields = self.dice.choice(
            [
                (30, {"topic": "T", "queueId": "0"}),
                (14, {"consumerGroup": "CG", "topic": "T", "queueId": "0"}),
                (15, {"consumerGroup": "CG", "topic": "T", "queueId": "1", "commitOffset": "9"}),
                (777, {}),
            ]
        )
        return RemotingCommand(code, ext_fields=fields)

    def mutated(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        for _ in range(self.dice.choice([1, 1, 3])):
            # Not the length word: a wrong one only changes where everything behind begins.
            changed[self.dice.randrange(5, len(frame))] = self.dice.choice(
                b'\0"\\{}[],:0\xff\x80z '
            )
        return bytes(changed)

    def _sent(self, code: int, fields: dict[str, str], body: bytes) -> RemotingCommand:
        if code == 10:
            fields = {LONG_NAMES.get(name, name): value for name, value in fields.items()}
        return RemotingCommand(code, ext_fields=fields, body=body)


LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def _loosened(frame: bytes) -> bytes:
    """The same header as another JSON writer would write it."""
    length = int.from_bytes(frame[5:8])
    decoded = json.loads(frame[8 : 8 + length])
    header = json.dumps(decoded, ensure_ascii=len(frame) % 2 == 0).encode() + b"\n"
    body = frame[8 + length :]
    head = (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4)
    return head + header + body


def _run(pair: Pair, dice: random.Random, frames: int = FRAMES) -> None:
    """The same stream to both, cut at random, over turns and three connections."""
    for side in pair:
        side.connect(("10.0.0.1", 1234))
        side.connect(("10.0.0.1", 1235))
        side.connect(("2001:db8::5", 40000))
        side.kit.heartbeat(group="CG", subscriptions=(SubscriptionData("T", "*", sub_version=5),))
        tags = SubscriptionData("T", "TagA || x", ["TagA", "x"], [2598919, 120], 5)
        side.kit.heartbeat(group="TG", client_id="c2", subscriptions=(tags,))
        side.kit.heartbeat(
            group="BG",
            client_id="c3",
            message_model="BROADCASTING",
            subscriptions=(SubscriptionData("T", "*", sub_version=5),),
        )
    stream = Stream(dice)
    waiting = [b"".join(stream.frame() for _ in range(frames // 3)) for _ in range(3)]
    while any(waiting):
        for _ in range(dice.choice([1, 1, 2, 4])):
            number = dice.randrange(3)
            size = dice.choice([7, 300, 1500, 4000, 20000])
            data, waiting[number] = waiting[number][:size], waiting[number][size:]
            if data:
                for side in pair:
                    side.receive(number, data)
        for side in pair:
            side.end_turn()
            side.kit.scheduler.advance(2)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_equal_on_random_streams(pair: Callable[..., Pair], seed: int) -> None:
    dice = random.Random(seed)
    both = pair(**dice.choice(SETTINGS))
    both[1].feed.core.cold_capacity = dice.choice([1, 1, 3, 32])
    _run(both, dice)
    same(both)


def test_equal_on_recorded_frames(pair: Callable[..., Pair]) -> None:
    """Every send and pull that Java clients were recorded with, twice."""
    both = pair()
    frames = [
        bytes.fromhex(line["frame"])
        for line in map(json.loads, GOLDEN_FRAMES.read_text().splitlines())
        if line["type"] != "response" and line["code"] in (10, 310, 320, 11)
    ]
    assert len(frames) > 20
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for frame in frames * 2:
            side.receive(0, frame)
            side.end_turn()
    same(both)


def _sends(count: int, **fields: str) -> bytes:
    header = {**Stream(random.Random(1)).header(), "b": "T", "e": "0", "f": "0", "g": "1", "h": "0"}
    header.update({"m": "false", "j": "0", "i": "UNIQ_KEY\x01u\x02WAIT\x01true"}, **fields)
    return b"".join(
        encode_command(RemotingCommand(310, n, ext_fields=header, body=b"b" * 100))
        for n in range(count)
    )


def test_plain_sends_and_pulls_are_hot(pair: Callable[..., Pair]) -> None:
    """The comparison above would hold as well if C handed everything back."""
    both = pair()
    pull = RemotingCommand(
        11,
        ext_fields={
            "consumerGroup": "CG",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        },
    )
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(3):
            side.receive(0, _sends(200))
            side.end_turn()
        for _ in range(5):
            side.receive(0, encode_command(pull))
            side.end_turn()
    same(both)
    hot = both[1]
    assert hot.handed_back[310] <= 32, "all behind the first of a buffer, at the most"
    assert hot.handed_back[11] == 1


def test_arrivals_wake_who_waits(pair: Callable[..., Pair]) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(50))
        side.end_turn()
        pull = side.kit.pull_command(queue_offset=50, sys_flag=6)
        side.kit.tell(pull)
        assert side.kit.broker.hold.count == 1
        side.receive(0, _sends(40))
        side.end_turn()
        assert side.kit.broker.hold.count == 0
        assert len(side.kit.channel.take_one().body) > 0
    same(both)


def test_nothing_is_answered_when_the_write_fails(pair: Callable[..., Pair]) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        side.channels[0].take()
        side.kit.files.fail_write("/commitlog/")
        side.receive(0, _sends(10))
        side.end_turn()
        answers = side.channels[0].take()
        assert [answer.code for answer in answers] == [14] * 10
    same(both)


def test_a_deleted_topic_begins_anew(pair: Callable[..., Pair]) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(2):
            side.receive(0, _sends(40))
            side.end_turn()
        delete = RemotingCommand(215, ext_fields={"topic": "T"})
        side.receive(0, encode_command(delete))
        side.end_turn()
        side.channels[0].take()
        side.receive(0, _sends(40))
        side.end_turn()
        assert side.channels[0].take()[0].ext_fields["queueOffset"] == "0"
    same(both)


def test_sync_flush_replies_wait(pair: Callable[..., Pair]) -> None:
    both = pair(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        side.receive(0, _sends(40))
        side.kit.broker.store.commit()
        assert len(side.channels[0].written) in (0, 40)
        side.end_turn()
        side.kit.scheduler.run_until_idle()
        assert len(side.channels[0].written) == 80
    same(both)


def test_replies_that_are_late_say_so(pair: Callable[..., Pair]) -> None:
    from rmqpy.broker.send import SendProcessor
    from rmqpy.model.codes import PutMessageStatus

    _, hot = pair()
    hot.connect(("10.0.0.1", 1234))
    for _ in range(2):
        hot.receive(0, _sends(40))
        hot.end_turn()
    frames = hot.channels[0].written[-3:]
    send: SendProcessor = hot.kit.broker._send
    late = send.late_frames(b"".join(frames), PutMessageStatus.FLUSH_DISK_TIMEOUT)
    commands = FrameReceiver().receive(late)
    assert [command.code for command in commands] == [10] * 3
    for before, after in zip(frames, commands, strict=True):
        sent = decode_command(memoryview(before)[4:])
        assert evolve(after, code=0, header_type=None) == evolve(sent, header_type=None)
