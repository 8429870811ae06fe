"""``rmqpy where`` and ``rmqpy why`` on a running Java broker: it answers what it can."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.golden import extract
from harness.interop import InteropServers

from rmqpy.cli import main
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec

pytestmark = pytest.mark.interop

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a command with JSON output."""

    def run(*words: object) -> tuple[int, Any]:
        code = main([*map(str, words), "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a store that a Java broker wrote."""
    return extract("A-classic-clean-v497", tmp_path_factory.mktemp("why")) / "store"


@pytest.fixture(scope="module")
def address(store: Path, servers: InteropServers) -> Iterator[str]:
    """Run a Java broker on the store and yield its address."""
    namesrv = servers.namesrv("java", "why-namesrv")
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        store=store,
        sizes={
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
        },
    )
    broker = servers.take(servers.java.broker("why", spec)).start()
    yield broker.address
    broker.stop()


def test_a_message_is_found_with_the_same_places(address: str, store: Path, ask: Ask) -> None:
    for key in ("aK-0", "aRK-0", "aTK-0"):
        _, on_disk = ask("where", key, store)
        code, asked = ask("where", key, address)
        assert code == 0
        wire, disk = asked["stores"][0]["found"], on_disk["stores"][0]["found"]
        for each in wire + disk:
            each["index_file"] = None
            if "unit" in each:
                each["unit"] |= {"file": None, "position": None}
            each["resolved"] = None  # a broker does not list the op messages
        assert wire == disk, key
    code, value = ask("where", disk[0]["offset_message_id"], address)
    assert code == 0 and value["stores"][0]["found"]


def test_every_question_is_answered(address: str, ask: Ask) -> None:
    code, value = ask("why", "no-message", address, "-t", "Keyed", "-g", "CID_tag")
    assert code == 0 and value["answer"] == "no member of CID_tag is online at this broker"
    code, value = ask("why", "no-message", address, "--id", "aRK-0", "-g", "CID_retry")
    assert code == 0
    assert any("it is in %DLQ%CID_retry" in cause["text"] for cause in value["causes"])
    _, value = ask("why", "not-deleted", address)
    assert any("fileReservedTime=" in each["value"] for each in value["facts"])
    assert any("used" in each["value"] for each in value["facts"] if each["name"] == "disk")
    _, value = ask("why", "slow-start", address)
    assert any(each["name"] == "started" for each in value["facts"])
    code, value = ask("why", "election", address)
    assert code == 2 and "no member of a DLedger group" in str(value["not_examined"])
