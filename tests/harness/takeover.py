"""A rmqpy slave takes over from a running Java master, with the command that an operator uses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from attrs import define, field

from rmqpy.client import Message, Producer, ProducerSettings
from rmqpy.client.core.instance import ClientSettings
from rmqpy.model.errors import RmqError
from rmqpy.testing.processes import ServerProcess, python_environment

WAIT_S = 120
TASKS = 4
PACE_S = 0.005


def take_over_from_java(
    name_server: str, master: ServerProcess, slave: ServerProcess, *words: str
) -> str:
    """Promote the slave of broker-a, stop the Java broker when the command asks for that, and
    return what it printed.
    """
    own = ["-n", name_server, "-m", "broker-a", "-t", slave.address, "--java"]
    command = subprocess.Popen(
        [sys.executable, "-m", "rmqpy.cli", "admin", "promote", *own, *words],
        env=python_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    printed = []
    with command:
        assert command.stdout is not None
        for line in command.stdout:
            printed.append(line)
            if "stop the Java broker" in line:
                master.stop()
    text = "".join(printed)
    assert command.returncode == 2, text  # Something is left to do: its broker.conf.
    assert f"{slave.address} is the master of broker-a" in text, text
    assert "set brokerRole=SLAVE, brokerId=1 and brokerPermission=6" in text, text
    return text


@define(eq=False)
class ProducerLoad:
    """Producers in a thread of their own that pause for 5 ms after each message, and read
    their routes every ``routes_ms``. ``acknowledged`` has the bodies, whatever the status: a
    SYNC_MASTER that has just taken over has no slave yet.
    """

    name_server: str
    routes_ms: int
    acknowledged: list[bytes] = field(factory=list)
    longest_gap_s: float = 0.0
    """The longest time between two acknowledgements."""
    _ended: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send_all()))
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def wait_for_more(self, count: int) -> None:
        """Wait until ``count`` messages more are acknowledged."""
        goal, deadline_s = len(self.acknowledged) + count, time.monotonic() + WAIT_S
        while len(self.acknowledged) < goal:
            assert self._thread is not None and self._thread.is_alive()
            assert time.monotonic() < deadline_s, len(self.acknowledged)
            self._ended.wait(0.02)

    async def _send_all(self) -> None:
        client = ClientSettings(name_servers=self.name_server, route_refresh_ms=self.routes_ms)
        settings = ProducerSettings(retries=0, timeout_ms=1_000)
        numbers = itertools.count()
        async with Producer("load", client, settings=settings) as producer:
            await asyncio.gather(*(self._send(producer, numbers) for _ in range(TASKS)))

    async def _send(self, producer: Producer, numbers: Iterator[int]) -> None:
        last_s = time.monotonic()
        while not self._ended.is_set():
            body = b"%d" % next(numbers)
            with contextlib.suppress(RmqError):
                await producer.send(Message(topic="TBW102", body=body))
                self.acknowledged.append(body)
                now_s = time.monotonic()
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
                last_s = now_s
            await asyncio.sleep(PACE_S)
