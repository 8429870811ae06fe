"""A broker under load that is killed, and what it had acknowledged."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import define

from rmqpy.testing.processes import ServerProcess, python_environment

LOAD_SECONDS_MAX = 60
SENDER = Path(__file__).parents[1] / "crash" / "sender.py"

Place = tuple[int, int]
"""A queue id and a queue offset."""


@define
class Load:
    """What sender.py sends: to which topic and how many queues; ``seed`` makes its ids unique."""

    topic: str
    queues: int
    seed: int


def start_sender(address: str, load: Load, file: Path) -> subprocess.Popen[str]:
    """Start a sender, which ends when the broker refuses a message or is killed."""
    command = [sys.executable, str(SENDER), address, load.topic, str(load.queues)]
    command += [str(load.seed), str(file)]
    file.touch()
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=python_environment())


def acknowledged_count(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def kill_under_load(
    brokers: Sequence[ServerProcess],
    load: Load,
    file: Path,
    enough: Callable[[int], bool],
) -> float:
    """Start a sender to the first of the brokers, and kill all brokers once the number of messages
    that are acknowledged in ``file`` is ``enough``. Return the time of the first kill (monotonic).
    """
    sender = start_sender(brokers[0].address, load, file)
    deadline = time.monotonic() + LOAD_SECONDS_MAX
    while not enough(acknowledged_count(file)):
        assert sender.poll() is None, sender.communicate()[1]
        for broker in brokers:
            assert broker.running, f"a broker ended on its own: {broker.printed()[-3000:]}"
        assert time.monotonic() < deadline, f"not enough messages within {LOAD_SECONDS_MAX} s"
        time.sleep(0.002)
    killed_at = time.monotonic()
    for broker in brokers:
        broker.kill()
    _, printed = sender.communicate(timeout=30)
    assert sender.returncode == 0, printed
    return killed_at


def read_times(file: Path) -> dict[Place, float]:
    """Return when the message at each place was acknowledged (monotonic, in seconds)."""
    lines = map(str.split, file.read_text().splitlines())
    return {(int(queue_id), int(offset)): float(at) for queue_id, offset, _, at in lines}


def read_acknowledged(file: Path) -> dict[Place, str]:
    """Return the id of the message acknowledged at each place.

    The last line is complete, because the sender is not killed.
    """
    places: dict[Place, str] = {}
    for line in file.read_text().splitlines():
        queue_id, offset, name, _ = line.split()
        place = int(queue_id), int(offset)
        assert place not in places, f"{place} was acknowledged twice"
        places[place] = name
    return places
