"""Compare what a rehearsal forecasts with what then happens, and its cost for the live master.

    python bench/forecast.py                                # ten runs
    python bench/forecast.py --output FILE --seconds 280    # continue FILE for at most five minutes

A run starts an ASYNC_MASTER and a slave of Java 4.9.7 on stores with an old log, and rmqload, which
sends to the master at a fixed rate the whole time, in windows of a few seconds. Beside them::

    rmqpy rehearse -n NAMESRV -b BROKERNAME --dir DIR

Then the runbook that it prints is carried out on the group itself, with start and stop commands in
group.toml, while the producer of the rehearsal sends at the rate of the rehearsal. The members are
rmqpy brokers, as in the rehearsal. Between the two ways, the leader is killed.

==========  ========================================================================================
p99_ms      of sends to the master, the median of the windows before the rehearsal, while it copies,
            while its members run on the copy, and after it
forecast    for how long no send is acknowledged, by cause, in s: what the rehearsal says
actual      the same of the group
==========  ========================================================================================

All run on one machine, so ``walking`` includes what three more brokers cost; the rehearsal of a
real group has a host of its own. The output is a JSON file with all runs, which a later call
continues, and tables on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import asdict, define, field, frozen
from compare import build_generator
from fill import Filling, filled
from stopped import machine

from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.demo.comparison import read_all_topics
from rmqpy.demo.store_copy import queues_on_disk
from rmqpy.demo.workload import LOAD_TOPIC, SendWorkload
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.rehearsal.walk import BACK, LOST_LEADER, TO_DLEDGER, WARM_UP
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, python_environment
from rmqpy.upgrade.runbook import commands_until

MEMBERS: Final = ("n0", "n1", "n2")
ROLES: Final = ("ASYNC_MASTER", "SLAVE", "SLAVE")
GROUP: Final = "broker-a"
CAUSES: Final = (TO_DLEDGER, LOST_LEADER, BACK)
PHASES: Final = ("before", "copying", "walking", "after")
SIZES: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "fileReservedTime": "480",
    "mappedFileSizeCommitLog": str(16 << 20),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
}
WARM_S: Final = 5
WINDOW_S: Final = 2
WINDOWS: Final = 3
"""The windows before and after the rehearsal."""
RATE: Final = 200
BODY_BYTES: Final = 1024
QUEUES: Final = 4
THIRD: Final = "ssh://HOST2/PATH/broker.conf"
"""The place in the runbook of the member that the group does not have yet."""


@frozen
class Run:
    """One rehearsal, and what happened then."""

    p99_ms: dict[str, float]
    forecast: dict[str, float]
    actual: dict[str, float]
    acknowledged: int
    lost: int
    steps: Sequence[tuple[str, float]] = ()
    """The steps of the rehearsal, and their times in s."""
    commands: Sequence[tuple[str, float]] = ()
    """The commands of the runbook, and their times in s: each starts an interpreter."""


@define(eq=False)
class MasterLoad:
    """Windows of load on the master, one after the other, until ``stop``."""

    command: Sequence[str]
    walk: Path
    """The folder that a rehearsal has while its members run."""
    phase: str = "warming"
    p99_ms: defaultdict[str, list[float]] = field(factory=lambda: defaultdict(list))
    _ended: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def wait_for_windows(self, phase: str) -> None:
        self.phase = phase
        while len(self.p99_ms[phase]) < WINDOWS:
            if self._thread is None or not self._thread.is_alive():
                raise RmqError("the load on the master has ended")
            time.sleep(0.1)

    def _now(self) -> str:
        if self.phase == "copying" and self.walk.exists():
            return "walking"
        return self.phase

    def _send(self) -> None:
        while not self._ended.is_set():
            before = self._now()
            done = subprocess.run(self.command, capture_output=True, text=True, check=True)
            if before == self._now():
                figures = json.loads(done.stdout.splitlines()[-1])
                self.p99_ms[before].append(figures["latency_ms"]["p99"])


@define(eq=False)
class JavaGroup:
    """The files and processes of one run, below ``root``."""

    root: Path
    namesrv: ServerProcess = field(init=False)
    brokers: dict[str, ServerProcess] = field(factory=dict)
    commands: list[tuple[str, float]] = field(factory=list)
    """The lines of the runbook that were run, and their times in s."""

    def __attrs_post_init__(self) -> None:
        port = free_port_block(1).first
        self.namesrv = RmqpySite(self.root).namesrv("namesrv", port)
        site = JavaSite(self.root / "java", JavaHome())
        for number, (name, role) in enumerate(zip(MEMBERS, ROLES, strict=True)):
            (self.root / name).mkdir(exist_ok=True)
            spec = BrokerSpec(
                port=free_port_block(BROKER_PORT_COUNT).broker_port,
                namesrv=self.namesrv.address,
                broker_name=GROUP,
                store=self.root / name,
                sizes=SIZES,
                settings={
                    "brokerRole": role,
                    "brokerId": str(number),
                    "haSendHeartbeatInterval": "1000",
                },
            )
            broker = self.brokers[name] = site.broker(name, spec)
            conf = next(Path(word) for word in broker.argv if word.endswith("broker.conf"))
            own = conf.rename(self.root / f"{name}.conf")
            broker.argv = [str(own) if word == str(conf) else word for word in broker.argv]

    @property
    def master(self) -> ServerProcess:
        return self.brokers["n0"]

    def pid_file(self, name: str) -> Path:
        return self.root / f"{name}.pid"

    def start(self) -> None:
        self.namesrv.start()
        for name in MEMBERS[:2]:
            self.brokers[name].start()
            self.pid_file(name).write_text(str(self.brokers[name].pid))

    def close(self) -> None:
        for name in MEMBERS:
            self.kill(name)
            self.brokers[name].kill()
        self.namesrv.kill()

    def kill(self, name: str) -> None:
        try:
            os.kill(int(self.pid_file(name).read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            return

    def write_commands(self) -> None:
        """Write start and stop commands into group.toml."""
        path = self.root / "group.toml"
        text = path.read_text()
        for name in MEMBERS:
            script = self.root / f"start-{name}"
            broker = f"{sys.executable} -m rmqpy.cli broker -c {name}.conf"
            script.write_text(
                f"cd {self.root}\nnohup {broker} >> {name}.log 2>&1 &\n"
                f"echo $! > {self.pid_file(name)}\n"
            )
            head = f"[member.{name}]\n"
            stop = f"kill $(cat {self.pid_file(name)})"
            text = text.replace(head, f'{head}start = "sh {script}"\nstop = "{stop}"\n')
        path.write_text(text)

    def sh(self, lines: Sequence[str]) -> None:
        """Run lines of the runbook. Raises RmqError if one fails."""
        environment = python_environment()
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        for line in lines:
            begin_s = time.monotonic()
            done = subprocess.run(
                ["sh", "-ec", line],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise RmqError(f"{line}: exit code {done.returncode}: {done.stdout[-3000:]}")
            self.commands.append((line, round(time.monotonic() - begin_s, 2)))

    def leader(self) -> str:
        """Return the member that the name server knows as the master."""
        request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        with BlockingConnection(self.namesrv.address) as connection:
            known = ClusterInfo.decode(connection.call(request).body).broker_addr_table
        address = known[GROUP].broker_addrs[MASTER_ID]
        return next(name for name, each in self.brokers.items() if each.address == address)


def rehearse(group: JavaGroup, load: MasterLoad, folder: Path) -> dict[str, Any]:
    """Rehearse beside the load, and return the report."""
    command = [sys.executable, "-m", "rmqpy.cli", "rehearse", "-n", group.namesrv.address]
    command += ["-b", GROUP, "--dir", str(folder), "--format", "json"]
    load.phase = "copying"
    done = subprocess.run(command, capture_output=True, text=True, env=python_environment())
    load.phase = "between"
    if done.returncode:
        raise RmqError(f"rehearse: exit code {done.returncode}: {done.stdout}{done.stderr[-3000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def carry_out(
    group: JavaGroup, report: Mapping[str, Any]
) -> tuple[dict[str, float], int, int]:
    """Carry out the runbook; return the pauses, and how many messages were sent and lost."""
    init, *there = commands_until(report["runbook"], "dledger")
    verify, *back = commands_until(report["runbook"], "returned")[1 + len(there) :]
    group.sh([init.replace(THIRD, "n2.conf")])
    group.write_commands()
    actual = {}
    async with SendWorkload(group.namesrv.address, report["walk"]["per_second"]) as load:
        await load.wait_for(WARM_UP)
        load.longest_gap_s()
        await asyncio.to_thread(group.sh, there)
        await load.wait_for(WARM_UP)
        actual[TO_DLEDGER] = load.longest_gap_s()
        leader = await asyncio.to_thread(group.leader)
        load.longest_gap_s()
        group.kill(leader)
        await load.wait_for(WARM_UP)
        actual[LOST_LEADER] = load.longest_gap_s()
        await asyncio.to_thread(group.sh, [f"sh start-{leader}"])
        await load.wait_for(2 * WARM_UP)
        await asyncio.to_thread(group.sh, [verify])
        load.longest_gap_s()
        await asyncio.to_thread(group.sh, back)
        await load.wait_for(WARM_UP)
        actual[BACK] = load.longest_gap_s()
    stores = [queues_on_disk(group.root / name) for name in MEMBERS[:2]]
    queues = {(each.topic, each.queue_id) for store in stores for each in store}
    async with PullConsumer("forecast", group.namesrv.address) as consumer:
        own = sorted(each for each in queues if each[0] == LOAD_TOPIC)
        reading = await read_all_topics(consumer, GROUP, own)
    found = {dict(value.properties)["KEYS"] for value in reading.messages.values()}
    return actual, len(load.acknowledged), len(set(load.acknowledged) - found)


def measure(root: Path, old_log: Path, generator: Path) -> Run:
    """Rehearse beside a live group, then carry out the runbook."""
    for name in MEMBERS[:2]:
        subprocess.run(["cp", "-a", "--sparse=always", str(old_log), str(root / name)], check=True)
    group = JavaGroup(root)
    folder = root / "rehearsal"
    with ExitStack() as stack:
        stack.callback(group.close)
        group.start()
        command = [str(generator), "--port", str(group.master.port), "--topic", "live"]
        command += ["--size", str(BODY_BYTES), "--queues", str(QUEUES), "--rate", str(RATE)]
        command += ["--seconds", str(WINDOW_S), "--warmup", "0.2"]
        load = MasterLoad(command, folder / "walk")
        stack.callback(load.stop)
        load.start()
        time.sleep(WARM_S)
        load.wait_for_windows("before")
        report = rehearse(group, load, folder)
        load.wait_for_windows("after")
        load.stop()
        actual, acknowledged, lost = asyncio.run(carry_out(group, report))
    return Run(
        p99_ms={each: statistics.median(load.p99_ms[each]) for each in PHASES if load.p99_ms[each]},
        forecast=report["forecast"],
        actual=actual,
        acknowledged=acknowledged,
        lost=lost,
        steps=[(each["name"], round(each["seconds"], 2)) for each in report["walk"]["steps"]],
        commands=group.commands,
    )


def write_old_log(work: Path, generator: Path, mib: int) -> Path:
    """Fill the store of a broker, close it cleanly, and return it."""
    spec = BrokerSpec(
        port=free_port_block(BROKER_PORT_COUNT).broker_port,
        namesrv="127.0.0.1:9",
        broker_name=GROUP,
        sizes=SIZES,
    )
    broker = RmqpySite(work).broker("filler", spec).start()
    try:
        with filled(broker, Filling(generator, mib / 1024, BODY_BYTES, QUEUES)):
            pass
    finally:
        broker.stop(timeout_s=300)
    assert broker.store is not None
    (broker.store / "lock").unlink(missing_ok=True)
    return broker.store


def tables(runs: Sequence[Run]) -> str:
    """Return the table of the forecasts, and that of the latencies."""
    lines = [
        "| run | " + " | ".join(f"{each}, forecast / actual, s" for each in CAUSES) + " | lost |"
    ]
    lines.append("|---|---|---|---|---|")
    for number, run in enumerate(runs):
        pairs = (f"{run.forecast[each]:.1f} / {run.actual[each]:.1f}" for each in CAUSES)
        lines.append(f"| {number + 1} | {' | '.join(pairs)} | {run.lost} of {run.acknowledged} |")
    ratios = [[run.actual[each] / run.forecast[each] for run in runs] for each in CAUSES]
    shown = (
        f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios
    )
    lines += [f"| actual / forecast: median (range) | {' | '.join(shown)} | |", ""]
    lines += ["| the master's p99, ms | median of the runs | range |", "|---|---|---|"]
    for phase in PHASES:
        found = [run.p99_ms[phase] for run in runs if phase in run.p99_ms]
        if found:
            middle = statistics.median(found)
            lines.append(f"| {phase} | {middle:.1f} | {min(found):.1f} to {max(found):.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="default 10")
    parser.add_argument("--mib", type=int, default=64, help="MiB of the old log, default 64")
    parser.add_argument("--output", type=Path, help="the JSON file, which is continued")
    parser.add_argument("--seconds", type=float, help="begin no run after this time")
    parser.add_argument(
        "--work", type=Path, help="folder for the stores, a temporary one by default"
    )
    options = parser.parse_args()
    if (missing := JavaHome().missing()) is not None:
        raise SystemExit(missing)
    name = f"{time.strftime('%F')}-forecast.json"
    output = options.output or Path(__file__).parent / "results" / name
    result: dict[str, Any] = {"machine": machine(), "mib": options.mib, "loads": [], "runs": []}
    if output.exists():
        result = json.loads(output.read_text())
    runs = [Run(**each) for each in result["runs"]]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rmqpy-forecast-", dir=options.work) as work:
        generator = build_generator(Path(work))
        old_log = write_old_log(Path(work), generator, options.mib)
        while len(runs) < options.runs:
            if time.monotonic() - begin > (options.seconds or float("inf")):
                break
            with tempfile.TemporaryDirectory(dir=work) as root:
                runs.append(measure(Path(root), old_log, generator))
            print(asdict(runs[-1]), file=sys.stderr, flush=True)
            result["loads"].append(os.getloadavg()[0])
            result["runs"] = [asdict(each) for each in runs]
            output.write_text(json.dumps(result, indent=1) + "\n")
    if runs:
        print(tables(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
