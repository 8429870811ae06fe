"""Streams whose driver, worker, executor, broker, or leader is killed.

Every message is in the file sink once, and none is skipped. A driver is a separate process. It is
stopped as soon as the files of its checkpoint and its sink show the intended phase, and killed if
they still do; so no phase is missed by chance.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

import pytest
from attrs import define, evolve, field
from harness.pipeline import QUICK_JVM, LiveCluster, bodies

from rmqpy.cli import main
from rmqpy.client.blocking import BlockingPullConsumer
from rmqpy.client.core.base_consumer import PullStatus
from rmqpy.client.core.message import MessageExt
from rmqpy.model.errors import RmqError
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    dledger_settings,
    group_settings,
    python_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("stream_driver.py")
WAIT_SECONDS_MAX = 600
POLL_SECONDS = 0.005
TOO_SLOW = "Python worker failed to connect back"
"""The error of a busy machine: Spark waits only ten seconds for a new Python process."""
STARTS_MAX = 5
QUEUES = 2
BATCH = 20
"""The offsets per batch of a driver that will be killed."""
SENT = 15 * BATCH

T = TypeVar("T")


def until(probe: Callable[[], T | None], what: str) -> T:
    """Wait until ``probe`` returns a true value, and return it."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not within {WAIT_SECONDS_MAX} s: {what}"
        time.sleep(POLL_SECONDS)
    return found


# ------------------------------------------------------------------------------ progress


def numbers_in(folder: Path) -> list[int]:
    """Return the batches in a log of Spark; every tenth file of a sink ends in ``.compact``."""
    names = (path.name.removesuffix(".compact") for path in folder.glob("*"))
    return sorted(int(name) for name in names if name.isdigit())


@define
class Progress:
    """The progress of a stream into files, read from its checkpoint and its sink."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def rows(self) -> Path:
        return self.root / "rows"

    @property
    def committed(self) -> int:
        """The last committed batch, or -1 before the first."""
        return max(numbers_in(self.checkpoint / "commits"), default=-1)

    @property
    def planned(self) -> int:
        return max(numbers_in(self.checkpoint / "offsets"), default=-1)

    def phase(self) -> str:
        """Return the phase of the batch that was planned last."""
        planned = self.planned
        if planned <= self.committed:
            return "committed"
        if planned in numbers_in(self.rows / "_spark_metadata"):
            return "in the sink"
        return "running" if self._loose_files() else "planned"

    def _loose_files(self) -> set[str]:
        """Return the files of the sink that are not in its log."""
        known: set[str] = set()
        for log in (self.rows / "_spark_metadata").glob("[0-9]*"):
            entries = log.read_text().splitlines()[1:]
            known |= {json.loads(entry)["path"].rpartition("/")[2] for entry in entries}
        return {path.name for path in self.rows.glob("*.parquet")} - known

    def read_count(self, topic: str) -> int:
        """Return the end of the last committed batch, as the sum of the offsets of all queues."""
        if self.committed < 0:
            return 0
        text = (self.checkpoint / "offsets" / str(self.committed)).read_text()
        tree = json.loads(text.splitlines()[-1])
        return sum(sum(queues.values()) for queues in tree.get(topic, {}).values())


# ------------------------------------------------------------------------------ drivers


def processes() -> dict[int, tuple[int, str]]:
    """Return (parent, command line) of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = parent, command
    return found


def descendants(pid: int, running: dict[int, tuple[int, str]]) -> list[int]:
    children = [each for each, (parent, _) in running.items() if parent == pid]
    return [*children, *(deeper for child in children for deeper in descendants(child, running))]


class StreamOrder(TypedDict):
    """The argument of stream_driver.py."""

    master: str
    settings: dict[str, str]
    read: dict[str, str]
    select: list[str]
    format: str
    write: dict[str, str]


