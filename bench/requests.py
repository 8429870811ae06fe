"""Compare the cost of requests other than plain sends and pulls with the Java servers, in one run.

    python bench/requests.py                          every request, three rounds
    python bench/requests.py --only pull-sql lock-4   some requests
    python bench/requests.py --kinds rmqpy            without Java; prints figures but no ratios
    python bench/requests.py --rust BINARY            also the broker of the crate rocketmq-broker

Each request is built once and repeated by ``rmqload.c --mode replay`` over 4 connections with 16 in
flight each. The server under load runs on core 0, the generator on core 1; the other servers are
stopped (SIGSTOP) in the meantime. Figures are requests per CPU-second of the server. A request that
can be answered only once (the end of a transaction, a new topic) is built anew for each round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import define, evolve, field, frozen
from compare import BROKER_CORE, GENERATOR_CORE, JVM, build_generator, log
from conditions import stopped, use_memory
from load_target import LoadTarget
from report import write_results
from request_frames import BROKER_REQUESTS, NAME_SERVER_REQUESTS, Request, Stored, fill

from rmqpy.remoting.frame import encode_command
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess

OPAQUE: Final = 1_000_000
"""The opaque that ``rmqload.c`` replaces in each copy of a frame."""

TIMED_WARM_UP_MAX: Final = 2_000
"""The number of different requests above which a warm-up sends each of them, however long it takes.
"""

KINDS: Final = ("java", "rmqpy")
BROKER_SETTINGS: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "3600000",
    # A batch that is refused is not measured.
    "waitTimeMillsInSendQueue": "10000",
    "waitTimeMillsInPullQueue": "10000",
    # As many messages a pull, however much the rounds before have stored: the faster broker's old
    # messages count as on disk, and then eight of them are a page.
    "maxTransferCountOnMessageInDisk": "32",
    "maxTransferBytesOnMessageInDisk": "262144",
}


@define(eq=False)
class Server:
    """A broker or a name server under load."""

    target: LoadTarget
    stored: Stored
    may_refuse: bool = False
    """Whether a request that it always refuses is left out instead of an error."""


@frozen
class Options:
    only: tuple[str, ...]
    kinds: tuple[str, ...]
    rounds: int
    seconds: float
    warm_seconds: float
    memory_mb: int
    output: Path | None
    rust: Path | None = None


@define
class Bench:
    options: Options
    root: Path
    generator: Path
    results: dict[str, dict[str, list[dict[str, Any]]]] = field(factory=dict)

    def measure(self, requests: Sequence[Request], servers: dict[str, Server]) -> None:
        """Measure each request on each server in turn, after one run that only warms up."""
        for request in requests:
            for turn in range(self.options.rounds + 1):
                for kind, server in servers.items():
                    others = [other.target for other in servers.values() if other is not server]
                    with stopped(others):
                        result = self._load(request, server, warm=not turn)
                    if turn and result is not None:
                        self.results.setdefault(request.name, {}).setdefault(kind, []).append(
                            result
                        )
            if request.finish is not None:
                for server in servers.values():
                    request.finish(server.stored)
            results = self.results[request.name]
            log(f"  {line_of(request.name, results)}")
            sizes = answer_sizes(results)
            if max(sizes.values()) > 2 * min(sizes.values()):
                log(f"  {request.name}: not comparable, the answers have {sizes} bytes")

    def _load(self, request: Request, server: Server, *, warm: bool) -> dict[str, Any] | None:
        options = self.options
        frames = self.root / "frames"
        commands = request.build(server.stored)
        for command in commands:
            command.opaque = OPAQUE
        frames.write_bytes(b"".join(encode_command(command) for command in commands))
        seconds = options.warm_seconds if warm else options.seconds
        # What the first request to each of many queues costs belongs into the warm-up.
        counted = request.once or (warm and len(commands) > TIMED_WARM_UP_MAX)
        amount = ("--count", f"{len(commands)}") if counted else ("--seconds", f"{seconds}")
        accept = ("--accept", ",".join(map(str, request.accept))) if request.accept else ()
        use_memory(options.memory_mb)
        command_line = [
            *("taskset", "-c", GENERATOR_CORE, str(self.generator), "--mode", "replay"),
            *("--frames", str(frames), "--port", str(server.target.port)),
            *("--pid", ",".join(map(str, server.target.pids))),
            *("--connections", "4", "--window", "16", "--warmup", "0.3", *amount, *accept),
        ]
        cpu_before = server.target.cpu_seconds
        done = subprocess.run(
            command_line, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode and server.may_refuse:
            log(f"  {request.name}: refused by {server.stored.broker_name}: {done.stderr.strip()}")
            return None
        if done.returncode:
            raise SystemExit(
                f"{request.name}: {' '.join(command_line)} ended with {done.returncode}:"
                f" {done.stderr}"
            )
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if request.settle is not None:
            request.settle(server.stored)
            used = server.target.cpu_seconds - cpu_before
            result |= {"server_cpu_s": used, "messages_per_server_cpu_s": len(commands) / used}
        if result["refused"]:
            log(f"  {request.name}: {result['refused']} refused: {result['refusals']}")
        return result


def line_of(name: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians of one request, and their ratio if both servers were measured."""
    figures = medians(results)
    cells = [
        f"{kind} {rate:>9,.0f} /CPU-s, p50 {p50:8.3f}, p99 {p99:8.3f} ms"
        for kind, (rate, p50, p99) in figures.items()
    ]
    if figures.keys() >= set(KINDS):
        cells.append(f"{figures['rmqpy'][0] / figures['java'][0]:5.2f} x")
    return f"{name:24} " + "   ".join(cells)


