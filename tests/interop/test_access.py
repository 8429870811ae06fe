"""Access control 1.0 across implementations: Java's clients and mqadmin sign for our broker, our
client and admin commands for Java's; the same accounts, the same answers, in classic mode and on
DLedger.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attrs import define
from harness.interop import InteropServers

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

PLAIN = {"accessKey": "plain-user", "secretKey": "plain-secret"}
ADMIN = {"accessKey": "administrator", "secretKey": "admin-secret"}
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
class Guarded:
    """A broker with access control, and signing clients."""

    kind: str
    home: Path
    namesrv: ServerProcess
    broker: ServerProcess
    probe: Probe
    admin: MqAdmin

    def sent(self, topic, **options):
        """How many of three messages were taken."""
        events = self.probe.run("send", topic=topic, count=3, queue=0, **options)
        return sum(event.get("count", 1) for event in events if event["event"] in ("sent", "batch"))

    def rmqpy_admin(self, *words, account=ADMIN):
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
def guarded(request: pytest.FixtureRequest, ground: InteropServers):
    kind, mode = request.param
    name = f"guarded-{kind}-{mode}"
    site = ground.site(kind)
    home = site.root / f"{name}-broker"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    namesrv = ground.namesrv(kind, f"{name}-namesrv")
    settings = {"aclEnable": "true", "autoCreateTopicEnable": "false"}
    if mode == "dledger":
        settings |= dledger_settings("broker-a", ground.block(1).first)
    if kind == "rmqpy":
        settings["rocketmqHome"] = str(home)
    spec = BrokerSpec(
        port=ground.block(BROKER_PORT_COUNT).broker_port, namesrv=namesrv.address, settings=settings
    )
    broker = ground.take(site.broker(f"{name}-broker", spec).start())
    tools = ground.java.root / "admin" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True, exist_ok=True)
    tools.write_text("accessKey: administrator\nsecretKey: admin-secret\n")
    made = Guarded(
        kind,
        home,
        namesrv,
        broker,
        ground.probe.at(namesrv.address),
        ground.admin.at(namesrv.address),
    )
    for topic in ("Open", "Closed"):
        made.probe.run("createTopic", topic=topic, broker=broker.address, **ADMIN)
    yield made
    tools.unlink()
    broker.stop()
    namesrv.stop()


def test_javas_clients_are_let_in_by_their_accounts(guarded) -> None:
    route = {"retryMs": 20_000}
    assert guarded.sent("Open", **PLAIN, **route) == 3
    assert guarded.sent("Open", mode="batch", **PLAIN, **route) == 3
    assert guarded.sent("Closed", **ADMIN, **route) == 3
    assert guarded.sent("Closed", **PLAIN) == 0
    assert guarded.sent("Open") == 0
    assert guarded.sent("Open", accessKey="plain-user", secretKey="other-secret") == 0
    taken = guarded.probe.run("consume", topic="Open", group="readers", **PLAIN)
    assert taken[-1] == {"event": "consumed", "count": 6}


def test_the_batch_hole_is_open_in_java_only(guarded) -> None:
    stored = guarded.sent("Closed", mode="batch", **PLAIN)
    assert stored == (3 if guarded.kind == "java" else 0)


def test_mqadmin_administrates_with_its_tools_file(guarded) -> None:
    address = guarded.broker.address
    made = guarded.admin.run(
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
    assert "success" in made, made
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


def test_our_admin_commands_are_signed(guarded) -> None:
    address = guarded.broker.address
    made = guarded.rmqpy_admin(
        "updateAclConfig", "-b", address, "-a", "made-by-rmqpy", "-s", "made-secret"
    )
    assert made.returncode == 0, made.stderr
    listed = guarded.rmqpy_admin("getAclConfig", "-b", address, "--format", "json")
    assert "made-by-rmqpy" in json.dumps(json.loads(listed.stdout))
    gone = guarded.rmqpy_admin("deleteAclConfig", "-b", address, "-a", "made-by-rmqpy")
    assert gone.returncode == 0, gone.stderr
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


def test_our_client_signs_what_java_asks_for(guarded) -> None:
    async def whole():
        credentials = Credentials(PLAIN["accessKey"], PLAIN["secretKey"])
        settings = ClientSettings(name_servers=guarded.namesrv.address, credentials=credentials)
        instance = await ClientInstance.open(settings)
        try:
            async with Producer("writers", instance=instance) as producer:
                results = await producer.send_batch(
                    [Message(topic="Open", body=b"one"), Message(topic="Open", body=b"two")]
                )
                single = await producer.send(Message(topic="Open", body=b"three"))
                with pytest.raises(RequestRejectedError, match="AclException"):
                    await producer.send(Message(topic="Closed", body=b"never"))
            async with PullConsumer("readers", instance=instance) as consumer:
                queue = single.queue
                end = await consumer.max_offset(queue)
                pulled = await consumer.pull(queue, end - 1)
            return results, [message.body for message in pulled.messages]
        finally:
            await instance.close()

    results, bodies = asyncio.run(whole())
    assert bodies == [b"three"]
    assert results


@pytest.mark.parametrize(("master", "slave"), [("java", "rmqpy"), ("rmqpy", "java")])
def test_a_slave_synchronizes_with_a_guarded_master(ground: InteropServers, master, slave) -> None:
    """Ours signs; Java's cannot, and is let in by its address, as with a master of Java."""
    name = f"guarded-{master}-with-{slave}"
    home = ground.site(master).root / f"{name}-master"
    (home / "conf").mkdir(parents=True)
    white = "globalWhiteRemoteAddresses: [127.0.0.1]" if slave == "java" else ""
    accounts = ACCOUNTS.replace("globalWhiteRemoteAddresses:", white)
    (home / "conf" / "plain_acl.yml").write_text(accounts)
    namesrv = ground.namesrv("java", f"{name}-namesrv")
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
            port=ground.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings=settings,
        )
        brokers[role] = ground.take(ground.site(kind).broker(f"{name}-{role}", spec).start())
    probe = ground.probe.at(namesrv.address)
    probe.run("createTopic", topic="Synchronized", broker=brokers["master"].address, **ADMIN)
    table = brokers["slave"].store / "config" / "topics.json"
    deadline = time.monotonic() + 60
    while not (table.exists() and "Synchronized" in table.read_text()):
        assert time.monotonic() < deadline, "the slave does not know the topic"
        time.sleep(0.2)
    for server in (*brokers.values(), namesrv):
        server.stop()
