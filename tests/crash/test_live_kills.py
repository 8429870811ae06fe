"""kill -9 during a live switch and a live leave: all brokers are classic afterwards, or all are
members of the DLedger group, and nothing acknowledged is lost.

A broker is killed at a random one of its file operations and messages (kill_io.c, preloaded), which
are counted from the start of the change, or from the first vote on. RMQPY_CRASH_ROUNDS is the
number of kills for each change (default 6). A group is used again until a change is decided.
RMQPY_CRASH_SEED repeats the random choices of a run.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import define
from harness.crash_target import repeatable_random
from harness.loaded_group import LoadedGroup
from harness.preload import KILLING, build_preloaded

from rmqpy.cli import main
from rmqpy.testing.ports import PortBlock, free_port_block
from rmqpy.testing.processes import FAST_ELECTION, ProcessError, ServerProcess, group_settings
from rmqpy.testing.store_reader import read_store

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("RMQPY_CRASH_ROUNDS", "6"))
CALLS = {"start": 200, "vote": 40}
"""The largest number of calls until a broker is killed, by the moment from which they count."""
SETTLED_S = 90
GROUP = "broker-a"
SLAVE = 3
"""The number of the slave that takes over; the members are 0 to 2."""

logger = logging.getLogger(__name__)


@define(eq=False)
class Change:
    """A group, and its change: ``rmqpy admin`` with ``words``."""

    group: LoadedGroup
    words: list[str]
    record: str
    ports: PortBlock

    def run(self, *more: str) -> int:
        name, *rest = self.words
        server = self.group.servers[0].address
        return main(["admin", name, "-n", server, "-m", GROUP, *rest, *more])

    def stage(self, number: int) -> str | None:
        """Return what a broker has recorded."""
        store = self.group.brokers[number].store
        assert store is not None
        try:
            found = json.loads((store / "rmqpy" / self.record).read_text())
        except FileNotFoundError:
            return None
        return str(found["stage"])

    def stages(self) -> list[str | None]:
        return [self.stage(each) for each in range(len(self.group.brokers))]

    def close(self) -> None:
        self.group.close()
        self.ports.release()


def switching(root: Path, environment: dict[str, str]) -> Change:
    """Return a master and two slaves that become a DLedger group."""
    ports = free_port_block(3)
    roles = enumerate(("ASYNC_MASTER", "SLAVE", "SLAVE"))
    settings = tuple(
        {"brokerRole": role, "brokerId": str(each), "haFetchFromBeginning": "true", **FAST_ELECTION}
        for each, role in roles
    )
    peers = ";".join(f"n{each}-127.0.0.1:{ports[each]}" for each in range(3))
    group = LoadedGroup(root, settings, environment)
    return Change(group, ["switch", "--peers", peers], "switch.json", ports)


def leaving(root: Path, environment: dict[str, str]) -> Change:
    """Return a DLedger group, and the slave that takes over."""
    ports = free_port_block(3)
    members = tuple(
        {**group_settings(GROUP, list(ports), each), "haServeEntries": "true", **FAST_ELECTION}
        for each in range(3)
    )
    slave = {"brokerRole": "SLAVE", "brokerId": "9", "haFetchFromBeginning": "true"}
    group = LoadedGroup(root, (*members, slave), environment)
    return Change(group, ["leave", "-t", ""], "leave.json", ports)


def until(condition: Callable[[], bool], group: LoadedGroup) -> None:
    wait, deadline_s = threading.Event(), time.monotonic() + SETTLED_S
    while not condition():
        assert time.monotonic() < deadline_s, [each.printed()[-2000:] for each in group.brokers]
        wait.wait(0.05)


@define(eq=False)
class Rounds:
    """The groups of one test."""

    root: Path
    make: Callable[[Path, dict[str, str]], Change]
    environment: dict[str, str]
    change: Change | None = None
    number: int = 0

    def ready(self) -> Change:
        """Return a group that nothing prevents from the change."""
        change = self.change
        if change is None:
            self.number += 1
            change = self.change = self.make(self.root / f"group{self.number}", self.environment)
            change.group.start()
            change.group.load()
            if "-t" in change.words:
                change.words[-1] = change.group.brokers[SLAVE].address
        until(lambda: change.run() == 0, change.group)
        return change

    def forget(self) -> None:
        if self.change is not None:
            self.change.close()
            self.change = None


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"LD_PRELOAD": str(build_preloaded(KILLING, tmp_path))}


def attempt(change: Change, victim: ServerProcess, calls: int, moment: str) -> bool:
    """Attempt the change, and kill a broker. Return whether the call counter did it."""
    control, ended = victim.directory / "kill-io", threading.Event()

    def arm() -> None:
        while moment == "vote" and not ended.is_set() and not any(change.stages()):
            ended.wait(0.0005)
        control.write_text(str(calls))

    with ThreadPoolExecutor() as threads:
        armed = threads.submit(arm)
        change.run("--apply")
        ended.set()
        armed.result()
    counted = not victim.running
    victim.kill()
    control.unlink()
    return counted


def settle(change: Change, victim: ServerProcess) -> bool:
    """Start the broker, and return whether the change was decided."""
    number = change.group.brokers.index(victim)
    try:
        victim.start()
    except ProcessError:  # A member that has left refuses the start.
        assert change.record == "leave.json" and change.stage(number) == "committed"
    until(lambda: "prepared" not in change.stages(), change.group)
    decided = {each is not None for each in change.stages()}
    assert len(decided) == 1, change.stages()
    return decided.pop()


def check_decided(change: Change) -> None:
    """Check that the group goes on, and that nothing is lost."""
    group = change.group
    group.wait_for(group.acknowledged + 50)
    if change.record == "switch.json":
        until(lambda: set(change.stages()) == {"complete"}, group)
        server = group.servers[0].address
        assert main(["admin", "fence", "-n", server, "-m", GROUP]) == 0
        brokers = group.brokers
    else:
        brokers = [group.brokers[SLAVE]]
    for each in brokers:
        assert each.stop() == 0
    sent = {b"half %d" % n if n % 10 == 0 else b"%d" % n for n in range(group.acknowledged)}
    logs = [read_store(each.store).messages for each in brokers if each.store is not None]
    for log in logs:
        assert sent <= {each.body for each in log}
        assert log == logs[0]


@pytest.mark.parametrize("make", [switching, leaving])
def test_a_kill_leaves_no_half_group(
    tmp_path: Path,
    environment: dict[str, str],
    make: Callable[[Path, dict[str, str]], Change],
) -> None:
    dice = repeatable_random()
    rounds, outcomes = Rounds(tmp_path, make, environment), Counter[str]()
    try:
        for _ in range(ROUNDS):
            change = rounds.ready()
            victim = dice.choice(change.group.brokers)
            moment = dice.choice(sorted(CALLS))
            counted = attempt(change, victim, 1 + dice.randrange(CALLS[moment]), moment)
            decided = settle(change, victim)
            outcomes["decided" if decided else "aborted"] += 1
            outcomes["killed by its calls" if counted else "killed afterwards"] += 1
            if decided:
                check_decided(change)
                rounds.forget()
            else:
                change.group.wait_for(change.group.acknowledged + 20)
    finally:
        print(f"{make.__name__}: {ROUNDS} kills, {dict(outcomes)}, {rounds.number} groups")
        rounds.forget()
