"""TLS, configured with Java's keys: contexts from PEM files, which are reloaded when the files
change, and the choice between TLS and plain for each connection.

==============  =====================================  ==========================================
tls.server.mode  first byte 0x16 (a TLS handshake)     any other first byte
==============  =====================================  ==========================================
disabled        closed                                 plain
permissive      TLS; closed if there is no             plain
                certificate
enforcing       TLS                                    closed
==============  =====================================  ==========================================

The first new connection after ``WATCH_MS`` checks the files for changes. If they cannot be loaded
(a certificate was replaced before its key), the context is unchanged and loading is tried again.
Host names are not compared with certificates, as in Java: trust depends only on the certificates
in ``trustCertPath``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from attrs import evolve, field

from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.config.security import ClientAuth, SecuritySettings, TlsMode
from rmqpy.model.errors import ConfigError
from rmqpy.model.values import define

WATCH_MS: Final = 5_000
HANDSHAKE_S: Final = 10.0
FIRST_BYTE: Final = 0x16
"""The first byte of a TLS handshake. The length word of a frame begins with 0 or 1."""

DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True, kw_only=True)
class TlsSide:
    """The files of one side. With ``verify``, a certificate of the peer must be signed by
    ``trust``.
    """

    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    trust: str | None = None
    verify: bool = False
    needed: ClientAuth = ClientAuth.NONE

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(each for each in (self.certificate, self.key, self.trust) if each)


@define(slots=True, eq=False, repr=False)
class TlsContext:
    """A TLS context that is reloaded when its files change. Call ``current`` for each use."""

    side: TlsSide
    server: bool
    _now_ms: Callable[[], int]
    _context: ssl.SSLContext = field(init=False)
    _seen: tuple[object, ...] = field(init=False)
    _looked_ms: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._looked_ms = self._now_ms()
        self._seen = self._fingerprint()
        self._context = _context(self.side, self.server)

    def current(self) -> ssl.SSLContext:
        now_ms = self._now_ms()
        if now_ms - self._looked_ms >= WATCH_MS:
            self._looked_ms = now_ms
            self._renew()
        return self._context

    def _renew(self) -> None:
        seen = self._fingerprint()
        if seen == self._seen:
            return
        try:
            self._context = _context(self.side, self.server)
        except ConfigError as fault:
            logger.warning(
                "keeping the current certificates, because the new ones cannot be loaded: %s", fault
            )
            return
        self._seen = seen
        logger.info("reloaded the certificates: %s", ", ".join(self.side.files))

    def _fingerprint(self) -> tuple[object, ...]:
        marks: list[object] = []
        for path in self.side.files:
            try:
                status = os.stat(path)
            except OSError:
                marks.append(None)
            else:
                marks.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(marks)


@define(slots=True, frozen=True, eq=False, repr=False)
class ServerTls:
    """The TLS settings of a listening port."""

    mode: TlsMode
    context: TlsContext


@define(slots=True, frozen=True)
class Tls:
    """The TLS of a process: on its ports, and for its own connections. None means plain."""

    server: ServerTls | None = None
    client: TlsContext | None = None
    replication: ServerTls | None = None
    to_master: TlsContext | None = None
    """The context for the connection of a slave to its master."""


def tls_of(
    security: SecuritySettings, *, outgoing: bool = False, now_ms: Callable[[], int] | None = None
) -> Tls:
    """Return the TLS of a server from its keys. Raises ConfigError if they are inconsistent.

    ``outgoing`` enables TLS on the server's own connections regardless of the keys.
    """
    now_ms = now_ms or _monotonic_ms
    settings = _with_file(security)
    server = _server(settings, now_ms)
    client = replication = to_master = None
    if outgoing or settings.tls_enable:
        client = TlsContext(_client_side(settings), False, now_ms)
    if settings.ha_tls_enable:
        if server is None:
            raise ConfigError("haTlsEnable=true needs tls.server.certPath and tls.server.keyPath")
        replication = ServerTls(TlsMode.ENFORCING, server.context)
        to_master = client or TlsContext(_client_side(settings), False, now_ms)
    return Tls(server, client, replication, to_master)


def side_of_file(path: str | None) -> TlsSide:
    """Return the client side from the ``tls.client.*`` keys of a file in Java's format.

    Without a file, every server is trusted and no certificate is presented. Raises ConfigError.
    """
    if path is None:
        return TlsSide()
    return _client_side(_with_file(SecuritySettings(tls_config_file=path)))


def client_tls(side: TlsSide) -> TlsContext:
    """Return the context of a client without a configuration file. Raises ConfigError."""
    return TlsContext(side, False, _monotonic_ms)


def _server(settings: SecuritySettings, now_ms: Callable[[], int]) -> ServerTls | None:
    mode = settings.tls_server_mode
    side = TlsSide(
        certificate=settings.tls_server_cert_path,
        key=settings.tls_server_key_path,
        key_password=settings.tls_server_key_password,
        trust=settings.tls_server_trust_cert_path,
        verify=settings.tls_server_auth_client,
        needed=settings.tls_server_need_client_auth,
    )
    if mode is TlsMode.DISABLED:
        return None
    if side.certificate is None or side.key is None:
        if mode is TlsMode.ENFORCING:
            raise ConfigError(
                "tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath"
            )
        return None
    if side.needed is not ClientAuth.NONE and not (side.verify and side.trust):
        raise ConfigError(
            f"tls.server.need.client.auth={side.needed.value} needs tls.server.authClient=true and "
            "tls.server.trustCertPath: a certificate that is not verified proves nothing"
        )
    return ServerTls(mode, TlsContext(side, True, now_ms))


def _client_side(settings: SecuritySettings) -> TlsSide:
    return TlsSide(
        certificate=settings.tls_client_cert_path,
        key=settings.tls_client_key_path,
        key_password=settings.tls_client_key_password,
        trust=settings.tls_client_trust_cert_path,
        verify=settings.tls_client_auth_server,
    )


def _context(side: TlsSide, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    try:
        if side.certificate is not None:
            context.load_cert_chain(side.certificate, side.key, side.key_password or "")
        if side.verify:
            if side.trust is None:
                raise ConfigError(
                    f"tls.{'server.authClient' if server else 'client.authServer'}=true needs "
                    f"tls.{'server' if server else 'client'}.trustCertPath"
                )
            context.load_verify_locations(side.trust)
    except (OSError, ValueError) as error:
        raise ConfigError(f"TLS files {', '.join(side.files)}: {error}") from error
    context.verify_mode = _verify_mode(side, server)
    return context


def _verify_mode(side: TlsSide, server: bool) -> ssl.VerifyMode:
    if not side.verify:
        return ssl.CERT_NONE
    if server and side.needed is not ClientAuth.REQUIRE:
        return ssl.CERT_OPTIONAL if side.needed is ClientAuth.OPTIONAL else ssl.CERT_NONE
    return ssl.CERT_REQUIRED


_IN_FILE: Final = {
    "tls.server.need.client.auth": "tls_server_need_client_auth",
    "tls.server.keyPath": "tls_server_key_path",
    "tls.server.keyPassword": "tls_server_key_password",
    "tls.server.certPath": "tls_server_cert_path",
    "tls.server.authClient": "tls_server_auth_client",
    "tls.server.trustCertPath": "tls_server_trust_cert_path",
    "tls.client.keyPath": "tls_client_key_path",
    "tls.client.keyPassword": "tls_client_key_password",
    "tls.client.certPath": "tls_client_cert_path",
    "tls.client.authServer": "tls_client_auth_server",
    "tls.client.trustCertPath": "tls_client_trust_cert_path",
}
"""The keys that Java reads from ``tls.config.file``, where they override the system properties."""


def _with_file(security: SecuritySettings) -> SecuritySettings:
    path = Path(security.tls_config_file)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        if security.tls_config_file != DEFAULT_FILE:
            raise ConfigError(f"tls.config.file={path}: the file does not exist") from None
        return security
    except OSError as error:
        raise ConfigError(f"tls.config.file={path}: {error}") from error
    changes: dict[str, Any] = {}
    for item in parse_properties(decode_properties_bytes(raw), str(path)):
        name = _IN_FILE.get(item.key)
        if name is not None and item.value.strip():
            changes[name] = _value(f"{path}:{item.line}: {item.key}", name, item.value.strip())
    return evolve(security, **changes)


def _value(where: str, name: str, text: str) -> Any:
    if name.endswith(("auth_client", "auth_server")):
        return text.lower() == "true"
    if name == "tls_server_need_client_auth":
        try:
            return ClientAuth(text.lower())
        except ValueError:
            raise ConfigError(f"{where}={text}: allowed: none, optional, require") from None
    return text


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# ------------------------------------------------------------------------------- connections


async def adopt(
    factory: Callable[[], asyncio.BaseProtocol], sock: socket.socket, tls: TlsContext | None
) -> bool:
    """Attach an accepted socket to a protocol, with TLS or plain. Return False if that fails."""
    loop = asyncio.get_running_loop()
    try:
        if tls is None:
            await loop.connect_accepted_socket(factory, sock)
        else:
            await loop.connect_accepted_socket(
                factory, sock, ssl=tls.current(), ssl_handshake_timeout=HANDSHAKE_S
            )
    except (OSError, TimeoutError) as error:  # an SSLError is an OSError
        logger.info("TLS handshake of a connection failed: %s", error)
        sock.close()
        return False
    return True


@define(slots=True, eq=False, repr=False)
class TlsSniffer:
    """A socket whose first byte determines whether the peer uses TLS. The byte remains unread."""

    sock: socket.socket
    since_ms: int
    loop: asyncio.AbstractEventLoop
    decided: Callable[[TlsSniffer, bool], None]
    ended: Callable[[TlsSniffer], None]

    def start(self) -> None:
        self.loop.add_reader(self.sock.fileno(), self._readable)

    def close(self) -> None:
        if self.sock.fileno() >= 0:
            self.loop.remove_reader(self.sock.fileno())
            self.sock.close()

    def _readable(self) -> None:
        try:
            first = self.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self.close()
            self.ended(self)
            return
        self.loop.remove_reader(self.sock.fileno())
        self.decided(self, first[0] == FIRST_BYTE)
