"""The keys of access control and transport: Java's system properties and ``tls.properties``, and
rmqpy's own keys.

:mod:`rmqpy.config.keys` explains the declarations. ``securityMode=secure`` sets many of them;
:mod:`rmqpy.config.secure_profile` lists the values that it sets and requires.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

from rmqpy.acl.address_patterns import AddressPattern, parse_patterns
from rmqpy.config.keys import Effect, checked_text, key
from rmqpy.model.values import define


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
    """Return ``accessKey``, ``secretKey`` and, if present, ``securityToken`` of a JSON object.

    Raises ValueError.
    """
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
    """Return the address patterns in ``text``, which are separated by ``;``. Raises ValueError."""
    return parse_patterns(part for part in text.split(";") if part.strip())


CREDENTIALS = checked_text('{"accessKey":"…","secretKey":"…"}', parse_credentials)
ADDRESS_PATTERNS = checked_text(
    "address patterns as in plain_acl.yml, separated by ;", split_patterns
)


@define(frozen=True, kw_only=True, repr=False)
class SecuritySettings:
    """The access control and transport settings of a server."""

    # fmt: off
    security_mode: SecurityMode = key("securityMode", SecurityMode.COMPATIBLE,
        doc="rmqpy only. compatible: as open as Java, where Java's tools and clients need it; "
            "secure: access control, TLS and allow-lists are on and nothing is open by default "
            "(docs/reference/security.md).")
    acl_plain_file: str = key("rocketmq.acl.plain.file", "conf/plain_acl.yml",
        doc="System property of Java: the access file, relative to rocketmqHome if that is set. "
            "conf/acl/*.yml next to it are read too.")
    inner_client_authentication_credentials: str | None = key(
        "innerClientAuthenticationCredentials", None, kind=CREDENTIALS, secret=True,
        doc="From 5.x: credentials with which this server signs its own requests (to masters and "
            "name servers).")
    tls_server_mode: TlsMode = key("tls.server.mode", TlsMode.PERMISSIVE,
        doc="System property of Java: plain and TLS on one port, TLS only, or plain only. "
            "Permissive needs a certificate too; without one, TLS clients are rejected.")
    tls_enable: bool = key("tls.enable", False,
        doc="System property of Java: TLS on the connections that this server opens to name "
            "servers, masters and members of its DLedger group.")
    tls_config_file: str = key("tls.config.file", "/etc/rocketmq/tls.properties",
        doc="System property of Java: file with the keys tls.server.* and tls.client.* below, "
            "which override those set here. It need not exist.")
    tls_test_mode_enable: bool = key("tls.test.mode.enable", True, effect=Effect.ACCEPTED,
        doc="In test mode Java generates its own certificate and trusts every peer; rmqpy "
            "generates none, and trust depends on tls.server.authClient and tls.client.authServer "
            "only.")
    tls_server_need_client_auth: ClientAuth = key("tls.server.need.client.auth", ClientAuth.NONE,
        doc="Whether clients must present a certificate; only with tls.server.authClient.")
    tls_server_key_path: str | None = key("tls.server.keyPath", None,
        doc="Private key of the server, PEM.")
    tls_server_key_password: str | None = key("tls.server.keyPassword", None, secret=True,
        doc="Password of that file.")
    tls_server_cert_path: str | None = key("tls.server.certPath", None,
        doc="Certificate chain of the server, PEM.")
    tls_server_auth_client: bool = key("tls.server.authClient", False,
        doc="Verify the certificates of clients against tls.server.trustCertPath.")
    tls_server_trust_cert_path: str | None = key("tls.server.trustCertPath", None,
        doc="Certificates that client certificates must be signed by.")
    tls_client_key_path: str | None = key("tls.client.keyPath", None,
        doc="Private key for outgoing connections, PEM.")
    tls_client_key_password: str | None = key("tls.client.keyPassword", None, secret=True,
        doc="Password of that file.")
    tls_client_cert_path: str | None = key("tls.client.certPath", None,
        doc="Certificate chain for outgoing connections, PEM.")
    tls_client_auth_server: bool = key("tls.client.authServer", False,
        doc="Verify the certificates of servers against tls.client.trustCertPath (not their host "
            "names, as in Java).")
    tls_client_trust_cert_path: str | None = key("tls.client.trustCertPath", None,
        doc="Certificates that server certificates must be signed by.")
    ha_tls_enable: bool = key("haTlsEnable", False,
        doc="rmqpy only: TLS on both ends of classic replication. Java's replication has no TLS, "
            "so masters and slaves must all be rmqpy brokers.")
    replication_addresses: str = key("replicationAddresses", "", kind=ADDRESS_PATTERNS,
        doc="rmqpy only: addresses that belong to the group, in addition to those of its members. "
            "If set, or with securityMode=secure, the ports of the replication and of the DLedger "
            "group close all other connections. Empty: others may fetch the log, with a warning "
            "(docs/reference/security.md).")
    # fmt: on
