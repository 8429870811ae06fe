"""Fill a log to a given size with rmqload: real messages with keys, no sparse files."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from rmqpy.testing.blocking_connection import connect_when_ready, create_topic
from rmqpy.testing.processes import ServerProcess

GIB: Final = 1 << 30
TOPIC: Final = "bench"
BLOCK: Final = 512
POLL_S: Final = 0.05


@frozen
class Filling:
    """The load generator, the size of the log, and the shape of the messages."""

    generator: Path
    gigabytes: float
    body_bytes: int
    queues: int


@contextmanager
def filled(broker: ServerProcess, filling: Filling) -> Iterator[None]:
    """Put load on the broker, enter the block when the log is large enough, and stop after it."""
    with connect_when_ready(broker.address) as connection:
        create_topic(connection, TOPIC, filling.queues)
    command = [str(filling.generator), "--port", str(broker.port), "--topic", TOPIC]
    command += ["--size", str(filling.body_bytes), "--seconds", "86400", "--warmup", "0.1"]
    load = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while log_bytes(broker) < filling.gigabytes * GIB:
            if load.poll() is not None:
                raise SystemExit(f"the load generator exited: {broker.printed()[-2000:]}")
            time.sleep(POLL_S)
        yield
    finally:
        load.kill()
        load.wait()


def log_bytes(broker: ServerProcess) -> int:
    """Return the bytes written to the log, counted in blocks because the last file is sparse."""
    assert broker.store is not None, "a broker has a store"
    folders = ("commitlog", "dledger-*/data")
    files = (path for folder in folders for path in broker.store.glob(f"{folder}/*"))
    return sum(path.stat().st_blocks * BLOCK for path in files)
