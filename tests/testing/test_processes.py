"""Server processes, with a few lines of Python as the server program."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import (
    BrokerSpec,
    ProcessError,
    RmqpySite,
    ServerProcess,
    dledger_settings,
)

SERVER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("starting", flush=True)
print("ready: it", flush=True)
while True:
    time.sleep(0.05)
"""
"""Sleeps are short because a signal just before one does not end it."""


MakeServer = Callable[[str], ServerProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeServer]:
    """Return a function that creates a server from its Python code; all are killed at the end."""
    servers: list[ServerProcess] = []

    def create(code: str) -> ServerProcess:
        argv = [sys.executable, "-c", code]
        ready = re.compile(rb"^ready: ", re.MULTILINE)
        servers.append(ServerProcess("server", argv, tmp_path, 1, ready))
        return servers[-1]

    yield create
    for server in servers:
        server.kill()


def test_start_returns_when_ready_and_stop_returns_the_exit_code(make: MakeServer) -> None:
    server = make(SERVER).start()
    assert server.running
    assert server.printed() == "starting\nready: it\n"
    assert server.stop() == 7
    assert not server.running


def test_a_second_start_waits_for_a_new_ready_line(make: MakeServer) -> None:
    server = make(SERVER).start()
    first = server.pid
    server.kill()
    assert not server.running
    server.start()
    assert server.pid != first
    assert server.printed().count("ready: it") == 2


def test_the_error_of_a_server_that_ends_before_it_is_ready_has_its_output(
    make: MakeServer,
) -> None:
    server = make("print('no such file'); raise SystemExit(3)")
    with pytest.raises(ProcessError, match=r"ended with 3 before it was ready:\n.*no such file"):
        server.start()


def test_a_server_that_is_never_ready_is_killed(make: MakeServer) -> None:
    server = make("import time; time.sleep(60)")
    server.ready_timeout_s = 0.05
    with pytest.raises(ProcessError, match="not ready after"):
        server.start()
    assert not server.running


@pytest.mark.slow
def test_a_server_that_is_never_ready_says_where_it_is(make: MakeServer) -> None:
    server = make("import time\nwhile True:\n    time.sleep(0.01)")
    server.environment = {**server.environment, "PYTHONFAULTHANDLER": "1"}
    server.ready_timeout_s = 1
    with pytest.raises(ProcessError, match=r"not ready after 1 s \(.* s of CPU time\)") as raised:
        server.start()
    assert "line 3 in <module>" in str(raised.value)


def test_a_server_that_ignores_sigterm_is_killed_and_reported(make: MakeServer) -> None:
    server = make(SERVER.replace("lambda *_: sys.exit(7)", "signal.SIG_IGN")).start()
    with pytest.raises(ProcessError, match="still running"):
        server.stop(timeout_s=0.05)
    assert not server.running


def test_a_broker_gets_its_settings_as_a_properties_file(tmp_path: Path) -> None:
    spec = BrokerSpec(
        port=12345,
        namesrv="127.0.0.1:9876",
        settings={**dledger_settings("g", 40001), "mappedFileSizeCommitLog": "131072"},
    )
    server = RmqpySite(tmp_path).broker("b", spec)
    lines = (tmp_path / "b" / "broker.conf").read_text().splitlines()
    assert "listenPort=12345" in lines
    assert "dLegerPeers=n0-127.0.0.1:40001" in lines
    assert "mappedFileSizeCommitLog=131072" in lines
    assert f"storePathCommitLog={tmp_path}/b/store/commitlog" in lines
    assert server.store == tmp_path / "b" / "store"
    conf = str(tmp_path / "b" / "broker.conf")
    assert server.argv[1:] == ["-m", "rmqpy.cli", "broker", "-c", conf, "-n", "127.0.0.1:9876"]
    assert server.ready.search(b"x\nready: broker broker-a 127.0.0.1:12345\n")
    assert not server.ready.search(b"ready: broker broker-a 127.0.0.1:1234\n")


def test_a_port_block_lies_below_the_ephemeral_ports_and_is_reserved() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert free_port_block(4).first + 4 < 61_000
    blocks = [free_port_block(4) for _ in range(20)]
    ports = [port for block in blocks for port in block]
    assert len(set(ports)) == len(ports) == 80
    assert blocks[0].broker_port == blocks[0].first + 2
    with pytest.raises(IndexError):
        blocks[0][4]


def test_a_block_that_nobody_keeps_stays_reserved_for_a_while() -> None:
    first = free_port_block(1).first
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, pytest.raises(OSError):
        other.bind(f"\0rmqpy-test-port-{first}")


def test_a_released_block_can_be_reserved_again() -> None:
    block = free_port_block(1)
    name = f"\0rmqpy-test-port-{block.first}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        with pytest.raises(OSError):
            other.bind(name)
        block.release()
        other.bind(name)
