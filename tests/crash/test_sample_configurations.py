"""The sample configurations of the Java broker start this broker with only ports and paths changed:
two masters without slaves, two with a slave each (synchronous and asynchronous), and a DLedger
group.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import MetadataRequest, MetadataResponse
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block
from rmqpy.testing.processes import (
    LOOPBACK,
    RmqpySite,
    ServerProcess,
    python_environment,
    write_properties,
)

pytestmark = pytest.mark.crash

SECONDS_MAX = 60
COMMON = {"brokerClusterName": "DefaultCluster", "deleteWhen": "04", "fileReservedTime": "48"}
MEMBERS = {
    "brokerClusterName": "RaftCluster",
    "brokerName": "RaftNode00",
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "RaftNode00",
    "sendMessageThreadPoolNums": "16",
}


def classic(name: str, broker_id: str, role: str) -> dict[str, str]:
    return COMMON | {
        "brokerName": name,
        "brokerId": broker_id,
        "brokerRole": role,
        "flushDiskType": "ASYNC_FLUSH",
    }


SAMPLES = {
    "2m-noslave": [classic(name, "0", "ASYNC_MASTER") for name in ("broker-a", "broker-b")],
    "2m-2s-sync": [
        classic(name, number, role)
        for name in ("broker-a", "broker-b")
        for number, role in (("0", "SYNC_MASTER"), ("1", "SLAVE"))
    ],
    "2m-2s-async": [
        classic(name, number, role)
        for name in ("broker-a", "broker-b")
        for number, role in (("0", "ASYNC_MASTER"), ("1", "SLAVE"))
    ],
    "dledger": [MEMBERS | {"dLegerSelfId": f"n{number}"} for number in range(3)],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_sample_starts(sample: str, tmp_path: Path) -> None:
    name_port, peers = free_port_block(1), free_port_block(3)
    table = ";".join(f"n{number}-{LOOPBACK}:{port}" for number, port in enumerate(peers))
    blocks = [free_port_block(BROKER_PORT_COUNT) for _ in SAMPLES[sample]]
    brokers = []
    with RmqpySite(tmp_path).namesrv("namesrv", name_port.first) as namesrv:
        try:
            for number, (lines, block) in enumerate(zip(SAMPLES[sample], blocks, strict=True)):
                store = tmp_path / f"store-{number}"
                here = {
                    "listenPort": str(block.broker_port),
                    "namesrvAddr": namesrv.address,
                    "storePathRootDir": str(store),
                    "storePathCommitLog": str(store / "commitlog"),
                }
                if sample == "dledger":
                    here["dLegerPeers"] = table
                brokers.append(broker(tmp_path, number, lines | here, block.broker_port).start())
            if sample == "dledger":
                wait_for_leader("RaftNode00", peers.first)
            for each in brokers:
                assert each.stop() == 0
        finally:
            for each in brokers:
                each.kill()


def broker(root: Path, number: int, lines: dict[str, str], port: int) -> ServerProcess:
    directory = root / f"broker-{number}"
    conf = write_properties(directory / "broker.properties", lines)
    argv = [RmqpySite(root).python, "-m", "rmqpy.cli", "broker", "-c", str(conf)]
    ready = re.compile(rb"^ready: ", re.MULTILINE)
    environment = python_environment()
    return ServerProcess(f"broker-{number}", argv, directory, port, ready, environment=environment)


def wait_for_leader(group: str, port: int) -> None:
    request = MetadataRequest(group=group, remote_id="n0")
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            with BlockingConnection(f"{LOOPBACK}:{port}") as connection:
                answer = connection.call(
                    RemotingCommand.request(request.CODE, body=encode(request))
                )
            found = decode_response(MetadataRequest, answer.body)
            assert isinstance(found, MetadataResponse)
            if found.leader_id is not None:
                return
        except NetworkError:
            pass
        assert time.monotonic() < deadline, "no member leads"
        time.sleep(0.2)
