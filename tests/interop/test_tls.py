"""TLS across implementations: Java's client and mqadmin at our servers, ours at Java's.

Both Java and rmqpy read one ``tls.properties``; the Java programs get its path and the other keys
as system properties.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve
from harness.interop import InteropCluster, InteropServers

from rmqpy.client import ClientInstance, ClientSettings, Message, Producer, PullConsumer, TlsSide
from rmqpy.model.errors import NetworkError
from rmqpy.testing.java import JavaSite, JvmSettings
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, RmqpySite, dledger_settings

pytestmark = pytest.mark.interop

ROUTE_WAIT_MS = 20_000


@pytest.fixture(scope="module")
def tls_file(tls_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """Everybody verifies everybody."""
    file = tmp_path_factory.mktemp("tls") / "tls.properties"
    lines = {
        "tls.test.mode.enable": "false",
        "tls.server.need.client.auth": "require",
        "tls.server.keyPath": tls_folder / "server.key",
        "tls.server.certPath": tls_folder / "server.pem",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": tls_folder / "ca.pem",
        "tls.client.keyPath": tls_folder / "client.key",
        "tls.client.certPath": tls_folder / "client.pem",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": tls_folder / "ca.pem",
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return file


@pytest.fixture(scope="module")
def java_tls(ground: InteropServers, tls_file):
    """Java programs that speak TLS, and demand it where they serve."""
    options = {
        "tls.enable": "true",
        "tls.server.mode": "enforcing",
        "tls.test.mode.enable": "false",
        "tls.config.file": tls_file,
    }
    jvm = JvmSettings()
    more = tuple(f"-D{key}={value}" for key, value in options.items())
    return JavaSite(
        ground.java.root / "with-tls", ground.java.home, evolve(jvm, options=jvm.options + more)
    )


@pytest.fixture(scope="module", params=["java", "rmqpy", "rmqpy-dledger"])
def cluster(request: pytest.FixtureRequest, ground: InteropServers, java_tls, tls_file):
    """(kind, name server, broker, a Java probe, mqadmin), all behind TLS."""
    kind = request.param
    settings = {"tls.server.mode": "enforcing", "tls.enable": "true", "tls.config.file": tls_file}
    with ExitStack() as stack:
        if kind == "java":
            site, own = java_tls, {}
            namesrv = java_tls.namesrv(f"{kind}-namesrv", ground.block(1).first)
        else:
            site, own = RmqpySite(ground.rmqpy.root / "with-tls"), settings
            namesrv = site.namesrv(f"{kind}-namesrv", ground.block(1).first)
            namesrv.argv += [
                word for key, value in settings.items() for word in ("--set", f"{key}={value}")
            ]
        stack.callback(namesrv.kill)
        namesrv.start()
        if kind.endswith("dledger"):
            own = {**own, **dledger_settings("broker-a", ground.block(1).first)}
        spec = BrokerSpec(
            port=ground.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings={key: str(value) for key, value in own.items()},
        )
        broker = site.broker(f"{kind}-broker", spec)
        stack.callback(broker.kill)
        broker.start()
        probe = stack.enter_context(java_tls.probe(namesrv.address))
        admin = java_tls.admin(namesrv.address)
        stack.callback(admin.close)
        yield kind, namesrv, broker, probe, admin


def side(tls_folder):
    return TlsSide(
        certificate=str(tls_folder / "client.pem"),
        key=str(tls_folder / "client.key"),
        trust=str(tls_folder / "ca.pem"),
        verify=True,
    )


def test_javas_client_and_mqadmin_speak_tls(cluster: InteropCluster) -> None:
    _, _, broker, probe, admin = cluster
    probe.run("createTopic", topic="Tls", broker=broker.address)
    sent = probe.run("send", topic="Tls", count=20, retryMs=ROUTE_WAIT_MS, sizes="10,100000")
    assert sum(event["event"] == "sent" for event in sent) == 20
    taken = probe.run("consume", topic="Tls", group="tls-readers")
    assert taken[-1]["count"] == 20
    assert broker.address in admin.run("clusterList")


def test_our_client_and_admin_speak_tls(
    cluster: InteropCluster, tls_folder: Path, tls_file
) -> None:
    _, namesrv, broker, probe, _ = cluster
    probe.run("createTopic", topic="Ours", broker=broker.address)
    probe.run("send", topic="Ours", count=1, queue=0, retryMs=ROUTE_WAIT_MS)

    async def whole():
        settings = ClientSettings(name_servers=namesrv.address, tls=side(tls_folder))
        instance = await ClientInstance.open(settings)
        try:
            async with Producer("tls-writers", instance=instance) as producer:
                sent = await producer.send(Message(topic="Ours", body=b"x" * 200_000))
            async with PullConsumer("tls-readers", instance=instance) as consumer:
                pulled = await consumer.pull(sent.queue, sent.queue_offset)
            return [len(message.body) for message in pulled.messages]
        finally:
            await instance.close()

    assert asyncio.run(whole())[0] == 200_000
    argv = [sys.executable, "-m", "rmqpy.cli", "admin", "clusterList", "-n", namesrv.address]
    listed = subprocess.run(
        [*argv, "--format", "json", "--tls-config", str(tls_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert broker.address in json.dumps(json.loads(listed.stdout))


def test_who_shows_no_certificate_stays_outside(cluster: InteropCluster, tls_folder: Path) -> None:
    _, namesrv, _, _, _ = cluster

    async def asks(tls):
        instance = await ClientInstance.open(ClientSettings(name_servers=namesrv.address, tls=tls))
        try:
            with pytest.raises(NetworkError):
                await instance.route("Tls")
        finally:
            await instance.close()

    for tls in (None, TlsSide(trust=str(tls_folder / "ca.pem"), verify=True)):
        asyncio.run(asks(tls))
