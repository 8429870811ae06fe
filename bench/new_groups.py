"""Measure sends while new consumer groups appear: ten a second, each with a heartbeat, a pull, and
a question for its offset, on a connection of its own.

    python bench/new_groups.py                    Java and rmqpy, three rounds
    python bench/new_groups.py --kinds rmqpy      without Java

The load is ``send`` of ``requests.py``, 4 connections with 16 requests in flight each. The figure
is sends per CPU-second of the broker beside the groups, divided by the same figure without them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from beside_filters import command_of
from compare import build_generator, log
from conditions import stopped
from load_target import LoadTarget
from request_frames import BROKER_REQUESTS, fill
from requests import KINDS, Server, sites_of

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import PullMessageRequestHeader, QueryConsumerOffsetRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection

GROUPS_A_SECOND: Final = 10
TOPIC: Final = "bench"
_NUMBERS = count()


def requests_of(group: str) -> list[RemotingCommand]:
    """Return what the first member of a new group asks for when it starts."""
    subscription = SubscriptionData(TOPIC, "*", [], [], 1)
    consumer = ConsumerData(
        group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [subscription]
    )
    heartbeat = HeartbeatData(f"client-of-{group}", [], [consumer]).encode()
    offset = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=TOPIC, queue_id=0)
    pull = PullMessageRequestHeader(
        consumer_group=group,
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=1,
    )
    return [
        RemotingCommand.request(RequestCode.HEART_BEAT, None, heartbeat),
        RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, offset),
        RemotingCommand.request(RequestCode.PULL_MESSAGE, pull),
    ]


@contextmanager
def new_groups(address: str) -> Iterator[list[str]]:
    """Start new groups at ``address`` until the end of the block; their names are in the list."""
    ended = threading.Event()
    names: list[str] = []

    def start_groups() -> None:
        with ExitStack() as connections:
            while not ended.wait(1 / GROUPS_A_SECOND):
                names.append(f"new-group-{next(_NUMBERS)}")
                connection = connections.enter_context(BlockingConnection(address))
                for command in requests_of(names[-1]):
                    connection.send(command)
                    connection.receive()

    thread = threading.Thread(target=start_groups)
    thread.start()
    try:
        yield names
    finally:
        ended.set()
        thread.join()


def rate(command: Sequence[str], server: Server, seconds: float) -> float:
    """Return the sends per CPU-second of the broker."""
    done = subprocess.run(
        [
            *(*command, "--pid", ",".join(map(str, server.target.pids))),
            *("--connections", "4", "--window", "16", "--seconds", str(seconds)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1])["messages_per_server_cpu_s"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured seconds of each")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up of each")
    options = parser.parse_args(arguments)
    send = next(request for request in BROKER_REQUESTS if request.name == "send")
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder, ExitStack() as running:
        root = Path(folder)
        generator = build_generator(root)
        servers = {}
        for kind, site in sites_of(options.kinds, root).items():
            namesrv = running.enter_context(site.name_server("namesrv"))
            broker = running.enter_context(site.broker(namesrv, f"bench-{kind}"))
            log(f"{kind}: filling the broker")
            servers[kind] = Server(LoadTarget([broker], ()), fill(broker.address, f"bench-{kind}"))
        figures: dict[str, list[tuple[float, float]]] = {kind: [] for kind in servers}
        for turn in range(options.rounds + 1):
            for kind, server in servers.items():
                others = [other.target for other in servers.values() if other is not server]
                command = command_of(root, generator, send, server, False)
                with stopped(others):
                    alone = rate(command, server, options.seconds if turn else options.warm)
                    with new_groups(server.target.address) as names:
                        beside = rate(command, server, options.seconds)
                if turn:
                    figures[kind].append((alone, beside))
                    log(f"  {kind}: {alone:,.0f}, beside {len(names)} new groups {beside:,.0f}")
        for kind, rounds in figures.items():
            alone, beside = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(
                f"{kind:6} alone {alone:>9,.0f} /CPU-s, beside {GROUPS_A_SECOND} new groups a"
                f" second {beside:>9,.0f} /CPU-s: {beside / alone:.2f} x"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
