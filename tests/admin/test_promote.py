"""A slave takes over from a running master, under load: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.loaded_group import LoadedGroup

from rmqpy.cli import main
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "2"))
PER_ROUND = 50
"""The number of messages acknowledged between two promotions, at least."""


@pytest.fixture(params=["ASYNC_MASTER", "SYNC_MASTER"])
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadedGroup]:
    roles = (request.param, "SLAVE", "SLAVE")
    settings = (
        {"brokerRole": role, "brokerId": str(each), "haFetchFromBeginning": "true"}
        for each, role in enumerate(roles)
    )
    group = LoadedGroup(tmp_path, tuple(settings))
    try:
        group.start()
        group.load()
        yield group
    finally:
        group.close()


def names(group: LoadedGroup) -> list[str]:
    return ["-n", group.servers[0].address]


def promote(group: LoadedGroup, target: ServerProcess, *more: str) -> int:
    return main(["admin", "promote", *names(group), "-m", "broker-a", "-t", target.address, *more])


def bodies(server: ServerProcess) -> set[bytes]:
    assert server.store is not None
    return {message.body for message in read_store(server.store).messages}


def check_nothing_is_lost(group: LoadedGroup, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    fence = ["admin", "fence", *names(group), "-m", "broker-a", "--format", "json"]
    assert main(fence) == 0, capsys.readouterr()
    assert len(json.loads(capsys.readouterr().out)["members"]) == 3
    for server in group.brokers:
        assert server.stop() == 0
    sent = {b"half %d" % n if n % 10 == 0 else b"%d" % n for n in range(group.acknowledged)}
    for server in group.brokers:
        assert sent <= bodies(server)
    logs = [read_store(server.store).messages for server in group.brokers if server.store]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
def test_slaves_take_over_in_turn(loaded: LoadedGroup, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(ROUNDS):
        target = loaded.brokers[(number + 1) % 3]
        assert promote(loaded, target) == 0, capsys.readouterr()
        loaded.wait_for(loaded.acknowledged + PER_ROUND)
    check_nothing_is_lost(loaded, capsys)
    print(
        f"{role_of_master(loaded)}: {ROUNDS} promotions, {loaded.acknowledged} messages"
        f" acknowledged, 0 lost; the longest gap was {loaded.longest_gap_s * 1000:.0f} ms"
    )
    text = "".join((loaded.root / f"n{each}" / "broker.conf").read_text() for each in range(3))
    assert text.count(f"brokerRole={role_of_master(loaded)}\n") == 1
    assert text.count("brokerRole=SLAVE\n") == 2
    assert [text.count(f"brokerId={each}\n") for each in range(3)] == [1, 1, 1]


def role_of_master(group: LoadedGroup) -> str:
    return group.settings[0]["brokerRole"]


@pytest.mark.slow
def test_a_refused_promotion_leaves_the_group_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The slave starts with the last file of its master, as Java's slaves do.
    roles = ("ASYNC_MASTER", "SLAVE")
    settings = ({"brokerRole": role, "brokerId": str(each)} for each, role in enumerate(roles))
    group = LoadedGroup(tmp_path, tuple(settings))
    try:
        group.start(1)
        group.load()
        group.wait_for(1000)  # several files
        group.brokers[1].start()
        group.wait_for_registration()
        master, slave = group.brokers
        assert promote(group, master) == 1
        assert "is the master of broker-a already" in capsys.readouterr().err
        assert promote(group, slave) == 1
        assert "bytes of old messages could not be read any more" in capsys.readouterr().err
        group.wait_for(group.acknowledged + PER_ROUND)  # The fences were lifted.
        change = {
            "role": "SLAVE",
            "end": "0",
            "brokerId": "1",
            "masterAddr": "h:1",
            "haServerAddr": "h:2",
        }
        with BlockingConnection(master.address) as connection:
            for changed, reason in (
                ({}, "found a log that ends at"),
                ({"brokerId": "0"}, "brokerId=0: expected 1 or more"),
                ({"role": "MASTER"}, "MASTER"),
                ({"masterAddr": ""}, "host:port"),
                ({"role": "SYNC_MASTER"}, "found ASYNC_MASTER, expected a slave"),
            ):
                request = RemotingCommand.request(RequestCode.RMQPY_CHANGE_ROLE)
                request.ext_fields.update(change | changed)
                answer = connection.call(request)
                assert answer.code == 1 and reason in (answer.remark or ""), answer
        assert promote(group, slave, "--shorter") == 0, capsys.readouterr()
        group.wait_for(group.acknowledged + PER_ROUND)
    finally:
        group.close()


@pytest.mark.slow
def test_a_group_without_a_master_gets_one_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ({"brokerRole": "SLAVE", "brokerId": str(each)} for each in (1, 2))
    group = LoadedGroup(tmp_path, tuple(settings))
    try:
        group.start()
        target = group.brokers[1]
        assert promote(group, target) == 1
        assert "add --no-master" in capsys.readouterr().err
        assert promote(group, target, "--no-master") == 0, capsys.readouterr()
        group.load()
        fence = ["admin", "fence", *names(group), "-m", "broker-a"]
        assert main(fence) == 0, capsys.readouterr()  # The other slave follows.
    finally:
        group.close()
