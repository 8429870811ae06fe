"""Measure the latency of sends beside consumers that read a backlog through an SQL92 filter.

    python bench/beside_filters.py                    Java and rmqpy, three rounds
    python bench/beside_filters.py --kinds rmqpy      without Java

Sends arrive at a fixed rate (1,000 per second), alone, and then beside four connections that pull
again and again with ``pull-sql`` of ``requests.py``, one request in flight on each. Both generators
run on core 1, the server under load on core 0; the other one is stopped. The figure is the median
of the latency from the moment a send was due, divided by the same figure without the consumers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from compare import GENERATOR_CORE, JVM, build_generator, log
from conditions import REALTIME_PRIORITY, realtime, stopped
from load_target import LoadTarget
from request_frames import BROKER_REQUESTS, NONE_MATCHES, Request, fill
from requests import KINDS, OPAQUE, Server, Site

from rmqpy.remoting.frame import encode_command
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.processes import RmqpySite

RATE: Final = 1_000
CONSUMERS: Final = 4


@frozen
class Sample:
    """The sends of one measurement; ``pulls`` is the number of pulls per second beside them."""

    p50_ms: float
    p99_ms: float
    pulls: float = 0.0


def command_of(
    root: Path, generator: Path, request: Request, server: Server, realtime_class: bool
) -> list[str]:
    """Return the command that repeats a request, without the options of its load."""
    frames = root / f"frames-{request.name}"
    commands = request.build(server.stored)
    for command in commands:
        command.opaque = OPAQUE
    frames.write_bytes(b"".join(encode_command(command) for command in commands))
    accept = ",".join(map(str, NONE_MATCHES))
    return [
        *(("chrt", "-r", REALTIME_PRIORITY) if realtime_class else ()),
        *("taskset", "-c", GENERATOR_CORE, str(generator), "--mode", "replay"),
        *("--frames", str(frames), "--port", str(server.target.port), "--accept", accept),
    ]


def measure(
    root: Path,
    generator: Path,
    server: Server,
    seconds: float,
    consumers: int,
    realtime_class: bool,
) -> Sample:
    named = {request.name: request for request in BROKER_REQUESTS}
    send = command_of(root, generator, named["send"], server, realtime_class)
    pull = command_of(root, generator, named["pull-sql"], server, realtime_class)
    send += ["--connections", "4", "--rate", str(RATE), "--seconds", str(seconds)]
    if realtime_class:
        # An open loop never sleeps, so pulls must preempt it.
        pull[2] = str(int(REALTIME_PRIORITY) + 1)
    pull += ["--connections", str(consumers), "--window", "1", "--seconds", str(seconds + 1)]
    background = subprocess.Popen(pull, stdout=subprocess.PIPE, text=True) if consumers else None
    sent = result_of(subprocess.run(send, capture_output=True, text=True, check=True).stdout)
    latency = sent["latency_ms"]
    if background is None:
        return Sample(latency["p50"], latency["p99"])
    output, _ = background.communicate(timeout=60)
    pulled = result_of(output)
    return Sample(latency["p50"], latency["p99"], pulled["requests"] / pulled["seconds"])


def result_of(output: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def line_of(kind: str, alone: Sequence[Sample], beside: Sequence[Sample]) -> str:
    median = statistics.median
    ratio = median(two.p50_ms / one.p50_ms for one, two in zip(alone, beside, strict=True))
    return (
        f"{kind:6} alone p50 {median(one.p50_ms for one in alone):7.3f}, "
        f"p99 {median(one.p99_ms for one in alone):7.3f} ms; beside {CONSUMERS} consumers "
        f"p50 {median(one.p50_ms for one in beside):7.3f}, "
        f"p99 {median(one.p99_ms for one in beside):7.3f} ms "
        f"({median(one.pulls for one in beside):,.0f} pulls/s): p50 {ratio:.2f} x"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds of each")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up of each")
    parser.add_argument(
        "--realtime", action="store_true", help="run loads in a real-time class (chrt); needs root"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder, ExitStack() as deps:
        root = Path(folder)
        generator = build_generator(root)
        servers = {}
        for kind in options.kinds:
            site: RmqpySite | JavaSite = RmqpySite(root / kind)
            if kind == "java":
                site = JavaSite(root / kind, JavaHome(), JVM, log_level="WARN")
            started = Site(site)
            namesrv = deps.enter_context(started.name_server("namesrv"))
            broker = deps.enter_context(started.broker(namesrv, f"bench-{kind}"))
            log(f"{kind}: filling the broker")
            servers[kind] = Server(LoadTarget([broker], ()), fill(broker.address, f"bench-{kind}"))
        samples: dict[str, tuple[list[Sample], list[Sample]]] = {}
        for turn in range(options.rounds + 1):
            for kind, server in servers.items():
                others = [other.target for other in servers.values() if other is not server]
                seconds = options.seconds if turn else options.warm
                with ExitStack() as conditions:
                    conditions.enter_context(stopped(others))
                    if options.realtime:
                        conditions.enter_context(realtime(server.target.pids))
                    results = [
                        measure(root, generator, server, seconds, consumers, options.realtime)
                        for consumers in (0, CONSUMERS)
                    ]
                if turn:
                    for kept, sample in zip(
                        samples.setdefault(kind, ([], [])), results, strict=True
                    ):
                        kept.append(sample)
        for kind, (alone, beside) in samples.items():
            print(line_of(kind, alone, beside))
    return 0


if __name__ == "__main__":
    sys.exit(main())
