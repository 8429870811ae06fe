"""Streams of which the driver, a worker, an executor, the broker or the leader dies in the middle:
every message once in the file sink, none skipped.

A driver is a process of its own. It is stopped where the files of its checkpoint and of its sink
show the wanted moment, and killed when they still do; so no moment is missed by chance.
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
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, evolve, field
from harness.pipeline import LiveCluster

from rmqpy.client.blocking import BlockingPullConsumer
from rmqpy.client.core.base_consumer import PullStatus
from rmqpy.client.core.message import MessageExt
from rmqpy.model.errors import RmqError
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    dledger_settings,
    group_settings,
    python_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("stream_driver.py")
WAIT_SECONDS_MAX = 600
POLL_SECONDS = 0.005
QUICK_JVM = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""One that lives for seconds does not earn back what better code costs."""
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a new process of Python ten seconds: too few on a busy machine, nobody's fault."""
STARTS_MAX = 5
QUEUES = 2
BATCH = 20
"""Offsets a batch of a driver that is to be killed."""
SENT = 15 * BATCH


def until(come: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := come()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(POLL_SECONDS)
    return found


# ------------------------------------------------------------------------------ what files tell


def numbers_in(folder: Path) -> list[int]:
    """Batches of a log of Spark's; every tenth file of a sink has the ending compact."""
    names = (path.name.removesuffix(".compact") for path in folder.glob("*"))
    return sorted(int(name) for name in names if name.isdigit())


@define
class Progress:
    """The checkpoint and the sink of a stream into files."""

    root: Path

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def rows(self) -> Path:
        return self.root / "rows"

    @property
    def committed(self) -> int:
        """The last batch; -1 before the first."""
        return max(numbers_in(self.checkpoint / "commits"), default=-1)

    @property
    def planned(self) -> int:
        return max(numbers_in(self.checkpoint / "offsets"), default=-1)

    def phase(self) -> str:
        """How far the batch that was planned last has come."""
        planned = self.planned
        if planned <= self.committed:
            return "committed"
        if planned in numbers_in(self.rows / "_spark_metadata"):
            return "in the sink"
        return "running" if self._loose_files() else "planned"

    def _loose_files(self) -> set[str]:
        """Files of the sink of which its log does not know."""
        known: set[str] = set()
        for log in (self.rows / "_spark_metadata").glob("[0-9]*"):
            entries = log.read_text().splitlines()[1:]
            known |= {json.loads(entry)["path"].rpartition("/")[2] for entry in entries}
        return {path.name for path in self.rows.glob("*.parquet")} - known

    def read_count(self, topic: str) -> int:
        """Offsets up to which the last committed batch goes, of all queues together."""
        if self.committed < 0:
            return 0
        text = (self.checkpoint / "offsets" / str(self.committed)).read_text()
        tree = json.loads(text.splitlines()[-1])
        return sum(sum(queues.values()) for queues in tree.get(topic, {}).values())


# ------------------------------------------------------------------------------ drivers


def processes() -> dict[int, tuple[int, str]]:
    """(parent, command line) of each."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(folder.name)] = parent, command
    return found


def below(pid: int, running: dict[int, tuple[int, str]]) -> list[int]:
    children = [each for each, (parent, _) in running.items() if parent == pid]
    return [*children, *(deeper for child in children for deeper in below(child, running))]


@define
class Driver:
    """Python, its JVM and all that they started."""

    order: dict[str, Any]
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
        return [self._process.pid, *below(self._process.pid, processes())]

    def catch(self, is_it: Callable[[], bool], what: str) -> None:
        """Stop it where ``is_it``: where it still is when nothing moves any more."""

        def caught() -> bool:
            self.keep_running()
            if not is_it():
                return False
            self._frozen = self.tree()
            self._signal(signal.SIGSTOP)
            time.sleep(0.02)
            if is_it():
                return True
            self._signal(signal.SIGCONT)
            self._frozen = []
            return False

        until(caught, what)

    def keep_running(self) -> None:
        if self._process.poll() is not None:
            told = self.log.read_text()
            assert told.count(TOO_SLOW) >= self._starts < STARTS_MAX, told[-3000:]
            self._start()

    def kill(self) -> None:
        """-9, all at once."""
        self._frozen = sorted({*self._frozen, *self.tree()})
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: int) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def found(self, text: str) -> list[int]:
        """What runs below it with that in its command line."""
        running = processes()
        mine = below(self._process.pid, running)
        return [pid for pid in mine if pid in running and text in running[pid][1]]

    def workers(self) -> list[int]:
        """The forked Python workers of executors; the one that forks them is none."""
        running = processes()
        forkers = self.found("pyspark.daemon")
        return [pid for pid in forkers if running.get(pid, (0, ""))[0] in forkers]


@define
class Ground:
    """A stream from one topic, wherever it runs."""

    live: LiveCluster
    topic: str
    progress: Progress
    spark: SparkSession = None
    _drivers: list[Driver] = field(factory=list)
    _query: Any = None
    _starts: int = 0

    def driver(self, master: str = "local[2,4]", **more: Any) -> Driver:
        order = {
            "master": master,
            "settings": {},
            "select": ["*"],
            "format": "parquet",
            "write": self.sink(),
        }
        read = self.reading() | {"maxOffsetsPerTrigger": str(BATCH)} | more.pop("read", {})
        made = Driver(order | {"read": read} | more, self.progress.root / "driver.log")
        self._drivers.append(made)
        return made

    def reading(self) -> dict[str, str]:
        address = self.live.namesrv.address
        return {"nameServer": address, "topic": self.topic, "startingOffsets": "earliest"}

    def sink(self) -> dict[str, str]:
        return {
            "checkpointLocation": str(self.progress.checkpoint),
            "path": str(self.progress.rows),
        }

    def streams(self) -> bool:
        """In this process's session, begun where it does not yet."""
        fault = self._query.exception() if self._query is not None else None
        if self._query is None or (fault is not None and TOO_SLOW in str(fault)):
            self._starts += 1
            assert self._starts <= STARTS_MAX, fault
            frame = self.spark.readStream.format("rocketmq").options(**self.reading()).load()
            self._query = frame.writeStream.format("parquet").options(**self.sink()).start()
        elif fault is not None:
            raise fault
        return True

    def stop(self) -> None:
        self._query.stop()

    def finish(self) -> None:
        """Go on from the checkpoint to the end of what is there now."""
        frame = self.spark.readStream.format("rocketmq").options(**self.reading()).load()
        finish(frame.writeStream.format("parquet").options(**self.sink()))

    def check(self, sent: list[bytes]) -> None:
        """The sink has what the queues have, each message once, and all that was acknowledged."""
        rows = self.spark.read.parquet(str(self.progress.rows)).collect()
        places = Counter((row["queueId"], row["queueOffset"]) for row in rows)
        found = stored(self.live, self.topic)
        assert set(places.values()) == {1}
        assert places.keys() == {(each.queue.queue_id, each.queue_offset) for each in found}
        assert Counter(bytes(row["body"]) for row in rows) == Counter(each.body for each in found)
        assert set(sent) <= {each.body for each in found}
        for queue_id in {queue for queue, _ in places}:
            mine = sorted(offset for queue, offset in places if queue == queue_id)
            assert mine == list(range(len(mine)))

    def close(self) -> None:
        for driver in self._drivers:
            driver.kill()
        if self.spark is not None:
            for query in self.spark.streams.active:
                query.stop()


def finish(writer: Any) -> None:
    from pyspark.errors import StreamingQueryException

    for start in range(1, STARTS_MAX + 1):
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_SECONDS_MAX)
            return
        except StreamingQueryException as fault:
            if TOO_SLOW not in str(fault) or start == STARTS_MAX:
                raise


