"""The keys of access control and transport: what Java has as system properties and in
``tls.properties``, and our own.

How a line is read: config_keys.py. ``securityMode=secure`` is one key for all of it; what it sets
and demands stands in :mod:`rmqpy.config.secure_profile`.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from attrs import define

from rmqpy.acl.address_patterns import AddressPattern, parse_patterns
from rmqpy.config.keys import Effect, checked_text, key


class SecurityMode(Enum):
    COMPATIBLE = "compatible"
    SECURE = "secure"


class TlsMode(Enum):
    """Java's ``tls.server.mode``."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Java's ``tls.server.need.client.auth``."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


def parse_credentials(text: str) -> dict[str, str]:
    """``accessKey``, ``secretKey`` and maybe ``securityToken`` of a JSON object."""
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    known = {"accessKey", "secretKey", "securityToken"}
    if (
        not isinstance(value, dict)
        or not {"accessKey", "secretKey"} <= value.keys() <= known
        or not all(isinstance(each, str) and each for each in value.values())
    ):
        raise ValueError("not an object with accessKey and secretKey")
    return value


def split_patterns(text: str) -> tuple[AddressPattern, ...]:
    """Address patterns, separated by ``;``."""
    return parse_patterns(part for part in text.split(";") if part.strip())


CREDENTIALS = checked_text('{"accessKey":"…","secretKey":"…"}', parse_credentials)
ADDRESS_PATTERNS = checked_text(
    "address patterns as in plain_acl.yml, separated by ;", split_patterns
)


@define(frozen=True, kw_only=True, repr=False, unsafe_hash=False)
class SecuritySettings:
    """Access control and transport of a server."""

    security_mode: SecurityMode = key(  # noqa: RUF009 (key is attrs' field)
        "securityMode",
        default=SecurityMode.COMPATIBLE,
        doc="Own key. compatible: open as Java is, where Java's tools and clients need it; secure: "
        "access control, TLS and allow-lists are on and nothing is open by default "
        "(docs/reference/security.md).",
    )
    acl_plain_file: str = key(
        "rocketmq.acl.plain.file",
        default="conf/plain_acl.yml",
        doc="System property of Java: the access file, below rocketmqHome where that is set. "
        "conf/acl/*.yml beside it are read too.",
    )
    inner_client_authentication_credentials: str | None = key(
        "innerClientAuthenticationCredentials",
        default=None,
        kind=CREDENTIALS,
        secret=True,
        doc="Key of 5.x: what this server signs its own requests with (to masters and name "
        "servers).",
    )
    tls_server_mode: TlsMode = key(  # noqa: RUF009 (key is attrs' field)
        "tls.server.mode",
        default=TlsMode.PERMISSIVE,
        doc="System property of Java: plain and TLS on one port, TLS alone, or plain alone. "
        "Permissive needs a certificate too; without one TLS clients are turned away.",
    )
    tls_enable: bool = key(
        "tls.enable",
        default=False,
        doc="System property of Java: TLS on the connections that this server makes, to name "
        "servers, masters and members of its DLedger group.",
    )
    tls_config_file: str = key(
        "tls.config.file",
        default="/etc/rocketmq/tls.properties",
        doc="System property of Java: file with the keys tls.server.* and tls.client.* below; they "
        "win over those here. Need not exist.",
    )
    tls_test_mode_enable: bool = key(
        "tls.test.mode.enable",
        default=True,
        effect=Effect.ACCEPTED,
        doc="Java in test mode makes a certificate of its own and trusts everybody; rmqpy makes "
        "none, and trusts by tls.server.authClient and tls.client.authServer alone.",
    )
    tls_server_need_client_auth: ClientAuth = key(  # noqa: RUF009 (key is attrs' field)
        "tls.server.need.client.auth",
        default=ClientAuth.NONE,
        doc="Whether clients have to show a certificate; with tls.server.authClient only.",
    )
    tls_server_key_path: str | None = key(
        "tls.server.keyPath",
        default=None,
        doc="Private key of the server, PEM.",
    )
    tls_server_key_password: str | None = key(
        "tls.server.keyPassword",
        default=None,
        secret=True,
        doc="Password of that file.",
    )
    tls_server_cert_path: str | None = key(
        "tls.server.certPath",
        default=None,
        doc="Certificate chain of the server, PEM.",
    )
    tls_server_auth_client: bool = key(
        "tls.server.authClient",
        default=False,
        doc="Verify the certificates of clients by tls.server.trustCertPath.",
    )
    tls_server_trust_cert_path: str | None = key(
        "tls.server.trustCertPath",
        default=None,
        doc="Certificates that clients' are signed by.",
    )
    tls_client_key_path: str | None = key(
        "tls.client.keyPath",
        default=None,
        doc="Private key for outgoing connections, PEM.",
    )
    tls_client_key_password: str | None = key(
        "tls.client.keyPassword",
        default=None,
        secret=True,
        doc="Password of that file.",
    )
    tls_client_cert_path: str | None = key(
        "tls.client.certPath",
        default=None,
        doc="Certificate chain for outgoing connections, PEM.",
    )
    tls_client_auth_server: bool = key(
        "tls.client.authServer",
        default=False,
        doc="Verify the certificates of servers by tls.client.trustCertPath (not their host names, "
        "as in Java).",
    )
    tls_client_trust_cert_path: str | None = key(
        "tls.client.trustCertPath",
        default=None,
        doc="Certificates that servers' are signed by.",
    )
    ha_tls_enable: bool = key(
        "haTlsEnable",
        default=False,
        doc="Own key: TLS on both ends of the classic replication. Java's replication has none, so "
        "masters and slaves have to be of this broker.",
    )
    replication_addresses: str = key(
        "replicationAddresses",
        default="",
        kind=ADDRESS_PATTERNS,
        doc="Own key: who may fetch the log at the replication port, besides the members of a "
        "DLedger group at theirs. Empty: everybody, with a warning; nobody where "
        "securityMode=secure.",
    )
