"""Access control 1.0 across implementations, in classic mode and on DLedger: Java's clients and
mqadmin sign requests to our broker, our client and admin commands sign requests to Java's, with the
same accounts and the same answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest
from attrs import define
from harness.interop import ROUTE_WAIT_MS, InteropServers

from rmqpy.client import (
    ClientInstance,
    ClientSettings,
    Credentials,
    Message,
    Producer,
    PullConsumer,
)
from rmqpy.model.errors import RequestRejectedError
from rmqpy.testing.java import MqAdmin, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, ServerProcess, dledger_settings

pytestmark = pytest.mark.interop


class Account(TypedDict):
    """The options with which the probe signs."""

    accessKey: str
    secretKey: str


PLAIN = Account(accessKey="plain-user", secretKey="plain-secret")
ADMIN = Account(accessKey="administrator", secretKey="admin-secret")
ACCOUNTS = """\
globalWhiteRemoteAddresses:
accounts:
- accessKey: plain-user
  secretKey: plain-secret
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Open=PUB|SUB
  - Closed=DENY
  groupPerms:
  - readers=SUB
  - probe-producer=SUB
- accessKey: administrator
  secretKey: admin-secret
  whiteRemoteAddress:
  admin: true
"""


@define
class GuardedCluster:
    """A broker with access control, its name server, and clients that can sign."""

    kind: str
    home: Path
    namesrv: ServerProcess
    broker: ServerProcess
    probe: Probe
    admin: MqAdmin

    def sent(self, topic: str, **options: object) -> int:
        """Send three messages and return how many were accepted."""
        events = self.probe.run(
            "send", topic=topic, count=3, queue=0, timeout_s=60.0, events=None, **options
        )
        return sum(event.get("count", 1) for event in events if event["event"] in ("sent", "batch"))

    def rmqpy_admin(
        self, *words: str, account: Account = ADMIN
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "RMQPY_ACCESS_KEY": account["accessKey"],
            "RMQPY_SECRET_KEY": account["secretKey"],
        }
        argv = [sys.executable, "-m", "rmqpy.cli", "admin", *words, "-n", self.namesrv.address]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(
    scope="module",
    params=[(kind, mode) for mode in ("classic", "dledger") for kind in ("java", "rmqpy")],
    ids="-".join,
)
def guarded(request: pytest.FixtureRequest, servers: InteropServers) -> Iterator[GuardedCluster]:
    kind, mode = request.param
    name = f"guarded-{kind}-{mode}"
    site = servers.site(kind)
    home = site.root / f"{name}-broker"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv = servers.namesrv(kind, f"{name}-namesrv")
    settings = {"aclEnable": "true", "autoCreateTopicEnable": "false"}
    if mode == "dledger":
        settings |= dledger_settings("broker-a", servers.block(1).first)
    if kind == "rmqpy":
        settings["rocketmqHome"] = str(home)
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        settings=settings,
    )
    broker = servers.take(site.broker(f"{name}-broker", spec).start())
    tools = servers.java.root / "admin" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True, exist_ok=True)
    tools.write_text("accessKey: administrator\nsecretKey: admin-secret\n")
    cluster = GuardedCluster(
        kind,
        home,
        namesrv,
        broker,
        servers.probe.at(namesrv.address),
        servers.admin.at(namesrv.address),
    )
    for topic in ("Open", "Closed"):
        cluster.probe.run("createTopic", topic=topic, broker=broker.address, **ADMIN)
    yield cluster
    tools.unlink()
    broker.stop()
    namesrv.stop()


def test_java_clients_are_authorized_by_their_accounts(guarded: GuardedCluster) -> None:
    assert guarded.sent("Open", retryMs=ROUTE_WAIT_MS, **PLAIN) == 3
    assert guarded.sent("Open", mode="batch", retryMs=ROUTE_WAIT_MS, **PLAIN) == 3
    assert guarded.sent("Closed", retryMs=ROUTE_WAIT_MS, **ADMIN) == 3
    assert guarded.sent("Closed", **PLAIN) == 0
    assert guarded.sent("Open") == 0
    assert guarded.sent("Open", accessKey="plain-user", secretKey="other-secret") == 0
    taken = guarded.probe.run("consume", topic="Open", group="readers", **PLAIN)
    assert taken[-1] == {"event": "consumed", "count": 6}


def test_only_java_accepts_a_batch_without_permission(guarded: GuardedCluster) -> None:
    stored = guarded.sent("Closed", mode="batch", **PLAIN)
    assert stored == (3 if guarded.kind == "java" else 0)


def test_mqadmin_administrates_with_its_tools_file(guarded: GuardedCluster) -> None:
    address = guarded.broker.address
    created = guarded.admin.run(
        "updateAclConfig",
        "-b",
        address,
        "-a",
        "made-by-mqadmin",
        "-s",
        "made-secret",
        "-t",
        "Open=SUB",
    )
    assert "success" in created, created
    assert guarded.sent("Open", accessKey="made-by-mqadmin", secretKey="made-secret") == 0
    listed = guarded.admin.run("getAccessConfigSubCommand", "-b", address)
    assert "made-by-mqadmin" in listed, listed
    assert ("made-secret" in listed) == (guarded.kind == "java")
    versions = guarded.admin.run("clusterAclConfigVersion", "-b", address)
    assert "plain_acl.yml" in versions and address in versions, versions
    white = guarded.admin.run("updateGlobalWhiteAddr", "-b", address, "-g", "10.10.154.1")
    assert "success" in white, white
    deleted = guarded.admin.run("deleteAccessConfig", "-b", address, "-a", "made-by-mqadmin")
    assert "success" in deleted, deleted
    assert "made-by-mqadmin" not in (guarded.home / "conf" / "plain_acl.yml").read_text()


def test_our_admin_commands_are_signed(guarded: GuardedCluster) -> None:
    address = guarded.broker.address
    created = guarded.rmqpy_admin(
        "updateAclConfig", "-b", address, "-a", "made-by-rmqpy", "-s", "made-secret"
    )
    assert created.returncode == 0, created.stderr
    listed = guarded.rmqpy_admin("getAclConfig", "-b", address, "--format", "json")
    assert "made-by-rmqpy" in json.dumps(json.loads(listed.stdout))
    deleted = guarded.rmqpy_admin("deleteAclConfig", "-b", address, "-a", "made-by-rmqpy")
    assert deleted.returncode == 0, deleted.stderr
    unsigned = guarded.rmqpy_admin(
        "deleteTopic",
        "-c",
        "DefaultCluster",
        "-t",
        "Open",
        account={"accessKey": "nobody-known", "secretKey": "no-secret-at-all"},
    )
    assert unsigned.returncode == 1
    assert "AclException" in unsigned.stderr


def test_our_client_signs_its_requests(guarded: GuardedCluster) -> None:
    async def scenario() -> list[bytes]:
        credentials = Credentials(PLAIN["accessKey"], PLAIN["secretKey"])
        settings = ClientSettings(name_servers=guarded.namesrv.address, credentials=credentials)
        instance = await ClientInstance.open(settings)
        try:
            async with Producer("writers", instance=instance) as producer:
                assert await producer.send_batch(
                    [Message(topic="Open", body=b"one"), Message(topic="Open", body=b"two")]
                )
                single = await producer.send(Message(topic="Open", body=b"three"))
                with pytest.raises(RequestRejectedError, match="AclException"):
                    await producer.send(Message(topic="Closed", body=b"never"))
            async with PullConsumer("readers", instance=instance) as consumer:
                queue = single.queue
                end = await consumer.max_offset(queue)
                pulled = await consumer.pull(queue, end - 1)
            return [message.body for message in pulled.messages]
        finally:
            await instance.close()

    assert asyncio.run(scenario()) == [b"three"]


@pytest.mark.parametrize(("master", "slave"), [("java", "rmqpy"), ("rmqpy", "java")])
def test_a_slave_synchronizes_with_a_master_that_has_access_control(
    servers: InteropServers, master: str, slave: str
) -> None:
    """Our slave signs; Java's cannot, and is accepted by its address, as by a Java master."""
    name = f"guarded-{master}-with-{slave}"
    home = servers.site(master).root / f"{name}-master"
    (home / "conf").mkdir(parents=True)
    white = "globalWhiteRemoteAddresses: [127.0.0.1]" if slave == "java" else ""
    accounts = ACCOUNTS.replace("globalWhiteRemoteAddresses:", white)
    (home / "conf" / "plain_acl.yml").write_text(accounts)
    namesrv = servers.namesrv("java", f"{name}-namesrv")
    brokers = {}
    for role, kind in (("master", master), ("slave", slave)):
        settings = {"brokerRole": "ASYNC_MASTER" if role == "master" else "SLAVE"}
        if role == "master":
            settings |= {"aclEnable": "true"}
            if kind == "rmqpy":
                settings["rocketmqHome"] = str(home)
        else:
            settings["brokerId"] = "1"
            if kind == "rmqpy":
                settings["innerClientAuthenticationCredentials"] = json.dumps(ADMIN)
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings=settings,
        )
        brokers[role] = servers.take(servers.site(kind).broker(f"{name}-{role}", spec).start())
    probe = servers.probe.at(namesrv.address)
    probe.run("createTopic", topic="Synchronized", broker=brokers["master"].address, **ADMIN)
    store = brokers["slave"].store
    assert store is not None
    table = store / "config" / "topics.json"
    deadline = time.monotonic() + 60
    while not (table.exists() and "Synchronized" in table.read_text()):
        assert time.monotonic() < deadline, "the slave does not know the topic"
        time.sleep(0.2)
    for server in (*brokers.values(), namesrv):
        server.stop()
