"""A synchronous master with two slaves, of rmqpy and of Java, which are paused and killed one by
one: what it answers, and that every replica has what was acknowledged.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from attrs import define, field
from harness.interop import MEMBERS, PATIENCE_SECONDS, Brokers, InteropServers, version_of

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import (
    BlockingConnection,
    connect_when_ready,
    create_topic,
    send_request,
)
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import SMALL_STORE, BrokerSpec, ServerProcess
from rmqpy.testing.store_reader import FoundMessage, read_store

pytestmark = pytest.mark.interop

OK = ResponseCode.SUCCESS
NO_SLAVE = ResponseCode.SLAVE_NOT_AVAILABLE
LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT
REFUSED = ResponseCode.SYSTEM_ERROR
ANSWERS = {
    "rmqpy": (LATE, NO_SLAVE, NO_SLAVE),
    "java-5.3.3": (LATE, LATE, LATE),
    "java": (OK, OK, NO_SLAVE),
}
"""The kind of the master -> its answers with ``inSyncReplicas=3`` while one slave is paused, one is
gone, both are gone. 4.9.7 does not know the setting: one slave is enough.
"""
ROLES = {
    "n0": {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3"},
    "n1": {"brokerRole": "SLAVE", "brokerId": "1"},
    "n2": {"brokerRole": "SLAVE", "brokerId": "2"},
}
SETTINGS = {"haSendHeartbeatInterval": "1000", "slaveTimeout": "2000"}
"""A Java slave sends its first report when it has been silent for the first time."""
PAUSE_SECONDS = 0.2
READY_SECONDS_MAX = 180
ONE_FILE = str(1 << 20)
"""A new slave starts with the last file, so there is only one."""


@define
class ThreeReplicas:
    """A master, n0, and its slaves, n1 and n2."""

    group: Brokers
    acknowledged: set[int] = field(factory=set, init=False)
    """Physical offsets of messages."""
    stored: int = field(default=0, init=False)
    """The number of messages that were not refused."""

    @classmethod
    def start(cls, servers: InteropServers, kinds: tuple[str, str, str]) -> ThreeReplicas:
        name = f"three-{'-'.join(kinds)}"
        namesrv = servers.namesrv("rmqpy", f"{name}-namesrv")
        made: dict[str, ServerProcess] = {}
        for member, kind in zip(MEMBERS, kinds, strict=True):
            spec = BrokerSpec(
                port=servers.block(BROKER_PORT_COUNT).broker_port,
                namesrv=namesrv.address,
                sizes={**SMALL_STORE, "mappedFileSizeCommitLog": ONE_FILE},
                settings={**SETTINGS, **ROLES[member]},
            )
            site = version_of(servers, kind)
            server = servers.take(site.broker(f"{name}-{member}", spec))
            server.ready_timeout_s = READY_SECONDS_MAX
            made[member] = server.start()
        group = cls(Brokers(servers.rmqpy.root, namesrv, made, "broker-a"))
        with connect_when_ready(group.master.address) as connection:
            create_topic(connection, "T", 1)
        return group

    @property
    def master(self) -> ServerProcess:
        return self.group.servers["n0"]

    @property
    def slaves(self) -> tuple[ServerProcess, ServerProcess]:
        return self.group.servers["n1"], self.group.servers["n2"]

    def put(self) -> RemotingCommand:
        with BlockingConnection(self.master.address) as connection:
            answer = connection.call(send_request("T", 0, [b"x" * 100]))
        self.stored += answer.code != REFUSED
        if answer.code == OK:
            self.acknowledged.add(int(answer.ext_fields["msgId"][-16:], 16))
        return answer

    def await_answer(self, code: int) -> RemotingCommand:
        """Send until the master has noticed what changed, and twice more; return the answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (answer := self.put()).code != code:
            assert time.monotonic() < deadline, (code, answer.code, answer.remark)
            time.sleep(PAUSE_SECONDS)
        assert [self.put().code for _ in range(2)] == [code, code]
        return answer

    def change(self, **settings: str) -> None:
        """Change settings of the running master."""
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        request = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        with BlockingConnection(self.master.address) as connection:
            answer = connection.call(request)
        assert answer.code == OK, answer.remark

    def stores(self) -> list[Path]:
        found = [server.store for server in self.group.servers.values()]
        return [store for store in found if store is not None]


@pytest.mark.parametrize(
    "kinds",
    [
        ("rmqpy", "rmqpy", "rmqpy"),
        ("rmqpy", "java-5.3.3", "java-5.3.3"),
        ("java", "java", "java"),
        ("java-5.3.3", "java-5.3.3", "java-5.3.3"),
    ],
    ids="-".join,
)
def test_two_slaves_are_lost_one_by_one(
    servers: InteropServers, kinds: tuple[str, str, str]
) -> None:
    group = ThreeReplicas.start(servers, kinds)
    paused, one_gone, both_gone = ANSWERS[kinds[0]]
    group.await_answer(OK)
    for slave in group.slaves:
        group.group.wait_until_level()  # One slave may have answered for both.
        os.kill(slave.pid, signal.SIGSTOP)
        try:
            assert group.put().code == paused, "neither slave alone is enough, whichever it is"
        finally:
            os.kill(slave.pid, signal.SIGCONT)
        group.await_answer(OK)
    first, second = group.slaves
    second.kill()
    group.await_answer(one_gone)
    first.kill()
    group.await_answer(both_gone)
    if kinds[0] == "rmqpy":
        group.change(minInSyncReplicas="2", enableAutoInSyncReplicas="true")
        assert "in-sync replicas not enough" in (group.await_answer(REFUSED).remark or "")
        first.start()
        group.await_answer(OK)
        group.change(minInSyncReplicas="3")
    else:
        first.start()
    second.start()
    group.await_answer(OK)
    group.group.wait_until_level()
    group.group.stop("n1", "n2", "n0")
    for store in group.stores():
        reading = read_store(store)
        assert reading.problems == []
        offsets = [each.physical_offset for each in reading.messages if each.topic == "T"]
        assert group.acknowledged <= {*offsets} and len(offsets) == group.stored
    first_log, *others = (log_of(store, reading.messages[-1]) for store in group.stores())
    assert all(log == first_log for log in others)


def log_of(store: Path, last: FoundMessage) -> bytes:
    """Return the log up to the last message; what follows is not replicated."""
    data = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    return data[: last.physical_offset + last.size]
