"""The simulated time, network and disks on their own."""

from __future__ import annotations

import random
from collections.abc import Sequence

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


def test_events_run_in_their_order_and_a_life_takes_its_own_with_it() -> None:
    timeline, seen = Timeline(), []
    life = life_on(timeline)
    life.call_later(5, lambda: seen.append("later"))
    life.call_soon(lambda: seen.append("soon"))
    life.call_later(3, lambda: seen.append("called off")).cancel()
    timeline.at(4, lambda: seen.append("anyhow"))
    timeline.run_until(4)
    assert seen == ["soon", "anyhow"]
    life.alive = False
    timeline.run_until(10)
    assert seen == ["soon", "anyhow"]


def test_a_pause_holds_back_what_falls_due_and_keeps_its_order() -> None:
    timeline, seen = Timeline(), []
    life = life_on(timeline)
    life.paused_until_ms = 100
    for number in range(3):
        life.call_later(number, lambda number=number: seen.append((number, timeline.now_ms)))
    timeline.run_until(200)
    assert seen == [(0, 100), (1, 100), (2, 100)]


def test_a_pause_may_be_ended_early_and_be_longer_than_it_was() -> None:
    timeline, seen = Timeline(), []
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


def test_an_event_may_be_the_end_of_its_machine() -> None:
    timeline, seen = Timeline(), []
    life = ProcessLifetime(
        timeline, lambda: seen.append("watched"), lambda: seen.append("died"), int, _disk()
    )

    def dies() -> None:
        raise MachineCrashError

    life.call_soon(dies)
    timeline.run_until(1)
    assert seen == ["died"]


def _disk() -> SimulatedDisk:
    return SimulatedDisk()


def test_a_sync_counts_from_its_end_and_covers_what_was_there_at_its_begin() -> None:
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


def test_a_power_failure_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
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


class EverythingArrives(random.Random):
    """Dice for power failures that lose and tear nothing."""

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
    rng = EverythingArrives()
    disk.lose_power(rng)
    assert disk.read_bytes(PATH) == b"abcd\0\0\0\0" and disk.synced_to[PATH] == 2
    disk.written_back()
    disk.lose_power(rng)
    assert disk.synced_to[PATH] == 2
    disk.open(PATH).sync()
    disk.lose_power(rng)
    assert disk.synced_to[PATH] == 4


def test_a_killed_process_leaves_everything_and_its_lock() -> None:
    disk = SimulatedDisk()
    disk.lock("/store/lock")
    disk.open(PATH, size=8).write(0, b"written")
    disk.process_ended()
    assert disk.read_bytes(PATH) == b"written\0"
    disk.lock("/store/lock")


def test_a_removed_file_may_be_back_after_a_power_failure() -> None:
    found = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.put(PATH, b"content")
        disk.unlink(PATH)
        disk.lose_power(random.Random(seed))
        found.add(disk.exists(PATH))
    assert found == {False, True}


def test_a_torn_write_is_old_and_new_by_the_sector() -> None:
    old, new = b"o" * 2048, b"n" * 2048
    torn = {mixed(old, new, random.Random(seed)) for seed in range(50)}
    assert {old, new} < torn and len(torn) > 4
    for content in torn:
        assert all(len(set(content[at : at + 512])) == 1 for at in range(0, 2048, 512))


def test_a_disk_can_be_full_or_fail_and_ends_a_machine_at_the_planned_change() -> None:
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
    """A server that sends each request's body back."""

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
class Pair:
    """A client, a server, and the answers that the client got."""

    timeline: Timeline
    network: SimulatedNetwork
    client: NetworkClient
    server: Machine
    echo: Echo
    answers: list[bytes | str] = field(factory=list)

    def ask(self, body: bytes, timeout_ms: int = 1000) -> None:
        def done(response: RemotingCommand | None, fault: RmqError | None) -> None:
            self.answers.append(response.body if response is not None else str(fault))

        command = RemotingCommand.request(10, body=body)
        self.client.request("10.0.0.1:1", command, timeout_ms, done)


@pytest.fixture
def pair() -> Pair:
    timeline = Timeline()
    network = SimulatedNetwork(timeline, random.Random(1), NetworkFaults())
    client, server = Machine("client", "10.0.0.9"), Machine("server", "10.0.0.1")
    client.life, server.life = life_on(timeline), life_on(timeline)
    client, echo = NetworkClient(network, client, client.life), Echo()
    network.listen(server, 1, echo)
    return Pair(timeline, network, client, server, echo)


def test_a_request_travels_as_bytes_and_is_answered(pair: Pair) -> None:
    pair.ask(b"one")
    assert pair.answers == []
    pair.timeline.run_until(100)
    assert pair.answers == [b"one"] and pair.echo.turns == 1


def test_a_blocked_way_is_silence_in_its_direction_only(pair: Pair) -> None:
    pair.network.blocked.add(("server", "client"))
    pair.ask(b"one")
    pair.timeline.run_until(2000)
    assert pair.echo.bodies == [b"one"]
    assert pair.answers == ["10.0.0.1:1 did not answer in time"]
    pair.network.blocked = {("client", "server")}
    pair.ask(b"two")
    pair.timeline.run_until(4000)
    assert pair.echo.bodies == [b"one"]


def test_pieces_are_lost_repeated_and_reordered_by_chance(pair: Pair) -> None:
    pair.network.faults = NetworkFaults(loss=0.2, repeat=0.2, delay_ms=50)
    for number in range(200):
        pair.ask(b"%d" % number)
    pair.timeline.run_until(5000)
    bodies = [int(body) for body in pair.echo.bodies]
    assert len(pair.answers) == 200, "each request is answered once"
    assert len(set(bodies)) < 200 and len(bodies) > len(set(bodies))
    assert bodies != sorted(bodies)


def test_who_is_down_refuses_and_who_goes_down_breaks_connections(pair: Pair) -> None:
    pair.ask(b"one")
    pair.timeline.run_until(100)
    pair.network.blocked.add(("server", "client"))
    pair.ask(b"two")
    pair.timeline.run_until(200)
    pair.network.blocked.clear()
    pair.network.close_ports(pair.server)
    pair.timeline.run_until(300)
    assert pair.answers == [b"one", "the connection to 10.0.0.1:1 was closed"]
    pair.ask(b"three")
    pair.timeline.run_until(400)
    assert pair.answers[2:] == ["the connection to 10.0.0.1:1 was closed"]


def test_a_client_that_ends_closes_its_channels(pair: Pair) -> None:
    pair.ask(b"one")
    pair.timeline.run_until(100)
    pair.network.close_links([pair.client])
    pair.timeline.run_until(200)
    assert pair.echo.closed == 1
