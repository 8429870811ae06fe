"""TLS across implementations: Java's client and mqadmin with our servers, ours with Java's.

Java and rmqpy read the same ``tls.properties``; the Java programs receive its path and the other
keys as system properties.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import define, evolve
from harness.interop import ROUTE_WAIT_MS, InteropServers

from rmqpy.client import ClientInstance, ClientSettings, Message, Producer, PullConsumer, TlsSide
from rmqpy.model.errors import NetworkError
from rmqpy.testing.java import JavaSite, JvmSettings, MqAdmin, Probe
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import BrokerSpec, RmqpySite, ServerProcess, Site, dledger_settings

pytestmark = pytest.mark.interop


@define
class TlsCluster:
    """A name server, a broker, and Java clients, all of which speak only TLS."""

    namesrv: ServerProcess
    broker: ServerProcess
    probe: Probe
    admin: MqAdmin


@pytest.fixture(scope="module")
def tls_file(tls_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tls.properties with which every side verifies its peer."""
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
def java_tls(servers: InteropServers, tls_file: Path) -> JavaSite:
    """A site of Java programs that speak TLS, and whose servers require it."""
    options = {
        "tls.enable": "true",
        "tls.server.mode": "enforcing",
        "tls.test.mode.enable": "false",
        "tls.config.file": tls_file,
    }
    jvm = JvmSettings()
    more = tuple(f"-D{key}={value}" for key, value in options.items())
    return JavaSite(
        servers.java.root / "with-tls", servers.java.home, evolve(jvm, options=jvm.options + more)
    )


@pytest.fixture(scope="module", params=["java", "rmqpy", "rmqpy-dledger"])
def tls_cluster(
    request: pytest.FixtureRequest, servers: InteropServers, java_tls: JavaSite, tls_file: Path
) -> Iterator[TlsCluster]:
    kind: str = request.param
    settings = {
        "tls.server.mode": "enforcing",
        "tls.enable": "true",
        "tls.config.file": str(tls_file),
    }
    site: Site
    own: dict[str, str] = {}
    with ExitStack() as stack:
        if kind == "java":
            site = java_tls
            namesrv = java_tls.namesrv(f"{kind}-namesrv", servers.block(1).first)
        else:
            site, own = RmqpySite(servers.rmqpy.root / "with-tls"), dict(settings)
            namesrv = site.namesrv(f"{kind}-namesrv", servers.block(1).first)
            namesrv.argv += [
                word for key, value in settings.items() for word in ("--set", f"{key}={value}")
            ]
        stack.callback(namesrv.kill)
        namesrv.start()
        if kind.endswith("dledger"):
            own |= dledger_settings("broker-a", servers.block(1).first)
        spec = BrokerSpec(
            port=servers.block(BROKER_PORT_COUNT).broker_port,
            namesrv=namesrv.address,
            settings=own,
        )
        broker = site.broker(f"{kind}-broker", spec)
        stack.callback(broker.kill)
        broker.start()
        probe = stack.enter_context(java_tls.probe(namesrv.address))
        admin = java_tls.admin(namesrv.address)
        stack.callback(admin.close)
        yield TlsCluster(namesrv, broker, probe, admin)


def client_side(tls_folder: Path) -> TlsSide:
    return TlsSide(
        certificate=str(tls_folder / "client.pem"),
        key=str(tls_folder / "client.key"),
        trust=str(tls_folder / "ca.pem"),
        verify=True,
    )


def test_javas_client_and_mqadmin_speak_tls(tls_cluster: TlsCluster) -> None:
    broker, probe = tls_cluster.broker, tls_cluster.probe
    probe.run("createTopic", topic="Tls", broker=broker.address)
    sent = probe.run("send", topic="Tls", count=20, retryMs=ROUTE_WAIT_MS, sizes="10,100000")
    assert sum(event["event"] == "sent" for event in sent) == 20
    consumed = probe.run("consume", topic="Tls", group="tls-readers")
    assert consumed[-1]["count"] == 20
    assert broker.address in tls_cluster.admin.run("clusterList")


def test_our_client_and_admin_speak_tls(
    tls_cluster: TlsCluster, tls_folder: Path, tls_file: Path
) -> None:
    namesrv, broker = tls_cluster.namesrv, tls_cluster.broker
    tls_cluster.probe.run("createTopic", topic="Ours", broker=broker.address)
    tls_cluster.probe.run("send", topic="Ours", count=1, queue=0, retryMs=ROUTE_WAIT_MS)

    async def scenario() -> list[int]:
        settings = ClientSettings(name_servers=namesrv.address, tls=client_side(tls_folder))
        instance = await ClientInstance.open(settings)
        try:
            async with Producer("tls-writers", instance=instance) as producer:
                sent = await producer.send(Message(topic="Ours", body=b"x" * 200_000))
            async with PullConsumer("tls-readers", instance=instance) as consumer:
                pulled = await consumer.pull(sent.queue, sent.queue_offset)
            return [len(message.body) for message in pulled.messages]
        finally:
            await instance.close()

    assert asyncio.run(scenario())[0] == 200_000
    argv = [sys.executable, "-m", "rmqpy.cli", "admin", "clusterList", "-n", namesrv.address]
    listed = subprocess.run(
        [*argv, "--format", "json", "--tls-config", str(tls_file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert broker.address in json.dumps(json.loads(listed.stdout))


def test_a_client_without_a_certificate_is_refused(
    tls_cluster: TlsCluster, tls_folder: Path
) -> None:
    async def scenario(tls: TlsSide | None) -> None:
        settings = ClientSettings(name_servers=tls_cluster.namesrv.address, tls=tls)
        instance = await ClientInstance.open(settings)
        try:
            with pytest.raises(NetworkError):
                await instance.route("Tls")
        finally:
            await instance.close()

    for tls in (None, TlsSide(trust=str(tls_folder / "ca.pem"), verify=True)):
        asyncio.run(scenario(tls))
