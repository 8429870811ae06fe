"""The upgrade and the way back by the commands of docs/upgrade.md, judged by Java.

Under load: clients of Java run through it; every acknowledged message is read once at its queue
offset, every one reached the consumers, and each step says for how long nothing was acknowledged
(``-rP`` shows the figures).

A round trip: Java serves what our switch has made, appends, its members stay equal in bytes; Java
4.9.7 and 5.3.3 open what was left, read all, append; then there again, certified each time.
"""

from __future__ import annotations

import io
import itertools
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
from rmqpy.testing.java import ClientFault, Event, JavaHome, JavaSite, Probe
from rmqpy.testing.java.site import BUSY_MACHINE
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
    name: str = BROKER

    def launch(self, *members: str) -> None:
        for member in members:
            self.servers[member].launch()

    def stop(self, *members: str) -> None:
        for member in members:
            assert self.servers[member].stop() in (0, 143)

    def stop_group(self) -> None:
        """Level, then the followers, then the leader."""
        self.wait_until_level()
        leader = self.leader()
        self.stop(*(member for member in MEMBERS if member != leader), leader)

    def leader(self) -> str:
        """Whom the name server has for the master."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            with BlockingConnection(self.namesrv.address) as connection:
                request = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                known = ClusterInfo.decode(connection.call(request).body).broker_addr_table
            address = known[self.name].broker_addrs.get(MASTER_ID) if self.name in known else None
            for member, server in self.servers.items():
                if server.running and server.address == address:
                    return member
            assert time.monotonic() < deadline, known
            time.sleep(0.05)

    def wait_until_level(self, *members: str) -> None:
        """All have the same end, and have told their queues of it."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            ends = {self._end(self.servers[member]) for member in members or MEMBERS}
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
            longest = max([longest, *(two - one for one, two in itertools.pairwise(row))])
        return longest / 1000

    def table(self) -> Iterator[str]:
        yield "| step | it took | no send was acknowledged for | nothing was consumed for |"
        yield "|---|---|---|---|"
        for name, took_s, sends_s, reads_s in self.rows:
            yield f"| {name} | {took_s:.1f} s | {sends_s:.1f} s | {reads_s:.1f} s |"


@define
class Site:
    """Where the brokers of a test live; each kind of broker starts on the same stores, ports and
    broker.conf.
    """

    ground: object
    folder: Path
    name: str
    namesrv: ServerProcess
    specs: dict[str, BrokerSpec]

    @classmethod
    def make(cls, ground, folder: Path, namesrv_kind: str, name: str, broker: str) -> Site:
        namesrv = ground.namesrv(namesrv_kind, f"{name}-namesrv")
        specs = {}
        for member in MEMBERS:
            (folder / member).mkdir(exist_ok=True)
            specs[member] = BrokerSpec(
                port=ground.block(BROKER_PORT_COUNT).broker_port,
                namesrv=namesrv.address,
                broker_name=broker,
                store=folder / member,
                settings={**ROLES[member], **FAST_ELECTION, **BUSY_MACHINE},
            )
        (folder / "secret.key").write_text("secret")
        return cls(ground, folder, name, namesrv, specs)

    def brokers(self, kind: str) -> Brokers:
        """``kind``: java (4.9.7), java-5.3.3, or rmqpy."""
        servers = {}
        for member, spec in self.specs.items():
            site = site_of(self.ground, kind)
            server = self.ground.take(site.broker(f"{self.name}-{kind}-{member}", spec))
            made = next(Path(word) for word in server.argv if word.endswith("broker.conf"))
            conf = self.folder / f"{member}.conf"
            if not conf.exists():
                shutil.copy(made, conf)
            server.argv = [str(conf) if word == str(made) else word for word in server.argv]
            servers[member] = server
        return Brokers(self.folder, self.namesrv, servers, self.specs["n0"].broker_name)