@define
class Driver:
    """A process of stream_driver.py, with its JVM and all descendants."""

    order: StreamOrder
    log: Path
    _process: subprocess.Popen[bytes] = field(init=False)
    _frozen: list[int] = field(factory=list, init=False)
    _starts: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(self.order)],
                env=python_environment(QUICK_JVM | {"SPARK_LOCAL_IP": "127.0.0.1"}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def tree(self) -> list[int]:
        return [self._process.pid, *descendants(self._process.pid, processes())]

    def catch(self, is_reached: Callable[[], bool], what: str) -> None:
        """Stop the driver while ``is_reached`` is true, and still is after the stop."""

        def caught() -> bool:
            self.keep_running()
            if not is_reached():
                return False
            self._frozen = self.tree()
            self._signal(signal.SIGSTOP)
            time.sleep(0.02)
            if is_reached():
                return True
            self._signal(signal.SIGCONT)
            self._frozen = []
            return False

        until(caught, what)

    def keep_running(self) -> None:
        """Start the driver again if the machine was too busy for its workers."""
        if self._process.poll() is not None:
            log = self.log.read_text()
            assert log.count(TOO_SLOW) >= self._starts < STARTS_MAX, log[-3000:]
            self._start()

    def kill(self) -> None:
        """Kill the driver and all descendants with SIGKILL."""
        self._frozen = sorted({*self._frozen, *self.tree()})
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def found(self, text: str) -> list[int]:
        """Return the descendants with ``text`` in their command lines."""
        running = processes()
        own = descendants(self._process.pid, running)
        return [pid for pid in own if pid in running and text in running[pid][1]]

    def workers(self) -> list[int]:
        """Return the Python workers of executors, without the daemons that fork them."""
        running = processes()
        forkers = self.found("pyspark.daemon")
        return [pid for pid in forkers if running.get(pid, (0, ""))[0] in forkers]


@define
class StreamRun:
    """A stream from one topic, in a driver or in the session of this process."""

    live: LiveCluster
    topic: str
    progress: Progress
    spark: SparkSession
    _drivers: list[Driver] = field(factory=list)
    _query: StreamingQuery | None = None
    _starts: int = 0

    def driver(
        self,
        master: str = "local[2,4]",
        *,
        settings: dict[str, str] | None = None,
        read: dict[str, str] | None = None,
        select: str = "*",
        sink_format: str = "parquet",
        write: dict[str, str] | None = None,
    ) -> Driver:
        """Start a driver with further options to ``read``, or other options to ``write``."""
        order = StreamOrder(
            master=master,
            settings=settings or {},
            read=self.reading() | {"maxOffsetsPerTrigger": str(BATCH)} | (read or {}),
            select=[select],
            format=sink_format,
            write=write or self.sink(),
        )
        driver = Driver(order, self.progress.root / "driver.log")
        self._drivers.append(driver)
        return driver

    def reading(self) -> dict[str, str]:
        address = self.live.namesrv.address
        return {"nameServer": address, "topic": self.topic, "startingOffsets": "earliest"}

    def sink(self) -> dict[str, str]:
        return {
            "checkpointLocation": str(self.progress.checkpoint),
            "path": str(self.progress.rows),
            "compression": "none",  # Snappy needs a library that may not load (musl).
        }

    def keep_streaming(self) -> None:
        """Start the stream in the session of this process if it does not run."""
        fault = self._query.exception() if self._query is not None else None
        if self._query is None or (fault is not None and TOO_SLOW in str(fault)):
            self._starts += 1
            assert self._starts <= STARTS_MAX, fault
            frame = self.spark.readStream.format("rocketmq").options(**self.reading()).load()
            self._query = frame.writeStream.format("parquet").options(**self.sink()).start()
        elif fault is not None:
            raise fault

    def stop(self) -> None:
        assert self._query is not None
        self._query.stop()

    def finish(self) -> None:
        """Continue from the checkpoint to the current end of the queues."""
        frame = self.spark.readStream.format("rocketmq").options(**self.reading()).load()
        finish(frame.writeStream.format("parquet").options(**self.sink()))

    def check(self, sent: list[bytes]) -> None:
        """Check that the sink has each message of the queues once, and all acknowledged ones."""
        rows = self.spark.read.parquet(str(self.progress.rows)).collect()
        places = Counter((row["queueId"], row["queueOffset"]) for row in rows)
        found = stored(self.live, self.topic)
        assert set(places.values()) == {1}
        assert places.keys() == {(each.queue.queue_id, each.queue_offset) for each in found}
        assert Counter(bytes(row["body"]) for row in rows) == Counter(each.body for each in found)
        assert set(sent) <= {each.body for each in found}
        for queue_id in {queue for queue, _ in places}:
            offsets = sorted(offset for queue, offset in places if queue == queue_id)
            assert offsets == list(range(len(offsets)))

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
        for query in self.spark.streams.active:
            query.stop()


def finish(writer: DataStreamWriter) -> None:
    """Run a stream to the current end of the queues, again if the machine was too busy."""
    from pyspark.errors import StreamingQueryException

    for start in range(1, STARTS_MAX + 1):
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_SECONDS_MAX)
            return
        except StreamingQueryException as fault:
            if TOO_SLOW not in str(fault) or start == STARTS_MAX:
                raise


