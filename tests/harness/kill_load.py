"""A broker under load that is killed, and what it had acknowledged."""

from __future__ import annotations

import subprocess
import sys
import time
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


def kill_under_load(broker: ServerProcess, load: Load, file: Path, count: int) -> None:
    """Start a sender, and kill the broker once ``count`` messages are acknowledged in ``file``."""
    command = [sys.executable, str(SENDER), broker.address, load.topic, str(load.queues)]
    command += [str(load.seed), str(file)]
    sender = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=python_environment())
    deadline = time.monotonic() + LOAD_SECONDS_MAX
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert sender.poll() is None, sender.communicate()[1]
        assert broker.running, f"the broker ended on its own: {broker.printed()[-3000:]}"
        assert time.monotonic() < deadline, f"{count} messages took more than {LOAD_SECONDS_MAX} s"
        time.sleep(0.002)
    broker.kill()
    _, printed = sender.communicate(timeout=30)
    assert sender.returncode == 0, printed


def read_acknowledged(file: Path) -> dict[Place, str]:
    """Return the id of the message acknowledged at each place.

    The last line is complete, because the sender is not killed.
    """
    places: dict[Place, str] = {}
    for line in file.read_text().splitlines():
        queue_id, offset, name = line.split()
        place = int(queue_id), int(offset)
        assert place not in places, f"{place} was acknowledged twice"
        places[place] = name
    return places