def site_of(ground, kind: str):
    _, _, version = kind.partition("-")
    if not version:
        return ground.site(kind)
    home = JavaHome(version)
    if home.missing() is not None:
        pytest.skip(str(home.missing()))
    return JavaSite(ground.java.root / version, home)


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


@pytest.mark.parametrize("kind", ["rmqpy", "java"])
def test_there_and_back_under_load(ground, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brokers = Site.make(ground, tmp_path, kind, f"under-load-{kind}", BROKER).brokers(kind)
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
        brokers.stop_group()
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


# A round trip

CHANGED = ("MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "__RMQPY_ENTRY")
SYSTEM = ("RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX")
OLD = {"count": 200, "sizes": "40,900,1500,9000,3", "keys": "old-", "tags": "a,b"}
NEW = {"count": 60, "sizes": "700,20,4000,1", "tags": "c"}
FILE_SIZE = 65536

Place = tuple[str, int, int]


@define
class Trip:
    """One store through all its stages. ``queues``: of each topic, which are read."""

    site: Site
    probe: Probe
    queues: dict[str, tuple[int, ...]]
    ports: list[int]
    turn: int = 0

    def send(self, **options: object) -> None:
        """Messages that no stage had before."""
        self.turn += 1
        numbers = {"first": 1000 * self.turn, "keys": f"turn{self.turn}-"}
        events = self.probe.run(
            "send", topic="Normal", retryMs=60_000, timeout_s=120.0, **{**NEW, **numbers, **options}
        )
        sent = [event for event in events if event["event"] == "sent"]
        assert len(sent) == options.get("count", NEW["count"])

    def read(self) -> dict[Place, Event]:
        """Every message by its place in its queue, without what tells of its place in the log."""
        found: dict[Place, Event] = {}
        for topic, queues in self.queues.items():
            options: dict[str, object] = {}
            if topic in SYSTEM:
                options = {"via": "Normal", "queues": ",".join(map(str, queues))}
            for event in self.probe.run("dump", topic=topic, **options):
                if event["event"] != "message":
                    continue
                for name in CHANGED:
                    event["properties"].pop(name, None)
                for name in ("storeSize", "msgId", "offsetMsgId"):
                    event.pop(name)
                offset = event["commitLogOffset"]
                moved = offset % FILE_SIZE == 48
                event["commitLogOffset"] = offset - 48 if moved else offset
                place = topic, event["queueId"], event["queueOffset"]
                assert place not in found
                found[place] = event
        return found

    def there(self, kind: str, before: dict[Place, Event], certificate: str) -> dict[Place, Event]:
        """The page's part, the group, more messages; returns all that is read then."""
        page = part_of_page("There", self.ports)
        page("rmqpy upgrade verify")
        group = self.site.brokers(kind)
        group.launch(*MEMBERS)
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        assert len(grown) >= len(before) + NEW["count"]
        group.stop_group()
        equal_in_bytes(self.site.folder)
        page("")
        shutil.copy("certificate.json", certificate)
        assert json.loads(Path(certificate).read_text())["equal"] is True
        shutil.copy("before.json", f"before-{certificate}")
        return grown

    def back(self) -> None:
        part_of_page("And back", self.ports)("")
        problems(self.site.folder, *MEMBERS)

    def classic(self, kind: str, before: dict[Place, Event]) -> dict[Place, Event]:
        """A master and a slave of that kind serve all, and take more."""
        pair = self.site.brokers(kind)
        pair.launch("n0", "n1")
        self.send()
        grown = self.read()
        assert {place: grown[place] for place in before} == before
        for key in ("turn1-1007", f"turn{self.turn}-{1000 * self.turn + 3}"):
            assert self.probe.run("query", topic="Normal", key=key), key
        pair.wait_until_level("n0", "n1")
        pair.stop("n0", "n1")
        problems(self.site.folder, "n0", "n1")
        return grown


def equal_in_bytes(folder: Path) -> None:
    """Old log, entries and their index of all members; the index is mostly a hole."""
    problems(folder, *MEMBERS)
    parts = []
    for member in MEMBERS:
        store = folder / member
        part = {}
        for row in ("commitlog", f"dledger-{member}/data", f"dledger-{member}/index"):
            for path in sorted((store / row).iterdir()):
                content = path.read_bytes()[: 1 << 20].rstrip(b"\0")
                if content or row == "commitlog":
                    part[row.replace(member, "n"), path.name] = content
        parts.append(part)
    assert parts[0].keys() == parts[1].keys() == parts[2].keys()
    for name, content in parts[0].items():
        assert content == parts[1][name] == parts[2][name], name


def problems(folder: Path, *members: str) -> None:
    for member in members:
        assert read_store(folder / member).problems == []


def from_golden(golden_copy, manifest):
    """What Java 4.9.7 wrote: where, which queues, and every message as Java said it."""
    name = "B-master-slave-v497"
    folder = golden_copy(name)
    for old, new in (("master", "n0"), ("slave", "n1")):
        (folder / old).rename(folder / new)
    messages = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in manifest(name)["messages"]}
    queues = {
        topic: tuple(sorted({queue for each, queue, _ in messages if each == topic}))
        for topic in {topic for topic, _, _ in messages}
    }
    return folder, queues, messages


FIELDS = {
    "commitLogOffset": "commitLogOffset",
    "storeTimestamp": "storeTimestamp",
    "bornTimestamp": "bornTimestamp",
    "reconsumeTimes": "reconsumeTimes",
    "bodyCrc": "bodyCRC",
    "storeHost": "storeHost",
    "bornHost": "bornHost",
}
"""Of the probe: of the manifest."""


@pytest.mark.parametrize("kind", ["java", "java-5.3.3", "rmqpy"])
def test_a_round_trip(ground, kind, tmp_path, golden_copy, manifest, monkeypatch):
    namesrv_kind = "rmqpy" if kind == "rmqpy" else "java"
    told: dict[Place, dict] = {}
    folder, queues = tmp_path, {"Normal": (0, 1, 2, 3)}
    if kind != "java-5.3.3":
        folder, queues, told = from_golden(golden_copy, manifest)
    monkeypatch.chdir(folder)
    site = Site.make(ground, folder, namesrv_kind, f"round-trip-{kind}", "golden")
    probe = ground.probe.at(site.namesrv.address)
    trip = Trip(site, probe, queues, list(ground.block(3)))
    first = site.brokers(kind)
    first.launch("n0", "n1")
    if not told:
        wait_for_topic(probe, first.servers["n0"])
        trip.send(**OLD)
    trip.send()
    before = trip.read()
    for place, message in told.items():
        found = {name: before[place][name] for name in FIELDS}
        assert found == {name: message[said] for name, said in FIELDS.items()}, place
    first.wait_until_level("n0", "n1")
    first.stop("n0", "n1")

    joined = trip.there(kind, before, "certificate-1.json")
    trip.back()
    left = joined
    for opener in ("rmqpy", "java", "java-5.3.3"):
        left = trip.classic(opener, left)
    again = trip.there(kind, left, "certificate-2.json")
    for number in (1, 2):
        run(f"rmqpy upgrade verify --before before-certificate-{number}.json n0 n1 n2", 0)
    divides = [
        json.loads(Path(f"certificate-{number}.json").read_text())["subjects"][1]["divided_offset"]
        for number in (1, 2)
    ]
    assert 0 < divides[0] < divides[1]
    print(f"{kind}: {len(before)}, {len(joined)}, {len(left)}, {len(again)} messages; {divides}")


def wait_for_topic(probe: Probe, broker: ServerProcess) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            probe.run("createTopic", topic="Normal", broker=broker.address)
            return
        except ClientFault:
            assert time.monotonic() < deadline
            time.sleep(0.5)
