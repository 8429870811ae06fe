"""The simulated time, network, and disks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from attrs import define, field
from simulator.disks import SimulatedDisk, mixed
from simulator.network import Machine, NetworkClient, NetworkFaults, SimulatedNetwork
from simulator.virtual_time import MachineCrashError, ProcessLifetime, Timeline

from rmqpy.model.errors import RmqError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

PATH = "/store/log"


def life_on(timeline: Timeline, disk: SimulatedDisk | None = None) -> ProcessLifetime:
    return ProcessLifetime(
        timeline, lambda: None, lambda: None, lambda: 10, disk or SimulatedDisk()
    )


def test_events_run_in_order_until_their_process_ends() -> None:
    timeline = Timeline()
    seen: list[str] = []
    life = life_on(timeline)
    life.call_later(5, lambda: seen.append("later"))
    life.call_soon(lambda: seen.append("soon"))
    life.call_later(3, lambda: seen.append("cancelled")).cancel()
    timeline.at(4, lambda: seen.append("without a process"))
    timeline.run_until(4)
    assert seen == ["soon", "without a process"]
    life.alive = False
    timeline.run_until(10)
    assert seen == ["soon", "without a process"]


def test_a_pause_delays_due_events_and_keeps_their_order() -> None:
    timeline = Timeline()
    seen: list[tuple[int, int]] = []
    life = life_on(timeline)
    life.paused_until_ms = 100

    def see(number: int) -> None:
        seen.append((number, timeline.now_ms))

    for number in range(3):
        life.call_later(number, partial(see, number))
    timeline.run_until(200)
    assert seen == [(0, 100), (1, 100), (2, 100)]


def test_a_pause_can_be_shortened_and_extended() -> None:
    timeline = Timeline()
    seen: list[int] = []
    life = life_on(timeline)
    for pause_ms, resumed_ms in ((100, 50), (300, 300)):
        life.paused_until_ms = pause_ms
        life.call_later(1, lambda: seen.append(timeline.now_ms))
        timeline.run_until(resumed_ms - 10)
        if resumed_ms < pause_ms:
            timeline.at(10, life.resume)
        timeline.run_until(resumed_ms)
    assert seen == [50, 300]
    life.paused_until_ms = 400
    life.call_soon(lambda: seen.append(timeline.now_ms))
    timeline.run_until(350)
    life.paused_until_ms = 500
    timeline.run_until(600)
    assert seen == [50, 300, 500]


def test_an_event_can_crash_its_machine() -> None:
    timeline = Timeline()
    seen: list[str] = []
    life = ProcessLifetime(
        timeline,
        lambda: seen.append("event"),
        lambda: seen.append("crash"),
        int,
        SimulatedDisk(),
    )

    def crash() -> None:
        raise MachineCrashError

    life.call_soon(crash)
    timeline.run_until(1)
    assert seen == ["crash"]


def test_a_sync_takes_effect_at_its_end_and_covers_earlier_writes() -> None:
    timeline, disk = Timeline(), SimulatedDisk()
    life = life_on(timeline, disk)
    file = disk.open(PATH, size=1024)
    file.write(0, b"before")

    def work() -> None:
        file.sync()
        disk.sync_dir("/store")

    life.run_blocking(work, lambda _result, fault: None)
    file.write(6, b" during")
    timeline.run_until(9)
    assert disk.durable_content(PATH) == b""
    timeline.run_until(10)
    assert disk.durable_content(PATH) == b"before"


def test_a_power_failure_keeps_synced_data_and_a_prefix_of_later_changes() -> None:
    kept = set()
    for seed in range(200):
        disk = SimulatedDisk()
        file = disk.open(PATH, size=4096)
        file.write(0, b"a")
        file.sync()
        disk.sync_dir("/store")
        for position, letter in enumerate(b"bcd", 1):
            file.write(position, bytes([letter]))
        disk.open("/store/new", size=8)
        disk.lose_power(random.Random(seed))
        kept.add((disk.read_bytes(PATH).rstrip(b"\0"), disk.exists("/store/new")))
    assert kept == {
        (b"a", False),
        (b"ab", False),
        (b"abc", False),
        (b"abcd", False),
        (b"abcd", True),
    }


class KeepsEverything(random.Random):
    """A random source for which a power failure loses and tears nothing."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return (start if stop is None else stop) - 1

    def random(self) -> float:
        return 0.99


