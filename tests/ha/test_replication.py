"""Tests of both ends together: recorded conversations, and random ones over a faulty connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.ha.frames import TransferReceiver, encode_report
from rmqpy.ha.link import LinkSettings, LogRange, MasterLink, ReconnectBackoff, SlaveLink
from rmqpy.model.ids import PhysicalOffset

GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "ha.jsonl"
RECORDED: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
FILE_OF_GOLDEN = 64 << 10


def recording(name: str) -> list[dict[str, Any]]:
    """Return a recorded conversation up to the first gap in it."""
    lines = [line for line in RECORDED if line["from"] == name]
    end = 0
    for number, line in enumerate(lines):
        if line["to"] == "slave":
            (transfer,) = TransferReceiver().receive(bytes.fromhex(line["frame"]))
            if transfer.offset != end:
                return lines[:number]
            end = transfer.end
    return lines


@pytest.mark.parametrize("name", ["ha", "ha-binary"])
def test_our_slave_answers_a_java_master_as_a_java_slave_did(name: str) -> None:
    link = SlaveLink(LinkSettings(file_size=FILE_OF_GOLDEN), PhysicalOffset(0), 0)
    stored = bytearray()
    answers: list[bytes] = []
    for line in recording(name):
        if line["to"] == "slave":
            link.receive(bytes.fromhex(line["frame"]), line["ms"])
            ready = link.take_ready()
            for transfer in ready.append if ready else ():
                assert transfer.offset == len(stored)
                stored += transfer.body
                link.stored(transfer.end, line["ms"])
            answers += [each.send for each in (ready, link.take_ready()) if each and each.send]
        assert link.closed is None
    java = [bytes.fromhex(line["frame"]) for line in recording(name) if line["to"] == "master"]
    reported = [int.from_bytes(each) for each in answers]
    assert reported[0] == 0
    assert reported[-1] == len(stored)
    assert reported == sorted(reported)
    assert {each for each in java if each != encode_report(0)} <= {*answers}


@pytest.mark.parametrize("name", ["ha", "ha-binary"])
def test_our_master_feeds_a_java_slave_the_same_bytes(name: str) -> None:
    """The log grows as it did in the recording, and the slave's reports are the recorded ones."""
    lines = recording(name)
    frames = [bytes.fromhex(line["frame"]) for line in lines if line["to"] == "slave"]
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
    for line in lines:
        frame = bytes.fromhex(line["frame"])
        if line["to"] == "master":
            link.receive(frame, line["ms"])
        elif len(frame) > 12:
            end += len(frame) - 12
            link.log_grown(LogRange(PhysicalOffset(0), PhysicalOffset(end)), line["ms"])
        link.tick(line["ms"])
        ready = link.take_ready()
        if ready is not None:
            sent += ready.send
            acknowledged = ready.acknowledged or acknowledged
            assert ready.close is None
    assert [each for each in sent if len(each) > 12] == [each for each in frames if len(each) > 12]
    assert {each for each in sent if len(each) == 12} <= {*frames}
    reports = [line["frame"] for line in lines if line["to"] == "master"]
    assert acknowledged == int(reports[-1], 16) > 5000


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

    def settle(self) -> None:
        """Deliver everything."""
        for _ in range(len(self.log) // 10 + 20):
            self.step(1 << 20, 1 << 20, 1 << 20)


def take(queue: bytearray, size: int) -> bytes:
    taken = bytes(queue[:size])
    del queue[:size]
    return taken


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


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_the_slave_ends_up_with_the_bytes_of_the_master(operations: list[tuple[str, Any]]) -> None:
    pair = Pair()
    for what, argument in operations:
        if what == "append":
            pair.append(argument)
        elif what == "step":
            pair.step(*argument)
        elif what == "wait":
            pair.now_ms += argument
            for link in (pair.master, pair.slave):
                if link is not None:
                    link.tick(pair.now_ms)
                    if link.closed is not None:
                        pair.cut()
                        break
        elif what == "cut":
            pair.cut()
        else:  # The slave restarts without its unsynced tail, but never with an empty log.
            pair.cut()
            lost = min(argument, max(0, len(pair.copy) - 1))
            del pair.copy[len(pair.copy) - lost :]
            pair.acknowledged = min(pair.acknowledged, pair.copy_end)
    pair.cut()
    pair.settle()
    if not pair.copy:  # A new slave receives the last file only, which is still empty.
        assert len(pair.log) % FILE == 0
        return
    assert bytes(pair.copy) == bytes(pair.log[pair.copy_begin :])
    assert pair.copy_begin % FILE == 0
    assert pair.acknowledged == pair.copy_end
