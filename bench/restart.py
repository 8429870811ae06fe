"""Measure how long a broker needs to be back after kill -9: from exec to the first successful send,
with a log of a given size.

    python bench/restart.py                      # 10 GB of 1 KiB messages, killed under load
    python bench/restart.py --gigabytes 2 --size 128 --target java

The log is filled by rmqload, the broker is killed during the load and started again with the files
in the page cache as the kill leaves them (``--cold`` drops the cache first; needs root). The output
is one JSON line; exit code 0: measured, 2: above ``--limit`` seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from compare import build_generator
from fill import GIB, TOPIC, Filling, filled, log_bytes

from rmqpy.model.errors import NetworkError
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site

WAIT_SECONDS_MAX = 900


def first_send(broker: ServerProcess) -> tuple[float, float]:
    """Return the seconds from exec to the first connection, and to the first send with code 0."""
    begin = time.monotonic()
    accepted = 0.0
    broker.launch()
    request = send_request(TOPIC, 0, [b"the first after the restart"], "KEYS\x01first")
    while time.monotonic() - begin < WAIT_SECONDS_MAX:
        if not broker.running:
            raise SystemExit(f"the broker exited: {broker.printed()[-2000:]}")
        try:
            with BlockingConnection(broker.address) as connection:
                accepted = accepted or time.monotonic() - begin
                if connection.call(request).code == 0:
                    return accepted, time.monotonic() - begin
        except (NetworkError, OSError):
            pass
        time.sleep(0.01)
    raise SystemExit(f"no send succeeded within {WAIT_SECONDS_MAX} s")


def queues_caught_up(broker: ServerProcess, seconds_max: float) -> float:
    """Return the seconds until the consume queues are complete."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds_max:
        with BlockingConnection(broker.address) as connection:
            table = KVTable.decode(connection.call(RemotingCommand.request(28)).body).table
        if table["dispatchBehindBytes"] == "0":
            return time.monotonic() - begin
        time.sleep(0.1)
    raise SystemExit("the consume queues do not catch up")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--target", choices=["rmqpy", "java"], default="rmqpy")
    parser.add_argument("--setting", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--limit", type=float, default=5.0, help="allowed seconds")
    parser.add_argument("--cold", action="store_true", help="drop the page cache first")
    parser.add_argument("--directory", type=Path, help="where the log is created and removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        root = Path(folder)
        site: Site = RmqpySite(root) if options.target == "rmqpy" else JavaSite(root, JavaHome())
        names, ports = free_port_block(1), free_port_block(BROKER_PORT_COUNT)
        settings = dict(text.split("=", 1) for text in options.setting)
        spec = BrokerSpec(
            port=ports.broker_port,
            namesrv=f"127.0.0.1:{names.first}",
            sizes={},
            settings=settings,
        )
        broker = site.broker("broker", spec)
        try:
            filling = Filling(build_generator(root), options.gigabytes, options.size, queues=4)
            with broker, filled(broker, filling):
                broker.kill()
            size = log_bytes(broker)
            if options.cold:
                Path("/proc/sys/vm/drop_caches").write_text("3")
            accepted, sent = first_send(broker)
            catch_up_s = queues_caught_up(broker, WAIT_SECONDS_MAX)
        finally:
            broker.kill()
    result = {
        "target": options.target,
        "log_gib": round(size / GIB, 2),
        "body_bytes": options.size,
        "cold": options.cold,
        "first_connection_s": round(accepted, 2),
        "first_send_s": round(sent, 2),
        "queues_whole_s": round(sent + catch_up_s, 2),
    }
    print(json.dumps(result))
    return 0 if sent <= options.limit else 2


if __name__ == "__main__":
    sys.exit(main())