def is_read(stream: StreamRun, count: int) -> bool:
    return stream.progress.read_count(stream.topic) == count


def stored(live: LiveCluster, topic: str) -> list[MessageExt]:
    """Return the messages that a consumer reads."""
    found = []
    with BlockingPullConsumer("judge", live.namesrv.address) as consumer:
        for queue in consumer.queues(topic):
            offset = consumer.min_offset(queue)
            result = consumer.pull(queue, offset)
            while result.status is PullStatus.FOUND:
                found += result.messages
                result = consumer.pull(queue, result.next_begin_offset)
    return found


@pytest.fixture
def stream_on(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., StreamRun]]:
    """Return a function that creates a stream from a new topic of a cluster."""
    runs: list[StreamRun] = []

    def create(live: LiveCluster) -> StreamRun:
        runs.append(StreamRun(live, live.topic(QUEUES), Progress(tmp_path), spark))
        return runs[-1]

    yield create
    for run in runs:
        run.close()


# ------------------------------------------------------------------------------ drivers die

PHASES = ["waiting", "planned", "running", "in the sink", "committed"]
"""The phases of a batch.

There are messages, but no batch is planned; offsets are written; tasks work; the rows are in the
log of the sink; the commit is written, and no next batch is planned.
"""

CASES = [("rmqpy", phase) for phase in PHASES] + [
    pytest.param("java", phase, marks=pytest.mark.interop) for phase in PHASES
]

ONLY_RMQPY = pytest.mark.parametrize("live", ["rmqpy"], indirect=True)


@pytest.mark.parametrize(("live", "phase"), CASES, indirect=["live"])
def test_a_driver_killed_in_any_phase_loses_no_message(
    live: LiveCluster, phase: str, stream_on: Callable[..., StreamRun]
) -> None:
    stream = stream_on(live)
    progress, sent = stream.progress, bodies(0, BATCH if phase == "waiting" else SENT)
    live.send(stream.topic, sent)
    driver = stream.driver()

    def is_reached() -> bool:
        if phase == "waiting":
            return progress.phase() == "committed" and is_read(stream, len(sent))
        has_more = not is_read(stream, len(sent))
        return progress.planned > 0 and progress.phase() == phase and has_more

    def is_reached_or_repeated() -> bool:
        """Send more batches until a phase that lasts for milliseconds is caught."""
        if phase != "waiting" and is_read(stream, len(sent)):
            live.send(stream.topic, bodies(len(sent), BATCH))
            sent.extend(bodies(len(sent), BATCH))
        return is_reached()

    driver.catch(is_reached_or_repeated, phase)
    if phase == "waiting":
        live.send(stream.topic, bodies(len(sent), 7))
    driver.kill()
    assert is_reached()
    if phase == "waiting":
        sent += bodies(len(sent), 7)
    assert progress.read_count(stream.topic) < len(sent), "there are messages left to read"
    sent += bodies(len(sent), 25)
    live.send(stream.topic, sent[-25:])
    stream.finish()
    stream.check(sent)


@ONLY_RMQPY
def test_messages_sent_again_by_a_killed_driver_have_equal_marks(
    live: LiveCluster, stream_on: Callable[..., StreamRun]
) -> None:
    """Rows are sent at least once, and duplicates are recognized by their marks."""
    stream, target = stream_on(live), live.topic()
    sent = bodies(0, 10 * BATCH)
    live.send(stream.topic, sent)
    write = {
        "nameServer": live.namesrv.address,
        "topic": target,
        "checkpointLocation": str(stream.progress.checkpoint),
    }
    driver = stream.driver(sink_format="rocketmq", write=write, select="body")

    def is_reached() -> bool:
        planned, committed = stream.progress.planned, stream.progress.committed
        return planned > committed > 0 and len(stored(live, target)) > (committed + 1) * BATCH

    driver.catch(is_reached, "rows of an uncommitted batch are sent")
    driver.kill()
    frame = stream.spark.readStream.format("rocketmq").options(**stream.reading()).load()
    writer = frame.select("body").writeStream.format("rocketmq").options(**write)
    finish(writer)
    found = stored(live, target)
    names = [f"SPARK_{name}" for name in ("QUERY", "BATCH", "PARTITION", "ROW")]
    marks = {(tuple(each.properties[name] for name in names), each.body) for each in found}
    assert sorted(body for _, body in marks) == sent
    assert len({mark for mark, _ in marks}) == len(sent) < len(found)


