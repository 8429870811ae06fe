"""The choice of the address that a broker listens on and of the one that it reports to clients.
Pure, except :func:`is_local`: the host's addresses are arguments.

================  ==========================================================================
reported          ``brokerIP1``; absent: the address listened on (127.0.0.1 if that is all)
listened on       ``bindAddress``; absent: ``brokerIP1`` if this host has it; else 127.0.0.1
================  ==========================================================================

Without settings a broker listens on the loopback address only: safe, but useless to other hosts. If
a name server is on another host, other hosts probably must connect, and ``warning`` reports that.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence

from rmqpy.config.keys import split_address
from rmqpy.model.values import define

LOOPBACK = "127.0.0.1"
_ANY = ("0.0.0.0", "::")


@define(slots=True, frozen=True, kw_only=True)
class AddressSettings:
    """The settings that determine the addresses, and the addresses of this host."""

    broker_ip1: str | None
    bind_address: str | None
    name_servers: Sequence[str]
    local_addresses: Collection[str]


@define(slots=True, frozen=True, kw_only=True)
class Addresses:
    """The chosen addresses: clients connect to ``told``, and the ports listen on ``bind``."""

    told: str
    bind: str
    warning: str | None = None


def choose_addresses(settings: AddressSettings) -> Addresses:
    """Return the addresses that follow from the module's table."""
    reported = settings.broker_ip1
    if settings.bind_address:
        bind = settings.bind_address
    elif reported and _is_local(reported, settings.local_addresses):
        bind = reported
    else:
        bind = LOOPBACK
    if not reported:
        reported = LOOPBACK if bind in _ANY else bind
    return Addresses(told=reported, bind=bind, warning=_warning(settings, reported, bind))


def _warning(settings: AddressSettings, reported: str, bind: str) -> str | None:
    if settings.bind_address:
        return None
    if settings.broker_ip1:
        if bind == LOOPBACK and not _is_loopback(reported):
            return (
                f"brokerIP1 {reported} is not an address of this host: listening on {LOOPBACK} "
                "only; set bindAddress to the address to listen on (0.0.0.0 for all)"
            )
        return None
    remote = [server for server in settings.name_servers if not _is_on_this_host(server, settings)]
    if not remote:
        return None
    return (
        f"name server {remote[0]} is on another host, but neither brokerIP1 nor bindAddress is "
        f"set: listening on {LOOPBACK} only, where no other host can connect; set brokerIP1 to the "
        "address that clients should use"
    )


def _is_on_this_host(server: str, settings: AddressSettings) -> bool:
    host, _port = split_address(server)
    return _is_local(host, settings.local_addresses)


def _is_local(host: str, local_addresses: Collection[str]) -> bool:
    return host in local_addresses or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str, *, numeric: bool = True) -> bool:
    """Return whether a socket can be bound to ``host``, which is so for this host's addresses."""
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST if numeric else 0
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
