"""Compare the Java broker and rmqpy under the same loads in one run, and print a table of ratios.

    python bench/compare.py                       every row, three rounds, Java warmed up for 60 s
    python bench/compare.py --rows send-128 pull-32x128 --rounds 5
    python bench/compare.py --quick               one short round, to check that everything runs
    python bench/compare.py --kinds rmqpy         without Java; prints figures but no ratios

The broker under load runs on core 0, the generator (rmqload.c) on core 1; the other brokers are
stopped (SIGSTOP) in the meantime and use no CPU. Figures are messages per CPU-second of the
broker, unless a row says otherwise. README.md explains what they show and what they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen
from conditions import REALTIME_PRIORITY, admin_commands, realtime, stopped, use_memory
from load_target import QUEUES, LoadTarget
from report import brief, machine, table, write_json
from rows import (
    ACCESS,
    ACCOUNT,
    COUNTED,
    FAILOVER,
    FAILOVER_FAST,
    GROUP,
    IDLE,
    KINDS,
    LOADS,
    PULL_TOPIC,
    ROWS,
    START,
    WITH_ADMIN,
    Row,
    Sample,
    samples_of,
)

from rmqpy.acl.signature import Credentials
from rmqpy.testing.java import JavaHome, JavaSite, JvmSettings
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    Site,
    dledger_settings,
    group_settings,
    wait_until_accepting,
)

HERE = Path(__file__).resolve().parent
BROKER_CORE, GENERATOR_CORE = "0", "1"
TOPIC = "bench"
MEMBERS = 3
SIGNING = ("access", "base64", "sha1")
"""The files of the C core that the generator uses to sign."""
PULL_FILL_COUNT = 200_000
COUNTED_SECONDS_MAX = 900
SETTLED_SECONDS = 8.0
"""The time after which a group has a leader again, with Java's timing."""
WARM_SECONDS_MAX = {"java": 3600.0, "rmqpy": 3.0, "pure": 3.0, "floor": 1.0}
"""The longest warm-up by kind: Java compiles hot code, rmqpy runs at full speed at once."""

JVM = JvmSettings(
    heap_min_mb=1024,
    heap_max_mb=2048,
    direct_mb=2048,
    options=("-XX:+UseSerialGC", "-XX:-UsePerfData"),
)
"""The serial collector is Java's best choice on one core; taskset makes Java see one core."""

GROUP_JVM = evolve(JVM, heap_min_mb=512, heap_max_mb=1024, direct_mb=1024)
"""The JVM of each of three members."""


@frozen
class Options:
    """The options of a run."""

    rows: tuple[Row, ...]
    kinds: tuple[str, ...]
    rounds: int
    seconds: float
    warm_seconds: float
    memory_mb: int
    realtime: bool
    output: Path | None


