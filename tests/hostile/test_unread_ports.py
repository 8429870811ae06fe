"""Peers that request data at the ports of other members and read none of it: the memory of a
broker in its own process.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from harness.hostile import GROUP_OF_ONE, MIB, running_broker, still_answers

from rmqpy.dledger.protocol.json_bodies import encode
from rmqpy.dledger.protocol.messages import GetEntriesRequest
from rmqpy.ha.frames import encode_report
from rmqpy.model.codes import ResponseCode
from rmqpy.model.ids import PhysicalOffset
from rmqpy.net.ha import SLAVES_MAX
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.testing.blocking_connection import BlockingConnection, send_request

pytestmark = pytest.mark.slow

BODY = bytes(MIB)
GROWTH_MAX = 64 * MIB
GETS = 300
"""In one read; answered at once they are 420 MB."""


def send(client: BlockingConnection, count: int) -> None:
    for _ in range(count):
        sent = client.call(send_request("Large", 0, [BODY]))
        assert sent.code == ResponseCode.SUCCESS, sent


def test_entries_that_nobody_reads_cost_bounded_memory(tmp_path: Path) -> None:
    with running_broker(tmp_path, **GROUP_OF_ONE) as (target, client, port):
        send(client, 1)
        request = GetEntriesRequest(begin_index=0, group="broker-a", remote_id="n0")
        frame = encode_command(RemotingCommand.request(request.CODE, body=encode(request)))
        stranger = socket.create_connection(("127.0.0.1", port))
        before = target.peak()
        stranger.sendall(frame * GETS)
        assert int.from_bytes(stranger.recv(4, socket.MSG_WAITALL)) > MIB
        still_answers(client)
        growth = target.peak() - before
        assert growth < GROWTH_MAX, f"{growth // MIB} MiB"
        stranger.close()
        still_answers(client)


def test_a_log_that_slaves_do_not_read_costs_bounded_memory(tmp_path: Path) -> None:
    with running_broker(tmp_path, brokerRole="ASYNC_MASTER") as (target, client, _):
        send(client, 24)
        host, port = target.address
        slaves = []
        before = target.resident()
        for _ in range(SLAVES_MAX):
            slave = socket.create_connection((host, port + 1))
            slave.sendall(encode_report(PhysicalOffset(1)))
            slaves.append(slave)
        for slave in slaves:
            assert slave.recv(4, socket.MSG_WAITALL)
        still_answers(client)
        growth = target.resident() - before
        assert growth < GROWTH_MAX, f"{growth // MIB} MiB"
        for slave in slaves:
            slave.close()
