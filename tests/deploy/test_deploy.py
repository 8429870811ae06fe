"""The units, the compose file, and the container file start what this version has."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.cli import start_process

from rmqpy.cli.command_line import every_parser
from rmqpy.testing.ports import free_port_block

aiohttp = pytest.importorskip("aiohttp")
yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SUBNET = "172.28.9."
SECONDS_MAX = 60


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(line)
    assert program == "/opt/rmqpy/bin/rmqpy"
    assert every_parser().parse_args(words).serves
    assert "Type=notify" in text


def test_all_units_are_served_by_the_common_part() -> None:
    assert [unit.name for unit in UNITS] == [
        f"rmqpy-{name}.service" for name in ("broker", "console", "namesrv")
    ]
    common = (DEPLOY / "systemd" / "rmqpy-.service.d" / "common.conf").read_text(encoding="utf-8")
    assert "User=rmqpy" in common and "WatchdogSec=" in common


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_of_the_compose_file_is_a_command_that_exists(name: str) -> None:
    service = COMPOSE["services"][name]
    assert every_parser().parse_args(shlex.split(service["command"])).serves
    assert service["read_only"] and service["cap_drop"] == ["ALL"]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager, to which all processes report."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(SECONDS_MAX)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


@pytest.fixture
def cluster(tmp_path: Path, manager: socket.socket) -> Iterator[dict[str, str]]:
    """Run the commands of the compose file on this machine: addresses become loopback addresses,
    volumes folders, and the ports of the container free ones. Yield the addresses of the pages.
    """
    block = free_port_block(2)
    pages, console = str(block[0]), str(block[1])
    with ExitStack() as running:
        where = {}
        for name, service in COMPOSE["services"].items():
            (tmp_path / name).mkdir()
            line = service["command"].replace("/var/lib/rmqpy", str(tmp_path / name))
            own = service.get("networks", {}).get("rmqpy", {}).get("ipv4_address", "")
            line = line.replace("0.0.0.0:5557", f"{own}:{pages}").replace(SUBNET, "127.28.9.")
            words = shlex.split(line) + (["--port", console] if name == "console" else [])
            if name == "console":
                where[name] = f"127.0.0.1:{console}"
            else:
                where[name] = f"{own}:{pages}".replace(SUBNET, "127.28.9.")
            process = start_process(words)
            running.callback(_stop, process)
        yield where
    told = [manager.recv(1000) for _ in COMPOSE["services"]]
    assert set(told) == {b"STOPPING=1"}


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, errors


def answers(url: str, deadline_s: float, text: str = "") -> str:
    """Return the first answer with code 200 that contains ``text``."""
    from urllib.error import URLError
    from urllib.request import urlopen

    while True:
        try:
            with urlopen(f"http://{url}", timeout=SECONDS_MAX) as answer:
                found = str(answer.read().decode())
            if text in found:
                return found
        except (URLError, ConnectionError):
            pass
        assert time.monotonic() < deadline_s, url
        time.sleep(0.05)


@pytest.mark.slow
def test_the_services_of_the_compose_file_become_ready(
    cluster: dict[str, str], manager: socket.socket
) -> None:
    deadline_s = time.monotonic() + SECONDS_MAX
    for name in ("namesrv", "master", "slave"):
        assert answers(f"{cluster[name]}/ready", deadline_s) == "ready\n"
        assert answers(f"{cluster[name]}/health", deadline_s) == "healthy\n"
    assert "broker-a" in answers(f"{cluster['console']}/", deadline_s, "broker-a")
    told = sorted(manager.recv(1000).decode() for _ in cluster)
    servers = ("broker broker-a", "broker broker-a", "console", "name server")
    for line, server in zip(told, servers, strict=True):
        assert line.startswith(f"READY=1\nSTATUS={server} at ")
    series = answers(f"{cluster['master']}/metrics", deadline_s)
    assert 'rmqpy_role{broker="broker-a",role="master"} 1' in series
