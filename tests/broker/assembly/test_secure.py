"""Whole groups with ``securityMode=secure`` on loopback sockets, and settings that it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client import (
    ClientInstance,
    ClientSettings,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    SendStatus,
    TlsSide,
)
from rmqpy.config.loading import (
    configuration_text,
    effective_lines,
    load_broker_configuration,
    load_namesrv_configuration,
)
from rmqpy.model.errors import ConfigError, NetworkError, RmqError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.remoting.bodies import TopicConfig
from rmqpy.testing.ports import BROKER_PORT_COUNT, free_port_block

DEADLINE_S = 60
BROKERS = {"accessKey": "all-brokers", "secretKey": "brokers-secret"}
ACCOUNTS = """\
accounts:
- {accessKey: all-brokers, secretKey: brokers-secret, admin: true}
- accessKey: application
  secretKey: app-secret
  topicPerms: [Orders=PUB|SUB]
  groupPerms: [readers=SUB]
"""
SMALL = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "diskMaxUsedSpaceRatio": "95",
}


def secure_settings(root: Path, tls: Path) -> dict[str, str]:
    conf = root / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "plain_acl.yml").write_text(ACCOUNTS)
    (conf / "plain_acl.yml").chmod(0o640)
    return {
        "securityMode": "secure",
        "rocketmqHome": str(root),
        "tls.server.certPath": str(tls / "server.pem"),
        "tls.server.keyPath": str(tls / "server.key"),
        "tls.client.trustCertPath": str(tls / "ca.pem"),
    }


@define
class SecureServers:
    """Creates servers, which stop when the test ends."""

    root: Path
    tls: Path
    scheduler: AsyncioScheduler
    stack: AsyncExitStack
    brokers: list[BrokerRuntime] = field(factory=list)
    name_server: str = ""

    async def namesrv(self) -> None:
        block = free_port_block(1)
        own = {"listenPort": str(block[0]), "kvConfigPath": str(self.root / "kv.json")}
        settings = {**secure_settings(self.root, self.tls), **own}
        loaded = load_namesrv_configuration(None, settings, {"HOME": str(self.root)})
        process = NamesrvProcess(loaded.configuration, self.scheduler)
        await process.start()
        self.stack.push_async_callback(process.stop)
        self.name_server = process.address

    async def broker(self, settings: Mapping[str, str]) -> BrokerRuntime:
        block = free_port_block(BROKER_PORT_COUNT)
        own = {
            "brokerName": "broker-a",
            "brokerClusterName": "c",
            "listenPort": str(block.broker_port),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(self.root / f"store-{len(self.brokers)}"),
            "innerClientAuthenticationCredentials": json.dumps(BROKERS),
        }
        values = {**SMALL, **secure_settings(self.root, self.tls), **own, **settings}
        loaded = load_broker_configuration(None, values, {"HOME": str(self.root)})
        process = BrokerRuntime(loaded.configuration, self.scheduler)
        await process.start()
        self.stack.push_async_callback(process.stop)
        self.brokers.append(process)
        return process

    def client(self, account: Mapping[str, str] | None = None, tls: bool = True) -> ClientSettings:
        return ClientSettings(
            name_servers=self.name_server,
            credentials=Credentials(account["accessKey"], account["secretKey"])
            if account
            else None,
            tls=TlsSide(trust=str(self.tls / "ca.pem"), verify=True) if tls else None,
        )

    async def write_and_read(self, topic_ready: Callable[[], bool]) -> list[bytes]:
        """Send a message and read it back as the application, once the topic is registered."""
        async with asyncio.timeout(30):
            while not topic_ready():
                await asyncio.sleep(0.05)
        account = {"accessKey": "application", "secretKey": "app-secret"}
        instance = await ClientInstance.open(self.client(account))
        try:
            async with Producer("writers", instance=instance) as producer:
                for _ in range(100):
                    try:
                        sent = await producer.send(Message(topic="Orders", body=b"signed"))
                    except RmqError:
                        await asyncio.sleep(0.1)
                        continue
                    if sent.status is SendStatus.SEND_OK:
                        break
                    await asyncio.sleep(0.1)
            assert sent.status is SendStatus.SEND_OK
            async with PullConsumer("readers", instance=instance) as consumer:
                pulled = await consumer.pull(sent.queue, sent.queue_offset)
            return [message.body for message in pulled.messages]
        finally:
            await instance.close()


Scenario = Callable[["SecureServers"], Coroutine[Any, Any, None]]
RunScenario = Callable[[Scenario], None]


@asynccontextmanager
async def secure_servers(root: Path, tls: Path) -> AsyncIterator[SecureServers]:
    scheduler = AsyncioScheduler()
    async with AsyncExitStack() as stack:
        servers = SecureServers(root, tls, scheduler, stack)
        await servers.namesrv()
        yield servers
    await scheduler.close()


@pytest.fixture
def secured(tmp_path: Path, tls_folder: Path) -> RunScenario:
    """Return a function that runs a scenario with servers in secure mode."""

    def run_scenario(scenario: Scenario) -> None:
        async def main(_: AsyncioScheduler) -> None:
            async with asyncio.timeout(DEADLINE_S), secure_servers(tmp_path, tls_folder) as servers:
                await scenario(servers)

        run(main)

    return run_scenario


def create_topic(broker: BrokerRuntime) -> None:
    broker.broker.topics.put(TopicConfig("Orders", 2, 2))


@pytest.mark.slow
def test_a_master_and_its_slave(secured: RunScenario) -> None:
    """Registration and synchronization are signed, the log is replicated over TLS, and SYNC_MASTER
    waits for it.
    """

    async def scenario(servers: SecureServers) -> None:
        known = {"replicationAddresses": "127.0.0.1"}
        master = await servers.broker({"brokerRole": "SYNC_MASTER", **known})
        slave = await servers.broker({"brokerRole": "SLAVE", "brokerId": "1", **known})
        create_topic(master)
        slaves = master.broker.replication.slaves
        assert slaves is not None
        assert await servers.write_and_read(lambda: slaves.count_at(0) == 1) == [b"signed"]
        async with asyncio.timeout(20):
            while slave.broker.topics.get("Orders") is None:
                await asyncio.sleep(0.05)
        assert slave.store.log.max_offset == master.store.log.max_offset

    secured(scenario)


@pytest.mark.slow
def test_a_dledger_group(secured: RunScenario) -> None:
    async def scenario(servers: SecureServers) -> None:
        block = free_port_block(3)
        peers = ";".join(f"n{number}-127.0.0.1:{block[number]}" for number in range(3))
        for number in range(3):
            await servers.broker(
                {
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": "broker-a",
                    "dLegerPeers": peers,
                    "dLegerSelfId": f"n{number}",
                }
            )

        def has_leader() -> bool:
            leaders = [each for each in servers.brokers if not each.broker.identity.is_slave]
            for leader in leaders:
                if leader.broker.topics.get("Orders") is None:
                    create_topic(leader)
            return bool(leaders)

        assert await servers.write_and_read(has_leader) == [b"signed"]

    secured(scenario)


def test_a_client_without_account_or_tls_is_refused(secured: RunScenario) -> None:
    async def scenario(servers: SecureServers) -> None:
        broker = await servers.broker({})
        create_topic(broker)
        for settings in (servers.client(), servers.client(BROKERS, tls=False)):
            instance = await ClientInstance.open(settings)
            with pytest.raises(RmqError):
                await instance.route("Orders")
            await instance.close()
        assert servers.brokers

    secured(scenario)


# -------------------------------------------------------------------------------- what is refused


def config_error(settings: Mapping[str, str], root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_broker_configuration(None, settings, {"HOME": str(root)})
    return str(caught.value)


@pytest.mark.parametrize(
    "setting",
    ["aclEnable=false", "tls.server.mode=permissive", "tls.enable=false", "haTlsEnable=false"],
)
def test_no_key_can_weaken_the_secure_mode(setting: str, tmp_path: Path, tls_folder: Path) -> None:
    name, _, value = setting.partition("=")
    settings = {**secure_settings(tmp_path, tls_folder), name: value}
    assert f"{name}={value} contradicts securityMode=secure" in config_error(settings, tmp_path)


def test_a_wildcard_is_not_an_address_list(tmp_path: Path, tls_folder: Path) -> None:
    settings = {**secure_settings(tmp_path, tls_folder), "registrationAddresses": "10.0.0.1; *"}
    with pytest.raises(ConfigError, match="list the allowed addresses"):
        load_namesrv_configuration(None, settings, {"HOME": str(tmp_path)})


def test_a_broker_needs_its_own_account(tmp_path: Path, tls_folder: Path) -> None:
    assert "innerClientAuthenticationCredentials" in config_error(
        secure_settings(tmp_path, tls_folder), tmp_path
    )


@pytest.mark.parametrize("fault_in", ["example", "readable", "no certificate"])
def test_a_start_that_would_not_be_secure_is_refused(fault_in: str, secured: RunScenario) -> None:
    async def scenario(servers: SecureServers) -> None:
        reason = {
            "example": "secret of Java's example file",
            "readable": "other users of this machine",
            "no certificate": "/nowhere",
        }[fault_in]
        settings = {}
        folder = servers.root / "second"
        if fault_in == "no certificate":
            settings["tls.server.certPath"] = "/nowhere"
        else:
            (folder / "conf").mkdir(parents=True)
            file = folder / "conf" / "plain_acl.yml"
            file.write_text("accounts: [{accessKey: RocketMQ, secretKey: 12345678}]")
            file.chmod(0o640 if fault_in == "example" else 0o644)
            settings["rocketmqHome"] = str(folder)
        with pytest.raises(ConfigError, match=reason):
            await servers.broker(settings)

    secured(scenario)


def test_secrets_are_written_to_the_file_and_never_shown(tmp_path: Path, tls_folder: Path) -> None:
    settings = {
        **secure_settings(tmp_path, tls_folder),
        "innerClientAuthenticationCredentials": json.dumps(BROKERS),
        "tls.server.keyPassword": "open-sesame",
    }
    loaded = load_broker_configuration(None, settings, {"HOME": str(tmp_path)})
    shown = "\n".join(effective_lines(loaded.configuration))
    assert "brokers-secret" not in shown and "open-sesame" not in shown
    assert "innerClientAuthenticationCredentials=******" in shown
    kept = configuration_text(loaded.configuration)
    assert "brokers-secret" in kept and "open-sesame" in kept


def test_a_request_without_an_account_is_refused_with_the_reason(
    secured: RunScenario,
) -> None:
    async def scenario(servers: SecureServers) -> None:
        instance = await ClientInstance.open(servers.client())
        with pytest.raises((RmqError, NetworkError), match="No accessKey"):
            await instance.route("Orders")
        await instance.close()

    secured(scenario)