@ONLY_RMQPY
def test_a_killed_worker_and_executor_lose_no_message(
    live: LiveCluster, stream_on: Callable[..., StreamRun]
) -> None:
    stream = stream_on(live)
    progress, sent = stream.progress, bodies(0, 6 * 400)
    live.send(stream.topic, sent)
    driver = stream.driver(
        "local-cluster[2,1,1024]",
        settings={"spark.log.level": "WARN"},
        read={"maxOffsetsPerTrigger": "400", "pullBatchSize": "1"},
    )
    log = stream.progress.root / "driver.log"

    def kill_one(find: Callable[[], list[int]], message: str, first: int) -> None:
        """Kill a process while tasks work, until the log has the message."""

        def killed() -> bool:
            driver.keep_running()
            if progress.committed >= first and progress.phase() in ("planned", "running"):
                for pid in find()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(0.5)
            return message in log.read_text()

        until(killed, message)

    kill_one(driver.workers, "Lost task", 0)
    executors = len(driver.found("CoarseGrainedExecutorBackend"))
    kill_one(lambda: driver.found("CoarseGrainedExecutorBackend"), "Lost executor", 1)
    assert executors == 2
    driver.catch(lambda: is_read(stream, len(sent)), "all messages are read")
    driver.kill()
    stream.finish()
    stream.check(sent)


# ------------------------------------------------------------------------------ brokers change


class Sending:
    """A thread that sends numbered messages until the end of its block."""

    def __init__(self, live: LiveCluster, topic: str) -> None:
        self.sent: list[bytes] = []
        self._live, self._topic = live, topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            new = bodies(len(self.sent), 5)
            self._live.send(self._topic, new)
            self.sent += new

    def wait(self, count: int) -> None:
        """Wait until ``count`` further messages are sent."""
        expected = len(self.sent) + count
        until(
            lambda: len(self.sent) >= expected or not self._thread.is_alive(), "messages are sent"
        )
        assert len(self.sent) >= expected


def check_change(stream: StreamRun, change: Callable[[], None]) -> None:
    """Call ``change`` while messages are sent and read, and check that both continue."""

    def has_read(count: int) -> bool:
        stream.keep_streaming()
        return stream.progress.read_count(stream.topic) >= count

    stream.keep_streaming()
    with Sending(stream.live, stream.topic) as sending:
        until(lambda: has_read(20), "batches")
        change()
        sending.wait(50)
        acknowledged = len(sending.sent)
        until(lambda: has_read(acknowledged), "the stream continues")
    stream.stop()
    stream.finish()
    stream.check(sending.sent)


FLIPS = [("rmqpy", "rmqpy")] + [
    pytest.param(*kinds, marks=pytest.mark.interop)
    for kinds in (("java", "java"), ("java", "rmqpy"))
]


@pytest.mark.parametrize(("before", "after"), FLIPS)
def test_a_stream_continues_after_the_switch_to_dledger(
    before: str,
    after: str,
    live_form: type[LiveCluster],
    stream_on: Callable[..., StreamRun],
    tmp_path: Path,
) -> None:
    live = live_form(before, tmp_path / "live")

    def change() -> None:
        live.broker.stop()
        settings = dledger_settings("broker-a", free_port_block(1).first)
        spec = evolve(live.spec, settings=settings, store=live.store)
        site = live.site if before == after else RmqpySite(tmp_path / "live")
        live.broker = site.broker("flipped", spec).start()

    try:
        check_change(stream_on(live), change)
        assert (live.store / "dledger-n0").is_dir()
    finally:
        live.close()


@pytest.mark.parametrize("kind", ["rmqpy", pytest.param("java", marks=pytest.mark.interop)])
def test_a_stream_continues_with_another_leader(
    kind: str, live_form: type[LiveCluster], stream_on: Callable[..., StreamRun], tmp_path: Path
) -> None:
    ports = [free_port_block(1).first for _ in range(3)]
    settings = [group_settings("broker-a", ports, each) | dict(FAST_ELECTION) for each in range(3)]
    live = live_form(kind, tmp_path / "live", settings[0], wait=False)
    members = [live.broker]
    try:
        for number in (1, 2):
            spec = BrokerSpec(
                port=free_port_block(BROKER_PORT_COUNT).broker_port,
                namesrv=live.namesrv.address,
                settings=settings[number],
            )
            members.append(live.site.broker(f"broker-{number}", spec).launch())
        live.broker = leader = until(lambda: leader_of(live, members), "a leader")

        def change() -> None:
            leader.kill()
            until(lambda: leader_of(live, members) not in (None, leader), "another leader")

        check_change(stream_on(live), change)
    finally:
        for member in members:
            member.kill()
        live.close()