def test_unsynced_bytes_do_not_count_as_synced_even_if_they_survive() -> None:
    disk = SimulatedDisk()
    file = disk.open(PATH, size=8)
    file.write(0, b"ab")
    file.sync()
    disk.sync_dir("/store")
    file.write(2, b"cd")
    rng = KeepsEverything()
    disk.lose_power(rng)
    assert disk.read_bytes(PATH) == b"abcd\0\0\0\0" and disk.synced_to[PATH] == 2
    disk.written_back()
    disk.lose_power(rng)
    assert disk.synced_to[PATH] == 2
    disk.open(PATH).sync()
    disk.lose_power(rng)
    assert disk.synced_to[PATH] == 4


def test_a_killed_process_keeps_its_writes_and_releases_its_lock() -> None:
    disk = SimulatedDisk()
    disk.lock("/store/lock")
    disk.open(PATH, size=8).write(0, b"written")
    disk.process_ended()
    assert disk.read_bytes(PATH) == b"written\0"
    disk.lock("/store/lock")


def test_a_removed_file_can_reappear_after_a_power_failure() -> None:
    found = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.put(PATH, b"content")
        disk.unlink(PATH)
        disk.lose_power(random.Random(seed))
        found.add(disk.exists(PATH))
    assert found == {False, True}


def test_each_sector_of_a_torn_write_is_old_or_new() -> None:
    old, new = b"o" * 2048, b"n" * 2048
    torn = {mixed(old, new, random.Random(seed)) for seed in range(50)}
    assert {old, new} < torn and len(torn) > 4
    for content in torn:
        assert all(len(set(content[at : at + 512])) == 1 for at in range(0, 2048, 512))


def test_a_disk_can_be_full_or_fail_and_crash_its_machine() -> None:
    disk = SimulatedDisk()
    file = disk.open(PATH, size=8)
    disk.full = True
    file.write(0, b"in place")
    with pytest.raises(OSError, match="full"):
        disk.open("/store/new", size=8)
    disk.heal()
    disk.failing = True
    with pytest.raises(OSError, match="fails"):
        file.write(0, b"x")
    disk.heal()
    disk.crash_after = 1
    file.write(0, b"y")
    with pytest.raises(MachineCrashError):
        file.write(0, b"z")


@define
class Echo:
    """A server that answers each request with its own body."""

    turns: int = 0
    bodies: list[bytes] = field(factory=list)
    closed: int = 0

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        for command in commands:
            self.bodies.append(command.body)
            channel.write(encode_command(RemotingCommand.response_to(command, body=command.body)))

    def turn_ended(self) -> None:
        self.turns += 1

    def channel_closed(self, channel: Channel) -> None:
        self.closed += 1


@define
class Connection:
    """A client, a server, and the answers that the client received."""

    timeline: Timeline
    network: SimulatedNetwork
    client: NetworkClient
    server: Machine
    echo: Echo
    answers: list[bytes | str] = field(factory=list)

    def send(self, body: bytes, timeout_ms: int = 1000) -> None:
        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            self.answers.append(response.body if response is not None else str(fault))

        command = RemotingCommand.request(10, body=body)
        self.client.request("10.0.0.1:1", command, timeout_ms, done)


@pytest.fixture
def connection() -> Connection:
    timeline = Timeline()
    network = SimulatedNetwork(timeline, random.Random(1), NetworkFaults())
    sender, server = Machine("client", "10.0.0.9"), Machine("server", "10.0.0.1")
    sender.life, server.life = life_on(timeline), life_on(timeline)
    client, echo = NetworkClient(network, sender, sender.life), Echo()
    network.listen(server, 1, echo)
    return Connection(timeline, network, client, server, echo)


def test_a_request_is_carried_as_bytes_and_answered(connection: Connection) -> None:
    connection.send(b"one")
    assert connection.answers == []
    connection.timeline.run_until(100)
    assert connection.answers == [b"one"] and connection.echo.turns == 1


def test_a_blocked_direction_carries_nothing(connection: Connection) -> None:
    connection.network.blocked.add(("server", "client"))
    connection.send(b"one")
    connection.timeline.run_until(2000)
    assert connection.echo.bodies == [b"one"]
    assert connection.answers == ["10.0.0.1:1 did not answer in time"]
    connection.network.blocked = {("client", "server")}
    connection.send(b"two")
    connection.timeline.run_until(4000)
    assert connection.echo.bodies == [b"one"]


