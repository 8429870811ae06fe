"""Compare consumers that wait at the ends of their queues with the Java broker, in one run.

    python bench/tailing.py                        every row, three rounds
    python bench/tailing.py --only groups-100      some rows
    python bench/tailing.py --kinds rmqpy          without Java; prints figures but no ratios

``rmqload.c --mode tail`` gives each consumer group a connection with a waiting pull for each queue,
and sends. Figures are deliveries per CPU-second of the broker (core 0; the generator has core 1)
and their latency from the moment at which the send was due. Rows without a rate keep 32 messages
under way to all groups; rows with one show the latency under the same load on both sides.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from compare import GENERATOR_CORE, build_generator, log
from conditions import stopped, use_memory
from load_target import LoadTarget
from report import write_results
from request_frames import new_topic, pipelined
from requests import add_load_options, line_of, sites_of

from rmqpy.model.codes import ResponseCode
from rmqpy.testing.blocking_connection import BlockingConnection


@frozen
class Row:
    name: str
    groups: int
    queues: int
    rate: int = 0
    """Sends per second; 0: a closed loop."""

    @property
    def topic(self) -> str:
        return f"bench-{self.queues}"


ROWS: Final = (
    Row("groups-1", 1, 4),
    Row("groups-10", 10, 4),
    Row("groups-10-500", 10, 4, 500),
    Row("groups-100", 100, 4),
    Row("groups-100-100", 100, 4, 100),
    Row("groups-1000", 1000, 1),
    Row("held-1000", 10, 100),
    Row("held-1000-200", 10, 100, 200),
    Row("held-10000", 100, 100),
    Row("held-10000-50", 100, 100, 50),
)


def measure(
    row: Row, target: LoadTarget, generator: Path, options: argparse.Namespace, warm: bool
) -> dict[str, Any]:
    use_memory(options.memory_mb)
    seconds = options.warm if warm else options.seconds
    amount = ("--rate", f"{row.rate}") if row.rate else ("--window", "32")
    done = subprocess.run(
        [
            *("taskset", "-c", GENERATOR_CORE, str(generator), "--mode", "tail"),
            *("--port", str(target.port), "--pid", ",".join(map(str, target.pids))),
            *("--topic", row.topic, "--queues", str(row.queues), "--groups", str(row.groups)),
            *("--connections", "4", "--warmup", "0.5", "--seconds", f"{seconds}", *amount),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode and not warm:
        raise SystemExit(f"{row.name} on {target.name}: {done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if not warm else {}
    return result


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="ROW")
    add_load_options(parser, "row", 2.0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    rows = [row for row in ROWS if row.name in options.only]
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder, ExitStack() as running:
        root = Path(folder)
        generator = build_generator(root)
        targets = {}
        for kind, site in sites_of(options.kinds, root).items():
            namesrv = running.enter_context(site.name_server("namesrv"))
            broker = running.enter_context(site.broker(namesrv, f"bench-{kind}"))
            targets[kind] = LoadTarget([broker], ())
            with BlockingConnection(broker.address, timeout_s=60) as connection:
                topics = [new_topic(f"bench-{count}", count) for count in (1, 4, 100)]
                for answer in pipelined(connection, topics):
                    assert answer.code == ResponseCode.SUCCESS, answer.remark
        for row in rows:
            for turn in range(options.rounds + 1):
                for kind, target in targets.items():
                    others = [other for other in targets.values() if other is not target]
                    with stopped(others):
                        result = measure(row, target, generator, options, warm=not turn)
                    if turn:
                        results.setdefault(row.name, {}).setdefault(kind, []).append(result)
            log(f"  {line_of(row.name, results[row.name])}")
    for name, measured in results.items():
        print(line_of(name, measured))
    write_results(options.output, options.rounds, options.seconds, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
