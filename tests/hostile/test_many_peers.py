"""Honest clients of a broker or name server while 300 peers of one of its ports request data and
read none of it, and while floods of one-way requests arrive that have no answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest
from fuzz.attack import Target, pull_request
from harness.hostile import GROUP_OF_ONE, MIB, running_broker, still_answers

from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import GetEntriesRequest
from rmqpy.ha.frames import encode_report
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.ids import PhysicalOffset
from rmqpy.remoting.command import FLAG_ONEWAY, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import PullMessageRequestHeader
from rmqpy.testing.blocking_connection import BlockingConnection, connect_when_ready, send_request
from rmqpy.testing.ports import free_port_block
from rmqpy.testing.processes import RmqpySite

pytestmark = pytest.mark.slow

PEERS: Final = 300
REQUESTS: Final = 20
BODY: Final = bytes(240 << 10)
"""All answers together are 1.4 GB at least."""
UNREAD_MAX: Final = 512 * MIB
"""``pending_bytes_all`` of the connections of a server, and the memory around it."""
FLOOD_MAX: Final = 256 * MIB
FLOODS: Final = 20
"""Connections of a flood of one-way requests."""


def is_served(target: Target, client: BlockingConnection) -> None:
    """Send and ask over a connection from before, and over a new one."""
    still_answers(client)
    with connect_when_ready(target.server.address) as fresh:
        for each in (client, fresh):
            sent = each.call(send_request("Honest", 0, [b"honest"]))
            assert sent.code == ResponseCode.SUCCESS, sent


def besiege(
    server: Target,
    ports: Sequence[int],
    frames: bytes,
    is_served: Callable[[], None],
    growth_max: int,
) -> None:
    """Let 300 peers of these ports of ``server`` send ``frames`` and read no answer."""
    before = server.resident()
    with ExitStack() as peers:
        for count in range(PEERS):
            address = server.address[0], ports[count % len(ports)]
            peer = peers.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # The kernel keeps little.
            peer.connect(address)
            peer.setblocking(False)
            with suppress(BlockingIOError):
                peer.send(frames)
            if count % 100 == 0:
                is_served()
        for _ in range(5):
            is_served()
        growth = server.resident() - before
        assert growth < growth_max, f"{growth // MIB} MiB"
    is_served()


def get_entry(index: int) -> RemotingCommand:
    """A request for an entry at the port of a DLedger member."""
    request = GetEntriesRequest(begin_index=index, group="broker-a", remote_id="n0")
    return RemotingCommand.request(request.CODE, body=encode(request))


@pytest.mark.parametrize("port", ["clients", "dledger"])
def test_honest_clients_are_served_beside_300_peers_that_do_not_read(
    tmp_path: Path, port: str
) -> None:
    with running_broker(tmp_path, **GROUP_OF_ONE) as (target, client, free):
        for _ in range(4):
            assert client.call(send_request("Unread", 0, [BODY])).code == ResponseCode.SUCCESS
        assert client.call(send_request("Small", 0, [b"small"])).code == ResponseCode.SUCCESS
        requests = {
            "clients": ([target.address[1], target.address[1] - 2], pull_request("Unread")),
            "dledger": ([free], get_entry(0)),
        }
        ports, request = requests[port]
        frames = encode_command(request) * REQUESTS
        with connect_when_ready(f"{target.address[0]}:{free}") as reader:

            def all_are_served() -> None:
                is_served(target, client)
                small = reader.call(get_entry(4))
                assert b'"code":200' in small.body and b'"index":4' in small.body, small

            besiege(target, ports, frames, all_are_served, UNREAD_MAX)


def test_honest_clients_are_served_beside_300_slaves_that_do_not_read(tmp_path: Path) -> None:
    with running_broker(tmp_path, brokerRole="ASYNC_MASTER") as (target, client, _):
        for _ in range(100):
            assert client.call(send_request("Unread", 0, [BODY])).code == ResponseCode.SUCCESS
        report = encode_report(PhysicalOffset(1))
        ports = [target.address[1] + 1]
        besiege(target, ports, report, lambda: is_served(target, client), FLOOD_MAX)


def test_a_name_server_serves_beside_300_peers_that_do_not_read(tmp_path: Path) -> None:
    ports = free_port_block(1)
    server = RmqpySite(tmp_path).namesrv("namesrv", ports[0]).start()
    try:
        with connect_when_ready(server.address) as client:
            for number in range(4):
                put = {"namespace": "n", "key": f"k{number}", "value": "v" * (len(BODY) // 4)}
                command = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=put)
                assert client.call(command).code == ResponseCode.SUCCESS
            get = RemotingCommand(
                RequestCode.GET_KVLIST_BY_NAMESPACE, ext_fields={"namespace": "n"}
            )
            assert len(client.call(get).body) > len(BODY)
            route = RemotingCommand(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "unknown"}
            )

            def is_served() -> None:
                with connect_when_ready(server.address) as fresh:
                    for each in (client, fresh):
                        assert each.call(route).code == ResponseCode.TOPIC_NOT_EXIST

            frames = encode_command(get) * REQUESTS
            besiege(Target("namesrv", server), [ports[0]], frames, is_served, UNREAD_MAX)
    finally:
        server.kill()


def message(_: int) -> RemotingCommand:
    return send_request("Flood", 0, [bytes(64 << 10)])


def long_poll(number: int) -> RemotingCommand:
    """A pull that waits ten minutes for a message."""
    header = PullMessageRequestHeader(
        consumer_group=f"group{number % 7}",
        topic="Honest",
        queue_id=1,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=6,  # may wait, and has its subscription
        commit_offset=0,
        suspend_timeout_millis=600_000,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header=header)


def heartbeat(number: int) -> RemotingCommand:
    """A heartbeat of another client each time, with a group of its own."""
    client = {"clientID": f"client{number}", "producerDataSet": [{"groupName": f"group{number}"}]}
    return RemotingCommand.request(RequestCode.HEART_BEAT, body=json.dumps(client).encode())


def unknown(_: int) -> RemotingCommand:
    return RemotingCommand.request(9_999, body=bytes(1_000))


@pytest.mark.parametrize(
    ("make", "count"),
    [(message, 1_000), (long_poll, 20_000), (heartbeat, 10_000), (unknown, 50_000)],
)
def test_a_flood_of_one_way_requests_costs_bounded_memory(
    tmp_path: Path, make: Callable[[int], RemotingCommand], count: int
) -> None:
    with running_broker(tmp_path) as (target, client, _), ExitStack() as peers:
        is_served(target, client)
        before = target.resident()
        for first in range(FLOODS):
            frames = bytearray()
            for number in range(first, count, FLOODS):
                command = make(number)
                command.flag |= FLAG_ONEWAY
                frames += encode_command(command)
            peer = peers.enter_context(socket.create_connection(target.address))
            peer.sendall(frames)
            is_served(target, client)
        for _ in range(3):
            is_served(target, client)
        growth = target.resident() - before
        assert growth < FLOOD_MAX, f"{growth // MIB} MiB"
        peers.close()
        is_served(target, client)
