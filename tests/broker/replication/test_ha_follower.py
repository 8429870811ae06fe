"""A slave in memory: how it chooses and checks its master, stores, reports, and retries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from rmqpy.broker.processors.admin.replication_queries import LogCompareProcessor
from rmqpy.broker.replication.ha_follower import HaFollower
from rmqpy.broker.replication.master_discovery import MasterDiscovery
from rmqpy.broker.replication.master_log_check import frame_start
from rmqpy.broker.services.registration import RegistrationAnswer
from rmqpy.config.loading import BrokerRole
from rmqpy.ha.follower import FollowerLink
from rmqpy.ha.frames import TransferFrame, encode_report
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net.ha import HaClientHandler
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.store.commitlog.interface import read_span
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.harness import BrokerHarness, BuildBroker
from rmqpy.testing.memory_channel import MemoryChannel

FILE = 1 << 16
CHECKS = (
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.RMQPY_COMPARE_LOG,
)
SERVERS = ("10.0.0.8:9876", "10.0.0.9:9876")


@define
class FakeConnection:
    """A connection to a master, whose events the test causes."""

    address: tuple[str, int]
    follower: HaClientHandler
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@define
class FakeMaster:
    """The responses of a master; without a ``log`` it does not know COMPARE_LOG, as Java's."""

    settings: dict[str, str] = field(factory=dict)
    begin: int = 0
    end: int = 0
    log: MessageStore | None = None
    dead: bool = False

    def answer(self, command: RemotingCommand) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_CONFIG:
            lines = {
                "brokerClusterName": "C",
                "brokerName": "broker-a",
                "brokerRole": "ASYNC_MASTER",
                "brokerId": "0",
                "mappedFileSizeCommitLog": str(FILE),
                **self.settings,
            }
            text = "".join(f"{key}={value}\n" for key, value in lines.items())
            return RemotingCommand.response_to(command, body=text.encode())
        if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = {"commitLogMinOffset": str(self.begin), "commitLogMaxOffset": str(self.end)}
            return RemotingCommand.response_to(command, body=KVTable(table).encode())
        assert command.code == RequestCode.RMQPY_COMPARE_LOG
        if self.log is None:
            return RemotingCommand.response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        log = self.log.log
        return LogCompareProcessor(lambda: log).compare(MemoryChannel(), command)


