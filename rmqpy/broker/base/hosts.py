"""Socket addresses as records store them: packed IP and port."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from rmqpy.model.message import Host

CACHED_PEERS = 4096


@lru_cache(maxsize=CACHED_PEERS)
def born_host(peer: tuple[str, int]) -> Host:
    """The remote end of a connection; an IPv4 address inside an IPv6 one is the IPv4 address."""
    return host_of(*peer)


def host_of(address: str, port: int) -> Host:
    """A textual IP address; a name is refused with ValueError."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.packed, port
