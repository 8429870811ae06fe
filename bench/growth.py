"""Measure what the work of a broker costs as its tables grow: queues, groups, connections, held
pulls, and backlog, each from small to large while the others stay small.

    python bench/growth.py                                some minutes
    python bench/growth.py --only queues --sizes 200000   one dimension, other sizes
    python bench/growth.py --kinds rmqpy java             beside Java, without turns

A point is one broker on a store that this script writes, with a name server beside it. Figures:

===================  ====================================================================
start_s, start_cpu_s from exec to the first accepted connection; ``killed_``: after SIGKILL
stop_s               from SIGTERM to the end of the process
idle_share           CPU time without requests, as a share of a core
send, round_robin    messages per CPU-second of a broker of its own: to one queue, and to all queues
                     in turn: the first message of each since the start, and ``_again`` after three,
                     for some seconds with the flushes that follow
pull                 messages per CPU-second, in batches of 32, of the same broker
turn_ms              the CPU time of the longest turn of the loop: idle, and while one queue
                     receives messages, one topic a second is created, and one deleted
                     (``loop_turns.py``)
anon_mib             anonymous memory
===================  ====================================================================

For the turns, periods are shortened, so that every periodic work runs in each phase: flushes of the
queues, registration, persistence of offsets, cleaning, statistics. The rates have the usual ones.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any, Final

from attrs import evolve, frozen
from compare import JVM, build_generator, log
from load_target import cpu_seconds
from report import machine
from request_frames import new_topic, send

from rmqpy.config.loading import StoreSettings
from rmqpy.model.codes import PutMessageStatus, RequestCode
from rmqpy.model.flags import PULL_SUSPEND
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import (
    ConsumerOffsetSerializeWrapper,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import DeleteTopicRequestHeader, PullMessageRequestHeader
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.blocking_connection import (
    PULL_HAS_SUBSCRIPTION,
    BlockingConnection,
    connect_when_ready,
)
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site

KINDS: Final = ("rmqpy", "java")
QUEUES_OF_TOPIC: Final = 10
GROUP: Final = "a-consumer-group"
OPAQUE: Final = 1_000_000
SIZES: Final = {
    "queues": (10, 1_000, 10_000),
    "groups": (10, 1_000, 10_000),
    "connections": (10, 1_000, 5_000),
    "held": (10, 1_000, 10_000),
    "backlog": (1_000, 100_000, 1_000_000),
}
"""The values of each dimension; 200,000 queues need ten minutes and 2 GiB."""
SMALL: Final = {"queues": 10, "groups": 10, "connections": 10, "held": 0, "backlog": 1_000}
HELD_PER_CONNECTION: Final = 100
READY_SECONDS_MAX: Final = 600.0
QUIET_SECONDS: Final = 12.0
CHANGES: Final = 5
FLUSHED_EVERY: Final = 10_000
"""The messages of a new store between two flushes: each open queue needs a mapping."""
LOAD_SECONDS: Final = "1"
RATE_SECONDS: Final = "10"
"""The time of a load that causes flushes of the queues: these are part of what it costs."""
SETTINGS: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "fileReservedTime": "480",
    # A request that is refused is not measured.
    "waitTimeMillsInSendQueue": "10000",
    "waitTimeMillsInPullQueue": "10000",
}
SHORT_PERIODS: Final = {
    "flushConsumeQueueThoroughInterval": "3000",
    "flushConsumerOffsetInterval": "3000",
    "registerNameServerPeriod": "10000",
    "cleanResourceInterval": "5000",
}
HOST: Final = (bytes([127, 0, 0, 1]), 10911)
FOLDER: Final = Path(__file__).parent


@frozen
class Point:
    """The sizes of a broker's tables."""

    queues: int
    groups: int
    connections: int
    held: int
    backlog: int

    @property
    def topics(self) -> list[str]:
        return [f"growing-topic-{number}" for number in range(-(-self.queues // QUEUES_OF_TOPIC))]


def write_store(root: Path, point: Point) -> None:
    """Write a store with one message in each queue, and the rest of the backlog in the first."""
    clock = ManualScheduler()
    settings = StoreSettings(store_path_root_dir=str(root))
    store = open_store(StoreContext(settings, OsFileSystem(), clock, 1 << 34))
    places = [(topic, number) for topic in point.topics for number in range(QUEUES_OF_TOPIC)]
    places += [places[0]] * max(0, point.backlog - len(places))
    for first in range(0, len(places), 1000):
        clock.advance(1)
        drafts = [
            OutgoingMessage(
                topic=topic.encode(),
                queue_id=queue_id,
                body=b"x" * 128,
                properties=f"UNIQ_KEY\x01{number:032X}\x02".encode(),
                born_timestamp_ms=clock.now_ms(),
                born_host=HOST,
                store_host=HOST,
            )
            for number, (topic, queue_id) in enumerate(places[first : first + 1000], first)
        ]
        results = store.appender.put(drafts)
        assert all(result.status is PutMessageStatus.PUT_OK for result in results)
        store.appender.commit()
        store.dispatch()
        if first % FLUSHED_EVERY == 0:  # Closes the files of the queues that are complete.
            store.flush_tracker.flush_queues()
    store.shutdown()
    groups = [GROUP, *(f"growing-group-{number}" for number in range(point.groups - 1))]
    version = DataVersion(1, 1)
    tables = {
        "topics": TopicConfigSerializeWrapper(
            version,
            {t: TopicConfig(t, QUEUES_OF_TOPIC, QUEUES_OF_TOPIC) for t in point.topics},
        ),
        "subscriptionGroup": SubscriptionGroupWrapper(
            version, {name: SubscriptionGroupConfig(name) for name in groups}
        ),
        "consumerOffset": ConsumerOffsetSerializeWrapper(
            {f"{point.topics[0]}@{name}": {0: 1} for name in groups}
        ),
    }
    (root / "config").mkdir(exist_ok=True)
    for name, table in tables.items():
        (root / "config" / f"{name}.json").write_bytes(table.encode())


@frozen
class Bench:
    """The folder of the servers, and the load generator."""

    root: Path
    generator: Path

    def measure(self, kind: str, dimension: str, size: int) -> dict[str, Any]:
        """Return the figures of one point."""
        point = Point(**{**SMALL, dimension: size})
        work = self.root / f"{kind}-{dimension}-{size}"
        store = work / "store"
        write_store(store, point)
        block = free_port_block(BROKER_PORT_COUNT)
        names = free_port_block(1)
        site: Site = RmqpySite(work) if kind == "rmqpy" else JavaSite(work, JavaHome(), JVM)
        spec = BrokerSpec(
            port=block.broker_port,
            namesrv=f"127.0.0.1:{names[0]}",
            store=store,
            sizes={},
            settings=SETTINGS,
        )
        with RmqpySite(work).namesrv("names", names[0]):
            plain = site.broker("plain", spec)
            broker = site.broker("broker", evolve(spec, settings={**SETTINGS, **SHORT_PERIODS}))
            if kind == "rmqpy":
                command = broker.argv[broker.argv.index("rmqpy.cli") + 1 :]
                program = str(FOLDER / "loop_turns.py")
                broker.argv[:] = [sys.executable, program, str(work / "turns.json"), *command]
            try:
                figures = self._measure_turns(broker, point, kind)
                figures |= self._measure_rates(plain, point)
            finally:
                broker.kill()
                plain.kill()
        subprocess.run(["rm", "-rf", str(work)], check=True)
        return figures

    def _measure_turns(self, broker: ServerProcess, point: Point, kind: str) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        figures["start_s"], figures["start_cpu_s"] = started(broker)
        turns = Turns(broker, broker.directory.parent / "turns.json", kind)
        with ExitStack() as connected:
            waiting = hold(connected, broker, point)
            time.sleep(1.0)  # for the last turns of the start
            turns.take()
            before = cpu_seconds(broker.pid)
            time.sleep(QUIET_SECONDS)
            figures["idle_share"] = round((cpu_seconds(broker.pid) - before) / QUIET_SECONDS, 4)
            figures["idle_turns_ms"] = turns.take()
            check_held(waiting)
            one = self._load(broker, "one", [send(point.topics[0])])
            self._load_each(broker, point)
            self._pull(broker, point.topics[0])
            turns.take()
            change_topics(broker)
            time.sleep(QUIET_SECONDS)
            figures["change_turns_ms"] = turns.take()
            figures["anon_mib"] = round(one["server_anon_kb"] / 1024, 1)
        begin = time.monotonic()
        broker.stop(timeout_s=READY_SECONDS_MAX)
        figures["stop_s"] = round(time.monotonic() - begin, 2)
        return figures

    def _measure_rates(self, broker: ServerProcess, point: Point) -> dict[str, Any]:
        started(broker)
        rounds = [self._load_each(broker, point) for _ in range(3)]
        long = "--seconds", RATE_SECONDS
        rates = {
            "send": self._load(broker, "one", [send(point.topics[0])], *long),
            "round_robin": rounds[0],
            "round_robin_again": self._load(broker, "all", each_queue(point), *long),
            "pull": self._pull(broker, point.topics[0]),
        }
        figures = {name: result["messages_per_server_cpu_s"] for name, result in rates.items()}
        broker.kill()
        figures["killed_start_s"], figures["killed_start_cpu_s"] = started(broker)
        return figures

    def _load_each(self, broker: ServerProcess, point: Point) -> dict[str, Any]:
        """Send one message to each queue."""
        every = each_queue(point)
        return self._load(broker, "all", every, "--count", str(len(every)), "--warmup", "0")

    def _load(
        self,
        broker: ServerProcess,
        name: str,
        commands: Sequence[RemotingCommand],
        *options: str,
    ) -> dict[str, Any]:
        frames = self.root / f"frames-{name}"
        for command in commands:
            command.opaque = OPAQUE
        frames.write_bytes(b"".join(encode_command(command) for command in commands))
        return self._run(broker, "--mode", "replay", "--frames", str(frames), *options)

    def _pull(self, broker: ServerProcess, topic: str) -> dict[str, Any]:
        return self._run(broker, "--mode", "pull", "--topic", topic, "--group", GROUP)

    def _run(self, broker: ServerProcess, *options: str) -> dict[str, Any]:
        done = subprocess.run(
            [
                *(str(self.generator), "--port", str(broker.port), "--pid", str(broker.pid)),
                *("--connections", "4", "--window", "16", "--warmup", "0.5"),
                *("--seconds", LOAD_SECONDS, *options),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{options}: {done.returncode} {done.stderr}{done.stdout}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if result["refused"]:
            log(f"  {result['refused']} refused: {result['refusals']}")
        return result


def each_queue(point: Point) -> list[RemotingCommand]:
    """Return a send to each queue."""
    return [
        send(topic, queue_id=number) for number in range(QUEUES_OF_TOPIC) for topic in point.topics
    ]


@frozen
class Turns:
    """The turns of a broker's loop, which ``loop_turns.py`` records; of rmqpy only."""

    broker: ServerProcess
    path: Path
    kind: str

    def take(self) -> list[list[Any]]:
        """Return the longest turns since the last call: ms of CPU time, and their callback."""
        if self.kind != "rmqpy":
            return []
        self.path.unlink(missing_ok=True)
        os.kill(self.broker.pid, signal.SIGUSR1)
        while not self.path.exists():
            time.sleep(0.05)
        longest: list[list[Any]] = json.loads(self.path.read_text())["longest_ms"]
        return [[round(used, 2), name] for used, name in longest[:3]]


def started(broker: ServerProcess) -> tuple[float, float]:
    """Start the broker; return the seconds and CPU-seconds until it accepts a connection."""
    begin = time.monotonic()
    broker.launch()
    while True:
        try:
            socket.create_connection(("127.0.0.1", broker.port), 1.0).close()
            return round(time.monotonic() - begin, 2), round(cpu_seconds(broker.pid), 2)
        except OSError:
            if not broker.running or time.monotonic() - begin > READY_SECONDS_MAX:
                raise SystemExit(f"{broker.name}: {broker.printed()[-2000:]}") from None
            time.sleep(0.01)


def hold(connected: ExitStack, broker: ServerProcess, point: Point) -> list[BlockingConnection]:
    """Open the idle connections, and those whose pulls wait for messages that never come, which are
    returned.
    """
    waiting = []
    for _ in range(point.connections):
        connected.enter_context(BlockingConnection(broker.address, timeout_s=30.0))
    for first in range(0, point.held, HELD_PER_CONNECTION):
        connection = connected.enter_context(BlockingConnection(broker.address, timeout_s=60.0))
        count = min(HELD_PER_CONNECTION, point.held - first)
        connection.send(*(held_pull(point.topics[0], 1 + n % 9) for n in range(count)))
        waiting.append(connection)
    return waiting


def check_held(waiting: Sequence[BlockingConnection]) -> None:
    """Raise SystemExit if the broker has answered one of the pulls."""
    readable, _, _ = select.select([connection._socket for connection in waiting], [], [], 0)
    if readable:
        raise SystemExit(f"pulls of {len(readable)} connections were answered instead of held")


def held_pull(topic: str, queue_id: int) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=1,
        max_msg_nums=32,
        sys_flag=PULL_SUSPEND | PULL_HAS_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=600_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


def change_topics(broker: ServerProcess) -> None:
    """Create some topics, one a second, and delete one: each changes tables, and is registered."""
    delete = RemotingCommand.request(
        RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="another-topic-0")
    )
    creations = (new_topic(f"another-topic-{n}", QUEUES_OF_TOPIC) for n in range(CHANGES))
    with connect_when_ready(broker.address) as connection:
        for change in (*creations, send("another-topic-0"), delete):
            answer = connection.call(change)
            assert answer.code == 0, answer.remark
            time.sleep(1)


def line_of(kind: str, dimension: str, size: int, figures: dict[str, Any]) -> str:
    turns = [figures[name][0][0] if figures[name] else 0.0 for name in TURN_FIGURES]
    return (
        f"{kind:6} {dimension:11} {size:>9,} start {figures['start_s']:6.2f} s"
        f" (killed {figures['killed_start_s']:6.2f}), stop {figures['stop_s']:6.2f} s,"
        f" idle {100 * figures['idle_share']:5.1f} %, send {figures['send']:>9,.0f},"
        f" all {figures['round_robin_again']:>9,.0f}, pull {figures['pull']:>11,.0f} /CPU-s,"
        f" turn {turns[0]:6.1f}/{turns[1]:6.1f} ms, {figures['anon_mib']:6.1f} MiB"
    )


TURN_FIGURES: Final = ("idle_turns_ms", "change_turns_ms")


def main() -> int:
    summary = (__doc__ or "").partition("\n\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--only", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, help="sizes of the chosen dimension")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["rmqpy"])
    parser.add_argument("--work", type=Path, help="folder of the stores (default: a temporary one)")
    parser.add_argument("--output", type=Path, help="file for the figures, which is continued")
    given = parser.parse_args()
    if "java" in given.kinds and (reason := JavaHome().missing()) is not None:
        raise SystemExit(f"{reason}; use --kinds rmqpy to measure without Java")
    points: list[dict[str, Any]] = []
    if given.output is not None and given.output.exists():
        points = json.loads(given.output.read_text(encoding="utf-8"))["points"]
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-", dir=given.work) as folder:
        bench = Bench(Path(folder), build_generator(Path(folder)))
        for dimension in given.only:
            for size in given.sizes or SIZES[dimension]:
                for kind in given.kinds:
                    figures = bench.measure(kind, dimension, size)
                    print(line_of(kind, dimension, size, figures), flush=True)
                    points = [
                        point
                        for point in points
                        if (point["kind"], point["dimension"], point["size"])
                        != (kind, dimension, size)
                    ]
                    points.append(
                        {"kind": kind, "dimension": dimension, "size": size, "figures": figures}
                    )
                    if given.output is not None:
                        write(given.output, points)
    return 0


def write(path: Path, points: list[dict[str, Any]]) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    about = {**machine(), "memory_gib": round(memory / 2**30, 1)}
    content = {"date": date.today().isoformat(), "machine": about, "points": points}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
