"""A fenced group of real brokers stops member by member at the same entry, and ``leave`` has
nothing to fetch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import define, field
from harness.upgrade import RunUpgrade

from rmqpy.audit.facts.table_content import content_of
from rmqpy.cli import main
from rmqpy.model.errors import NetworkError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import BlockingConnection, send_request
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import (
    FAST_ELECTION,
    BrokerSpec,
    RmqpySite,
    ServerProcess,
    group_settings,
)
from rmqpy.testing.store_reader import read_store

MEMBERS = ("n0", "n1", "n2")
LEVELS = "1s 2s 3s 4s 5s 6s"
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01half"
WAIT_S = 60.0


@define(eq=False)
class LoadedGroup:
    """Three broker processes, and a producer of plain, delayed, and half messages."""

    root: Path
    blocks: list[PortBlock] = field(factory=list)
    servers: list[ServerProcess] = field(factory=list)
    acknowledged: int = 0
    _ended: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        site = RmqpySite(self.root)
        names = site.namesrv("namesrv", self._block(1).first)
        self.servers.append(names.start())
        ports = [self._block(1).first for _ in MEMBERS]
        for number, name in enumerate(MEMBERS):
            spec = BrokerSpec(
                port=self._block(BROKER_PORT_COUNT).broker_port,
                namesrv=names.address,
                settings={
                    **FAST_ELECTION,
                    **group_settings("broker-a", ports, number),
                    "messageDelayLevel": LEVELS,
                    "transactionCheckInterval": "300",
                    "transactionTimeOut": "100",
                },
            )
            self.servers.append(site.broker(name, spec))
        with ThreadPoolExecutor() as starts:
            list(starts.map(ServerProcess.start, self.brokers))

    @property
    def brokers(self) -> list[ServerProcess]:
        return self.servers[1:]

    def load(self) -> None:
        """Start to send to whichever member accepts messages."""
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        deadline = time.monotonic() + WAIT_S
        while self.acknowledged < 100:
            assert time.monotonic() < deadline, self.brokers[0].printed()[-3000:]
            self._ended.wait(0.01)

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        for server in self.servers:
            server.kill()
        for block in self.blocks:
            block.release()

    def _send(self) -> None:
        for server in itertools.cycle(self.brokers):
            if self._ended.wait(0.01):
                return
            with contextlib.suppress(NetworkError), BlockingConnection(server.address) as member:
                while not self._ended.is_set() and member.call(self._message()).code == 0:
                    self.acknowledged += 1

    def _message(self) -> RemotingCommand:
        """Return the next request: every other message is delayed, every tenth is a half one."""
        number = self.acknowledged
        if number % 10 == 0:
            request = send_request("T", 0, [b"half %d" % number], HALF)
            request.ext_fields["f"] = "4"
            return request
        delay = f"\x02DELAY\x01{number % 6 + 1}" if number % 2 else ""
        return send_request("T", 0, [b"%d" % number], f"UNIQ_KEY\x01U{number}{delay}")

    def _block(self, count: int) -> PortBlock:
        self.blocks.append(free_port_block(count))
        return self.blocks[-1]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedGroup]:
    group = LoadedGroup(tmp_path)
    try:
        group.start()
        group.load()
        yield group
    finally:
        group.close()


def entries_of(store: Path) -> bytes:
    """Return the data files of a member, without the parts that were never written."""
    (folder,) = store.glob("dledger-n*")
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted((folder / "data").iterdir()))


@pytest.mark.slow
def test_a_fenced_group_ends_at_one_entry(
    loaded: LoadedGroup, run: RunUpgrade, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["-n", loaded.servers[0].address]
    assert main(["admin", "updateTopic", *names, "-c", "DefaultCluster", "-t", "Late"]) == 0
    assert main(["admin", "updateSubGroup", *names, "-c", "DefaultCluster", "-g", "late"]) == 0
    capsys.readouterr()
    fence = ["admin", "fence", *names, "-m", "broker-a"]
    assert main([*fence, "--seconds", "120", "--format", "json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    (end,) = {member["end"] for member in members}
    assert {member["confirmed"] for member in members} == {end}
    stores = [server.store for server in loaded.brokers if server.store is not None]
    topics = {message.topic for message in read_store(stores[0]).messages}
    assert {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= topics
    acknowledged = loaded.acknowledged
    for number, server in enumerate(loaded.brokers):
        assert server.stop() == 0
        if number == 0:
            assert main(fence) == 1
            assert "found 2 registered members" in capsys.readouterr().err
    assert loaded.acknowledged == acknowledged
    for name in ("topics.json", "subscriptionGroup.json"):
        tables = [
            content_of(name, json.loads((store / "config" / name).read_text())) for store in stores
        ]
        assert tables[0] == tables[1] == tables[2] and {"Late", "late"} & tables[0].keys()
    ledgers = [entries_of(store) for store in stores]
    assert ledgers[0] == ledgers[1] == ledgers[2] != b""
    shown = " ".join(f"{name}={store}" for name, store in zip(MEMBERS, stores, strict=True))
    confs = " ".join(f"-c {name}={loaded.root / name / 'broker.conf'}" for name in MEMBERS)
    roles = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
    plan = loaded.root / "leave.json"
    code, out, err = run(f"leave {shown} {confs} {roles} --out {plan}")
    assert code == 0, out + err
    kinds = {op["op"] for node in json.loads(plan.read_text())["nodes"] for op in node["ops"]}
    assert kinds and "fetch" not in kinds
