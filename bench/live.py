"""Measure for how long clients wait while a running group switches to DLedger, and leaves it.

    python bench/live.py                                # 1, 10 and 100 GB of old log, 20 runs each
    python bench/live.py --gigabytes 1 --runs 3
    python bench/live.py --output FILE --seconds 280    # continue FILE, for five minutes at most
    python bench/live.py --disks A B C D                # a file system for each broker

A run starts a name server, a master and two slaves, each a process, whose old log has the given
size: sparse files of 1 GiB, each with one message and a filler. Eight tasks send with
``rmqpy.client``, without retries, 5 ms after each acknowledgement. Then::

    rmqpy admin switch --apply     the classic group becomes a DLedger group
    (a slave with a copy of the old log follows the group)
    rmqpy admin leave --apply      that slave takes over

The figure is the longest time between two acknowledged sends while the command runs and in the
second after it. ``at_ms`` is when that began, after the begin of the command. ``noise_ms`` is the
same in the second before the command, ``pause_ms`` is what the brokers report. The old logs are on
the disk before the brokers start, and the slave is level before the leave. The output is a JSON
file with all runs, which a later call continues, and a table on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import asdict, define, field, frozen
from stopped import machine

from rmqpy.client import Message, Producer, ProducerSettings
from rmqpy.codec.layout import BLANK_MAGIC
from rmqpy.codec.message import encode_message
from rmqpy.model.errors import RmqError
from rmqpy.model.message import OutgoingMessage
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess

GIB: Final = 1 << 30
OLD_TOPIC: Final = "old"
QUEUE_OFFSET, PHYSICAL_OFFSET, STORE_TIMESTAMP = 20, 28, 56
BROKERS: Final = 4
"""The members, and the slave that takes over."""
TASKS: Final = 8
INTERVAL_S: Final = 0.005
NOISE_S: Final = 1.0
AFTER_S: Final = 1.0
DEADLINE_S: Final = 300
LEVEL_BYTES: Final = 64 << 10
ATTEMPTS_MAX: Final = 10
GROUP: Final = "broker-a"
CHANGES: Final = ("switch", "leave")


@frozen
class Run:
    """One attempt of a change; it was aborted unless ``decided``."""

    gigabytes: int
    change: str
    decided: bool
    gap_ms: float
    noise_ms: float
    pause_ms: int
    acknowledged: int
    failed: int
    at_ms: int = 0


def write_old_log(store: Path, gigabytes: int, now_ms: int) -> None:
    """Write the log of a broker that was killed, so that its start builds the queues."""
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    host = bytes((127, 0, 0, 1)), 10911
    for number in range(gigabytes):
        record = encode_message(
            OutgoingMessage(
                topic=OLD_TOPIC.encode(),
                queue_id=0,
                body=b"%d" % number,
                properties=b"",
                born_timestamp_ms=now_ms,
                born_host=host,
                store_host=host,
            )
        )
        struct.pack_into(">q", record, QUEUE_OFFSET, number)
        struct.pack_into(">q", record, PHYSICAL_OFFSET, number * GIB)
        struct.pack_into(">q", record, STORE_TIMESTAMP, now_ms)
        filler = struct.pack(">iI", GIB - len(record), BLANK_MAGIC)
        with (folder / f"{number * GIB:020d}").open("wb") as file:
            file.write(bytes(record) + filler)
            file.truncate(GIB)
    (store / "abort").touch()


@define(eq=False)
class Load:
    """Tasks that send. ``times`` are those of the acknowledgements."""

    producer: Producer
    times: list[float] = field(factory=list)
    failed: list[str] = field(factory=list)
    _ended: bool = False
    _tasks: list[asyncio.Task[None]] = field(factory=list)
    _numbers: Iterator[int] = field(factory=itertools.count)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._send()) for _ in range(TASKS)]

    async def _send(self) -> None:
        while not self._ended:
            try:
                await self.producer.send(Message(topic="live", body=b"%d" % next(self._numbers)))
                self.times.append(time.monotonic())
                await asyncio.sleep(INTERVAL_S)
            except RmqError as error:
                self.failed.append(str(error))
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def sent(self, count: int) -> None:
        """Wait for ``count`` more acknowledgements."""
        count += len(self.times)
        async with asyncio.timeout(DEADLINE_S):
            while len(self.times) < count:
                await asyncio.sleep(0.01)

    def gap(self, begin: float, end: float) -> tuple[float, float]:
        """Return the longest time without an acknowledgement in this interval, in ms, and when it
        began.
        """
        inside = [begin, *(each for each in self.times if begin < each < end), end]
        pairs = itertools.pairwise(inside)
        return max((1000 * (after - before), before) for before, after in pairs)


@define(eq=False)
class LiveGroup:
    """The processes of one run. ``roots`` has the folder of each broker; that of the first one also
    has what belongs to none of them.
    """

    roots: Sequence[Path]
    gigabytes: int
    ports: list[PortBlock] = field(factory=list)
    server: str = ""
    now_ms: int = field(factory=lambda: int(time.time() * 1000))

    def __attrs_post_init__(self) -> None:
        self.ports = [free_port_block(BROKER_PORT_COUNT) for _ in range(BROKERS)]
        self.ports.append(free_port_block(4))
        self.server = f"127.0.0.1:{self.ports[-1][3]}"

    def namesrv(self) -> ServerProcess:
        return RmqpySite(self.roots[0]).namesrv("namesrv", self.ports[-1][3])

    def write_old_logs(self) -> None:
        for number, root in enumerate(self.roots):
            write_old_log(root / f"store{number}", self.gigabytes, self.now_ms)
        os.sync()

    def broker(self, number: int) -> ServerProcess:
        """Return the master (0), a slave, or the slave that takes over (3)."""
        store = self.roots[number] / f"store{number}"
        spec = BrokerSpec(
            port=self.ports[number].broker_port,
            namesrv=self.server,
            broker_name=GROUP,
            store=store,
            sizes={"diskMaxUsedSpaceRatio": "95"},
            settings={
                "brokerRole": "SLAVE" if number else "ASYNC_MASTER",
                "brokerId": str(9 if number == 3 else number),
                "haFetchFromBeginning": "true",
                "haServeEntries": "true",
            },
        )
        return RmqpySite(self.roots[number]).broker(f"broker{number}", spec)

    @property
    def peers(self) -> str:
        """Return dLegerPeers: the master becomes n2."""
        return ";".join(f"n{each}-127.0.0.1:{self.ports[-1][each]}" for each in range(3))

    async def admin(self, *arguments: str) -> Any:
        """Run a command of ``rmqpy admin`` with JSON output."""
        command = [sys.executable, "-m", "rmqpy.cli", "admin", *arguments]
        command += ["-n", self.server, "--format", "json"]
        done = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, errors = await done.communicate()
        says_no = done.returncode == 2 and "--apply" in arguments
        if done.returncode and not says_no:
            raise RmqError(f"{' '.join(arguments)}: {out.decode()}{errors.decode()}")
        return json.loads(out)

    async def until_ready(self, *arguments: str) -> None:
        """Repeat a check until nothing prevents the change, and a slave that takes over follows:
        it copies the rest of the last old file, up to 1 GiB, before.
        """
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    found = await self.admin(*arguments)
                    if found.get("lag_bytes", 0) < LEVEL_BYTES:
                        return
                    await asyncio.sleep(0.2)
                except RmqError as error:
                    print(f"  {str(error)[-300:]}", file=sys.stderr)
                    await asyncio.sleep(0.5)


async def measure(group: LiveGroup) -> list[Run]:
    """Switch a group, let it leave, and return both runs."""
    group.write_old_logs()
    with ExitStack() as stack, ThreadPoolExecutor() as starts:
        stack.enter_context(group.namesrv())
        brokers = [group.broker(number) for number in range(3)]
        for each in brokers:
            stack.callback(each.kill)
        list(starts.map(ServerProcess.start, brokers))
        settings = ProducerSettings(retries=0)
        async with Producer("live", group.server, settings=settings) as producer:
            load = Load(producer)
            await until_accepted(producer)
            load.start()
            try:
                await load.sent(200)
                arguments = ["switch", "-m", GROUP, "--peers", group.peers]
                runs = await changes(group, load, "switch", arguments)
                target = group.broker(3)
                stack.callback(target.kill)
                await asyncio.to_thread(target.start)
                arguments = ["leave", "-m", GROUP, "-t", target.address]
                runs += await changes(group, load, "leave", arguments)
            finally:
                await load.stop()
            return runs


async def until_accepted(producer: Producer) -> None:
    """Send until the topic exists and has a route."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await producer.send(Message(topic="live", body=b"first"))
                return
            except RmqError:
                await asyncio.sleep(0.2)


