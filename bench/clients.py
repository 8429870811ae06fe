"""Compare rmqpy's client with Apache's Java and Go clients on one rmqpy broker, in one run.

    python bench/clients.py                          every load, three rounds
    python bench/clients.py --only send push         some loads
    python bench/clients.py --kinds rmqpy pure       without Java; prints figures but no ratios
    python bench/clients.py --beside ../other        also the client of another checkout
    python bench/clients.py --pypi /env/bin/python   also rocketmq 0.4.4 of PyPI, which that has

The broker runs on core 0, one client at a time on core 1, each run in a new process
(client_load.py, ClientLoad.java, go/client_load.go). Figures are messages per CPU-second of the
client, measured by itself after a warm-up; ratios are to Java.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from attrs import define, field
from compare import GENERATOR_CORE, JVM, build_generator, log
from report import write_results
from requests import Site

from rmqpy.testing.blocking_connection import BlockingConnection, create_topic
from rmqpy.testing.java import JavaHome
from rmqpy.testing.processes import RmqpySite, ServerProcess, python_environment

HERE: Final = Path(__file__).resolve().parent
LOADS: Final = ("send", "batch", "oneway", "push", "pull")
KINDS: Final = ("java", "go", "rmqpy", "uvloop", "pure", "no-ahead", "messages", "calls")
"""``rmqpy`` runs on asyncio's own loop, ``uvloop`` on that one, ``pure`` without the C core,
``no-ahead`` without read-ahead. The last two are the least that pulls can cost without it
(``pull_floor.py``).
"""

TOPIC, BACKLOG, QUEUES = "bench", "bench-backlog", 4
LOADS_OF: Final = {
    "pypi": ("send", "batch", "oneway", "push"),
    "no-ahead": ("pull",),
    "messages": ("pull",),
    "calls": ("pull",),
}
"""The loads of a kind that has not all."""
WARM_SECONDS: Final = {"java": 8.0, "go": 3.0, "pypi": 3.0}
"""Java compiles what is hot, some push consumers wait; the others only open their connections."""
RUN_SECONDS_MAX: Final = 120

Results = dict[str, dict[str, list[dict[str, float]]]]


@define
class Clients:
    """The kinds of clients, as command lines and environments."""

    root: Path
    kinds: Sequence[str]
    beside: Path | None
    pypi: Path | None
    _numbers: int = field(default=0, init=False)

    def run(self, kind: str, load: str, namesrv: str, seconds: float) -> dict[str, float]:
        self._numbers += 1
        topic = BACKLOG if load in ("push", "pull") else TOPIC
        warm = WARM_SECONDS.get(kind, 0.5)
        mode = kind if kind in ("messages", "calls") else load
        arguments = [mode, namesrv, topic, f"{load}-{self._numbers}", f"{seconds}", f"{warm}"]
        command, environment = self._of(kind)
        try:
            done = subprocess.run(
                ["taskset", "-c", GENERATOR_CORE, *command, *arguments],
                env=environment,
                cwd=self.root,
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"{load} of {kind}: no result within {RUN_SECONDS_MAX} s; a consumer that has read"
                " everything waits, so try a larger --backlog"
            ) from None
        if done.returncode or not done.stdout:
            raise SystemExit(f"{load} of {kind}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return {**result, "messages_per_cpu_s": result["messages"] / result["cpu_s"]}

    def _of(self, kind: str) -> tuple[list[str], Mapping[str, str]]:
        if kind == "java":
            home = JavaHome()
            source = str(HERE / "ClientLoad.java")
            options = [*JVM.words(), f"-Duser.home={self.root}"]
            command = [*home.java(), *options, "-cp", f"{home.libraries()}/*", source]
            return command, os.environ
        if kind == "go":
            return [str(self.root / "go_client")], os.environ
        if kind == "pypi":
            return [str(self.pypi), str(HERE / "pypi_client_load.py")], os.environ
        if kind in ("messages", "calls"):
            return [sys.executable, str(HERE / "pull_floor.py")], python_environment(None)
        settings = {
            "uvloop": {"RMQPY_BENCH_LOOP": "uvloop"},
            "pure": {"RMQPY_PURE": "1"},
            "no-ahead": {"RMQPY_BENCH_READ_AHEAD": "off"},
        }
        environment = python_environment(settings.get(kind))
        if kind == "beside":
            environment["PYTHONPATH"] = str(self.beside)
        return [sys.executable, str(HERE / "client_load.py")], environment


def build_go_client(root: Path) -> None:
    if shutil.which("go") is None:
        raise SystemExit("no go compiler was found; use --kinds without go")
    command = ["go", "build", "-o", str(root / "go_client"), "."]
    subprocess.run(command, cwd=HERE / "go", check=True)


def fill(broker: ServerProcess, generator: Path, messages: int) -> None:
    with BlockingConnection(broker.address, timeout_s=60) as connection:
        for topic in (TOPIC, BACKLOG):
            create_topic(connection, topic, QUEUES)
    subprocess.run(
        [
            *(str(generator), "--port", str(broker.port), "--topic", BACKLOG),
            *("--queues", str(QUEUES), "--warmup", "0.1", "--count", str(messages)),
        ],
        stdout=subprocess.DEVNULL,
        check=True,
    )


def line_of(load: str, results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """Return the medians of one load, and their ratios to Java."""
    medians = {
        kind: statistics.median(result["messages_per_cpu_s"] for result in rounds)
        for kind, rounds in results.items()
    }
    cells = []
    for kind, rate in medians.items():
        ratio = f" {rate / medians['java']:5.2f} x" if "java" in medians and kind != "java" else ""
        cells.append(f"{kind} {rate:>9,.0f} /CPU-s{ratio}")
    return f"{load:8} " + "   ".join(cells)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=LOADS, default=LOADS, metavar="LOAD")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--beside", type=Path, help="another checkout, whose client is measured")
    parser.add_argument("--pypi", type=Path, help="interpreter that has rocketmq 0.4.4")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each load")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured seconds of each")
    parser.add_argument(
        "--backlog",
        type=int,
        default=6_000_000,
        help="messages to read: a push consumer reads each once, in its warm-up, too",
    )
    parser.add_argument("--output", type=Path, help="result file, for example results/DATE.json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    kinds = list(options.kinds)
    kinds += [kind for kind in ("beside", "pypi") if getattr(options, kind)]
    if "java" in kinds and (reason := JavaHome().missing()) is not None:
        raise SystemExit(f"{reason}; use --kinds rmqpy to measure without Java")
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder, ExitStack() as running:
        root = Path(folder)
        if "go" in kinds:
            build_go_client(root)
        beside = options.beside.resolve() if options.beside else None
        clients = Clients(root, kinds, beside, options.pypi)
        site = Site(RmqpySite(root / "rmqpy"))
        namesrv = running.enter_context(site.name_server("namesrv"))
        broker = running.enter_context(site.broker(namesrv, "bench-broker"))
        fill(broker, build_generator(root), options.backlog)
        for load in options.only:
            for _ in range(options.rounds):
                for kind in kinds:
                    if load not in LOADS_OF.get(kind, LOADS):
                        continue
                    result = clients.run(kind, load, namesrv.address, options.seconds)
                    results.setdefault(load, {}).setdefault(kind, []).append(result)
            log(f"  {line_of(load, results[load])}")
    for load, measured in results.items():
        print(line_of(load, measured))
    write_results(options.output, options.rounds, options.seconds, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