def test_pieces_are_lost_repeated_and_reordered_at_random(connection: Connection) -> None:
    connection.network.faults = NetworkFaults(loss=0.2, repeat=0.2, delay_ms=50)
    for number in range(200):
        connection.send(b"%d" % number)
    connection.timeline.run_until(5000)
    bodies = [int(body) for body in connection.echo.bodies]
    assert len(connection.answers) == 200, "each request is answered once"
    assert len(set(bodies)) < 200 and len(bodies) > len(set(bodies))
    assert bodies != sorted(bodies)


def test_a_line_that_breaks_fails_what_is_pending_and_loses_one_piece(
    connection: Connection,
) -> None:
    connection.network.calm = frozenset({"client", "server"})
    connection.send(b"pending")
    connection.network.break_line(connection.client, connection.server)
    connection.send(b"lost")
    connection.send(b"arrives")
    connection.timeline.run_until(2000)
    assert connection.answers == [
        "the connection to 10.0.0.1:1 was closed",
        b"arrives",
        "10.0.0.1:1 did not answer in time",
    ]
    assert connection.echo.bodies == [b"pending", b"arrives"]


def test_a_machine_that_is_down_refuses_and_closes_connections(connection: Connection) -> None:
    connection.send(b"one")
    connection.timeline.run_until(100)
    connection.network.blocked.add(("server", "client"))
    connection.send(b"two")
    connection.timeline.run_until(200)
    connection.network.blocked.clear()
    connection.network.close_ports(connection.server)
    connection.timeline.run_until(300)
    assert connection.answers == [b"one", "the connection to 10.0.0.1:1 was closed"]
    connection.send(b"three")
    connection.timeline.run_until(400)
    assert connection.answers[2:] == ["the connection to 10.0.0.1:1 was closed"]


def test_a_client_that_ends_closes_its_channels(connection: Connection) -> None:
    connection.send(b"one")
    connection.timeline.run_until(100)
    connection.network.close_links([connection.client])
    connection.timeline.run_until(200)
    assert connection.echo.closed == 1


def test_a_power_failure_can_keep_later_sectors_and_lose_earlier_ones() -> None:
    found = set()
    for seed in range(200):
        disk = SimulatedDisk(scattered=1.0)
        file = disk.open(PATH, size=1536)
        file.sync()
        disk.sync_dir("/store")
        for sector in range(3):
            file.write(sector * 512, b"x")
        disk.lose_power(random.Random(seed))
        content = disk.read_bytes(PATH)
        found.add(tuple(content[sector * 512] != 0 for sector in range(3)))
    assert (False, True, True) in found and len(found) == 8


def test_syncs_can_fail_alone() -> None:
    disk = SimulatedDisk()
    file = disk.open(PATH, size=8)
    disk.syncs_fail = True
    file.write(0, b"written")
    with pytest.raises(OSError, match="the sync fails"):
        file.sync()
    assert disk.durable_content(PATH) == b""
    disk.heal()
    file.sync()


def test_a_file_that_is_created_again_stays_after_a_power_failure() -> None:
    disk = SimulatedDisk()
    disk.put(PATH, b"old")
    disk.unlink(PATH)
    disk.replace_bytes(PATH, b"new")
    for seed in range(20):
        disk.lose_power(random.Random(seed))
        assert disk.read_bytes(PATH) == b"new"


def test_what_a_server_leaves_for_its_next_turn_is_handled_then() -> None:
    """Also in a moment in which nothing else ends the turn, as after a pause."""
    timeline = Timeline()
    network = SimulatedNetwork(timeline, random.Random(1), NetworkFaults())
    life = life_on(timeline)
    machine = Machine("n0", "10.0.0.1", life)
    handled: list[int] = []

    @define
    class OneInATurn:
        turns: int = 0
        busy: bool = False

        def handle(
            self, _channel: Channel, commands: Sequence[RemotingCommand]
        ) -> Sequence[RemotingCommand]:
            if self.busy:
                return commands
            self.busy = True
            handled.append(commands[0].code)
            return commands[1:]

        def turn_ended(self) -> None:
            self.turns += 1
            self.busy = False
            assert self.turns < 100

        def channel_closed(self, channel: Channel) -> None:
            """Nothing is kept."""

    network.listen(machine, 10911, OneInATurn())
    (port,) = network.ports.values()
    data = b"".join(encode_command(RemotingCommand.request(code)) for code in (1, 2, 3))
    channel: Any = None
    port.received(channel, data)
    assert handled == [1, 2, 3]
