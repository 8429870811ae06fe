"""Measure the restart of a broker after kill -9, from exec to the first successful send.

    python bench/restart.py                      # 10 GB of 1 KiB messages, killed under load
    python bench/restart.py --gigabytes 2 --size 128 --target java
    python bench/restart.py --gigabytes 5.6 --size 128 --rebuild   # without queues and key index

rmqload fills the log to the given size, the broker is killed during the load and started again. The
files stay in the page cache as the kill leaves them, unless ``--cold`` drops it (needs root). With
``--rebuild`` rmqpy fills the log for Java, too, and consume queues and key index are removed before
the restart. ``cpu_s`` is the CPU time of the broker from exec until it has nothing more to do. The
output is one JSON line. Exit code 0: within ``--limit`` seconds, 2: above.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from attrs import evolve
from compare import build_generator
from fill import GIB, TOPIC, Filling, filled, log_bytes
from load_target import cpu_seconds

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site

WAIT_SECONDS_MAX = 900
IDLE_SECONDS, IDLE_SHARE = 2.0, 0.1


def first_send(broker: ServerProcess) -> tuple[float, float]:
    """Start the broker and return the seconds from exec to its first connection and first send."""
    start = time.monotonic()
    accepted = 0.0
    broker.launch()
    request = send_request(TOPIC, 0, [b"the first after the restart"], "KEYS\x01first")
    while time.monotonic() - start < WAIT_SECONDS_MAX:
        if not broker.running:
            raise SystemExit(f"the broker exited: {broker.printed()[-2000:]}")
        try:
            with BlockingConnection(broker.address) as connection:
                accepted = accepted or time.monotonic() - start
                if connection.call(request).code == 0:
                    return accepted, time.monotonic() - start
        except (NetworkError, OSError):
            pass
        time.sleep(0.01)
    raise SystemExit(f"no send succeeded within {WAIT_SECONDS_MAX} s")


def queues_caught_up(broker: ServerProcess, seconds_max: float) -> float:
    """Wait until the consume queues are complete and return the seconds."""
    start = time.monotonic()
    while time.monotonic() - start < seconds_max:
        with BlockingConnection(broker.address) as connection:
            response = connection.call(RemotingCommand.request(28))
        # In its first second a Java broker has no statistics, and refuses.
        if not response.code and _lag_bytes(response.body) == 0:
            return time.monotonic() - start
        time.sleep(0.1)
    raise SystemExit(f"the consume queues are not complete after {seconds_max} s")


def _lag_bytes(body: bytes) -> int:
    return int(KVTable.decode(body).table["dispatchBehindBytes"])


def settled_cpu_s(broker: ServerProcess) -> float:
    """Wait until the broker uses hardly any CPU time, and return what it has used."""
    used = cpu_seconds(broker.pid)
    while True:
        time.sleep(IDLE_SECONDS)
        before, used = used, cpu_seconds(broker.pid)
        if used - before < IDLE_SECONDS * IDLE_SHARE:
            return used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0, help="size of the log")
    parser.add_argument("--size", type=int, default=1024, help="bytes per message body")
    parser.add_argument(
        "--target", choices=["rmqpy", "java"], default="rmqpy", help="broker to measure"
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="broker setting; may be repeated",
    )
    parser.add_argument(
        "--limit", type=float, default=5.0, help="allowed seconds until the first send"
    )
    parser.add_argument("--cold", action="store_true", help="drop the page cache first")
    parser.add_argument(
        "--rebuild", action="store_true", help="remove consume queues and key index first"
    )
    parser.add_argument(
        "--directory", type=Path, help="folder for the log, which is removed afterwards"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        root = Path(folder)
        site: Site = RmqpySite(root) if options.target == "rmqpy" else JavaSite(root, JavaHome())
        filler = RmqpySite(root) if options.rebuild else site
        names, ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
        settings = dict(text.split("=", 1) for text in options.setting)
        spec = BrokerSpec(
            port=ports.broker_port,
            namesrv=f"127.0.0.1:{names.first}",
            sizes={},
            settings=settings,
        )
        broker = filler.broker("broker", spec)
        try:
            filling = Filling(build_generator(root), options.gigabytes, options.size, queues=4)
            with broker, filled(broker, filling):
                broker.kill()
            if options.rebuild:
                assert broker.store is not None, "a broker has a store"
                for name in ("consumequeue", "index"):
                    shutil.rmtree(broker.store / name)
                broker = site.broker("rebuilding", evolve(spec, store=broker.store))
            size = log_bytes(broker)
            if options.cold:
                Path("/proc/sys/vm/drop_caches").write_text("3")
            accepted, sent = first_send(broker)
            catch_up_s = queues_caught_up(broker, WAIT_SECONDS_MAX)
            cpu_s = settled_cpu_s(broker)
        finally:
            broker.kill()
    result = {
        "target": options.target,
        "log_gib": round(size / GIB, 2),
        "body_bytes": options.size,
        "cold": options.cold,
        "rebuild": options.rebuild,
        "first_connection_s": round(accepted, 2),
        "first_send_s": round(sent, 2),
        "queues_whole_s": round(sent + catch_up_s, 2),
        "cpu_s": round(cpu_s, 2),
    }
    print(json.dumps(result))
    return 0 if sent <= options.limit else 2


if __name__ == "__main__":
    sys.exit(main())
