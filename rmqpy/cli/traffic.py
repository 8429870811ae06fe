"""The commands ``rmqpy record`` and ``rmqpy replay``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, add_format_option, add_log_options
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.net.loop import AsyncioScheduler
    from rmqpy.traffic.recording import RecordingWriter

LOOPBACK = "127.0.0.1"
MIB = 1 << 20


def add_commands(commands: Commands) -> None:
    record = commands.add_parser("record", help="record the traffic of a broker, or of a store")
    record.add_argument("file", metavar="FILE", help="the recording, a new file")
    source = record.add_mutually_exclusive_group(required=True)
    source.add_argument("--to", metavar="HOST:PORT", help="relay clients to this broker")
    source.add_argument("--store", metavar="DIR", help="record the messages of this store")
    record.add_argument(
        "--listen", metavar="HOST:PORT", default=f"{LOOPBACK}:0", help="for clients"
    )
    record.add_argument("-n", dest="name_server", metavar="HOST:PORT", help="relay this, too")
    record.add_argument("--max-mib", type=int, metavar="N", help="end the recording at this size")
    record.add_argument("--append", action="store_true", help="continue an existing recording")
    record.add_argument("--from", dest="first", type=int, metavar="MS", help="with --store")
    record.add_argument("--until", dest="end", type=int, metavar="MS", help="with --store")
    add_log_options(record)
    record.set_defaults(command=_record, serves=True)
    replay = commands.add_parser("replay", help="replay a recording at brokers, and compare")
    replay.add_argument("file", metavar="FILE", help="the recording")
    replay.add_argument(
        "--to", action="append", required=True, metavar="HOST:PORT", help="a broker"
    )
    pace = replay.add_mutually_exclusive_group()
    pace.add_argument("--speed", type=float, default=1.0, help="0: as fast as possible")
    pace.add_argument("--rate", type=float, metavar="N", help="requests a second")
    replay.add_argument("--clients", type=int, default=64, metavar="N", help="connections at most")
    add_format_option(replay)
    add_log_options(replay)
    replay.set_defaults(command=_replay)


def _record(options: argparse.Namespace) -> int:
    from rmqpy.traffic.recording import RecordingWriter

    for option, address in (("--to", options.to), ("-n", options.name_server)):
        _check_address(option, address)
    if options.max_mib is not None and options.max_mib < 1:
        raise RmqError(f"--max-mib: found {options.max_mib}, expected 1 or more")
    path = Path(options.file)
    try:
        writer = RecordingWriter(path, append=options.append)
    except FileExistsError:
        raise RmqError(f"{path}: found a file, expected a new one; or give --append") from None
    with writer:
        if options.store is not None:
            return _record_store(options, writer)
        from rmqpy.net.loop import run

        return run(lambda _scheduler: _relay(options, writer))


def _record_store(options: argparse.Namespace, writer: RecordingWriter) -> int:
    from rmqpy.traffic.stored import record_store

    count, left_out = record_store(options.store, writer, options.first, options.end)
    for why, number in sorted(left_out.items()):
        print(f"left out: {number} {why}")
    print(f"recorded {count_text(count, 'message')}")
    if not count:
        raise RmqError("NOTHING RECORDED: found no message in this time, expected some")
    return EXIT_DONE


async def _relay(options: argparse.Namespace, writer: RecordingWriter) -> int:
    import asyncio

    from rmqpy.net.loop import stop_on_signals
    from rmqpy.traffic.proxy import FLUSH_SECONDS, RecordingProxy, RouteProxy, TrafficRecorder

    stopped = stop_on_signals()
    limit = None if options.max_mib is None else options.max_mib * MIB
    recorder = TrafficRecorder(writer, limit)
    host, _, port = options.listen.rpartition(":")
    proxies = [RecordingProxy(options.to, recorder)]
    try:
        where = {"broker": await proxies[0].listen(host, int(port))}
        if options.name_server is not None:
            proxies.append(RouteProxy(options.name_server, {options.to: where["broker"]}))
            where["name_server"] = await proxies[1].listen(host, 0)
        print(json.dumps(where), flush=True)
        while not stopped.is_set():
            recorder.flush()
            try:
                async with asyncio.timeout(FLUSH_SECONDS):
                    await stopped.wait()
            except TimeoutError:
                continue
    finally:
        for proxy in proxies:
            await proxy.close()
    print(f"recorded {recorder.frames} frames{recorder.ended and '; '}{recorder.ended}")
    return EXIT_DONE


def _replay(options: argparse.Namespace) -> int:
    from rmqpy.net.loop import run
    from rmqpy.traffic.recording import RecordingReader
    from rmqpy.traffic.replay import ReplayPlan, TrafficReplay

    for address in options.to:
        _check_address("--to", address)
    if options.speed < 0 or (options.rate is not None and options.rate <= 0):
        raise RmqError("--speed, --rate: found a number below 0, expected one above it")
    if options.clients < 1:
        raise RmqError(f"--clients: found {options.clients}, expected 1 or more")
    results = []
    for target in options.to:
        plan = ReplayPlan(
            target=target, speed=options.speed, rate=options.rate, clients=options.clients
        )

        async def replay(scheduler: AsyncioScheduler, plan: ReplayPlan = plan) -> int:
            reader = RecordingReader(Path(options.file))
            results.append(await TrafficReplay(reader, plan, scheduler).run())
            return EXIT_DONE

        run(replay)
        if options.format != "json":
            print("\n".join(results[-1].lines()), flush=True)
    if options.format == "json":
        json.dump([each.as_json() for each in results], sys.stdout, indent=2)
        print()
    codes = {each.exit_code for each in results}
    return 2 if 2 in codes else max(codes)


def _check_address(option: str, address: str | None) -> None:
    host, _, port = (address or "h:1").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RmqError(f"{option}: found {address!r}, expected HOST:PORT")
