"""``rmqpy where`` and ``rmqpy why`` on running Java brokers: they answer what they can."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.golden import extract
from harness.interop import PATIENCE_SECONDS, InteropServers, version_of

from rmqpy.cli import main
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, dledger_settings

pytestmark = pytest.mark.interop

Ask = Callable[..., tuple[int, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return a function that runs a command with JSON output."""

    def run(*words: object) -> tuple[int, Any]:
        code = main([*map(str, words), "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    return run


STORES = {"java": "A-classic-clean-v497", "java-5.3.3": "A-classic-clean-v533"}
RETRIED = {"java": "it is in %DLQ%CID_retry", "java-5.3.3": "sent it back 1 time"}
"""What became of the message aRK-0 of each store."""


@pytest.fixture(scope="module", params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Path:
    """Return a copy of a store that a Java broker of this version wrote."""
    return extract(STORES[kind], tmp_path_factory.mktemp("why")) / "store"


@pytest.fixture(scope="module")
def namesrv(servers: InteropServers, kind: str) -> str:
    return servers.namesrv("java", f"why-namesrv-{kind}").address


@pytest.fixture(scope="module")
def address(store: Path, servers: InteropServers, kind: str, namesrv: str) -> Iterator[str]:
    """Run a Java broker on the store and yield its address."""
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv,
        store=store,
        sizes={
            "mappedFileSizeCommitLog": "65536",
            "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100",
            "maxIndexNum": "400",
        },
    )
    broker = servers.take(version_of(servers, kind).broker(f"why-{kind}", spec)).start()
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


def test_every_question_is_answered(address: str, kind: str, ask: Ask) -> None:
    code, value = ask("why", "no-message", address, "-t", "Keyed", "-g", "CID_tag")
    assert code == 0 and value["answer"] == "no member of CID_tag is online at this broker"
    code, value = ask("why", "no-message", address, "--id", "aRK-0", "-g", "CID_retry")
    assert code == 0
    assert any(RETRIED[kind] in cause["text"] for cause in value["causes"])
    _, value = ask("why", "not-deleted", address)
    assert any("fileReservedTime=" in each["value"] for each in value["facts"])
    assert any("used" in each["value"] for each in value["facts"] if each["name"] == "disk")
    assert "run this on its directory" in str(value["not_examined"])
    _, value = ask("why", "slow-start", address)
    assert any(each["name"] == "started" for each in value["facts"])
    assert "run this on it" in str(value["not_examined"])
    code, value = ask("why", "election", address)
    assert code == 0 and "it is no member of a DLedger group" in value["answer"]
    assert value["causes"][0]["evidence"] == ["enableDLegerCommitLog is not set"]
    assert "rmqpy upgrade init" in value["causes"][0]["next"][0]


def test_what_a_member_does_not_report_is_said(servers: InteropServers, ask: Ask) -> None:
    """A Java member shows its role only; its directory shows its term and its vote."""
    block = servers.block(BROKER_PORT_COUNT)
    settings = dledger_settings("why", servers.block(1).first)
    namesrv = servers.namesrv("java", "why-member-namesrv")
    spec = BrokerSpec(port=block.broker_port, namesrv=namesrv.address, settings=settings)
    broker = servers.take(servers.java.broker("why-member", spec)).start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        code, value = ask("why", "election", broker.address)
        if "LEADER" in str(value["facts"]):
            break
        assert time.monotonic() < deadline, value
        time.sleep(0.5)
    assert code == 2 and value["answer"].startswith("n0 leads, and nothing")
    assert "does not report term, vote, and log" in value["not_examined"][0]
    code, value = ask("why", "election", broker.store)
    assert code == 0 and "n0 was elected in term 0" in value["answer"]
    assert "(currterm)" in value["causes"][0]["evidence"][0]
    broker.stop()
