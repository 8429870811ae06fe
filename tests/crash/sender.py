"""The load of the crash test, a process of its own: sends until the broker is gone.

    sender.py ADDRESS TOPIC QUEUES SEED ACKNOWLEDGED

Every acknowledged message becomes a line "queue offset body-id" in the file ACKNOWLEDGED, written
before the next answer is looked at. A body starts with its id, sixteen hex digits that occur once;
nothing is sent twice.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

WINDOW = 48
SIZES = (0, 30, 200, 700, 2000, 9000)
BATCH_CHANCE = 0.15
BATCH_COUNT_MAX = 8


class Load:
    """Requests to come, and the ids of those under way."""

    def __init__(self, topic: str, queues: int, seed: int) -> None:
        self.topic, self.queues = topic, queues
        self.rng = random.Random(seed)
        self.first_id = seed << 32
        self.made = 0

    def request(self) -> tuple[RemotingCommand, int, list[str]]:
        batch = self.rng.random() < BATCH_CHANCE
        count = self.rng.randint(2, BATCH_COUNT_MAX) if batch else 1
        ids = [self._next_id() for _ in range(count)]
        filler = self.rng.randbytes(self.rng.choice(SIZES[:4] if batch else SIZES))
        queue_id = self.rng.randrange(self.queues)
        bodies = [name.encode() + filler for name in ids]
        properties = f"KEYS\x01{ids[0]}\x02TAGS\x01load"
        return send_request(self.topic, queue_id, bodies, properties), queue_id, ids

    def _next_id(self) -> str:
        self.made += 1
        return f"{self.first_id + self.made:016x}"


def acknowledged_lines(connection: BlockingConnection, load: Load) -> Iterator[str]:
    """Keeps WINDOW requests under way; ends with the connection."""
    under_way: dict[int, tuple[int, list[str]]] = {}
    while True:
        while len(under_way) < WINDOW:
            command, queue_id, ids = load.request()
            (opaque,) = connection.send(command)
            under_way[opaque] = queue_id, ids
        response = connection.receive()
        queue_id, ids = under_way.pop(response.opaque)
        if response.code != 0:
            raise SystemExit(f"refused: {response.code} {response.remark}")
        offset = int(response.ext_fields["queueOffset"])
        assert int(response.ext_fields["queueId"]) == queue_id
        yield "".join(f"{queue_id} {offset + k} {name}\n" for k, name in enumerate(ids))


def main(address: str, topic: str, queues: str, seed: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        with BlockingConnection(address) as connection:
            for lines in acknowledged_lines(connection, Load(topic, int(queues), int(seed))):
                os.write(file, lines.encode())
    except NetworkError:
        pass  # the broker was killed: that is the end of the load
    finally:
        os.close(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
