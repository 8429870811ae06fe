"""The conditions of a load: scheduling, the other brokers, memory, and admin commands."""

from __future__ import annotations

import mmap
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from load_target import LoadTarget

from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection

REALTIME_PRIORITY = "5"
ADMIN_PAUSE_S = 0.1
ADMIN_COMMANDS: tuple[tuple[RequestCode, tuple[str, ...]], ...] = (
    (RequestCode.GET_BROKER_RUNTIME_INFO, ()),
    (RequestCode.GET_ALL_TOPIC_CONFIG, ()),
    (RequestCode.GET_TOPIC_STATS_INFO, ("topic",)),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ()),
    (RequestCode.GET_BROKER_CONFIG, ()),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, ()),
)
"""The requests of a monitoring console: code and fields."""


@contextmanager
def realtime(pids: Iterable[int]) -> Iterator[None]:
    """Run all threads of the brokers in a real-time class during a load."""
    for pid in pids:
        subprocess.run(["chrt", "-a", "-r", "-p", REALTIME_PRIORITY, str(pid)], check=True)
    try:
        yield
    finally:
        for pid in pids:
            subprocess.run(["chrt", "-a", "-o", "-p", "0", str(pid)], check=True)


@contextmanager
def stopped(brokers: Iterable[LoadTarget]) -> Iterator[None]:
    """Stop these brokers during the block, so that they use no CPU."""
    targets = list(brokers)
    for broker in targets:
        broker.pause()
    try:
        yield
    finally:
        for broker in targets:
            broker.resume()


def use_memory(megabytes: int) -> None:
    """Touch that much memory and release it at once.

    If a hypervisor provides a page only when it is first touched, each new page of a growing log
    costs ten times as much as copying its data. A load after this call finds pages that were used
    before, as on a machine that has been up for a day.
    """
    if megabytes:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        mmap.mmap(-1, megabytes << 20, flags=flags).close()


@contextmanager
def admin_commands(address: str, topic: str) -> Iterator[None]:
    """Send admin commands in sequence, ten per second."""
    ended = threading.Event()
    failures: list[RmqError] = []

    def send_commands() -> None:
        try:
            with BlockingConnection(address) as connection:
                number = 0
                while not ended.wait(ADMIN_PAUSE_S):
                    code, fields = ADMIN_COMMANDS[number % len(ADMIN_COMMANDS)]
                    number += 1
                    named = {"topic": topic}
                    connection.call(
                        RemotingCommand(code, ext_fields={name: named[name] for name in fields})
                    )
        except RmqError as failure:
            failures.append(failure)

    thread = threading.Thread(target=send_commands)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]