async def changes(group: LiveGroup, load: Load, name: str, arguments: list[str]) -> list[Run]:
    """Repeat a change until it is decided."""
    runs: list[Run] = []
    while not any(each.decided for each in runs):
        runs.append(await change(group, load, name, arguments))
        if len(runs) == ATTEMPTS_MAX:
            break
    return runs


async def change(group: LiveGroup, load: Load, name: str, arguments: list[str]) -> Run:
    await group.until_ready(*arguments)
    await asyncio.sleep(NOISE_S)
    begin, failed, sent = time.monotonic(), len(load.failed), len(load.times)
    status = await group.admin(*arguments, "--apply")
    await asyncio.sleep(AFTER_S)
    end = time.monotonic()
    if load.failed[failed:]:
        print("  failed: " + "; ".join(load.failed[failed:][:3]), file=sys.stderr)
    gap_ms, at = load.gap(begin, end)
    return Run(
        gigabytes=group.gigabytes,
        change=name,
        decided=status["phase"] in ("committed", "complete"),
        gap_ms=round(gap_ms, 1),
        noise_ms=round(load.gap(begin - NOISE_S, begin)[0], 1),
        pause_ms=status["pause_ms"],
        acknowledged=len(load.times) - sent,
        failed=len(load.failed) - failed,
        at_ms=round(1000 * (at - begin)),
    )


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def table(runs: list[Run]) -> str:
    """Return a row for each change and size."""
    lines = [
        "| change | old log, GB | runs | longest gap p50 / p99 / max, ms"
        " | brokers' pause p50 / max, ms | gap before p50 / max, ms | failed sends"
        " | aborted attempts, their longest gap, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, size in itertools.product(CHANGES, sorted({each.gigabytes for each in runs})):
        attempts = [each for each in runs if (each.change, each.gigabytes) == (name, size)]
        found = [each for each in attempts if each.decided]
        if not found:
            continue
        aborted = [each.gap_ms for each in attempts if not each.decided]
        gaps = [each.gap_ms for each in found]
        pauses: list[float] = [each.pause_ms for each in found]
        noise = [each.noise_ms for each in found]
        lines.append(
            f"| {name} | {size} | {len(found)} | {percentile(gaps, 50):.0f} /"
            f" {percentile(gaps, 99):.0f} / {max(gaps):.0f} | {percentile(pauses, 50):.0f} /"
            f" {max(pauses):.0f} | {percentile(noise, 50):.0f} / {max(noise):.0f} |"
            f" {sum(each.failed for each in attempts)} | {len(aborted)},"
            f" {max(aborted, default=0):.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--runs", type=int, default=20, help="runs of each size, default 20")
    parser.add_argument("--output", type=Path, help="the JSON file, which is continued")
    parser.add_argument("--seconds", type=float, help="begin no run after this time")
    parser.add_argument(
        "--work", type=Path, help="folder for the stores, a temporary one by default"
    )
    parser.add_argument(
        "--disks",
        type=Path,
        nargs=BROKERS,
        metavar="DIR",
        help="instead of it a folder for each broker, on a file system of its own",
    )
    options = parser.parse_args()
    output = (
        options.output or Path(__file__).parent / "results" / f"{time.strftime('%F')}-live.json"
    )
    result: dict[str, Any] = {"machine": machine(), "loads": [], "runs": []}
    if output.exists():
        result = json.loads(output.read_text())
    runs = [Run(**each) for each in result["runs"]]
    begin = time.monotonic()
    for number, size in itertools.product(range(options.runs), options.gigabytes):
        done = sum(
            (each.gigabytes, each.change, each.decided) == (size, "leave", True) for each in runs
        )
        if done > number or time.monotonic() - begin > (options.seconds or float("inf")):
            continue
        with ExitStack() as stack:
            folders = [
                Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="rmqpy-live-", dir=each))
                )
                for each in options.disks or [options.work]
            ]
            roots = folders if options.disks else folders * BROKERS
            try:
                found = asyncio.run(measure(LiveGroup(roots, size)))
            except BaseException:
                for log in (log for each in folders for log in each.glob("broker*/*.log")):
                    print(f"{log}: {log.read_text()[-1500:]}", file=sys.stderr)
                raise
            finally:
                for folder in folders:
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir()
        runs += found
        for each in found:
            print(asdict(each), file=sys.stderr, flush=True)
        result["loads"].append(os.getloadavg()[0])
        result["runs"] = [asdict(each) for each in runs]
        output.write_text(json.dumps(result, indent=1) + "\n")
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
