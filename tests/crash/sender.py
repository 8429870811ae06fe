"""The load of test_kill.py, a separate process that sends until the broker is killed.

    sender.py ADDRESS TOPIC QUEUES SEED ACKNOWLEDGED

Every acknowledged message becomes a line "queue offset body-id seconds" in the file ACKNOWLEDGED,
written before the next response is read; the seconds are those of the monotonic clock. A body
starts with its id, sixteen hex digits that occur once; nothing is sent twice.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

WINDOW = 48
SIZES = (0, 30, 200, 700, 2000, 9000)
BATCH_CHANCE = 0.15
BATCH_COUNT_MAX = 8


class Load:
    """A generator of send requests with unique message ids, repeatable by its seed."""

    def __init__(self, topic: str, queues: int, seed: int) -> None:
        self.topic, self.queues = topic, queues
        self.rng = random.Random(seed)
        self.first_id = seed << 32
        self.id_count = 0

    def request(self) -> tuple[RemotingCommand, int, list[str]]:
        """Return the next request, its queue id, and the ids of its messages."""
        batch = self.rng.random() < BATCH_CHANCE
        count = self.rng.randint(2, BATCH_COUNT_MAX) if batch else 1
        ids = [self._next_id() for _ in range(count)]
        filler = self.rng.randbytes(self.rng.choice(SIZES[:4] if batch else SIZES))
        queue_id = self.rng.randrange(self.queues)
        bodies = [name.encode() + filler for name in ids]
        properties = f"KEYS\x01{ids[0]}\x02TAGS\x01load"
        return send_request(self.topic, queue_id, bodies, properties), queue_id, ids

    def _next_id(self) -> str:
        self.id_count += 1
        return f"{self.first_id + self.id_count:016x}"


def acknowledged_lines(connection: BlockingConnection, load: Load) -> Iterator[str]:
    """Keep WINDOW requests in flight and yield the lines of each acknowledged one.

    Raise NetworkError when the connection ends.
    """
    in_flight: dict[int, tuple[int, list[str]]] = {}
    while True:
        while len(in_flight) < WINDOW:
            command, queue_id, ids = load.request()
            (opaque,) = connection.send(command)
            in_flight[opaque] = queue_id, ids
        response = connection.receive()
        queue_id, ids = in_flight.pop(response.opaque)
        if response.code != 0:
            raise SystemExit(f"refused: {response.code} {response.remark}")
        offset = int(response.ext_fields["queueOffset"])
        assert int(response.ext_fields["queueId"]) == queue_id
        at = f"{time.monotonic():.3f}"
        yield "".join(f"{queue_id} {offset + k} {name} {at}\n" for k, name in enumerate(ids))


def main(address: str, topic: str, queues: str, seed: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with BlockingConnection(address) as connection:
            for lines in acknowledged_lines(connection, Load(topic, int(queues), int(seed))):
                os.write(file, lines.encode())
    except NetworkError:
        pass  # The broker was killed, which ends the load.
    finally:
        os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
