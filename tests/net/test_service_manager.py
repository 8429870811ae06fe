"""Tests of what a server tells systemd."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.net.service_manager import ServiceManager, announced


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The socket of a service manager, and its name in NOTIFY_SOCKET."""
    name = f"@{tmp_path}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        receiver.settimeout(10)
        yield receiver, name


def test_a_service_reports_ready_signs_of_life_and_its_end(
    manager: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, name = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    def received() -> bytes:
        return receiver.recv(1000)

    async def serve() -> None:
        with announced("broker a"):
            assert "NOTIFY_SOCKET" not in os.environ
            assert await asyncio.to_thread(received) == b"READY=1\nSTATUS=broker a"
            for _ in range(3):
                assert await asyncio.to_thread(received) == b"WATCHDOG=1"
        seen = b""
        while seen != b"STOPPING=1":
            seen = received()
            assert seen in (b"WATCHDOG=1", b"STOPPING=1")

    asyncio.run(serve())
    receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        received()


@pytest.mark.parametrize(
    ("period", "pid", "expected"),
    [
        ("30000000", "", 15.0),
        ("30000000", "7", 15.0),
        ("30000000", "8", None),
        ("0", "7", None),
        ("soon", "7", None),
        ("", "", None),
    ],
)
def test_the_watchdog_is_fed_at_half_its_time(
    period: str, pid: str, expected: float | None
) -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": period, "WATCHDOG_PID": pid}
    assert ServiceManager.of(environment, 7).watchdog_s == expected


def test_without_a_manager_nothing_is_sent() -> None:
    manager = ServiceManager.of({"WATCHDOG_USEC": "30000000"}, 7)
    assert (manager.address, manager.watchdog_s) == (None, None)
    manager.ready("x")
    manager.stopping()


def test_a_manager_that_is_gone_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager(str(tmp_path / "gone"), None)
    with caplog.at_level(logging.WARNING):
        manager.ready("x")
        manager.stopping()
    assert len(caplog.records) == 1
    assert "cannot be reached: [Errno 2]" in caplog.text
