"""The fast path compared with the Python path.

Two brokers with the same settings, one with the fast path and one without, receive the same
frames. Replies, files, and state must be equal. Random streams are derived from a seed that a
failure names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence

from attrs import define, field

from rmqpy.config.keys import BrokerRole
from rmqpy.dledger.node import Proposal, ProposalRejected
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.net.ha import SlaveView
from rmqpy.net.server.feed_api import Feed, FeedStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger.entry_store import EntryStore
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.harness import BrokerHarness
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles

CHUNK = 1 << 16

SEND_FIELDS = {
    **dict(zip("abcdefgh", ("PG", "T", "TBW102", "4", "0", "0", "1", "0"), strict=True)),
    **{"i": "UNIQ_KEY\x01u\x02WAIT\x01true", "j": "0", "k": "false", "m": "false"},
}
"""The header of a send with the one-letter names of its second version."""

PULL_FIELDS = {
    "consumerGroup": "CG",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}
"""The header of a pull that does not wait (``sysFlag`` has no suspend bit)."""


class _UnsentChannel(MemoryChannel):
    """A channel without a socket: it receives all that the fast path could not send."""

    def unsent(self, data: bytes) -> None:
        self.write(data)

    def send_failed(self, code: int) -> None:
        raise AssertionError(code)


@define
class FallbackDriver:
    """The Python path: frames are decoded and handled without the C core."""

    harness: BrokerHarness
    channels: list[MemoryChannel] = field(factory=list)
    receivers: list[FrameDecoder] = field(factory=list)

    def connect(self, peer: tuple[str, int]) -> None:
        self.channels.append(MemoryChannel(peer=peer))
        self.receivers.append(FrameDecoder())

    def receive(self, number: int, data: bytes) -> None:
        """Receive frame by frame, so that the frames before a fault are answered."""
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
        except RemoteProtocolError:
            self._handle(channel, commands)
            channel.closed = True
            return
        self._handle(channel, commands)

    def _handle(self, channel: MemoryChannel, commands: list[RemotingCommand]) -> None:
        # One command per call: the event of a moved offset is stored before the sends of the call.
        for command in commands:
            self.harness.broker.server.handle(channel, [command])

    def end_turn(self) -> None:
        self.harness.broker.server.turn_ended()

    def close(self, number: int) -> None:
        """Close a connection between two turns."""
        self.channels[number].closed = True
        self.harness.broker.server.channel_closed(self.channels[number])


@define
class FastPathDriver:
    """The fast path: frames pass through a feed, in the order of steps of the server's driver."""

    harness: BrokerHarness
    feed: Feed
    channels: list[_UnsentChannel] = field(factory=list)
    rests: list[bytes] = field(factory=list)
    numbers: list[int] = field(factory=list)
    handed_back: Counter[int] = field(factory=Counter)
    _open: bool = False

    def connect(self, peer: tuple[str, int]) -> None:
        channel = _UnsentChannel(peer=peer)
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
            feed.refresh()
        rest = self.rests[number]
        assert feed.unread(rest) or not rest
        feed.feed(data, len(rest))
        while (status := feed.resume(self.numbers[number])) > FeedStatus.PARTIAL:
            if status == FeedStatus.FALLBACK:
                if not self._handle_unhandled(channel):
                    return
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            elif status in (FeedStatus.OUT_FULL, FeedStatus.OUT_SHARE):
                self.harness.broker.server.turn_ended()
                feed.refresh()
            else:
                assert status == FeedStatus.BAD_FRAME
                feed.flush_now(self.numbers[number])
                self._end(channel)
                return
        self.rests[number] = feed.rest()

    def _handle_unhandled(self, channel: _UnsentChannel) -> bool:
        """Handle the frames that C left to Python; return whether the channel is still open."""
        commands = []
        closed = False
        for frame in self.feed.unhandled_frames():
            try:
                commands.append(decode_command(frame))
            except RemoteProtocolError:
                closed = True
                break
        self.feed.before_fallback()
        self.handed_back.update(command.code for command in commands)
        for command in commands:
            self.harness.broker.server.handle(channel, [command])
        self.feed.after_fallback(commands)
        if closed:
            self.feed.flush_now(self.feed_number(channel))
            self._end(channel)
        return not closed

    def _end(self, channel: _UnsentChannel) -> None:
        """End a connection; its number remains, so that what it has sent waits for a flush as in
        Python.
        """
        channel.closed = True
        self.feed.core.peers[self.feed_number(channel)].generation += 1

    def feed_number(self, channel: _UnsentChannel) -> int:
        return self.numbers[self.channels.index(channel)]

    def end_turn(self) -> None:
        self.harness.broker.server.turn_ended()
        self._open = False

    def close(self, number: int) -> None:
        """Close a connection between two turns."""
        self.channels[number].closed = True
        self.feed.detach(self.numbers[number])
        self.harness.broker.server.channel_closed(self.channels[number])


BrokerPair = tuple[FallbackDriver, FastPathDriver]

MakeBrokerPair = Callable[..., BrokerPair]