@define
class Bench:
    """One run: its sites, its processes, and its measurements (``report.Results``)."""

    options: Options
    root: Path
    generator: Path
    sites: dict[str, Site]
    namesrv: ServerProcess
    ports: list[PortBlock] = field(factory=list)
    results: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = field(factory=dict)

    def run(self) -> None:
        options = self.options
        for profile in dict.fromkeys(row.profile for row in options.rows):
            samples = samples_of(options.rows, profile, options.kinds)
            if profile == START:
                self._measure_start(samples)
            elif profile == FAILOVER:
                self._measure_failover(samples)
                shutil.rmtree(self.root / profile, ignore_errors=True)
            else:
                kinds = [kind for kind in KINDS if any(s.kind == kind for s in samples)]
                with self._brokers(profile, kinds) as brokers:
                    self._measure(profile, samples, brokers)
                shutil.rmtree(self.root / profile, ignore_errors=True)

    def _measure(self, profile: str, samples: list[Sample], brokers: dict[str, LoadTarget]) -> None:
        for sample in samples:  # idle memory must be measured before any load
            if sample.load == IDLE:
                self._record(profile, sample, memory_of(brokers[sample.kind]))
        if any(sample.load.startswith("pull") for sample in samples):
            for broker in brokers.values():
                self._fill(broker)
        loads = [sample for sample in samples if sample.load not in (IDLE, *COUNTED)]
        for kind, broker in brokers.items():
            names = [sample.load for sample in loads if sample.kind == kind]
            warm = min(WARM_SECONDS_MAX[kind], self.options.warm_seconds)
            log(f"  {kind}: {warm:.0f} s of warm-up")
            with self._alone(broker, brokers):
                for load in names:
                    self._load(broker, load, warm / len(names))
        for turn in range(self.options.rounds):
            for sample in loads:
                self._measure_load(profile, sample, brokers, f"round {turn + 1}")
        for sample in samples:
            if sample.load in COUNTED:
                self._measure_load(profile, sample, brokers, "once")

    def _measure_load(
        self, profile: str, sample: Sample, brokers: dict[str, LoadTarget], when: str
    ) -> None:
        broker = brokers[sample.kind]
        with self._alone(broker, brokers):
            result = self._load(broker, sample.load, self.options.seconds)
        log(f"  {when} {sample.load:16} {sample.kind:6} {brief(result)}")
        self._record(profile, sample, result)

    def _measure_start(self, samples: list[Sample]) -> None:
        for turn in range(self.options.rounds + 1):
            for sample in samples:
                broker = self._broker(sample.kind, START, f"{sample.kind}-{turn}", {})
                start = time.monotonic()
                broker.launch()
                try:
                    wait_until_accepting(broker.port)
                    result = {"start_s": time.monotonic() - start}
                finally:
                    broker.stop()
                if not turn:
                    continue  # the first start compiles bytecode and reads the files from disk
                log(f"  round {turn} start {sample.kind:6} {result['start_s']:.3f} s")
                self._record(START, sample, result)

    def _measure_failover(self, samples: list[Sample]) -> None:
        """Kill the leader and measure the time until another member has stored a message."""
        for sample in samples:
            fast = sample.load == FAILOVER_FAST
            group = self._target(sample.kind, FAILOVER, sample.load, FAST_ELECTION if fast else {})
            try:
                group.start()
                for turn in range(self.options.rounds):
                    lost = group.members[group.leader]
                    lost.kill()
                    result = {"failover_s": group.find_leader()}
                    log(f"  round {turn + 1} {sample.load} {sample.kind} {result}")
                    self._record(FAILOVER, sample, result)
                    lost.start()
                    time.sleep(SETTLED_SECONDS)
            finally:
                group.kill()

    def _record(self, profile: str, sample: Sample, result: dict[str, Any]) -> None:
        of_load = self.results.setdefault(profile, {}).setdefault(sample.load, {})
        of_load.setdefault(sample.kind, []).append(result)

    @contextmanager
    def _alone(self, broker: LoadTarget, brokers: dict[str, LoadTarget]) -> Iterator[None]:
        with stopped(other for other in brokers.values() if other is not broker):
            if len(broker.members) > 1:  # a group that was stopped may elect again
                time.sleep(SETTLED_SECONDS)
                broker.find_leader()
            yield

    @contextmanager
    def _brokers(self, profile: str, kinds: list[str]) -> Iterator[dict[str, LoadTarget]]:
        brokers: dict[str, LoadTarget] = {}
        try:
            for kind in kinds:
                log(f"{profile}: starting the {kind} broker")
                brokers[kind] = self._target(kind, profile, kind, {})
                brokers[kind].start()
            yield brokers
        finally:
            for broker in brokers.values():
                broker.kill()

    def _target(
        self, kind: str, profile: str, name: str, settings: Mapping[str, str]
    ) -> LoadTarget:
        topics = (TOPIC, PULL_TOPIC)
        if profile not in (GROUP, FAILOVER):
            common = self._settings(profile, f"bench-{kind}")
            credentials = Credentials(*ACCOUNT) if profile == ACCESS else None
            broker = self._broker(kind, profile, name, common)
            return LoadTarget([broker], topics, credentials=credentials)
        self.ports.append(free_port_block(MEMBERS))
        ports = list(self.ports[-1])
        members = []
        for number in range(MEMBERS):
            member_settings = {
                **self._settings(profile, f"bench-{kind}"),
                **group_settings(f"bench-{kind}", ports, number),
                **settings,
            }
            members.append(self._broker(kind, profile, f"{name}-{number}", member_settings))
        return LoadTarget(members, topics)

    def _broker(
        self, kind: str, profile: str, name: str, settings: Mapping[str, str]
    ) -> ServerProcess:
        block = free_port_block(BROKER_PORT_COUNT)
        self.ports.append(block)
        spec = BrokerSpec(
            port=block.broker_port,
            namesrv=self.namesrv.address,
            broker_name=f"bench-{kind}",
            store=self.root / profile / name / "store",
            sizes={},
            settings=settings or self._settings(profile, f"bench-{kind}"),
        )
        if kind == "floor":
            broker = floor_process(self.root, block.broker_port)
            broker.argv[:0] = ["taskset", "-c", BROKER_CORE]
            return broker
        site = self.sites[kind]
        if isinstance(site, JavaSite) and profile in (GROUP, FAILOVER):
            site = evolve(site, jvm=GROUP_JVM)
        broker = site.broker(f"{profile}-{name}", spec)
        if profile == ACCESS:
            write_accounts(broker)
        broker.argv[:0] = ["taskset", "-c", BROKER_CORE]
        return broker

    def _settings(self, profile: str, broker_name: str) -> dict[str, str]:
        common = {
            "diskMaxUsedSpaceRatio": "95",
            # A broker that received more holds more data after the offset of a pull, and would then
            # return only eight messages at a time.
            "maxTransferCountOnMessageInDisk": "32",
            "maxTransferBytesOnMessageInDisk": "262144",
        }
        if profile == ACCESS:
            return {**common, "aclEnable": "true"}
        if profile == "sync-flush":
            return {**common, "flushDiskType": "SYNC_FLUSH"}
        if profile == "dledger":
            self.ports.append(free_port_block(1))
            return {**common, **dledger_settings(broker_name, self.ports[-1].first)}
        return common

    def _fill(self, broker: LoadTarget) -> None:
        """Send the messages of 128 bytes for the pull row."""
        arguments = ("--topic", PULL_TOPIC, "--count", str(PULL_FILL_COUNT))
        self._generate(broker, (*LOADS["send-128"], *arguments), 120)

    def _load(self, broker: LoadTarget, load: str, seconds: float) -> dict[str, Any]:
        arguments = ["--pid", ",".join(map(str, broker.pids)), *LOADS[load]]
        if load in COUNTED:
            arguments += ["--count", str(COUNTED[load])]
            seconds = COUNTED_SECONDS_MAX
        else:
            arguments += ["--seconds", f"{seconds}", "--warmup", "0.5"]
        use_memory(self.options.memory_mb)
        with ExitStack() as deps:
            if self.options.realtime:
                deps.enter_context(realtime(broker.pids))
            if load in WITH_ADMIN:
                deps.enter_context(admin_commands(broker.address, TOPIC))
            result = self._generate(broker, tuple(arguments), seconds + 60)
        for name in ("p50", "p99"):
            result[f"{name}_ms"] = result["latency_ms"][name]
        return result

    def _generate(
        self, broker: LoadTarget, arguments: tuple[str, ...], seconds_max: float
    ) -> dict[str, Any]:
        command = ["taskset", "-c", GENERATOR_CORE, str(self.generator), "--topic", TOPIC]
        command += ["--port", str(broker.port), "--queues", str(QUEUES), *arguments]
        if self.options.realtime:
            command[:0] = ["chrt", "-r", REALTIME_PRIORITY]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds_max, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} exited with {done.returncode}: {done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def memory_of(broker: LoadTarget) -> dict[str, Any]:
    anonymous_kb = 0
    for pid in broker.pids:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        lines = dict(line.split(":", 1) for line in status.splitlines())
        anonymous_kb += int(lines["RssAnon"].split()[0])
    return {"server_anon_kb": anonymous_kb}


def write_accounts(broker: ServerProcess) -> None:
    """Write one account, which is also an administrator because it creates the topics."""
    folder = broker.directory / "conf"
    folder.mkdir(parents=True, exist_ok=True)
    access_key, secret_key = ACCOUNT
    account = {
        "accessKey": access_key,
        "secretKey": secret_key,
        "whiteRemoteAddress": "",
        "admin": True,
        "defaultTopicPerm": "DENY",
        "defaultGroupPerm": "DENY",
        "topicPerms": [f"{TOPIC}=PUB|SUB"],
    }
    # JSON is valid YAML.
    (folder / "plain_acl.yml").write_text(json.dumps({"accounts": [account]}), encoding="utf-8")
    broker.environment = {**broker.environment, "ROCKETMQ_HOME": str(broker.directory)}


def floor_process(directory: Path, port: int) -> ServerProcess:
    """Return the process of ``floor.c`` on ``port``."""
    program = build(directory / "floor", [HERE / "floor.c"])
    argv = [str(program), str(port), str(directory / "floor.log")]
    return ServerProcess("floor", argv, directory, port, re.compile(rb"floor listens"))


def build_generator(directory: Path) -> Path:
    sources = [HERE / "rmqload.c", *(HERE.parent / "native" / f"{name}.c" for name in SIGNING)]
    return build(directory / "rmqload", sources)


def build(program: Path, sources: list[Path]) -> Path:
    """Compile ``sources`` and return ``program``."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(f"a C compiler (cc or gcc) is needed to build {sources[0].name}")
    native = str(HERE.parent / "native")
    names = [str(source) for source in sources]
    subprocess.run([compiler, "-O2", "-I", native, "-o", str(program), *names, "-lm"], check=True)
    return program


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each load")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured seconds of each load")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of warm-up for Java")
    parser.add_argument("--quick", action="store_true", help="one round of half a second per load")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="brokers to measure"
    )
    parser.add_argument(
        "--memory-mb",
        type=int,
        default=3000,
        help="MB of memory to touch and release before each load; with 0 the log may grow into"
        " memory that the hypervisor must provide first",
    )
    parser.add_argument(
        "--realtime", action="store_true", help="run loads in a real-time class (chrt); needs root"
    )
    parser.add_argument("--output", type=Path, help="result file; default: bench/results/DATE.json")
    given = parser.parse_args(arguments)
    return Options(
        rows=tuple(
            row
            for row in ROWS
            if row.name in given.rows and not (given.quick and row.sample.load in COUNTED)
        ),
        kinds=tuple(given.kinds),
        rounds=1 if given.quick else given.rounds,
        seconds=0.5 if given.quick else given.seconds,
        warm_seconds=2.0 if given.quick else given.warm,
        memory_mb=0 if given.quick else given.memory_mb,
        realtime=given.realtime,
        output=given.output,
    )


def main() -> int:
    options = parse(sys.argv[1:])
    home = JavaHome()
    reason = home.missing() if "java" in options.kinds else None
    if reason is not None:
        log(f"{reason}; use --kinds rmqpy pure to measure without Java")
        return 1
    os.sched_setaffinity(0, {int(GENERATOR_CORE)})
    # Write bytecode, as an installation does, even if the environment of this process disables it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    about = {
        "machine": machine(),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "warm_seconds": options.warm_seconds,
        "memory_mb": options.memory_mb,
        "realtime": options.realtime,
    }
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder:
        root = Path(folder)
        bytecode = {"PYTHONPYCACHEPREFIX": str(root / "bytecode")}
        sites: dict[str, Site] = {
            "java": JavaSite(root / "java", home, JVM, log_level="WARN"),
            "rmqpy": RmqpySite(root / "rmqpy", environment=bytecode),
            "pure": RmqpySite(root / "pure", environment={**bytecode, "RMQPY_PURE": "1"}),
        }
        block = free_port_block(1)
        namesrv_kind = next((kind for kind in reversed(options.kinds) if kind in sites), "rmqpy")
        with sites[namesrv_kind].namesrv("namesrv", block.first) as namesrv:
            bench = Bench(options, root, build_generator(root), sites, namesrv, [block])
            bench.run()
    print(table(options.rows, bench.results))
    if not options.output and options.rounds < 3:
        log("no result file written: fewer than three rounds (use --output FILE to write one)")
    else:
        path = options.output or HERE / "results" / f"{date.today().isoformat()}.json"
        write_json(path, about, options.rows, bench.results)
        log(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