def answer_sizes(results: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """Return the mean size in bytes of the answers of each kind of server."""
    return {
        kind: round(rounds[-1]["received_bytes_per_s"] / rounds[-1]["messages_per_s"])
        for kind, rounds in results.items()
    }


def medians(results: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[float, float, float]]:
    """Return the medians of requests per CPU-second, p50 and p99 in ms for each kind of server."""
    return {
        kind: (
            statistics.median(result["messages_per_server_cpu_s"] for result in rounds),
            statistics.median(result["latency_ms"]["p50"] for result in rounds),
            statistics.median(result["latency_ms"]["p99"] for result in rounds),
        )
        for kind, rounds in results.items()
    }


@define
class RustSite:
    """Brokers of the crate rocketmq-broker, with name servers of rmqpy."""

    others: RmqpySite
    binary: Path

    @property
    def root(self) -> Path:
        return self.others.root

    def namesrv(self, name: str, port: int) -> ServerProcess:
        return self.others.namesrv(name, port)

    def broker(self, name: str, spec: BrokerSpec) -> ServerProcess:
        settings = {k: v for k, v in spec.settings.items() if k != "diskMaxUsedSpaceRatio"}
        server = self.others.broker(name, evolve(spec, settings=settings))  # it refuses that key
        server.argv[:] = [str(self.binary), "-c", str(server.directory / "broker.conf")]
        server.ready = re.compile(rb"started successfully")
        server.environment = {**os.environ, "ROCKETMQ_HOME": str(server.directory)}
        return server


@define
class Site:
    """Where the servers of one kind are started, and their ports."""

    site: RmqpySite | JavaSite | RustSite
    ports: list[PortBlock] = field(factory=list)

    def name_server(self, name: str) -> ServerProcess:
        self.ports.append(free_port_block())
        process = self.site.namesrv(name, self.ports[-1].first)
        process.argv[:0] = ["taskset", "-c", BROKER_CORE]
        return process

    def broker(self, namesrv: ServerProcess, name: str) -> ServerProcess:
        self.ports.append(free_port_block(BROKER_PORT_COUNT))
        spec = BrokerSpec(
            port=self.ports[-1].broker_port,
            namesrv=namesrv.address,
            broker_name=name,
            store=self.site.root / "store",
            sizes={},
            settings=BROKER_SETTINGS,
        )
        process = self.site.broker("broker", spec)
        process.argv[:0] = ["taskset", "-c", BROKER_CORE]
        return process


def sites_of(kinds: Sequence[str], root: Path, rust: Path | None = None) -> dict[str, Site]:
    """Return a site for each kind of server, and for ``rust``, the program of the crate."""
    sites = {}
    if "java" in kinds:
        home = JavaHome()
        if (reason := home.missing()) is not None:
            raise SystemExit(f"{reason}; use --kinds rmqpy to measure without Java")
        sites["java"] = Site(JavaSite(root / "java", home, JVM, log_level="WARN"))
    if "rmqpy" in kinds:
        bytecode = {"PYTHONPYCACHEPREFIX": str(root / "bytecode")}
        sites["rmqpy"] = Site(RmqpySite(root / "rmqpy", environment=bytecode))
    if rust is not None:
        sites["rust"] = Site(RustSite(RmqpySite(root / "rust"), rust.absolute()))
    return sites


def add_load_options(parser: argparse.ArgumentParser, what: str, seconds: float) -> None:
    """Add the options of a comparison of loads; each measures one ``what``."""
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=3, help=f"measurements of each {what}")
    parser.add_argument("--seconds", type=float, default=seconds, help="measured seconds of each")
    parser.add_argument("--warm", type=float, default=5.0, help="seconds of warm-up of each")
    parser.add_argument(
        "--memory-mb", type=int, default=0, help="MB of memory to touch before each (compare.py)"
    )
    parser.add_argument("--output", type=Path, help="result file, for example results/DATE.json")


