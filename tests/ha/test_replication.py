"""Tests of both ends together: recorded conversations, and random ones over a faulty connection."""

from __future__ import annotations

import pytest
from attrs import define, field
from harness.recorded import RecordedReplication, recorded_replication
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.ha.follower import ReconnectBackoff, SlaveLink
from rmqpy.ha.frames import TransferReceiver, encode_report
from rmqpy.ha.link import LinkSettings, LogRange, MasterLink
from rmqpy.model.ids import PhysicalOffset

FILE_OF_GOLDEN = 64 << 10


def recording(name: str) -> list[RecordedReplication]:
    """Return a recorded conversation up to the first gap in it."""
    frames = [each for each in recorded_replication() if each.source == name]
    end = 0
    for number, each in enumerate(frames):
        if each.to == "slave":
            (transfer,) = TransferReceiver().receive(each.frame)
            if transfer.offset != end:
                return frames[:number]
            end = transfer.end
    return frames


@pytest.mark.parametrize("name", ["ha", "ha-binary"])
def test_our_slave_answers_a_java_master_as_a_java_slave_did(name: str) -> None:
    link = SlaveLink(LinkSettings(file_size=FILE_OF_GOLDEN), PhysicalOffset(0), 0)
    stored = bytearray()
    answers: list[bytes] = []
    for recorded in recording(name):
        if recorded.to == "slave":
            link.receive(recorded.frame, recorded.ms)
            ready = link.take_ready()
            for transfer in ready.append if ready else ():
                assert transfer.offset == len(stored)
                stored += transfer.body
                link.stored(transfer.end, recorded.ms)
            answers += [each.send for each in (ready, link.take_ready()) if each and each.send]
        assert link.closed is None
    java = [each.frame for each in recording(name) if each.to == "master"]
    reported = [int.from_bytes(each) for each in answers]
    assert reported[0] == 0
    assert reported[-1] == len(stored)
    assert reported == sorted(reported)
    assert {each for each in java if each != encode_report(0)} <= {*answers}


@pytest.mark.parametrize("name", ["ha", "ha-binary"])
def test_our_master_feeds_a_java_slave_the_same_bytes(name: str) -> None:
    """The log grows as it did in the recording, and the slave's reports are the recorded ones."""
    conversation = recording(name)
    frames = [each.frame for each in conversation if each.to == "slave"]
    log = b"".join(frame[12:] for frame in frames)
    link = MasterLink(
        LinkSettings(file_size=FILE_OF_GOLDEN),
        LogRange(PhysicalOffset(0), PhysicalOffset(0)),
        lambda offset, size: log[offset : offset + size],
        0,
    )
    sent: list[bytes] = []
    acknowledged = 0
    end = 0
    for recorded in conversation:
        if recorded.to == "master":
            link.receive(recorded.frame, recorded.ms)
        elif len(recorded.frame) > 12:
            end += len(recorded.frame) - 12
            link.log_grown(LogRange(PhysicalOffset(0), PhysicalOffset(end)), recorded.ms)
        link.tick(recorded.ms)
        ready = link.take_ready()
        if ready is not None:
            sent += ready.send
            acknowledged = ready.acknowledged or acknowledged
            assert ready.close is None
    assert [each for each in sent if len(each) > 12] == [each for each in frames if len(each) > 12]
    assert {each for each in sent if len(each) == 12} <= {*frames}
    reports = [each.frame for each in conversation if each.to == "master"]
    assert acknowledged == int.from_bytes(reports[-1]) > 5000


# ------------------------------------------------------------------------------------ random faults

FILE = 64
SETTINGS = LinkSettings(file_size=FILE, transfer_batch_size=25)