def is_read(ground: Ground, count: int) -> bool:
    return ground.progress.read_count(ground.topic) == count


def stored(live: LiveCluster, topic: str) -> list[MessageExt]:
    """What a plain consumer finds."""
    found = []
    with BlockingPullConsumer("judge", live.namesrv.address) as consumer:
        for queue in consumer.queues(topic):
            offset = consumer.min_offset(queue)
            result = consumer.pull(queue, offset)
            while result.status is PullStatus.FOUND:
                found += result.messages
                result = consumer.pull(queue, result.next_begin_offset)
    return found


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


@pytest.fixture
def ground_on(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Ground]]:
    made: list[Ground] = []

    def make(live: LiveCluster) -> Ground:
        made.append(Ground(live, live.topic(QUEUES), Progress(tmp_path), spark))
        return made[-1]

    yield make
    for ground in made:
        ground.close()


# ------------------------------------------------------------------------------ drivers die

PHASES = ["waiting", "planned", "running", "in the sink", "committed"]
"""Nothing planned though there is something to read; offsets written; tasks at work; rows of the
batch in the sink's log; the batch's commit written, the next one not planned.
"""
CASES = [("rmqpy", phase) for phase in PHASES] + [
    pytest.param("java", phase, marks=pytest.mark.interop) for phase in PHASES
]


