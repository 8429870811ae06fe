"""A master and its slave become three members and go back while clients of Java run through it, by
the commands of docs/upgrade.md: every acknowledged message is read once at its queue offset, every
one reached the consumers, and each step says for how long nothing was acknowledged.

``-rP`` shows the figures.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from attrs import define, field

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkFault
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking import BlockingConnection
from rmqpy.testing.java import Event, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import FAST_ELECTION, BrokerSpec, ServerProcess
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[2] / "docs" / "upgrade.md"
BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
MEMBERS = ("n0", "n1", "n2")
ROLES = {
    "n0": {"brokerRole": "ASYNC_MASTER", "brokerId": "0"},
    "n1": {"brokerRole": "SLAVE", "brokerId": "1"},
    "n2": {"brokerRole": "SLAVE", "brokerId": "2"},
}
BROKER = "broker-a"
PEER_PORTS = ("20911", "20912", "20913")
"""As the page has them."""

TOPICS = ("goods", "orders")
PACE_MS = 10
STEADY = 150
"""Acknowledgements of each producer between two steps."""

WAIT_SECONDS_MAX = 120
JOURNEY_SECONDS_MAX = 900.0


def commands(part: str) -> list[tuple[str, int]]:
    """The lines of one part of the page, with the exit codes that they promise."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"## {part}\n", 1)[1].split("\n## ", 1)[0]
    found = []
    for block in BLOCK.findall(section):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, comment = line.partition("  # ")
            code = re.search(r"exit code (\d)", comment)
            found.append((command.strip(), int(code[1]) if code else 0))
    return found