@define
class Pair:
    """A master's log of small files, a slave's log, and at most one connection between them. Each
    direction of the connection is a queue of bytes.
    """

    log: bytearray = field(factory=bytearray)
    copy: bytearray = field(factory=bytearray)
    copy_begin: int = 0
    now_ms: int = 0
    to_slave: bytearray = field(factory=bytearray)
    to_master: bytearray = field(factory=bytearray)
    master: MasterLink | None = None
    slave: SlaveLink | None = None
    acknowledged: int = 0
    backoff: ReconnectBackoff = field(factory=ReconnectBackoff)

    @property
    def range(self) -> LogRange:
        return LogRange(PhysicalOffset(0), PhysicalOffset(len(self.log)))

    @property
    def copy_end(self) -> int:
        return self.copy_begin + len(self.copy)

    def append(self, data: bytes) -> None:
        self.log += data
        if self.master is not None:
            self.master.log_grown(self.range, self.now_ms)

    def connect(self) -> None:
        self.cut()
        self.master = MasterLink(
            SETTINGS, self.range, lambda offset, size: bytes(self.log[offset:][:size]), self.now_ms
        )
        end = PhysicalOffset(self.copy_end if self.copy else 0)
        self.slave = SlaveLink(SETTINGS, end, self.now_ms)

    def cut(self) -> None:
        """Drop the connection and the bytes in flight."""
        self.backoff.after(self.slave)
        self.master = self.slave = None
        self.to_slave.clear()
        self.to_master.clear()

    def step(self, to_slave: int, to_master: int, room: int) -> None:
        """Deliver up to ``to_slave`` and ``to_master`` bytes and let both ends react to them."""
        if self.master is None or self.slave is None:
            self.connect()
        assert self.master is not None and self.slave is not None
        self.master.receive(take(self.to_master, to_master), self.now_ms)
        ready = self.master.take_ready(room)
        if ready is not None:
            assert ready.close is None, ready
            self.to_slave += b"".join(ready.send)
            self.acknowledged = ready.acknowledged or self.acknowledged
            assert self.acknowledged <= self.copy_end
        self.slave.receive(take(self.to_slave, to_slave), self.now_ms)
        self.store()

    def store(self) -> None:
        assert self.slave is not None
        while (ready := self.slave.take_ready()) is not None:
            assert ready.close is None, ready
            for transfer in ready.append:
                if not self.copy:
                    self.copy_begin = transfer.offset
                assert transfer.offset == self.copy_end
                first, last = transfer.offset // FILE, (transfer.end - 1) // FILE
                assert first == last, "the transfer crosses the end of a file"
                self.copy += transfer.body
                self.slave.stored(transfer.end, self.now_ms)
            self.to_master += ready.send

    def wait(self, delay_ms: int) -> None:
        """Let time pass; a link that closes then loses its connection."""
        self.now_ms += delay_ms
        for link in (self.master, self.slave):
            if link is not None:
                link.tick(self.now_ms)
                if link.closed is not None:
                    self.cut()
                    return

    def restart_slave(self, unsynced_bytes: int) -> None:
        """Restart the slave without its unsynced tail, but never with an empty log."""
        self.cut()
        lost = min(unsynced_bytes, max(0, len(self.copy) - 1))
        del self.copy[len(self.copy) - lost :]
        self.acknowledged = min(self.acknowledged, self.copy_end)

    def settle(self) -> None:
        """Deliver everything."""
        for _ in range(len(self.log) // 10 + 20):
            self.step(1 << 20, 1 << 20, 1 << 20)


def take(queue: bytearray, size: int) -> bytes:
    taken = bytes(queue[:size])
    del queue[:size]
    return taken


Operation = tuple[str, bytes | tuple[int, int, int] | int | None]

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=60)),
        st.tuples(st.just("step"), st.tuples(*[st.integers(0, 80)] * 3)),
        st.tuples(st.just("wait"), st.integers(1, 6_000)),
        st.tuples(st.just("cut"), st.none()),
        st.tuples(st.just("restart_slave"), st.integers(0, 40)),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_the_slave_ends_up_with_the_bytes_of_the_master(operations: list[Operation]) -> None:
    pair = Pair()
    for operation in operations:
        match operation:
            case "append", bytes(data):
                pair.append(data)
            case "step", (to_slave, to_master, room):
                pair.step(to_slave, to_master, room)
            case "wait", int(delay_ms):
                pair.wait(delay_ms)
            case "cut", None:
                pair.cut()
            case "restart_slave", int(unsynced_bytes):
                pair.restart_slave(unsynced_bytes)
            case _:
                raise AssertionError(operation)
    pair.cut()
    pair.settle()
    if not pair.copy:  # A new slave receives the last file only, which is still empty.
        assert len(pair.log) % FILE == 0
        return
    assert bytes(pair.copy) == bytes(pair.log[pair.copy_begin :])
    assert pair.copy_begin % FILE == 0
    assert pair.acknowledged == pair.copy_end
