"""Count the calls that one SEND and one PULL make in a broker without its fast path.

    python bench/calls.py [--list]

The broker runs in this process with ``RMQPY_FAST=0``. The client is a plain socket, so every
counted call belongs to the broker, from the bytes that arrive to the bytes that leave, including
dispatch to the consume queue. ``--list`` prints the calls in order. Run it with ``RMQPY_PURE=1`` to
count the Python codec, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ["RMQPY_FAST"] = "0"

import rmqpy
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2
from rmqpy.testing.in_process import broker_in_process, name_server_in_process

PACKAGE = str(Path(rmqpy.__file__).parent) + os.sep
TOPIC = "TBW102"
SYNC = "SYNC_MASTER"
ADDRESSES = {"replicationAddresses": "127.0.0.1"}
"""With which the reports of the slave count."""
WARM_UP = 3
QUIET_S = 0.05
"""The time within which the work after a reply (dispatch) is done."""


class Calls:
    """A profiler that records the functions of rmqpy that were called while it was on, in order."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.is_on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(PACKAGE):
            module = code.co_filename[len(PACKAGE) : -len(".py")].replace(os.sep, ".")
            self.names.append((module, code.co_qualname))


def send_frame() -> bytes:
    header = SendMessageRequestHeaderV2(
        producer_group="PG",
        topic=TOPIC,
        default_topic=TOPIC,
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1_600_000_000_000,
        flag=0,
        properties="UNIQ_KEY\x01U1",
    )
    return encode_command(RemotingCommand.request(310, header, b"x" * 128))


def pull_frame() -> bytes:
    header = PullMessageRequestHeader(
        consumer_group="CG",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        subscription="*",
        sub_version=0,
        suspend_timeout_millis=0,
    )
    return encode_command(RemotingCommand.request(11, header))


async def request(broker: BrokerRuntime, frame: bytes, calls: Calls) -> None:
    """Send one frame over a new connection, after the same frames as a warm-up."""
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for turn in range(WARM_UP + 1):
        await asyncio.sleep(QUIET_S)
        calls.is_on = turn == WARM_UP
        writer.write(frame)
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        await asyncio.sleep(QUIET_S)
        calls.is_on = False
    writer.close()


async def follow(broker: BrokerRuntime) -> asyncio.Task[None]:
    """Report all that the master sends as stored, as a slave does, with no call of rmqpy."""
    host, _, port = broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port) + 1)
    writer.write(struct.pack(">q", 0))

    async def copy() -> None:
        while True:
            offset, size = struct.unpack(">qi", await reader.readexactly(12))
            await reader.readexactly(size)
            writer.write(struct.pack(">q", offset + size))

    return asyncio.create_task(copy())


async def count(make_frame: Callable[[], bytes], role: str) -> Calls:
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls()
        async with name_server_in_process(Path(folder)) as name_server:
            settings = {"autoCreateTopicEnable": "true", "brokerRole": role, **ADDRESSES}
            async with broker_in_process(Path(folder), name_server, settings) as broker:
                slave = await follow(broker) if role == SYNC else None
                await request(broker, send_frame(), Calls())
                sys.setprofile(calls)
                try:
                    await request(broker, make_frame(), calls)
                finally:
                    sys.setprofile(None)
                    if slave is not None:
                        slave.cancel()
        return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the calls in order")
    options = parser.parse_args()
    for name, make_frame, role in (
        ("SEND", send_frame, "ASYNC_MASTER"),
        ("SEND, SYNC_MASTER", send_frame, SYNC),
        ("PULL", pull_frame, "ASYNC_MASTER"),
    ):
        names = asyncio.run(count(make_frame, role)).names
        modules = {module for module, _ in names}
        print(f"{name}: {len(names)} calls, {len(set(names))} functions, {len(modules)} modules")
        if options.list:
            for module, function in names:
                print(f"    {module}.{function}")


if __name__ == "__main__":
    main()
