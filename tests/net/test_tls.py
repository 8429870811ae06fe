"""TLS at both servers and in the client: modes by first byte, certificates, reloading."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from harness.net import EchoHandler, InLoop, SkewedScheduler, until

from rmqpy.config.loading import SecuritySettings
from rmqpy.config.security import ClientAuth, TlsMode
from rmqpy.model.errors import ConfigError, NetworkError
from rmqpy.net.client import RemotingClient
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.server.server import ListenerSecurity, RemotingServer
from rmqpy.net.tls import WATCH_MS, TlsContext, TlsSide, client_tls, tls_of
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


@pytest.fixture
def security(tls_folder: Path) -> SecuritySettings:
    """Return the settings of a server with a certificate."""
    return SecuritySettings(
        tls_server_cert_path=str(tls_folder / "server.pem"),
        tls_server_key_path=str(tls_folder / "server.key"),
    )


@pytest.fixture
def verifying(tls_folder: Path) -> TlsContext:
    """Return the TLS of a client that accepts only certificates of the test CA."""
    return client_tls(TlsSide(trust=str(tls_folder / "ca.pem"), verify=True))


async def echo(client: RemotingClient, address: str, body: bytes = b"x") -> bytes:
    response = await client.invoke(address, RemotingCommand(10, body=body), 5_000)
    return response.body


def make_server(
    handler: EchoHandler,
    scheduler: SkewedScheduler,
    settings: SecuritySettings,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - a frozen value
    now_ms: Callable[[], int] | None = None,
) -> RemotingServer:
    tls = tls_of(settings, now_ms=now_ms)
    return handler.make_server(scheduler, limits, ListenerSecurity(tls.server))


async def listen(server: RemotingServer) -> str:
    host, port = await server.listen("127.0.0.1", 0)
    return f"{host}:{port}"


@pytest.mark.parametrize("mode", list(TlsMode))
def test_the_mode_decides_which_clients_are_served(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
    verifying: TlsContext,
    mode: TlsMode,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server = make_server(handler, scheduler, evolve(security, tls_server_mode=mode))
        address = await listen(server)
        outcomes: dict[str, bytes | None] = {}
        for name, tls in (("plain", None), ("tls", verifying)):
            client = RemotingClient(scheduler, tls=tls)
            try:
                outcomes[name] = await echo(client, address)
            except NetworkError:
                outcomes[name] = None
            await client.close()
        await server.close()
        assert (
            outcomes
            == {
                TlsMode.DISABLED: {"plain": b"x", "tls": None},
                TlsMode.PERMISSIVE: {"plain": b"x", "tls": b"x"},
                TlsMode.ENFORCING: {"plain": None, "tls": b"x"},
            }[mode]
        )
        assert scheduler.failure_log.failures == 0

    in_loop(main)


@pytest.mark.slow
def test_large_frames_and_many_requests_pass_through_tls(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
    verifying: TlsContext,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server = make_server(handler, scheduler, security)
        address = await listen(server)
        client = RemotingClient(scheduler, tls=verifying)
        plain = RemotingClient(scheduler)
        bodies = [os.urandom(3 << 20), *(b"%d" % number for number in range(200))]
        both = [echo(each, address, body) for body in bodies for each in (client, plain)]
        assert await asyncio.gather(*both) == [body for body in bodies for _ in range(2)]
        assert server.connections == 2
        await client.close()
        await plain.close()
        await server.close()
        assert len(handler.closed) == 2

    in_loop(main)


def test_a_certificate_of_another_authority_is_not_trusted(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
    tls_folder: Path,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server = make_server(handler, scheduler, security)
        address = await listen(server)
        other = client_tls(TlsSide(trust=str(tls_folder / "other-ca.pem"), verify=True))
        client = RemotingClient(scheduler, tls=other)
        with pytest.raises(NetworkError, match=r"(?i)certificate"):
            await echo(client, address)
        await client.close()
        unverified = RemotingClient(scheduler, tls=client_tls(TlsSide()))
        assert (
            await echo(unverified, address) == b"x"
        )  # Java's client verifies only on request, too.
        await unverified.close()
        await server.close()

    in_loop(main)


def test_a_required_client_certificate_is_verified(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
    tls_folder: Path,
) -> None:
    def path(name: str) -> str:
        return str(tls_folder / name)

    async def main(scheduler: SkewedScheduler) -> None:
        server = make_server(
            handler,
            scheduler,
            evolve(
                security,
                tls_server_need_client_auth=ClientAuth.REQUIRE,
                tls_server_auth_client=True,
                tls_server_trust_cert_path=path("ca.pem"),
            ),
        )
        address = await listen(server)
        sides = {
            "none": TlsSide(),
            "other": TlsSide(certificate=path("other.pem"), key=path("other.key")),
            "own": TlsSide(
                certificate=path("client.pem"),
                key=path("client-locked.key"),
                key_password="open-sesame",
            ),
        }
        served = set()
        for name, side in sides.items():
            client = RemotingClient(scheduler, tls=client_tls(side))
            try:
                await echo(client, address)
                served.add(name)
            except NetworkError:
                pass
            await client.close()
        assert served == {"own"}
        await server.close()

    in_loop(main)


def test_a_replaced_certificate_applies_to_new_connections(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
    tls_folder: Path,
    tmp_path: Path,
) -> None:
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(tls_folder / "server.pem", pem)
    shutil.copy(tls_folder / "server.key", key)
    clock = [0]

    async def certificate_of(address: str) -> str:
        host, _, port = address.rpartition(":")
        unverified = client_tls(TlsSide()).current()
        _, writer = await asyncio.open_connection(host, int(port), ssl=unverified)
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(certificate).strip()

    async def main(scheduler: SkewedScheduler) -> None:
        settings = evolve(security, tls_server_cert_path=str(pem), tls_server_key_path=str(key))
        server = make_server(handler, scheduler, settings, now_ms=lambda: clock[0])
        address = await listen(server)
        first = (tls_folder / "server.pem").read_text().strip()
        other = (tls_folder / "other.pem").read_text().strip()
        assert await certificate_of(address) == first
        shutil.copy(tls_folder / "other.pem", pem)  # The key is still the old one.
        clock[0] += WATCH_MS
        assert await certificate_of(address) == first
        shutil.copy(tls_folder / "other.key", key)
        assert await certificate_of(address) == first  # The files have not been checked again yet.
        clock[0] += WATCH_MS
        assert await certificate_of(address) == other
        await server.close()

    in_loop(main)


def test_a_silent_client_counts_as_a_connection_and_is_closed_when_idle(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        limits = ConnectionLimits(max_connections=1)
        server = make_server(handler, scheduler, security, limits)
        address = ("127.0.0.1", int((await listen(server)).rpartition(":")[2]))
        silent, writer = await asyncio.open_connection(*address)
        await until(lambda: server._undecided)
        rejected, other = await asyncio.open_connection(*address)
        assert await rejected.read() == b""
        scheduler.skew_ms += limits.idle_close_ms
        server.sweep()
        assert await silent.read() == b""
        assert (server.counts.turned_away, server.counts.overdue) == (1, 1)
        for each in (writer, other):
            each.close()
        await server.close()

    in_loop(main)


def test_garbage_after_the_first_byte_closes_only_that_connection(
    in_loop: InLoop,
    handler: EchoHandler,
    security: SecuritySettings,
) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        server = make_server(handler, scheduler, security)
        address = ("127.0.0.1", int((await listen(server)).rpartition(":")[2]))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x16" + bytes(200))
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(encode_command(RemotingCommand(10, 7, body=b"ok")))
        receiver = FrameDecoder()
        found: list[RemotingCommand] = []
        while not found:
            found = receiver.receive(await reader.read(1000))
        assert found[0].body == b"ok"
        writer.close()
        await server.close()
        assert scheduler.failure_log.failures == 0

    in_loop(main)


def test_addresses_that_are_not_allowed_are_rejected(in_loop: InLoop, handler: EchoHandler) -> None:
    async def main(scheduler: SkewedScheduler) -> None:
        only_others = ListenerSecurity(allows=lambda address: address != "127.0.0.1")
        server = handler.make_server(scheduler, ConnectionLimits(), only_others)
        client = RemotingClient(scheduler)
        with pytest.raises(NetworkError):
            await echo(client, await listen(server))
        assert server.counts.refused == 1
        assert handler.channels == handler.closed == []
        await client.close()
        await server.close()

    in_loop(main)


# -- settings


def test_the_tls_file_of_java_overrides_the_other_keys(tls_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        "tls.server.need.client.auth=optional\n"
        f"tls.server.keyPath={tls_folder / 'server.key'}\n"
        f"tls.server.certPath={tls_folder / 'server.pem'}\n"
        "tls.server.authClient=true\n"
        f"tls.server.trustCertPath={tls_folder / 'ca.pem'}\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={tls_folder / 'ca.pem'}\n"
    )
    settings = SecuritySettings(
        tls_config_file=str(file), tls_server_key_path="/nowhere", tls_enable=True
    )
    tls = tls_of(settings)
    assert tls.server is not None and tls.client is not None
    assert tls.server.context.side.key == str(tls_folder / "server.key")
    assert tls.server.context.current().verify_mode is ssl.CERT_OPTIONAL
    assert tls.client.current().verify_mode is ssl.CERT_REQUIRED
    assert tls.replication is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SecuritySettings(tls_server_mode=TlsMode.ENFORCING), "certPath"),
        (SecuritySettings(ha_tls_enable=True), "haTlsEnable"),
        (SecuritySettings(tls_enable=True, tls_client_auth_server=True), "trustCertPath"),
        (SecuritySettings(tls_config_file="/nowhere/tls.properties"), "the file does not exist"),
        (
            SecuritySettings(tls_server_cert_path="/nowhere", tls_server_key_path="/nowhere"),
            "/nowhere",
        ),
    ],
    ids=["mode", "replication", "client", "file", "certificate"],
)
def test_inconsistent_settings_stop_the_start(settings: SecuritySettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tls_of(settings)


def test_required_client_certificates_must_be_verified(security: SecuritySettings) -> None:
    with pytest.raises(ConfigError, match="not verified"):
        tls_of(evolve(security, tls_server_need_client_auth=ClientAuth.REQUIRE))


def test_permissive_without_a_certificate_is_plain() -> None:
    assert tls_of(SecuritySettings()).server is None
