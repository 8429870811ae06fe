"""Processes: a slave finds its master again after kill -9, and one that was started later than it.

The pauses between its attempts are those of tests/ha/test_link.py; here the attempts are real.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import define

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import KVTable
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess
from rmqpy.testing.store_reader import read_store

WAIT_S = 60.0


@define
class Pair:
    master: ServerProcess
    slave: ServerProcess

    def send(self, body: bytes) -> int:
        with BlockingConnection(self.master.address) as connection:
            return connection.call(send_request("T", 0, [body])).code

    def slave_info(self) -> dict[str, str]:
        with BlockingConnection(self.slave.address) as connection:
            request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            return KVTable.decode(connection.call(request).body).table

    def wait(self, reached: Callable[[], bool]) -> None:
        deadline, pause = time.monotonic() + WAIT_S, threading.Event()
        while not reached():
            assert time.monotonic() < deadline, self.slave.printed()[-3000:]
            pause.wait(0.02)

    def bodies(self, server: ServerProcess) -> list[bytes]:
        assert server.store is not None
        return [message.body for message in read_store(server.store).messages]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Return a SYNC_MASTER and its slave, neither of them started."""
    site = RmqpySite(tmp_path)
    blocks = [free_port_block(1), free_port_block(BROKER_PORT_COUNT)]
    blocks.append(free_port_block(BROKER_PORT_COUNT))
    names = site.namesrv("namesrv", blocks[0].first)
    ports = [block.broker_port for block in blocks[1:]]
    settings = (
        {"brokerRole": "SYNC_MASTER", "brokerId": "0", "syncFlushTimeout": "500"},
        {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"127.0.0.1:{ports[0] + 1}"},
    )
    servers = [
        site.broker(f"n{number}", BrokerSpec(port=port, namesrv=names.address, settings=each))
        for number, (port, each) in enumerate(zip(ports, settings, strict=True))
    ]
    names.start()
    try:
        yield Pair(*servers)
    finally:
        for server in (*servers, names):
            server.kill()
        for block in blocks:
            block.release()


@pytest.mark.slow
def test_a_slave_finds_its_master_whenever_it_is_started_or_killed(pair: Pair) -> None:
    pair.slave.start()
    pair.wait(lambda: "does not answer" in pair.slave_info().get("haLastFault", ""))
    sent = []
    for turn in range(3):
        pair.master.start()
        pair.wait(lambda: pair.send(b"first") == ResponseCode.SUCCESS)
        sent.append(b"turn %d" % turn)
        assert pair.send(sent[-1]) == ResponseCode.SUCCESS, "the slave has it, too"
        assert pair.slave_info()["haState"].startswith("connected to")
        pair.master.kill()
        pair.wait(lambda: pair.slave_info()["haState"].startswith("waiting"))
    assert pair.slave.stop() == 0
    found = [body for body in pair.bodies(pair.slave) if body != b"first"]
    assert found == sent == [body for body in pair.bodies(pair.master) if body != b"first"]