def measure_brokers(bench: Bench, requests: Sequence[Request], sites: dict[str, Site]) -> None:
    with ExitStack() as deps:
        servers = {}
        for kind, site in sites.items():
            namesrv = deps.enter_context(site.name_server("namesrv"))
            broker = deps.enter_context(site.broker(namesrv, f"bench-{kind}"))
            log(f"{kind}: filling the broker")
            stored = fill(broker.address, f"bench-{kind}")
            servers[kind] = Server(LoadTarget([broker], ()), stored, kind not in KINDS)
        bench.measure(requests, servers)


def measure_name_servers(bench: Bench, requests: Sequence[Request], sites: dict[str, Site]) -> None:
    with ExitStack() as deps:
        servers = {}
        for kind, site in sites.items():
            if kind not in KINDS:
                continue
            process = deps.enter_context(site.name_server("namesrv-alone"))
            servers[kind] = Server(LoadTarget([process], ()), Stored(kind, process.address))
        bench.measure(requests, servers)


def parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [request.name for request in (*BROKER_REQUESTS, *NAME_SERVER_REQUESTS)]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="REQUEST")
    add_load_options(parser, "request", 1.0)
    parser.add_argument(
        "--rust", type=Path, metavar="BINARY", help="also measure rocketmq-broker-rust"
    )
    given = parser.parse_args(arguments)
    return Options(
        tuple(given.only),
        tuple(given.kinds),
        given.rounds,
        given.seconds,
        given.warm,
        given.memory_mb,
        given.output,
        given.rust,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    with tempfile.TemporaryDirectory(prefix="rmqpy-bench-") as folder:
        root = Path(folder)
        sites = sites_of(options.kinds, root, options.rust)
        bench = Bench(options, root, build_generator(root))
        try:
            for measure, known in (
                (measure_brokers, BROKER_REQUESTS),
                (measure_name_servers, NAME_SERVER_REQUESTS),
            ):
                chosen = [request for request in known if request.name in options.only]
                if chosen:
                    measure(bench, chosen, sites)
        finally:  # a server that does not stop in time costs no figures
            for name, results in bench.results.items():
                print(line_of(name, results))
            write_results(options.output, options.rounds, options.seconds, bench.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
