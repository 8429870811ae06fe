"""TLS at both servers and in the client: modes by the first byte, certificates, reloading."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from harness.net import EchoHandler, SkewedScheduler

from rmqpy.config.loading import SecuritySettings
from rmqpy.config.security import ClientAuth, TlsMode
from rmqpy.model.errors import ConfigError, NetworkError
from rmqpy.net.client import RemotingClient
from rmqpy.net.connection import ConnectionLimits
from rmqpy.net.server.server import ListenerSecurity
from rmqpy.net.tls import WATCH_MS, TlsSide, client_tls, tls_of
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder


@pytest.fixture
def security(tls_folder: Path, tmp_path: Path):
    """Settings of a server with a certificate; keywords over them."""

    def make(**values):
        return SecuritySettings(
            **{
                "tls_server_cert_path": str(tls_folder / "server.pem"),
                "tls_server_key_path": str(tls_folder / "server.key"),
                **values,
            }
        )

    return make


@pytest.fixture
def trusting(tls_folder: Path):
    return client_tls(TlsSide(trust=str(tls_folder / "ca.pem"), verify=True))


async def answer(client, address, body=b"x"):
    response = await client.invoke(address, RemotingCommand(10, body=body), 5_000)
    return response.body


def served(handler, scheduler, settings, limits=ConnectionLimits(), now_ms=None):  # noqa: B008
    tls = tls_of(settings, now_ms=now_ms)
    return handler.make_server(scheduler, limits, ListenerSecurity(tls.server))


async def listening(server):
    host, port = await server.listen("127.0.0.1", 0)
    return f"{host}:{port}"


@pytest.mark.parametrize("mode", list(TlsMode))
def test_the_mode_decides_who_is_served(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
    trusting,
    mode,
) -> None:
    async def main(scheduler):
        server = served(handler, scheduler, security(tls_server_mode=mode))
        address = await listening(server)
        outcomes = {}
        for name, tls in (("plain", None), ("tls", trusting)):
            client = RemotingClient(scheduler, tls=tls)
            try:
                outcomes[name] = await answer(client, address)
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
        assert scheduler.supervisor.failures == 0

    in_loop(main)


@pytest.mark.slow
def test_large_frames_and_many_requests_pass_through_tls(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
    trusting,
) -> None:
    async def main(scheduler):
        server = served(handler, scheduler, security())
        address = await listening(server)
        client = RemotingClient(scheduler, tls=trusting)
        plain = RemotingClient(scheduler)
        bodies = [os.urandom(3 << 20), *(b"%d" % number for number in range(200))]
        both = [answer(each, address, body) for body in bodies for each in (client, plain)]
        assert await asyncio.gather(*both) == [body for body in bodies for _ in range(2)]
        assert server.connections == 2
        await client.close()
        await plain.close()
        await server.close()
        assert len(handler.closed) == 2

    in_loop(main)


def test_a_certificate_of_somebody_else_is_not_trusted(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
    tls_folder: Path,
) -> None:
    async def main(scheduler):
        server = served(handler, scheduler, security())
        address = await listening(server)
        other = client_tls(TlsSide(trust=str(tls_folder / "other-ca.pem"), verify=True))
        client = RemotingClient(scheduler, tls=other)
        with pytest.raises(NetworkError, match=r"(?i)certificate"):
            await answer(client, address)
        await client.close()
        careless = RemotingClient(scheduler, tls=client_tls(TlsSide()))
        assert await answer(careless, address) == b"x"  # as Java's, unless it is told to verify
        await careless.close()
        await server.close()

    in_loop(main)


def test_clients_show_a_certificate_where_it_is_required(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
    tls_folder: Path,
) -> None:
    path = lambda name: str(tls_folder / name)  # noqa: E731

    async def main(scheduler):
        server = served(
            handler,
            scheduler,
            security(
                tls_server_need_client_auth=ClientAuth.REQUIRE,
                tls_server_auth_client=True,
                tls_server_trust_cert_path=path("ca.pem"),
            ),
        )
        address = await listening(server)
        sides = {
            "none": TlsSide(),
            "other": TlsSide(certificate=path("other.pem"), key=path("other.key")),
            "own": TlsSide(
                certificate=path("client.pem"),
                key=path("client-locked.key"),
                key_password="open-sesame",
            ),
        }
        served_ones = set()
        for name, side in sides.items():
            client = RemotingClient(scheduler, tls=client_tls(side))
            try:
                await answer(client, address)
                served_ones.add(name)
            except NetworkError:
                pass
            await client.close()
        assert served_ones == {"own"}
        await server.close()

    in_loop(main)


def test_a_new_certificate_counts_for_new_connections(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
    tls_folder: Path,
    tmp_path: Path,
) -> None:
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(tls_folder / "server.pem", pem)
    shutil.copy(tls_folder / "server.key", key)
    clock = [0]

    async def certificate_of(address):
        host, _, port = address.rpartition(":")
        careless = client_tls(TlsSide()).current()
        _, writer = await asyncio.open_connection(host, int(port), ssl=careless)
        seen = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return ssl.DER_cert_to_PEM_cert(seen).strip()

    async def main(scheduler):
        settings = security(tls_server_cert_path=str(pem), tls_server_key_path=str(key))
        server = served(handler, scheduler, settings, now_ms=lambda: clock[0])
        address = await listening(server)
        first = (tls_folder / "server.pem").read_text().strip()
        other = (tls_folder / "other.pem").read_text().strip()
        assert await certificate_of(address) == first
        shutil.copy(tls_folder / "other.pem", pem)  # without its key: does not go together
        clock[0] += WATCH_MS
        assert await certificate_of(address) == first
        shutil.copy(tls_folder / "other.key", key)
        assert await certificate_of(address) == first  # not looked at yet
        clock[0] += WATCH_MS
        assert await certificate_of(address) == other
        await server.close()

    in_loop(main)


def test_who_says_nothing_is_closed_when_idle_and_counts_as_a_connection(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
) -> None:
    async def main(scheduler):
        limits = ConnectionLimits(max_connections=1)
        server = served(handler, scheduler, security(), limits)
        address = ("127.0.0.1", int((await listening(server)).rpartition(":")[2]))
        silent, writer = await asyncio.open_connection(*address)
        while not server._undecided:
            await asyncio.sleep(0.001)
        turned_away, other = await asyncio.open_connection(*address)
        assert await turned_away.read() == b""
        scheduler.skew_ms += limits.idle_close_ms
        server.sweep()
        assert await silent.read() == b""
        assert (server.counts.turned_away, server.counts.overdue) == (1, 1)
        for each in (writer, other):
            each.close()
        await server.close()

    in_loop(main)


def test_garbage_behind_the_first_byte_ends_that_connection_only(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
    security,
) -> None:
    async def main(scheduler):
        server = served(handler, scheduler, security())
        address = ("127.0.0.1", int((await listening(server)).rpartition(":")[2]))
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"\x16" + bytes(200))
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(encode_command(RemotingCommand(10, 7, body=b"ok")))
        receiver, found = FrameDecoder(), []
        while not found:
            found = receiver.receive(await reader.read(1000))
        assert found[0].body == b"ok"
        writer.close()
        await server.close()
        assert scheduler.supervisor.failures == 0

    in_loop(main)


def test_addresses_that_are_not_admitted_are_turned_away(
    in_loop: Callable[[Callable[[SkewedScheduler], Coroutine[Any, Any, None]]], None],
    handler: EchoHandler,
) -> None:
    async def main(scheduler):
        doors = ListenerSecurity(allows=lambda address: address != "127.0.0.1")
        server = handler.make_server(scheduler, ConnectionLimits(), doors)
        client = RemotingClient(scheduler)
        with pytest.raises(NetworkError):
            await answer(client, await listening(server))
        assert server.counts.refused == 1
        assert handler.channels == handler.closed == []
        await client.close()
        await server.close()

    in_loop(main)


# --------------------------------------------------------------------------------------- settings


def test_the_file_of_java_wins_over_the_other_keys(tls_folder: Path, tmp_path: Path) -> None:
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
    assert tls.server.context.side.key == str(tls_folder / "server.key")
    assert tls.server.context.current().verify_mode is ssl.CERT_OPTIONAL
    assert tls.client.current().verify_mode is ssl.CERT_REQUIRED
    assert tls.replication is None


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tls_server_mode": TlsMode.ENFORCING}, "certPath"),
        ({"ha_tls_enable": True}, "haTlsEnable"),
        ({"tls_enable": True, "tls_client_auth_server": True}, "trustCertPath"),
        ({"tls_config_file": "/nowhere/tls.properties"}, "no such file"),
        ({"tls_server_cert_path": "/nowhere", "tls_server_key_path": "/nowhere"}, "/nowhere"),
    ],
)
def test_what_cannot_work_stops_the_start(values, says) -> None:
    with pytest.raises(ConfigError, match=says):
        tls_of(SecuritySettings(**values))


def test_required_certificates_need_somebody_to_verify_them(security) -> None:
    with pytest.raises(ConfigError, match="verifies"):
        tls_of(security(tls_server_need_client_auth=ClientAuth.REQUIRE))


def test_without_certificate_permissive_is_plain() -> None:
    assert tls_of(SecuritySettings()).server is None