ONLY_OURS = pytest.mark.parametrize("live", ["rmqpy"], indirect=True)


@pytest.mark.parametrize(("live", "phase"), CASES, indirect=["live"])
def test_a_driver_is_killed(
    live: LiveCluster, phase: str, ground_on: Callable[..., Ground]
) -> None:
    ground = ground_on(live)
    progress, sent = ground.progress, bodies(0, BATCH if phase == "waiting" else SENT)
    live.send(ground.topic, sent)
    driver = ground.driver()

    def is_it() -> bool:
        if phase == "waiting":
            return progress.phase() == "committed" and is_read(ground, len(sent))
        has_more = not is_read(ground, len(sent))
        return progress.planned > 0 and progress.phase() == phase and has_more

    def is_it_or_will_be() -> bool:
        """Some phases last for milliseconds: there are batches until one was caught."""
        if phase != "waiting" and is_read(ground, len(sent)):
            live.send(ground.topic, bodies(len(sent), BATCH))
            sent.extend(bodies(len(sent), BATCH))
        return is_it()

    driver.catch(is_it_or_will_be, phase)
    if phase == "waiting":
        live.send(ground.topic, bodies(len(sent), 7))
    driver.kill()
    assert is_it()
    if phase == "waiting":
        sent += bodies(len(sent), 7)
    assert progress.read_count(ground.topic) < len(sent), "something is left to read"
    sent += bodies(len(sent), 25)
    live.send(ground.topic, sent[-25:])
    ground.finish()
    ground.check(sent)


@ONLY_OURS
def test_a_driver_that_sends_is_killed(live: LiveCluster, ground_on: Callable[..., Ground]) -> None:
    """Rows are there once or more, and what is there more than once can be told by its marks."""
    ground, target = ground_on(live), live.topic()
    sent = bodies(0, 10 * BATCH)
    live.send(ground.topic, sent)
    write = {
        "nameServer": live.namesrv.address,
        "topic": target,
        "checkpointLocation": str(ground.progress.checkpoint),
    }
    driver = ground.driver(format="rocketmq", write=write, select=["body"])

    def is_it() -> bool:
        planned, committed = ground.progress.planned, ground.progress.committed
        return planned > committed > 0 and len(stored(live, target)) > (committed + 1) * BATCH

    driver.catch(is_it, "rows are sent of a batch that is not committed")
    driver.kill()
    frame = ground.spark.readStream.format("rocketmq").options(**ground.reading()).load()
    writer = frame.select("body").writeStream.format("rocketmq").options(**write)
    finish(writer)
    found = stored(live, target)
    names = [f"SPARK_{name}" for name in ("QUERY", "BATCH", "PARTITION", "ROW")]
    marks = {(tuple(each.properties[name] for name in names), each.body) for each in found}
    assert sorted(body for _, body in marks) == sent
    assert len({mark for mark, _ in marks}) == len(sent) < len(found)


