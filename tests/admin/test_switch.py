"""``rmqpy admin switch`` on broker processes under load: nothing acknowledged is lost.

``tests/crash/test_live_kills.py`` kills the brokers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.loaded_group import LoadedGroup

from rmqpy.cli import main
from rmqpy.testing.ports import PortBlock, free_port_block
from rmqpy.testing.processes import ServerProcess
from rmqpy.testing.store_reader import read_store

ATTEMPTS = 10
"""A busy machine misses deadlines; the group is as before then, and the switch can be repeated."""
NAMES = ("n2", "n0", "n1")
"""The id of each broker in the group; that of the master first."""


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedGroup]:
    settings = (
        {"brokerRole": role, "brokerId": str(each), "haFetchFromBeginning": "true"}
        for each, role in enumerate(("ASYNC_MASTER", "SLAVE", "SLAVE"))
    )
    group = LoadedGroup(tmp_path, tuple(settings))
    try:
        group.start()
        group.load()
        # Every slave follows the master and knows its tables.
        fence = ["admin", "fence", "-n", group.servers[0].address, "-m", "broker-a"]
        assert main(fence) == 0 and main([*fence, "--lift"]) == 0
        yield group
    finally:
        group.close()


@pytest.fixture
def ports() -> Iterator[PortBlock]:
    block = free_port_block(3)
    yield block
    block.release()


def switch(group: LoadedGroup, *more: str) -> int:
    names = ["-n", group.servers[0].address]
    return main(["admin", "switch", *names, "-m", "broker-a", "--format", "json", *more])


def peers(ports: PortBlock) -> str:
    return ";".join(f"n{each}-127.0.0.1:{ports[each]}" for each in range(3))


def has_joined(group: LoadedGroup, number: int) -> bool:
    text = (group.root / f"n{number}" / "broker.conf").read_text()
    return "enableDLegerCommitLog=true\n" in text


def bodies(server: ServerProcess) -> set[bytes]:
    assert server.store is not None
    return {message.body for message in read_store(server.store).messages}


def check_nothing_is_lost(group: LoadedGroup, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    names = ["-n", group.servers[0].address]
    assert main(["admin", "fence", *names, "-m", "broker-a"]) == 0, capsys.readouterr()
    for server in group.brokers:
        assert server.stop() == 0
    sent = {b"half %d" % n if n % 10 == 0 else b"%d" % n for n in range(group.acknowledged)}
    for server in group.brokers:
        assert sent <= bodies(server)
    logs = [read_store(server.store).messages for server in group.brokers if server.store]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
def test_a_running_group_switches(
    loaded: LoadedGroup, ports: PortBlock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert switch(loaded) == 1
    assert "give --peers" in capsys.readouterr().out
    assert switch(loaded, "--peers", f"n0-127.0.0.1:{ports[0]}") == 1
    assert "found 1 member, expected one for each" in capsys.readouterr().out
    assert switch(loaded, "--peers", peers(ports).replace("127.0.0.1", "192.0.2.1")) == 2
    assert "is no address of this host" in capsys.readouterr().out
    assert switch(loaded, "--peers", peers(ports)) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["coordinator"] == "n2"
    assert not any(has_joined(loaded, each) for each in range(3))  # only checked
    assert switch(loaded, "--status") == 0
    assert json.loads(capsys.readouterr().out)["phase"] is None
    outputs = []
    for _ in range(ATTEMPTS):
        code = switch(loaded, "--peers", peers(ports), "--apply")
        outputs.append(capsys.readouterr().out)
        if code != 2:
            break
    assert code == 0, outputs
    assert json.loads(outputs[-1])["reason"] == ""
    loaded.wait_for(loaded.acknowledged + 200)
    assert switch(loaded, "--status") == 0
    assert json.loads(capsys.readouterr().out)["phase"] in ("committed", "complete")
    assert switch(loaded, "--peers", peers(ports), "--apply") == 2
    assert "a member of a DLedger group already" in capsys.readouterr().out
    check_nothing_is_lost(loaded, capsys)
    assert all(has_joined(loaded, each) for each in range(3))
    stores = [f"{name}={server.store}" for name, server in zip(NAMES, loaded.brokers, strict=True)]
    assert main(["upgrade", "verify", *stores]) == 0, capsys.readouterr()
