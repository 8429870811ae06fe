"""Measure one and more shards of a broker on all cores of this machine.

    python bench/shards.py                        1 and 2 shards, three rounds in turn
    python bench/shards.py --shards 1 2 4 --load send-64x1 --output FILE

Each shard gets a generator of its own (rmqload.c), and nothing is pinned: brokers and generators
share the cores, as brokers and their clients on one machine do. The figures are messages per second
of wall time, all shards together, and messages per CPU-second of the brokers. On two cores the
generators take a good part of what a second shard could use.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compare import build_generator
from conditions import use_memory
from load_target import QUEUES
from report import machine
from rows import LOADS

from rmqpy.broker.assembly.shards.plan import PORT_STRIDE
from rmqpy.testing.blocking_connection import BlockingConnection, create_topic
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import python_environment

TOPIC = "bench"


@contextmanager
def running(root: Path, port: int, shards: int) -> Iterator[list[int]]:
    """Run shards and yield the ids of their processes."""
    argv = [sys.executable, "-m", "rmqpy.cli", "broker", "--shards", str(shards)]
    for each in (f"storePathRootDir={root}", "brokerName=bench", f"listenPort={port}"):
        argv += ["--set", each]
    log = root / "log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=stderr, text=True, env=python_environment()
        ) as supervisor,
    ):
        assert supervisor.stdout is not None
        if not any(line.startswith(f"ready: {shards} shards") for line in supervisor.stdout):
            raise SystemExit(log.read_text())
        try:
            found = re.findall(r"bench-([0-9]+) is process ([0-9]+)", log.read_text())
            yield [int(pid) for _, pid in sorted(found)]
        finally:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()


def measure(
    generator: Path, port: int, pids: Sequence[int], load: str, seconds: float
) -> dict[str, float]:
    """Put ``load`` on each shard at once, and return the sums."""
    loads = []
    for number, pid in enumerate(pids):
        argv = [str(generator), "--topic", TOPIC, "--queues", str(QUEUES), "--pid", str(pid)]
        argv += ["--port", str(port + number * PORT_STRIDE), *LOADS[load]]
        argv += ["--seconds", f"{seconds}", "--warmup", "0.5"]
        loads.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
    results = [json.loads(each.communicate()[0].splitlines()[-1]) for each in loads]
    per_cpu = [each["messages_per_server_cpu_s"] for each in results]
    return {
        "messages_per_s": sum(each["messages_per_s"] for each in results),
        "messages_per_server_cpu_s": statistics.mean(per_cpu),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shards", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--load", nargs="+", default=["send-128", "send-1k", "send-64x1"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="rmqpy-shards-") as folder:
        generator = build_generator(Path(folder))
        for turn in range(options.rounds):
            for count in options.shards:
                root = Path(folder) / f"{turn}-{count}"
                root.mkdir()
                block = free_port_block(count * PORT_STRIDE)
                with running(root, block.broker_port, count) as pids:
                    for number in range(count):
                        address = f"127.0.0.1:{block.broker_port + number * PORT_STRIDE}"
                        with BlockingConnection(address) as connection:
                            create_topic(connection, TOPIC, QUEUES)
                    for load in options.load:
                        use_memory(1500)
                        result = measure(generator, block.broker_port, pids, load, options.seconds)
                        found.setdefault(load, {}).setdefault(str(count), []).append(result)
                        print(f"{load:12} {count} shards {result}", file=sys.stderr, flush=True)
                del block
    for load, counts in found.items():
        for count, results in counts.items():
            rates = [each["messages_per_s"] for each in results]
            per_cpu = [each["messages_per_server_cpu_s"] for each in results]
            median = statistics.median(rates)
            first = statistics.median(
                each["messages_per_s"] for each in next(iter(counts.values()))
            )
            print(
                f"| {load} | {count} | {min(rates) / 1e3:.0f} k / {median / 1e3:.0f} k /"
                f" {max(rates) / 1e3:.0f} k | {median / first:.2f} |"
                f" {statistics.median(per_cpu) / 1e3:.0f} k |"
            )
    if options.output:
        options.output.write_text(
            json.dumps({"machine": machine(), "results": found}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
