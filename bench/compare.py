"""The Java broker and ours, side by side: one run, the same loads in turn, a table of ratios.

    python bench/compare.py                       every row, three rounds, Java warmed for 60 s
    python bench/compare.py --rows send-128 pull-128 --rounds 5
    python bench/compare.py --quick               one short round: does it all still run?
    python bench/compare.py --only rmqpy          without Java: figures, no ratios

The broker under load runs on core 0, the generator (rmqload.c) on core 1; the other broker is
stopped (SIGSTOP) meanwhile, so that it costs nothing. Figures are messages per CPU-second of the
broker, where a row does not say otherwise. See README.md for what they can and cannot tell.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

import rmqpy
from rmqpy.testing.blocking import connect_when_ready, create_topic
from rmqpy.testing.java import JavaHome, JavaSite, JvmSettings
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
    wait_until_accepting,
)

HERE = Path(__file__).resolve().parent
BROKER_CORE, GENERATOR_CORE = "0", "1"
REALTIME_PRIORITY = "5"
TOPIC, PULL_TOPIC, QUEUES = "bench", "bench-pull", 4
PULL_FILL_COUNT = 200_000
WARM_SECONDS_MAX = {"java": 3600.0, "rmqpy": 3.0}
"""Java compiles what is hot; we are at full speed at once."""

JVM = JvmSettings(
    heap_min_mb=1024,
    heap_max_mb=2048,
    direct_mb=2048,
    options=("-XX:+UseSerialGC", "-XX:-UsePerfData"),
)
"""With one core the serial collector is Java's best; taskset makes it see one core."""

PER_CPU = "messages_per_server_cpu_s"
PER_SECOND = "messages_per_s"
BYTES_PER_SECOND = "message_bytes_per_s"

LOADS: Mapping[str, tuple[str, ...]] = {
    "send-128": ("--size", "128"),
    "send-128-binary": ("--size", "128", "--header", "rocketmq"),
    "send-1k": ("--size", "1024"),
    "send-64x1": ("--size", "128", "--connections", "64", "--window", "1"),
    "batch-16x128": ("--mode", "send-batch", "--size", "128", "--window", "8"),
    "pull-32x128": ("--mode", "pull", "--window", "4", "--topic", PULL_TOPIC),
    "rate-5000": ("--size", "128", "--connections", "16", "--rate", "5000"),
}


@frozen
class Row:
    """One line of the table: a load on a broker of one profile, and the figure that counts."""

    name: str
    profile: str
    load: str
    figure: str = PER_CPU
    lower_is_better: bool = False


ROWS = (
    Row("send-128", "async", "send-128"),
    Row("send-128-binary", "async", "send-128-binary"),
    Row("send-1k", "async", "send-1k"),
    Row("send-64x1", "async", "send-64x1"),
    Row("batch-16x128", "async", "batch-16x128"),
    Row("pull-32x128", "async", "pull-32x128"),
    Row("p99-ms-4x64", "async", "send-128", "p99_ms", lower_is_better=True),
    Row("p50-ms-5000-a-s", "async", "rate-5000", "p50_ms", lower_is_better=True),
    Row("sync-flush-128", "sync-flush", "send-128", PER_SECOND),
    Row("dledger-128", "dledger", "send-128"),
    Row("dledger-1k", "dledger", "send-1k"),
    Row("memory-idle-kb", "async", "idle", "server_anon_kb", lower_is_better=True),
    Row("memory-loaded-kb", "async", "send-128", "server_anon_kb", lower_is_better=True),
    Row("start-s", "start", "start", "start_s", lower_is_better=True),
)


@frozen
class Options:
    rows: tuple[Row, ...]
    kinds: tuple[str, ...]
    rounds: int
    seconds: float
    warm_seconds: float
    realtime: bool
    output: Path | None


