"""Attack a broker and a name server, each in its own process, with hostile input; print the cost.

===========  ==================================================================================
frames       the nineteen kinds of malformed frames (:mod:`fuzz.frames`), at both ports
idle         connections that send nothing
announced    frames that announce 16 MiB and send only a part
slow         connections that send a frame byte by byte
unread       connections that pipeline requests with large replies and read none
===========  ==================================================================================

Meanwhile a new connection sends a request every ``HEALTH_PAUSE_S``. The longest time to an answer
and the growth of each server's anonymous memory (from ``/proc``) are printed with their goals. The
time is followed by the CPU time that the server used meanwhile: if that is much less, the machine
was busy with other work. The exit code is 0 if all goals were met, 2 if not, and 1 if the attack
failed to run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import resource
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from fuzz.frames import (
    HEAVY_KINDS,
    KINDS,
    HostileFrame,
    hostile_frames,
    probe_frame,
)
from fuzz.peer import HostilePeer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import PullMessageRequestHeader
from rmqpy.testing.blocking_connection import connect_when_ready, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess

GROWTH_GOAL: Final = 64 << 20
HEALTH_GOAL_MS: Final = 1_000.0
IDLE_GOAL: Final = 8 << 10
HEALTH_PAUSE_S: Final = 0.05
PEERS: Final = 8
HEAVY_PART: Final = 50
"""The number of other frames for each frame of megabytes."""

ANNOUNCING: Final = 64
ANNOUNCED_SENT: Final = 512 << 10
UNREAD: Final = 300
UNREAD_REQUESTS: Final = 400
UNREAD_BODY: Final = 60_000
UNREAD_PATIENCE_S: Final = 0.2
"""The time to send all requests of a connection; a broker under back-pressure leaves a part."""
UNREAD_CHECKS: Final = 10
UNREAD_GOAL: Final = (256 + 64) << 20
"""The limit of the replies that wait for all peers, and what their connections may cost."""
SLOW: Final = 500
SLOW_S: Final = 20.0
OPENED_AT_ONCE: Final = 200


def pull_request(topic: str) -> RemotingCommand:
    """Return a pull of the first page of queue 0, which also reads without long polling."""
    header = PullMessageRequestHeader(
        consumer_group="unread",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def frames_of_kinds(count: int) -> dict[str, int]:
    """Return how many frames of each kind add up to ``count``, or a few more."""
    heavy = len([kind for kind in KINDS if kind in HEAVY_KINDS])
    each = -(-count * HEAVY_PART // ((len(KINDS) - heavy) * HEAVY_PART + heavy))
    return {kind: max(1, -(-each // HEAVY_PART) if kind in HEAVY_KINDS else each) for kind in KINDS}


@define
class Target:
    """One server under attack, and its health."""

    name: str
    server: ServerProcess
    worst_ms: float = 0.0
    worst_cpu_ms: float = 0.0
    checks: int = 0

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.server.address.rpartition(":")
        return host, int(port)

    def resident(self) -> int:
        """Return the anonymous memory of the process in bytes."""
        return self._status("RssAnon")

    def peak(self) -> int:
        """Return the largest resident memory that the process has had, in bytes."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        status = Path(f"/proc/{self.server.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    async def check(self) -> None:
        """Send one request over a new connection, and wait for its answer."""
        start, cpu_ms = time.perf_counter(), self._cpu_ms()
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(probe_frame())
        receiver = FrameDecoder()
        answered = False
        while not answered:
            data = await reader.read(1 << 16)
            assert data, f"{self.name} closed a well-behaved connection"
            answered = any(
                answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                for answer in receiver.receive(data)
            )
        writer.close()
        self.worst_ms = max(self.worst_ms, (time.perf_counter() - start) * 1000)
        self.worst_cpu_ms = max(self.worst_cpu_ms, self._cpu_ms() - cpu_ms)
        self.checks += 1

    def _cpu_ms(self) -> float:
        """Return the CPU time of the process so far, rounded up to a tick."""
        status = Path(f"/proc/{self.server.pid}/stat").read_text(encoding="ascii")
        fields = status.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return (ticks + 1) * 1000 / os.sysconf("SC_CLK_TCK")


@define
class Row:
    """One measurement and its goal."""

    what: str
    target: str
    value: float
    goal: float
    unit: str
    note: str = ""

    @property
    def is_within(self) -> bool:
        return self.value <= self.goal

    def __str__(self) -> str:
        mark = "" if self.is_within else "  <-- over the goal"
        return (
            f"{self.what:<44} {self.target:<8} {self.value:>10,.1f} {self.unit:<6} "
            f"goal {self.goal:,.0f}{self.note}{mark}"
        )


@define
class FuzzAttack:
    """An attack on all targets at once, and its measurements."""

    targets: list[Target]
    rows: list[Row] = field(factory=list)
    wrong: list[str] = field(factory=list)

    async def frames(self, count: int, seed: int) -> None:
        """Send at least ``count`` frames to each port, one kind after the other."""
        numbers = frames_of_kinds(count)
        async with self._measured(f"{sum(numbers.values()):,} malformed frames"):
            for kind, number in numbers.items():
                await asyncio.gather(
                    *(
                        self._deliver(target, kind, enumerate(hostile_frames(kind, seed, number)))
                        for target in self.targets
                    )
                )

    async def _deliver(
        self, target: Target, kind: str, frames: Iterator[tuple[int, HostileFrame]]
    ) -> None:
        async def one() -> None:
            peer = HostilePeer(*target.address)
            for number, frame in frames:
                seen = await peer.deliver(frame)
                if not seen & frame.expected:
                    self.wrong.append(f"{target.name} {kind} {number}: {seen}")
            await peer.close()

        await asyncio.gather(*(one() for _ in range(PEERS)))

    async def idle(self, count: int) -> None:
        """Open ``count`` connections to each port that send nothing."""
        for target in self.targets:
            before = target.resident()
            writers: list[asyncio.StreamWriter] = []
            async with self._measured(f"{count:,} idle connections", growth=False):
                while len(writers) < count:
                    more = min(OPENED_AT_ONCE, count - len(writers))
                    opened = await asyncio.gather(
                        *(asyncio.open_connection(*target.address) for _ in range(more))
                    )
                    writers += [writer for _, writer in opened]
                await asyncio.sleep(1)
                cost = (target.resident() - before) / count
            self.rows.append(
                Row("memory per idle connection", target.name, cost, IDLE_GOAL, "bytes")
            )
            await _close(writers)

    async def announced(self) -> None:
        """Announce frames of the largest size and send half a megabyte of each.

        A server may keep no more memory than that.
        """
        head = (MAX_FRAME - 4).to_bytes(4) + (100).to_bytes(4)
        for target in self.targets:
            before = target.resident()
            writers = []
            async with self._measured(f"{ANNOUNCING} announced frames of 16 MiB", growth=False):
                for _ in range(ANNOUNCING):
                    _, writer = await asyncio.open_connection(*target.address)
                    writer.write(head + bytes(ANNOUNCED_SENT))
                    await writer.drain()
                    writers.append(writer)
                await asyncio.sleep(1)
                growth = target.resident() - before
            goal = 2 * ANNOUNCING * ANNOUNCED_SENT / (1 << 20)
            self.rows.append(
                Row("memory of announced frames", target.name, growth / (1 << 20), goal, "MiB")
            )
            await _close(writers)

    async def slow(self, seconds: float) -> None:
        """Send frames byte by byte."""
        frame = probe_frame()

        async def send_slowly(target: Target) -> None:
            _, writer = await asyncio.open_connection(*target.address)
            with contextlib.suppress(ConnectionError):
                for place in range(len(frame) - 1):
                    if writer.is_closing():
                        break
                    writer.write(frame[place : place + 1])
                    await asyncio.sleep(seconds / len(frame))
            await _close([writer])

        async with self._measured(f"{SLOW} slow connections"):
            await asyncio.gather(
                *(send_slowly(target) for target in self.targets for _ in range(SLOW))
            )

    async def unread(self, count: int, goal: int = UNREAD_GOAL) -> None:
        """Pipeline pulls of 240 KB over ``count`` connections to the broker, and read nothing."""
        target = next(each for each in self.targets if each.name == "broker")
        with connect_when_ready(target.server.address) as client:
            for _ in range(4):
                sent = client.call(send_request("Unread", 0, [bytes(UNREAD_BODY)]))
                assert sent.code == ResponseCode.SUCCESS, sent
            pulled = client.call(pull_request("Unread"))
            assert pulled.code == ResponseCode.SUCCESS, pulled
            assert len(pulled.body) > 4 * UNREAD_BODY
        requests = encode_command(pull_request("Unread")) * UNREAD_REQUESTS
        before = target.resident()
        loop = asyncio.get_running_loop()
        sockets = []
        async with self._measured(f"{count:,} connections that do not read", growth=False):
            for _ in range(count):
                each = socket.create_connection(target.address)
                each.setblocking(False)
                sockets.append(each)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(UNREAD_PATIENCE_S):
                        await loop.sock_sendall(each, requests)
            for _ in range(UNREAD_CHECKS):
                await target.check()
            growth = target.resident() - before
        self.rows.append(
            Row("memory of unread replies", target.name, growth / (1 << 20), goal >> 20, "MiB")
        )
        for each in sockets:
            each.close()

    @contextlib.asynccontextmanager
    async def _measured(self, what: str, growth: bool = True) -> AsyncIterator[None]:
        before = {target.name: target.resident() for target in self.targets}
        over = asyncio.Event()
        checks = [asyncio.ensure_future(_check_often(target, over)) for target in self.targets]
        for target in self.targets:
            target.worst_ms = target.worst_cpu_ms = 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*checks)
        print(f"{what}: {time.perf_counter() - start:.0f} s", flush=True)
        for target in self.targets:
            note = f" (CPU time {target.worst_cpu_ms:,.0f} ms)"
            answer = Row(f"{what}: answer", target.name, target.worst_ms, HEALTH_GOAL_MS, "ms")
            answer.note = note
            self.rows.append(answer)
            if growth:
                grown = (target.resident() - before[target.name]) / (1 << 20)
                goal = GROWTH_GOAL / (1 << 20)
                self.rows.append(Row(f"{what}: growth", target.name, grown, goal, "MiB"))