@define
class SlaveScenario:
    """A slave, its name servers, and the masters that they can name."""

    harness: BrokerHarness
    follower: HaFollower
    choice: MasterDiscovery
    masters: dict[str, FakeMaster]
    dialled: list[FakeConnection] = field(factory=list)
    requested: list[str] = field(factory=list)
    """The addresses of the requests, in order."""

    def name_master(self, server: int, host: str) -> None:
        """Let a name server name a master."""
        answer = RegistrationAnswer(f"{host}:10912", f"{host}:10911")
        self.choice.on_registration_answer(
            SERVERS[server], answer, self.harness.scheduler.monotonic_ms()
        )

    def settle(self) -> None:
        """Answer all requests of the slave."""
        while requests := self.harness.network.take():
            for address, command, done in requests:
                if command.code not in CHECKS:
                    continue
                self.requested.append(address)
                master = self.masters.get(address.rpartition(":")[0])
                if master is None or master.dead:
                    done(None, NetworkError(f"{address}: connection refused"))
                else:
                    done(master.answer(command), None)

    def run(self, duration_ms: int) -> None:
        for _ in range(duration_ms // 100):
            self.harness.scheduler.advance(100)
            self.settle()

    @property
    def state(self) -> str:
        return self.follower.runtime_info()["haState"]

    def connect(self) -> FollowerLink:
        return self.dialled[-1].follower.connected(self.harness.scheduler.monotonic_ms())


MakeScenario = Callable[..., SlaveScenario]


@pytest.fixture
def scenario(build: BuildBroker) -> MakeScenario:
    def make(masters: dict[str, FakeMaster], **settings: Any) -> SlaveScenario:
        harness = build(broker_role=BrokerRole.SLAVE, broker_id=1, **settings)
        harness.store.set_role(slave=True)
        choice = MasterDiscovery(harness.broker.identity)
        dialled: list[FakeConnection] = []

        def dial(address: tuple[str, int], follower: HaClientHandler) -> FakeConnection:
            dialled.append(FakeConnection(address, follower))
            return dialled[-1]

        follower = HaFollower(
            identity=harness.broker.identity,
            store=harness.store,
            scheduler=harness.scheduler,
            network=harness.network,
            dial=dial,
            choice=choice,
        )
        follower.start()
        return SlaveScenario(harness, follower, choice, masters, dialled)

    return make


def master_log(build: BuildBroker, count: int) -> MessageStore:
    """Return a master's store with ``count`` messages."""
    harness = build(start=False)
    for number in range(count):
        harness.send(b"%d" % number * 50)
    return harness.store


def copy(store: MessageStore, scenario: SlaveScenario, end: int, begin: int = 0) -> None:
    """Let the slave store bytes of a master's log."""
    for start in range(begin, end, 1000):
        stop = min(start + 1000, end)
        scenario.follower.store(
            TransferFrame(PhysicalOffset(start), read_span(store.log, start, stop - start))
        )


def test_a_slave_follows_the_master_that_a_name_server_names(scenario: MakeScenario) -> None:
    slave = scenario({"m1": FakeMaster()})
    slave.run(500)
    assert slave.dialled == [] and "no name server names a master" in slave.state
    slave.name_master(0, "m1")
    slave.settle()
    (dialled,) = slave.dialled
    assert dialled.address == ("m1", 10912)
    link = slave.connect()
    ready = link.take_ready()
    assert ready is not None and ready.send == encode_report(0)
    assert slave.follower.runtime_info() == {
        "haMaster": "m1:10911",
        "haState": "connected to m1:10912",
        "haLogsCompared": "nothing to compare yet",
    }


def test_a_slave_follows_a_leader_that_was_a_slave_before_its_group_switched(
    scenario: MakeScenario,
) -> None:
    """Its settings still say SLAVE: the role of a member is not one of its settings."""
    settings = {"enableDLegerCommitLog": "true", "haServeEntries": "true", "brokerRole": "SLAVE"}
    slave = scenario({"m1": FakeMaster(settings)})
    slave.name_master(0, "m1")
    slave.settle()
    assert len(slave.dialled) == 1, slave.state


@pytest.mark.parametrize(
    ("master", "reason"),
    [
        (FakeMaster({"brokerClusterName": "other"}), "its brokerClusterName is other"),
        (FakeMaster({"brokerName": "broker-b"}), "its brokerName is broker-b"),
        (FakeMaster({"mappedFileSizeCommitLog": "1024"}), "its mappedFileSizeCommitLog is 1024"),
        (FakeMaster({"brokerRole": "SLAVE"}), "it is a slave itself"),
        (FakeMaster({"enableDLegerCommitLog": "true"}), "DLedger group"),
        (FakeMaster(end=0), "its log ends at 0, ours at"),
        (FakeMaster(begin=FILE, end=2 * FILE), f"its log begins at {FILE}"),
        (FakeMaster(dead=True), "connection refused"),
    ],
)
def test_a_broker_that_is_not_our_master_is_refused_by_name(
    scenario: MakeScenario, build: BuildBroker, master: FakeMaster, reason: str
) -> None:
    slave = scenario({"m1": master})
    store = master_log(build, 10)
    if not master.end:
        master.end = 0 if "ends at 0" in reason else store.log.max_offset
    copy(store, slave, store.log.max_offset)
    before = slave.harness.store.log.max_offset
    slave.name_master(0, "m1")
    slave.run(20_000)
    assert slave.dialled == []
    assert reason in slave.state and "m1:10911" in slave.state
    assert reason in slave.follower.runtime_info()["haLastFault"]
    assert slave.harness.store.log.max_offset == before
    tries = slave.requested.count("m1:10911")
    longest = 20 if master.dead else 12
    assert 2 <= tries <= longest, "the intervals grow, without an answer up to 1.5 s"


def test_a_diverged_log_is_refused_with_the_offset(
    scenario: MakeScenario, build: BuildBroker
) -> None:
    theirs, ours = master_log(build, 40), master_log(build, 30)
    slave = scenario({"m1": FakeMaster(end=theirs.log.max_offset, log=theirs)})
    copy(ours, slave, ours.log.max_offset)
    slave.name_master(0, "m1")
    slave.run(1_000)
    assert len(slave.dialled) == 1, "the logs are the same up to the end of ours"
    assert "the same up to" in slave.follower.runtime_info()["haLogsCompared"]
    assert slave.follower.identity.is_readable

    other = build(start=False)
    for number in range(40):
        other.send((b"%d" if number < 20 else b"x%d") % number * 50)
    diverged = next(
        offset
        for offset in range(ours.log.max_offset)
        if read_span(other.store.log, offset, 1) != read_span(ours.log, offset, 1)
    )
    second = scenario({"m1": FakeMaster(end=other.store.log.max_offset, log=other.store)})
    copy(ours, second, ours.log.max_offset)
    second.name_master(0, "m1")
    second.run(1_000)
    assert second.dialled == []
    assert f"the two logs diverge at offset {diverged}:" in second.state
    assert not second.follower.identity.is_readable, "its messages are not those of the master"
    record_starts = [
        int.from_bytes(read_span(ours.log, place - 28, 36)[28:])
        for place in range(28, diverged + 29)
        if int.from_bytes(read_span(ours.log, place, 8)) == place - 28
    ]
    assert f"(in the message at {record_starts[-1]})" in second.state
    for place in (record_starts[3], record_starts[3] + 1, record_starts[4] - 1):
        assert frame_start(ours.log, place) == record_starts[3]


def test_a_java_master_cannot_compare_logs_and_the_slave_reports_it(
    scenario: MakeScenario, build: BuildBroker
) -> None:
    store = master_log(build, 10)
    slave = scenario({"m1": FakeMaster(end=store.log.max_offset)})
    copy(store, slave, store.log.max_offset)
    slave.name_master(0, "m1")
    slave.run(300)
    assert len(slave.dialled) == 1
    assert "not compared" in slave.follower.runtime_info()["haLogsCompared"]


def test_stored_records_are_readable_and_half_a_record_waits(
    scenario: MakeScenario, build: BuildBroker
) -> None:
    store = master_log(build, 10)
    slave = scenario({})
    queue = ("T", 0)
    half = store.log.max_offset - 30
    copy(store, slave, half)
    slave.harness.broker.server.dispatch()
    assert slave.harness.store.reader.max_queue_offset(*queue) == 9
    assert slave.harness.store.health.failure is None
    copy(store, slave, store.log.max_offset, half)
    slave.harness.broker.server.dispatch()
    assert slave.harness.store.reader.max_queue_offset(*queue) == 10
    refused = slave.harness.send()
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_stop_inside_a_record_is_a_clean_stop(scenario: MakeScenario, build: BuildBroker) -> None:
    store = master_log(build, 10)
    slave = scenario({})
    copy(store, slave, store.log.max_offset - 30)
    slave.harness.store.shutdown()
    assert not slave.harness.files.exists("/store/abort")
    again = build(files=slave.harness.files, broker_role=BrokerRole.SLAVE, broker_id=1)
    assert again.store.log.max_offset < store.log.max_offset - 30
    assert again.store.reader.max_queue_offset("T", 0) == 9


def test_bytes_that_are_not_a_record_stop_the_slave_with_their_offset(
    scenario: MakeScenario,
) -> None:
    slave = scenario({"m1": FakeMaster(end=500)})
    slave.follower.store(TransferFrame(PhysicalOffset(0), b"\xff" * 100))
    slave.harness.broker.server.dispatch()
    failure = slave.harness.store.health.failure
    assert failure is not None and "BAD_MAGIC where a record must begin" in failure
    slave.name_master(0, "m1")
    slave.run(300)
    slave.follower.ended(None, "closed")
    assert slave.state.startswith("stopped: dispatching")


def test_an_empty_slave_starts_where_its_master_sends(
    scenario: MakeScenario, build: BuildBroker
) -> None:
    master = build(start=False)
    while master.store.log.max_offset < 2 * FILE:
        master.send(b"m" * 5000)
    begin, end = 2 * FILE, master.store.log.max_offset
    slave = scenario({})
    copy(master.store, slave, end, begin)
    slave.harness.broker.server.dispatch()
    assert slave.harness.store.log.min_offset == begin
    assert slave.harness.store.log.max_offset == end
    assert slave.harness.store.reader.max_queue_offset(
        "T", 0
    ) == master.store.reader.max_queue_offset("T", 0)
    found = slave.harness.store.reader.min_queue_offset("T", 0)
    assert found > 0
    slave.harness.store.shutdown()
    again = build(files=slave.harness.files, broker_role=BrokerRole.SLAVE, broker_id=1)
    assert again.store.log.max_offset == end
    assert again.store.reader.min_queue_offset("T", 0) == found


@pytest.mark.parametrize(
    ("begin", "end", "report"),
    [
        (0, 3 * FILE, 1),
        (FILE, 3 * FILE, FILE),
        # The master may have more files when it reads the report.
        (0, FILE - 1, 1),
        (2 * FILE, 2 * FILE + 5, 2 * FILE),
        (0, 0, 0),
    ],
)
def test_an_empty_slave_can_request_the_whole_log(
    scenario: MakeScenario, begin: int, end: int, report: int
) -> None:
    slave = scenario({"m1": FakeMaster(begin=begin, end=end)}, ha_fetch_from_beginning=True)
    slave.name_master(0, "m1")
    slave.run(200)
    ready = slave.connect().take_ready()
    assert ready is not None and ready.send == encode_report(report)


def test_a_slave_follows_neither_of_two_valid_masters(scenario: MakeScenario) -> None:
    slave = scenario({"m1": FakeMaster(), "m2": FakeMaster()})
    slave.follower.stop()
    slave.name_master(0, "m1")
    slave.name_master(1, "m2")
    slave.follower.start()
    slave.run(2_000)
    assert slave.dialled == []
    assert "several masters are named broker-a: m1:10911, m2:10911" in slave.state
    assert slave.follower.runtime_info()["haNameServersDisagree"] == (
        "10.0.0.8:9876 names m1:10911; 10.0.0.9:9876 names m2:10911"
    )
    slave.masters["m2"].dead = True
    slave.run(40_000)
    assert [dialled.address for dialled in slave.dialled] == [("m1", 10912)]


def test_a_stale_name_server_does_not_replace_a_working_master(scenario: MakeScenario) -> None:
    slave = scenario({"m1": FakeMaster(), "m2": FakeMaster()})
    slave.name_master(0, "m1")
    slave.run(200)
    for _ in range(5):
        slave.name_master(1, "m2")
        slave.run(1_000)
        slave.dialled[-1].follower.ended(slave.connect(), "connection reset")
        slave.run(70_000)
        assert slave.dialled[-1].address == ("m1", 10912)


def test_a_dead_master_is_replaced_when_another_one_is_named(scenario: MakeScenario) -> None:
    slave = scenario({"m1": FakeMaster(), "m2": FakeMaster()})
    slave.name_master(0, "m1")
    slave.run(200)
    link = slave.connect()
    slave.masters["m1"].dead = True
    slave.name_master(1, "m2")
    slave.dialled[-1].follower.ended(link, "connection reset")
    slave.run(10_000)
    assert slave.dialled[-1].address == ("m2", 10912)


def test_a_slave_that_was_started_first_finds_its_master_within_two_seconds(
    scenario: MakeScenario, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the master was down, and without a line in the log for each attempt."""
    slave = scenario({"m1": FakeMaster(dead=True)})
    slave.name_master(0, "m1")
    slave.run(10 * 60_000)
    assert slave.dialled == [] and len(slave.requested) > 300
    lines = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1, lines
    slave.masters["m1"].dead = False
    slave.run(2_000)
    assert [each.address for each in slave.dialled] == [("m1", 10912)]


def test_a_port_for_slaves_that_closes_at_once_is_tried_again_within_two_seconds(
    scenario: MakeScenario, caplog: pytest.LogCaptureFixture
) -> None:
    """As behind a proxy whose target is not up yet."""
    slave = scenario({"m1": FakeMaster()})
    slave.name_master(0, "m1")
    slave.run(200)
    for attempt in range(1, 9):
        assert len(slave.dialled) == attempt
        slave.dialled[-1].follower.ended(slave.connect(), "the master has closed the connection")
        slave.run(2_000)
    lines = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 1, lines


def test_a_stopped_slave_stores_and_tries_nothing(scenario: MakeScenario) -> None:
    slave = scenario({"m1": FakeMaster()})
    slave.name_master(0, "m1")
    slave.run(200)
    slave.follower.stop()
    assert slave.dialled[0].closed
    slave.run(5_000)
    assert len(slave.dialled) == 1