@define
class Client:
    """A JVM that works until the file ``over`` exists; ``heard`` is what it has printed so far."""

    probe: Probe
    command: str
    options: dict[str, object]
    heard: list[Event] = field(factory=list)
    fault: list[BaseException] = field(factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> Client:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.probe.run(
                self.command, timeout_s=JOURNEY_SECONDS_MAX, heard=self.heard, **self.options
            )
        except BaseException as fault:  # noqa: BLE001 - told by the test
            self.fault.append(fault)

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self.probe.close()
        assert not self.fault, self.fault

    def times_ms(self) -> list[int]:
        """When messages were acknowledged, or seen."""
        name = "at" if self.command == "send" else "seenTimestamp"
        return [event[name] for event in list(self.heard) if name in event]

    def sent(self) -> list[Event]:
        return [event for event in list(self.heard) if event["event"] == "sent"]


@define
class Brokers:
    """n0, n1, n2 of one kind: stores and broker.conf in one folder, as on the page."""

    folder: Path
    namesrv: ServerProcess
    servers: dict[str, ServerProcess]

    def launch(self, *members: str) -> None:
        for member in members:
            self.servers[member].launch()

    def stop(self, *members: str) -> None:
        for member in members:
            assert self.servers[member].stop() in (0, 143)

    def leader(self) -> str:
        """Whom the name server has for the master."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            with BlockingConnection(self.namesrv.address) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                known = ClusterInfo.decode(connection.call(request).body).broker_addr_table
            address = known[BROKER].broker_addrs.get(MASTER_ID) if BROKER in known else None
            for member, server in self.servers.items():
                if server.running and server.address == address:
                    return member
            assert time.monotonic() < deadline, known
            time.sleep(0.05)

    def wait_until_level(self) -> None:
        """All have the same end, and have told their queues of it."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            ends = {self._end(server) for server in self.servers.values()}
            if len(ends) == 1 and None not in ends:
                return
            assert time.monotonic() < deadline, ends
            time.sleep(0.1)

    def _end(self, server: ServerProcess) -> str | None:
        try:
            with BlockingConnection(server.address, 2.0) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
                table = json.loads(connection.call(request).body)["table"]
        except (NetworkFault, ValueError):
            return None
        behind = int(table.get("dispatchBehindBytes", "0"))
        return table["commitLogMaxOffset"] if behind == 0 else None


@define
class Watch:
    """For how long clients stood still in each step."""

    producers: list[Client]
    consumers: list[Client]
    rows: list[tuple[str, float, float, float]] = field(factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Returns when every producer is steady again."""
        begin = time.time()
        yield
        took_s = time.time() - begin
        self.steady()
        gaps = [self._gap_s(clients, begin) for clients in (self.producers, self.consumers)]
        self.rows.append((name, took_s, *gaps))

    def steady(self) -> None:
        """Every producer has so many more acknowledged."""
        wanted = [(each, len(each.sent()) + STEADY) for each in self.producers]
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        for producer, count in wanted:
            while len(producer.sent()) < count:
                assert not producer.fault, producer.fault
                assert time.monotonic() < deadline, producer.heard[-3:]
                time.sleep(0.05)

    def _gap_s(self, clients: list[Client], begin_s: float) -> float:
        """The longest pause of the one that suffered most."""
        longest = 0
        for client in clients:
            times = sorted(client.times_ms())
            before = [each for each in times if each <= begin_s * 1000][-1:]
            row = [*before, *(each for each in times if each > begin_s * 1000)]
            longest = max([longest, *(two - one for one, two in zip(row, row[1:], strict=False))])
        return longest / 1000

    def table(self) -> Iterator[str]:
        yield "| step | it took | no send was acknowledged for | nothing was consumed for |"
        yield "|---|---|---|---|"
        for name, took_s, sends_s, reads_s in self.rows:
            yield f"| {name} | {took_s:.1f} s | {sends_s:.1f} s | {reads_s:.1f} s |"


@pytest.fixture
def brokers(ground, tmp_path, monkeypatch, request) -> Brokers:
    kind = request.param
    name = f"under-load-{kind}"
    namesrv = ground.namesrv(kind, f"{name}-namesrv")
    servers = {}
    for member in MEMBERS:
        store = tmp_path / member
        store.mkdir()
        spec = BrokerSpec(
            port=ground.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            broker_name=BROKER,
            store=store,
            settings={**ROLES[member], **FAST_ELECTION},
        )
        server = ground.take(ground.site(kind).broker(f"{name}-{member}", spec))
        made = next(Path(word) for word in server.argv if word.endswith("broker.conf"))
        conf = tmp_path / f"{member}.conf"
        shutil.move(made, conf)
        server.argv = [str(conf) if word == str(made) else word for word in server.argv]
        servers[member] = server
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.key").write_text("secret")
    return Brokers(tmp_path, namesrv, servers)


def clients(ground, namesrv: ServerProcess, over: Path) -> tuple[list[Client], list[Client]]:
    """A producer and a consumer of each topic, each in a JVM of its own."""
    producers, consumers = [], []
    for number, topic in enumerate(TOPICS):
        told = {"topic": topic, "until": over}
        sending = ground.java.probe(namesrv.address, f"producer-{topic}-{namesrv.port}")
        options = {"auto": "true", "count": 1_000_000, "keys": f"{topic}-", "sizes": "40,300,9"}
        patience = {"paceMs": PACE_MS, "retryMs": WAIT_SECONDS_MAX * 1000}
        producers.append(Client(sending, "send", {**told, **options, **patience}))
        reading = ground.java.probe(namesrv.address, f"consumer-{topic}-{namesrv.port}")
        mode = ("concurrently", "orderly")[number % 2]
        drain = {"mode": mode, "idleMs": 6000, "pollMs": 1000}
        consumers.append(
            Client(reading, "consume", {**told, "group": f"readers-{topic}", **drain})
        )
    return producers, consumers


def run(line: str, code: int) -> None:
    command, _, target = line.partition(" > ")
    printed = io.StringIO()
    with redirect_stdout(printed):
        found = main(shlex.split(command)[1:])
    assert found == code, (line, printed.getvalue()[-3000:])
    if target:
        Path(target.strip()).write_text(printed.getvalue(), encoding="utf-8")


def part_of_page(part: str, ports: list[int]) -> Callable[[str], None]:
    """Runs the commands of a part of the page up to the first one that begins so ("": all)."""
    left = commands(part)

    def upto(stop: str) -> None:
        while left and not (stop and left[0][0].startswith(stop)):
            line, code = left.pop(0)
            for told, port in zip(PEER_PORTS, ports, strict=True):
                line = line.replace(told, str(port))
            run(line, code)

    return upto


@pytest.mark.parametrize("brokers", ["rmqpy", "java"], indirect=True)
def test_there_and_back_under_load(ground, brokers, request, tmp_path):
    ports = list(ground.block(3))
    over = tmp_path / "over"
    for member in ("n0", "n1"):
        brokers.servers[member].start()
    probe = ground.probe.at(brokers.namesrv.address)
    for topic in TOPICS:
        probe.run("createTopic", topic=topic, broker=brokers.servers["n0"].address)
    producers, consumers = clients(ground, brokers.namesrv, over)
    watch = Watch(producers, consumers)
    try:
        for client in (*producers, *consumers):
            client.start()
        watch.steady()
        journey(brokers, watch, ground, ports)
    finally:
        over.touch()
        for client in (*producers, *consumers):
            client.join()
        print("\n".join(watch.table()))
    check(probe, watch)
    brokers.stop("n0", "n1", "n2")
    for member in MEMBERS:
        assert read_store(tmp_path / member).problems == []


def journey(brokers: Brokers, watch: Watch, ground, ports: list[int]) -> None:
    there, back = part_of_page("There", ports), part_of_page("And back", ports)
    with watch.step("check, plan, apply, switch, start of three members"):
        brokers.stop("n0", "n1")
        there("rmqpy upgrade verify")
        brokers.launch(*MEMBERS)
    with watch.step("verify, finalize, while the group works"):
        there("")
    with watch.step("the leader is killed"):
        leader = brokers.leader()
        brokers.servers[leader].kill()
    brokers.launch(leader)
    watch.steady()
    with watch.step("leave, start of master and slaves"):
        ground.admin.at(brokers.namesrv.address).run("wipeWritePerm", "-b", BROKER)
        brokers.wait_until_level()
        leader = brokers.leader()
        brokers.stop(*(member for member in MEMBERS if member != leader), leader)
        back("")
        brokers.launch("n0")
        brokers.launch("n1", "n2")


def check(probe: Probe, watch: Watch) -> None:
    for topic, producer, consumer in zip(TOPICS, watch.producers, watch.consumers, strict=True):
        found: dict[tuple[int, int], Event] = {}
        for event in probe.run("dump", topic=topic):
            if event["event"] == "message":
                place = event["queueId"], event["queueOffset"]
                assert place not in found
                found[place] = event
        for queue in {queue for queue, _ in found}:
            offsets = sorted(offset for each, offset in found if each == queue)
            assert offsets == list(range(len(offsets))), f"{topic} queue {queue} has a hole"
        sent = producer.sent()
        assert len(sent) > 4 * STEADY
        for event in sent:
            stored = found[event["queueId"], event["queueOffset"]]
            assert (stored["msgId"], stored["crc"]) == (event["msgId"], event["crc"])
        received = {event["msgId"] for event in consumer.heard if event["event"] == "received"}
        assert {event["msgId"] for event in sent} <= received
        print(f"{topic}: {len(sent)} acknowledged, {len(found)} stored, all consumed")