@define
class SingleMember:
    """The ``Proposer`` of a group of one, in which a stored entry is committed."""

    entries: EntryStore
    limit: int
    proposed: int = -1
    asked: int = 0

    def propose(self, count: int) -> Proposal | ProposalRejected:
        proposal, room = self.grant()
        if not room:
            return ProposalRejected.LEADER_PENDING_FULL
        self.proposed += count
        return proposal

    def grant(self) -> tuple[Proposal, int]:
        waiting = self.proposed - self.entries.committed_index
        return Proposal(Term(3), LedgerIndex(self.proposed + 1)), max(0, self.limit + 1 - waiting)

    @property
    def grants(self) -> int:
        """A number that changes with each read, so that the log never keeps a grant."""
        self.asked += 1
        return self.asked

    def consume_grant(self, count: int) -> None:
        assert isinstance(self.propose(count), Proposal)


def files_with(given: dict[str, str]) -> MemoryFiles:
    """Return memory files with these texts by path."""
    files = MemoryFiles()
    for path, text in given.items():
        files.put(path, text.encode())
    return files


def lead(harness: BrokerHarness, limit: int = 10_000) -> None:
    """Make the broker of a DLedger store its master."""
    log = harness.store.opened.dledger
    assert log is not None
    log.set_proposer(SingleMember(log.entries, limit))
    log.entries.subscribe(stored=log.entries.commit_to)
    harness.store.set_role(slave=False)
    harness.broker.identity.role = BrokerRole.SYNC_MASTER


class PromptSlave:
    """A slave that has every byte of the log one turn later."""

    slaves: Sequence[SlaveView] = ()
    last_refused = ""

    def __init__(self, harness: BrokerHarness) -> None:
        self.replicated = Watermark("replicated")
        self.count = harness.broker.identity.store.replicas_required - 1
        harness.broker.replication.slaves = self
        log = harness.store.log
        assert isinstance(log, ClassicCommitLog)
        log.written.subscribe(
            lambda end: harness.scheduler.call_soon(lambda: self.replicated.advance(end))
        )

    def count_at(self, offset: int) -> int:
        return self.count if self.replicated.value >= offset else 0


def assert_same_state(pair: BrokerPair) -> None:
    """Check that both brokers sent the same replies and have equal files and state."""
    fallback, fast = pair
    for expected_channel, channel in zip(fallback.channels, fast.channels, strict=True):
        assert channel.closed == expected_channel.closed
        if expected_channel.closed:
            # A full file commits within Python's turn, so its replies leave before the fault.
            assert Counter(channel.written) <= Counter(expected_channel.written)
        else:
            assert sorted(channel.written) == sorted(expected_channel.written)
    assert _files(fast.harness) == _files(fallback.harness)
    expected, store = fallback.harness.store, fast.harness.store
    assert _tails(store) == _tails(expected)
    assert store.log.max_offset == expected.log.max_offset
    assert store.log.confirm_offset == expected.log.confirm_offset
    if expected.opened.entries is not None:
        assert store.opened.entries is not None
        assert store.opened.entries.end == expected.opened.entries.end
        assert store.opened.entries.begin_index == expected.opened.entries.begin_index
    counters = fast.harness.broker.statistics.counters
    expected_counters = fallback.harness.broker.statistics.counters
    for name in (
        "put_messages",
        "put_bytes",
        "put_failed",
        "get_found",
        "get_miss",
        "get_messages",
    ):
        assert getattr(counters, name) == getattr(expected_counters, name), name
    offsets = fast.harness.broker.offsets.wrapper().encode()
    assert offsets == fallback.harness.broker.offsets.wrapper().encode()
    assert fast.harness.broker.hold.count == fallback.harness.broker.hold.count


def _tails(store: MessageStore) -> dict[tuple[bytes, int], int]:
    return {key: offset for key, offset in store.appender.tails.items() if offset}


def _files(harness: BrokerHarness) -> dict[str, bytes]:
    files = {
        path: bytes(memoryview(node.data)[: node.extent]).rstrip(b"\0")
        for path, node in harness.files.nodes.items()
        if "/config/" not in path
    }
    point = next((path for path in files if path.endswith("/recovery-point")), None)
    if point is not None:  # the order of the queues in it has no meaning
        files[point] = json.dumps(json.loads(files[point]), sort_keys=True).encode()
    return files


def _frame_end(receiver: FrameDecoder, data: bytes, position: int) -> int:
    """Return where the frame at ``position`` ends in ``data``, as far as its length is known."""
    needed = receiver._needed - receiver.pending_bytes
    if position + needed > len(data):
        return len(data)
    if receiver.pending_bytes == 0 and needed == 4:
        length = int.from_bytes(data[position : position + 4])
        return min(len(data), position + 4 + length)
    return position + needed


def run_answered(side: FallbackDriver | FastPathDriver, *frames: bytes) -> None:
    """Receive the frames in one turn, all of which are answered with success."""
    side.receive(0, b"".join(frames))
    side.end_turn()
    side.harness.scheduler.run_until_idle()
    side.end_turn()
    assert [answer.code for answer in side.channels[0].take()] == [0] * len(frames)
