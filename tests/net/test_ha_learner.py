"""A learner of a controller group over a real loopback socket."""

from __future__ import annotations

import asyncio
import struct

import pytest
from attrs import define, field
from harness.net import InLoop, SkewedScheduler, until

from rmqpy.ha.follower import FollowerLink
from rmqpy.ha.frames import TransferFrame
from rmqpy.ha.learner import LearnedCopy, LearnerLink
from rmqpy.ha.link import LinkSettings
from rmqpy.model.errors import StoreError
from rmqpy.net.ha import dial

SETTINGS = LinkSettings(file_size=1000)
EPOCHS = struct.pack(">iiqi", 1, 12, 500, 3) + struct.pack(">iq", 3, 0)
REQUEST = struct.pack(">ihhq", 1, 0, 1, -1), struct.pack(">iq", 2, 0)


@define
class MemoryLearner:
    """A learner that stores in memory, and has no more space than ``full_at`` bytes."""

    full_at: int = 1000
    data: bytearray = field(factory=bytearray)
    ends: list[str] = field(factory=list)

    def connected(self, now_ms: int) -> LearnerLink:
        copy = LearnedCopy(begin=0, end=len(self.data), request=0)
        return LearnerLink(SETTINGS, copy, now_ms)

    def store(self, transfer: TransferFrame) -> None:
        if transfer.end > self.full_at:
            raise StoreError("commitlog", "no space", "space", "free some")
        self.data += transfer.body

    def ended(self, link: FollowerLink | None, reason: str) -> None:
        self.ends.append(reason)


@pytest.mark.parametrize("full_at", [1000, 300])
def test_a_learner_copies_in_its_role_and_stops_when_its_disk_is_full(
    in_loop: InLoop, full_at: int
) -> None:
    asked: list[bytes] = []
    log = bytes(range(250)) * 2

    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readexactly(16))
        writer.write(EPOCHS)
        asked.append(await reader.readexactly(12))
        for start in range(0, len(log), 100):
            head = struct.pack(">iiqiqq", 2, 100, start, 3, 0, 0)
            writer.write(head + log[start : start + 100])
        await reader.read()  # until the learner goes
        writer.close()

    async def main(scheduler: SkewedScheduler) -> None:
        server = await asyncio.start_server(master, "127.0.0.1", 0)
        learner = MemoryLearner(full_at)
        connection = dial(server.sockets[0].getsockname()[:2], learner, scheduler)
        await until(lambda: len(learner.data) == min(full_at, len(log)))
        assert tuple(asked) == REQUEST
        assert learner.data == log[:full_at]
        if full_at < len(log):
            await until(lambda: learner.ends)
            assert "no space" in learner.ends[0]
        connection.close()
        server.close()

    in_loop(main)