@define
class Bench:
    """The places and processes of one run, and what was measured: ``figures[row][kind]`` is one
    result a round.
    """

    options: Options
    root: Path
    generator: Path
    sites: dict[str, Site]
    namesrv: ServerProcess
    ports: list[PortBlock] = field(factory=list)
    results: dict[str, dict[str, list[dict[str, Any]]]] = field(factory=dict)

    def run(self) -> None:
        for profile in dict.fromkeys(row.profile for row in self.options.rows):
            rows = [row for row in self.options.rows if row.profile == profile]
            if profile == "start":
                self._measure_start(rows)
            else:
                with self._brokers(profile) as brokers:
                    self._measure(rows, brokers)
                shutil.rmtree(self.root / profile, ignore_errors=True)

    def _measure(self, rows: list[Row], brokers: dict[str, ServerProcess]) -> None:
        loads = list(dict.fromkeys(row.load for row in rows))
        if "idle" in loads:  # before any load
            loads.remove("idle")
            for kind, broker in brokers.items():
                self._take([row for row in rows if row.load == "idle"], kind, memory_of(broker))
        if any(load.startswith("pull") for load in loads):
            for broker in brokers.values():
                self._fill(broker)
        for kind, broker in brokers.items() if loads else ():
            warm = min(WARM_SECONDS_MAX[kind], self.options.warm_seconds)
            say(f"  {kind}: {warm:.0f} s of warming")
            with running_alone(broker, brokers):
                for load in loads:
                    self._load(broker, load, warm / len(loads))
        for turn in range(self.options.rounds):
            for load in loads:
                for kind, broker in brokers.items():
                    with running_alone(broker, brokers):
                        result = self._load(broker, load, self.options.seconds)
                    say(f"  round {turn + 1} {load:16} {kind:6} {brief(result)}")
                    self._take([row for row in rows if row.load == load], kind, result)

    def _measure_start(self, rows: list[Row]) -> None:
        for turn in range(self.options.rounds):
            for kind in self.options.kinds:
                broker = self._broker(kind, "start", f"{kind}-{turn}")
                begin = time.monotonic()
                broker.launch()
                try:
                    wait_until_accepting(broker.port)
                    result = {"start_s": time.monotonic() - begin}
                finally:
                    broker.stop()
                say(f"  round {turn + 1} start {kind:6} {result['start_s']:.3f} s")
                self._take(rows, kind, result)

    def _take(self, rows: list[Row], kind: str, result: dict[str, Any]) -> None:
        for row in rows:
            self.results.setdefault(row.name, {}).setdefault(kind, []).append(result)

    @contextmanager
    def _brokers(self, profile: str) -> Iterator[dict[str, ServerProcess]]:
        brokers: dict[str, ServerProcess] = {}
        try:
            for kind in self.options.kinds:
                say(f"{profile}: starting the {kind} broker")
                brokers[kind] = self._broker(kind, profile, kind).start()
                with connect_when_ready(brokers[kind].address) as connection:
                    for topic in (TOPIC, PULL_TOPIC):
                        create_topic(connection, topic, QUEUES)
                wait_until_sends_succeed(self, brokers[kind])
            yield brokers
        finally:
            for broker in brokers.values():
                if broker.running:
                    os.kill(broker.pid, signal.SIGCONT)
                broker.kill()

    def _broker(self, kind: str, profile: str, name: str) -> ServerProcess:
        block = free_port_block(BROKER_PORT_COUNT)
        self.ports.append(block)
        spec = BrokerSpec(
            port=block.broker_port,
            namesrv=self.namesrv.address,
            broker_name=f"bench-{kind}",
            store=self.root / profile / name / "store",
            sizes={},
            settings=self._settings(profile, f"bench-{kind}"),
        )
        broker = self.sites[kind].broker(f"{profile}-{name}", spec)
        broker.argv[:0] = ["taskset", "-c", BROKER_CORE]
        return broker

    def _settings(self, profile: str, broker_name: str) -> dict[str, str]:
        common = {"diskMaxUsedSpaceRatio": "95"}
        if profile == "sync-flush":
            return {**common, "flushDiskType": "SYNC_FLUSH"}
        if profile == "dledger":
            self.ports.append(free_port_block(1))
            return {**common, **dledger_settings(broker_name, self.ports[-1].first)}
        return common

    def _fill(self, broker: ServerProcess) -> None:
        """Messages of 128 bytes and nothing else for the pull row."""
        words = ("--topic", PULL_TOPIC, "--count", str(PULL_FILL_COUNT))
        self._generate(broker, (*LOADS["send-128"], *words), 120)

    def _load(self, broker: ServerProcess, load: str, seconds: float) -> dict[str, Any]:
        words = ("--pid", str(broker.pid), "--seconds", f"{seconds}", "--warmup", "0.5")
        with realtime(broker.pid) if self.options.realtime else nothing():
            result = self._generate(broker, (*words, *LOADS[load]), seconds + 60)
        for name in ("p50", "p99"):
            result[f"{name}_ms"] = result["latency_ms"][name]
        return result

    def _generate(
        self, broker: ServerProcess, words: tuple[str, ...], seconds_max: float
    ) -> dict[str, Any]:
        command = ["taskset", "-c", GENERATOR_CORE, str(self.generator), "--topic", TOPIC]
        command += ["--port", str(broker.port), "--queues", str(QUEUES), *words]
        if self.options.realtime:
            command[:0] = ["chrt", "-r", REALTIME_PRIORITY]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds_max, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def realtime(pid: int) -> Iterator[None]:
    """All threads of the broker in a real-time class for the seconds of a load."""
    subprocess.run(["chrt", "-a", "-r", "-p", REALTIME_PRIORITY, str(pid)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chrt", "-a", "-o", "-p", "0", str(pid)], check=True)


@contextmanager
def running_alone(broker: ServerProcess, brokers: Mapping[str, ServerProcess]) -> Iterator[None]:
    others = [other for other in brokers.values() if other is not broker]
    for other in others:
        os.kill(other.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other.pid, signal.SIGCONT)


def memory_of(broker: ServerProcess) -> dict[str, Any]:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return {"server_anon_kb": int(lines["RssAnon"].split()[0])}


def wait_until_sends_succeed(bench: Bench, broker: ServerProcess) -> None:
    """A DLedger broker answers before it leads."""
    command = [str(bench.generator), "--port", str(broker.port), "--topic", TOPIC, "--count", "4"]
    deadline = time.monotonic() + 60
    while subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{broker.name} accepts no message; see {broker.output}")
        time.sleep(0.2)


def build_generator(directory: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler (cc or gcc) is needed to build rmqload.c")
    program = directory / "rmqload"
    command = [compiler, "-O2", "-o", str(program), str(HERE / "rmqload.c"), "-lm"]
    subprocess.run(command, check=True)
    return program


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def brief(result: Mapping[str, Any]) -> str:
    return (
        f"{result[PER_CPU]:12,.0f} msg/CPU-s {result[PER_SECOND]:12,.0f} msg/s "
        f"p99 {result['latency_ms']['p99']:8.3f} ms, core {result['server_cpu_share']:.0%}, "
        f"refused {result['refused']}"
    )


def table(bench: Bench) -> str:
    """Min, median and max of each kind, and the ratio of the medians (rmqpy to Java)."""
    lines = [f"{'row':18} {'figure':27}" + "".join(f"{kind:>36}" for kind in bench.options.kinds)]
    lines[0] += f"{'ratio':>9}"
    for row in bench.options.rows:
        cells, medians = "", {}
        for kind in bench.options.kinds:
            figures = [result[row.figure] for result in bench.results[row.name][kind]]
            medians[kind] = statistics.median(figures)
            cells += f"{triple(figures):>36}"
        ratio = f"{medians['rmqpy'] / medians['java']:.2f}x" if len(medians) == 2 else "-"
        lines.append(f"{row.name:18} {row.figure:27}{cells}{ratio:>9}")
    return "\n".join(lines)


def triple(figures: list[float]) -> str:
    digits = 3 if max(figures) < 100 else 0
    three = (min(figures), statistics.median(figures), max(figures))
    return " / ".join(f"{figure:,.{digits}f}" for figure in three)


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rmqpy": rmqpy.__version__,
        "load_before": os.getloadavg()[0],
    }


def write_result(bench: Bench, about: dict[str, Any]) -> Path:
    path = bench.options.output or HERE / "results" / f"{date.today().isoformat()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": date.today().isoformat(),
        "machine": about,
        "rounds": bench.options.rounds,
        "seconds": bench.options.seconds,
        "warm_seconds": bench.options.warm_seconds,
        "realtime": bench.options.realtime,
        "results": bench.results,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load before (Java)")
    parser.add_argument("--quick", action="store_true", help="one round of half a second")
    parser.add_argument("--only", choices=["java", "rmqpy"], help="run one of them")
    parser.add_argument("--realtime", action="store_true", help="chrt during loads; needs root")
    parser.add_argument("--output", type=Path, help="instead of bench/results/DATE.json")
    given = parser.parse_args(arguments)
    return Options(
        rows=tuple(row for row in ROWS if row.name in given.rows),
        kinds=(given.only,) if given.only else ("java", "rmqpy"),
        rounds=1 if given.quick else given.rounds,
        seconds=0.5 if given.quick else given.seconds,
        warm_seconds=2.0 if given.quick else given.warm,
        realtime=given.realtime,
        output=given.output,
    )


def main() -> int:
    options = parse(sys.argv[1:])
    home = JavaHome()
    reason = home.missing() if "java" in options.kinds else None
    if reason is not None:
        say(f"{reason}; try --only rmqpy")
        return 1
    about = machine()
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as made:
        root = Path(made)
        sites: dict[str, Site] = {
            "java": JavaSite(root / "java", home, JVM, log_level="WARN"),
            "rmqpy": RmqpySite(root / "rmqpy"),
        }
        block = free_port_block(1)
        with sites[options.kinds[-1]].namesrv("namesrv", block.first) as namesrv:
            bench = Bench(options, root, build_generator(root), sites, namesrv, [block])
            bench.run()
    print(table(bench))
    if not options.output and options.rounds < 3:
        say("not written: a short run is no result (name a file with --output to keep it)")
    else:
        say(f"written: {write_result(bench, about)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