def leader_of(live: LiveCluster, members: list[ServerProcess]) -> ServerProcess | None:
    """Return the master of the group according to the name server, or None."""
    try:
        with BlockingPullConsumer("leader-check", live.namesrv.address) as consumer:
            route = consumer._wait(consumer._member._open().route("TBW102"))
    except RmqError:
        return None
    masters = {broker.broker_addrs.get(0) for broker in route.broker_datas}
    return next((member for member in members if member.address in masters), None)


# ------------------------------------------------------------------------------ all of it

SPECULATION = {
    "spark.log.level": "WARN",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "0ms",
    "spark.locality.wait": "0s",
}


SPECULATED = "TaskKilled ("
"""The end of an attempt in Spark's log, after the other one has succeeded."""
CRASHED = "Python worker exited unexpectedly"


def executors_of(master: str) -> list[int]:
    """Return the executors that the workers of a standalone cluster have started."""
    running = processes()
    return [
        pid
        for pid, (parent, command) in running.items()
        if "CoarseGrainedExecutorBackend" in command and master in running.get(parent, (0, ""))[1]
    ]


def python_workers_of(master: str) -> list[int]:
    """Return the Python workers of these executors, without the daemons that fork them."""
    running = processes()
    below = [each for pid in executors_of(master) for each in descendants(pid, running)]
    daemons = [pid for pid in below if "pyspark.daemon" in running[pid][1]]
    return [pid for pid in daemons if running[pid][0] in daemons]


def test_everything_at_once_loses_and_repeats_no_message(
    standalone: str,
    live_form: type[LiveCluster],
    stream_on: Callable[..., StreamRun],
    tmp_path: Path,
) -> None:
    """While messages are sent and read with speculation on two hosts: a Python worker and an
    executor are killed, the broker is switched to DLedger while it runs, the published offsets are
    reset, the broker is restarted, and the driver is killed.
    """
    live = live_form("rmqpy", tmp_path / "live")
    stream = stream_on(live)
    log = stream.progress.root / "driver.log"

    def start() -> Driver:
        read = {"maxOffsetsPerTrigger": "200", "minPartitions": "4", "pullBatchSize": "1"}
        read |= {"commitGroup": "shown"}
        return stream.driver(standalone, settings=SPECULATION, read=read)

    def has_read(count: int) -> bool:
        driver.keep_running()
        return stream.progress.read_count(stream.topic) >= count

    def admin(*words: str) -> None:
        assert main(["admin", words[0], "-n", live.namesrv.address, *words[1:]]) == 0, words

    def kill_one(find: Callable[[], list[int]], message: str) -> None:
        """Kill a process while tasks work, until the log has the message."""

        def killed() -> bool:
            driver.keep_running()
            if stream.progress.phase() in ("planned", "running"):
                for pid in find()[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    time.sleep(0.5)
            return message in log.read_text()

        until(killed, message)

    try:
        driver = start()
        with Sending(live, stream.topic) as sending:
            until(lambda: has_read(40), "batches")
            until(lambda: SPECULATED in log.read_text(), "a task that runs twice")
            kill_one(lambda: python_workers_of(standalone), CRASHED)
            kill_one(lambda: executors_of(standalone), "Lost executor")
            peers = f"n0-127.0.0.1:{free_port_block(1).first}"
            admin("switch", "-m", "broker-a", "-p", peers, "--apply")
            sending.wait(20)
            admin("resetOffsetByTime", "-g", "shown", "-t", stream.topic, "-s", "0")
            sending.wait(20)
            acknowledged = len(sending.sent)
            until(lambda: has_read(acknowledged), "the stream continues")
            live.broker.stop()
            live.broker.start()
            driver.kill()
            sending.wait(20)
            driver = start()
            acknowledged = len(sending.sent)
            until(lambda: has_read(acknowledged), "the stream continues with another driver")
        driver.kill()
        stream.finish()
        stream.check(sending.sent)
        assert (live.store / "dledger-n0").is_dir()
    finally:
        live.close()