@ONLY_OURS
def test_a_worker_and_an_executor_are_killed(
    live: LiveCluster, ground_on: Callable[..., Ground]
) -> None:
    ground = ground_on(live)
    progress, sent = ground.progress, bodies(0, 6 * 400)
    live.send(ground.topic, sent)
    driver = ground.driver(
        "local-cluster[2,1,1024]",
        settings={"spark.log.level": "WARN"},
        read={"maxOffsetsPerTrigger": "400", "pullBatchSize": "1"},
    )
    told = ground.progress.root / "driver.log"

    def kill_one(find: Callable[[], list[int]], says: str, first: int) -> None:
        """While tasks are at work, until one was."""

        def killed() -> bool:
            driver.keep_running()
            if progress.committed >= first and progress.phase() in ("planned", "running"):
                for pid in find()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(0.5)
            return says in told.read_text()

        until(killed, says)

    kill_one(driver.workers, "Lost task", 0)
    executors = len(driver.found("CoarseGrainedExecutorBackend"))
    kill_one(lambda: driver.found("CoarseGrainedExecutorBackend"), "Lost executor", 1)
    assert executors == 2
    driver.catch(lambda: is_read(ground, len(sent)), "all is read")
    driver.kill()
    ground.finish()
    ground.check(sent)


# ------------------------------------------------------------------------------ brokers change


class Sending:
    """Sends numbered messages until the end of its block."""

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
        """For so many more."""
        wanted = len(self.sent) + count
        until(lambda: len(self.sent) >= wanted or not self._thread.is_alive(), "messages are sent")
        assert len(self.sent) >= wanted


def go_on(ground: Ground, change: Callable[[], None]) -> None:
    """``change`` while messages are sent and read; both must go on behind it."""

    def has_read(count: int) -> bool:
        return ground.streams() and ground.progress.read_count(ground.topic) >= count

    ground.streams()
    with Sending(ground.live, ground.topic) as sending:
        until(lambda: has_read(20), "batches")
        change()
        sending.wait(50)
        acknowledged = len(sending.sent)
        until(lambda: has_read(acknowledged), "the stream goes on")
    ground.stop()
    ground.finish()
    ground.check(sending.sent)


FLIPS = [("rmqpy", "rmqpy")] + [
    pytest.param(*kinds, marks=pytest.mark.interop)
    for kinds in (("java", "java"), ("java", "rmqpy"))
]


@pytest.mark.parametrize(("before", "after"), FLIPS)
def test_the_switch_to_dledger(
    before: str,
    after: str,
    live_form: type[LiveCluster],
    ground_on: Callable[..., Ground],
    tmp_path: Path,
) -> None:
    live = live_form(before, tmp_path / "live")

    def change() -> None:
        live.broker.stop()
        settings = dledger_settings("broker-a", free_port_block(1).first)
        spec = evolve(live.spec, settings=settings, store=live.broker.store)
        site = live.site if before == after else RmqpySite(tmp_path / "live")
        live.broker = site.broker("flipped", spec).start()

    try:
        go_on(ground_on(live), change)
        assert (live.broker.store / "dledger-n0").is_dir()
    finally:
        live.close()


@pytest.mark.parametrize("kind", ["rmqpy", pytest.param("java", marks=pytest.mark.interop)])
def test_another_leader(
    kind: str, live_form: type[LiveCluster], ground_on: Callable[..., Ground], tmp_path: Path
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

        go_on(ground_on(live), change)
    finally:
        for member in members:
            member.kill()
        live.close()


def leader_of(live: LiveCluster, members: list[Any]) -> Any:
    """Who the name server says is master of the group."""
    try:
        with BlockingPullConsumer("asks", live.namesrv.address) as consumer:
            route = consumer._wait(consumer._member._open().route("TBW102"))
    except RmqError:
        return None
    masters = {broker.broker_addrs.get(0) for broker in route.broker_datas}
    return next((member for member in members if member.address in masters), None)
