"""Fixtures of tests/why: a running broker on a store that Java wrote, and command lines."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define
from harness.cli import start_process, write_broker_conf
from harness.golden import extract

from rmqpy.cli import main
from rmqpy.testing.ports import free_port_block


@define
class Ran:
    """A command that has ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs ``rmqpy`` with the given words."""

    def ran(*words: object) -> Ran:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return ran


@define
class LiveBroker:
    """A running broker: its address, store, and process."""

    address: str
    store: Path
    process: int


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """Run our broker on the store of a Java broker that was stopped cleanly."""
    folder = tmp_path_factory.mktemp("live")
    store = extract("A-classic-clean-v497", folder) / "store"
    block = free_port_block(4)
    conf = write_broker_conf(
        folder, block.broker_port, brokerName="broker-a", storePathRootDir=str(store)
    )
    broker = start_process(["broker", "-c", str(conf)])
    assert broker.stdout is not None and broker.stdout.readline().startswith("ready:")
    yield LiveBroker(f"127.0.0.1:{block.broker_port}", store, broker.pid)
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=30)