async def _check_often(target: Target, over: asyncio.Event) -> None:
    while not over.is_set():
        await target.check()
        await asyncio.sleep(HEALTH_PAUSE_S)


async def _close(writers: Sequence[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    for writer in writers:
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def run_attack(root: Path, attack: Callable[[FuzzAttack], Awaitable[None]]) -> FuzzAttack:
    """Start both servers below ``root``, run ``attack``, and check that both still answer."""
    _raise_open_files_limit()
    ports = free_port_block(BROKER_PORT_COUNT + 1)
    site = RmqpySite(root)
    namesrv = site.namesrv("namesrv", ports[BROKER_PORT_COUNT])
    spec = BrokerSpec(
        port=ports.broker_port,
        namesrv=namesrv.address,
        sizes={"maxMessageSize": str(64 << 10), "mappedFileSizeCommitLog": str(64 << 20)},
        settings={"diskMaxUsedSpaceRatio": "95"},
    )
    broker = site.broker("broker", spec)
    try:
        namesrv.start()
        broker.start()
        with connect_when_ready(broker.address) as client:
            sent = client.call(send_request("Sentinel", 0, [b"before"]))
            assert sent.code == ResponseCode.SUCCESS, sent
        run = FuzzAttack([Target("broker", broker), Target("namesrv", namesrv)])

        async def run_with_checks() -> None:
            for target in run.targets:  # the memory of the first request does not count
                await target.check()
            await attack(run)
            for target in run.targets:
                await target.check()

        asyncio.run(run_with_checks())
        return run
    finally:
        broker.kill()
        namesrv.kill()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tox -e siege --", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames per port (1000000)")
    parser.add_argument(
        "--idle", type=int, default=10_000, help="idle connections per port (10000)"
    )
    parser.add_argument(
        "--slow-seconds", type=float, default=SLOW_S, help="duration of a slow frame (20)"
    )
    parser.add_argument(
        "--unread", type=int, default=UNREAD, help="connections that do not read (300)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    async def attack(run: FuzzAttack) -> None:
        await run.idle(options.idle)
        await run.announced()
        await run.slow(options.slow_seconds)
        await run.unread(options.unread)
        await run.frames(options.frames, options.seed)

    with tempfile.TemporaryDirectory(prefix="rmqpy-siege-") as folder:
        run = run_attack(Path(folder), attack)
    for row in run.rows:
        print(row)
    for line in run.wrong[:20]:
        print(f"unexpected reaction: {line}")
    return 2 if run.wrong or not all(row.is_within for row in run.rows) else 0


def _raise_open_files_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
