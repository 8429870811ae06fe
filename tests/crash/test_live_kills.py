"""kill -9 during a live switch and a live leave: all brokers are classic afterwards, or all are
members of the DLedger group, and nothing acknowledged is lost.

A broker is killed at one of its file operations and messages (kill_io.c, preloaded), which are
counted from a step on: from the request of that step that the broker sends or receives, or from the
record that it writes. Steps, brokers, and numbers are random, each as likely as the others.
RMQPY_CRASH_ROUNDS is the number of kills for each change (default 6). A group is used again until a
change is decided. RMQPY_CRASH_PARTS divides the kills among as many groups at a time, with -n.
RMQPY_CRASH_SEED repeats the random choices of a run, and RMQPY_CRASH_SECONDS begins no kill after
that time. The counts of each step are printed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
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
PARTS = int(os.environ.get("RMQPY_CRASH_PARTS", "1"))
SECONDS = float(os.environ.get("RMQPY_CRASH_SECONDS", "inf"))
CALLS = 12
"""The largest number of calls from a step until a broker is killed."""
RECORDS = ('"stage": "prepared"', '"stage": "committed"', '"stage": "complete"')
STEPS = {
    "switch": ('"step":"prepare"', '"step":"vote"', '"step":"commit"', *RECORDS),
    "leave": (
        '"step":"prepare"',
        '"step":"freeze"',
        '"step":"vote"',
        '"step":"commit"',
        '"step":"clients"',
        *RECORDS,
    ),
}
"""What identifies a step in the requests and records of each change."""
SETTLED_S = 300
"""The time for a start, and for each wait: these tests also run for hours at a low priority."""
AFTER_S = 1.0
"""The time for the next record or a kill, after the end of the command and after each record: a
broker writes its last record a moment after it has exchanged its log.
"""
INTERVAL_S = 0.005
"""The time between two messages: what brokers do for them would be most of the cost of a kill."""
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
    group = LoadedGroup(root, settings, environment, SETTLED_S, INTERVAL_S)
    return Change(group, ["switch", "--peers", peers], "switch.json", ports)


def leaving(root: Path, environment: dict[str, str]) -> Change:
    """Return a DLedger group, and the slave that takes over."""
    ports = free_port_block(3)
    members = tuple(
        {**group_settings(GROUP, list(ports), each), "haServeEntries": "true", **FAST_ELECTION}
        for each in range(3)
    )
    slave = {"brokerRole": "SLAVE", "brokerId": "9", "haFetchFromBeginning": "true"}
    group = LoadedGroup(root, (*members, slave), environment, SETTLED_S, INTERVAL_S)
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
    return {"LD_PRELOAD": str(build_preloaded(KILLING, tmp_path)), "PYTHONFAULTHANDLER": "1"}


def attempt(change: Change, victim: ServerProcess, step: str, calls: int) -> bool:
    """Attempt the change, and kill a broker. Return whether the call counter did it."""
    control = victim.directory / "kill-io"
    control.write_text(f"{calls} {step}")
    change.run("--apply")
    stages, since_s = change.stages(), time.monotonic()
    while victim.running and time.monotonic() < since_s + AFTER_S:
        time.sleep(0.01)
        if stages != (stages := change.stages()):
            since_s = time.monotonic()
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
        # The broker that was killed may have to register first.
        fence = ["admin", "fence", "-n", group.servers[0].address, "-m", GROUP]
        until(lambda: main(fence) == 0, group)
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


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("make", [switching, leaving])
def test_a_kill_leaves_no_half_group(
    tmp_path: Path,
    environment: dict[str, str],
    make: Callable[[Path, dict[str, str]], Change],
    part: int,
) -> None:
    dice = repeatable_random()
    rounds, outcomes = Rounds(tmp_path, make, environment), Counter[tuple[str, str, str]]()
    begin_s = time.monotonic()
    try:
        for _ in range(part, ROUNDS, PARTS):
            if time.monotonic() - begin_s > SECONDS:
                break
            change = rounds.ready()
            victim = dice.choice(change.group.brokers)
            step = dice.choice(STEPS[change.words[0]])
            counted = attempt(change, victim, step, 1 + dice.randrange(CALLS))
            decided = settle(change, victim)
            when = "there" if counted else "afterwards"
            outcomes[step, when, "decided" if decided else "aborted"] += 1
            if decided:
                check_decided(change)
                rounds.forget()
                shutil.rmtree(change.group.root)
            else:
                change.group.wait_for(change.group.acknowledged + 20)
    finally:
        print(f"{make.__name__}: {outcomes.total()} kills, {rounds.number} groups")
        for (step, when, outcome), number in sorted(outcomes.items()):
            print(f"{step}: {number} killed {when}, {outcome}")
        rounds.forget()
