"""The addresses that belong to the group of a broker: who may speak for a member of a DLedger
group, whose report counts as a replica, and who may fetch the log.

Java takes votes and entries from every address, counts every report, and sends the log to every
peer that sends eight zero bytes. Here an address belongs to the group if it is in
``replicationAddresses``, or if the name of a member or slave resolves to it. Names are resolved in
the background, again whenever a connection of another address arrives (a container that moved), but
at most every ``RESOLVE_PERIOD_MS``; a name that cannot be resolved keeps its addresses.

====================  ==========================  ================================================
connection of         compatible                  secure, or with ``replicationAddresses``
====================  ==========================  ================================================
the group             allowed                     allowed
another address       allowed, a warning once     closed
                      per address; it speaks for
                      nobody and is no replica
====================  ==========================  ================================================

So in compatible mode a stranger may still fetch the log, as upgrades and Java's tools need it, but
changes nothing. Bound: ``REMEMBERED_MAX`` addresses are recorded for the warning.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from attrs import define, field

from rmqpy.acl.address_patterns import AddressPattern, any_matches
from rmqpy.config.security import SecurityMode, SecuritySettings, split_patterns
from rmqpy.model.clock import Scheduler

REMEMBERED_MAX: Final = 1_000
RESOLVE_PERIOD_MS: Final = 1_000

logger = logging.getLogger(__name__)

Resolve = Callable[[str], frozenset[str]]
"""A function that returns the addresses of a host name. Raises OSError."""


def resolve_host(host: str) -> frozenset[str]:
    """Return the addresses of ``host`` by the resolver of the system, which may block. Raises
    OSError.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return frozenset(_plain(str(info[4][0])) for info in found)


@define(slots=True, eq=False, repr=False)
class GroupAddresses:
    """The addresses of one group; ``allows`` is called for each new connection."""

    given: tuple[AddressPattern, ...]
    strict: bool
    scheduler: Scheduler
    resolve: Resolve = resolve_host
    strangers: int = 0
    _hosts: dict[str, frozenset[str]] = field(factory=dict)
    """The addresses of each name, as of the last time that it was resolved."""
    _addresses: frozenset[str] = frozenset()
    _changed: list[Callable[[], None]] = field(factory=list)
    _resolved_ms: int | None = None
    _resolving: bool = False
    _warned: set[str] = field(factory=set)

    @classmethod
    def from_settings(
        cls, security: SecuritySettings, scheduler: Scheduler, hosts: Iterable[str] = ()
    ) -> GroupAddresses:
        """Return the addresses by these settings, and those of ``hosts``, the names or addresses of
        the members of a DLedger group. Blocks while they are resolved.
        """
        given = split_patterns(security.replication_addresses)
        strict = bool(given) or security.security_mode is SecurityMode.SECURE
        group = cls(given, strict, scheduler)
        group._take(_resolve_all(group.resolve, hosts))
        return group

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the addresses have changed."""
        self._changed.append(changed)

    def add_hosts(self, hosts: Iterable[str]) -> None:
        """Let the names or addresses ``hosts`` belong to the group, once they are resolved."""
        new = [host for host in hosts if host not in self._hosts]
        if new:
            self._hosts.update(dict.fromkeys(new, frozenset[str]()))
            self._resolve_soon()

    def knows(self, address: str) -> bool:
        """Return whether ``address`` belongs to the group. Resolve the names again if not."""
        if _plain(address) in self._addresses or any_matches(self.given, address):
            return True
        now_ms = self.scheduler.monotonic_ms()
        if self._resolved_ms is None or now_ms - self._resolved_ms >= RESOLVE_PERIOD_MS:
            self._resolve_soon()
        return False

    def allows(self, address: str) -> bool:
        """Return whether a connection of ``address`` is accepted."""
        if self.knows(address):
            return True
        self.strangers += 1
        if address not in self._warned and len(self._warned) < REMEMBERED_MAX:
            self._warned.add(address)
            logger.warning(
                "%s belongs to no member of this group: %s; if it is one, add it to"
                " replicationAddresses",
                address,
                "the connection is closed"
                if self.strict
                else "it may fetch the log, as in compatible mode, but counts as nobody",
            )
        return not self.strict

    def runtime_info(self) -> dict[str, str]:
        return {"replicationStrangers": str(self.strangers)}

    def _resolve_soon(self) -> None:
        if self._resolving or not self._hosts:
            return
        self._resolving = True
        self._resolved_ms = self.scheduler.monotonic_ms()
        hosts = tuple(self._hosts)

        def resolved(
            found: Mapping[str, frozenset[str]] | None, error: BaseException | None
        ) -> None:
            self._resolving = False
            if error is not None:
                logger.error("cannot resolve the names of the group: %s", error)
            elif found is not None:
                self._take(found)
            if len(self._hosts) > len(hosts):  # added in between
                self._resolve_soon()

        self.scheduler.run_blocking(lambda: _resolve_all(self.resolve, hosts), resolved)

    def _take(self, found: Mapping[str, frozenset[str]]) -> None:
        for host, addresses in found.items():
            if addresses or host not in self._hosts:
                self._hosts[host] = addresses
        known = frozenset().union(*self._hosts.values())
        if any(ip_address(address).is_loopback for address in known):
            # A connection from one loopback address to another has the first as its source.
            known |= {"127.0.0.1", "::1"}
        if known != self._addresses:
            self._addresses = known
            for changed in self._changed:
                changed()


def _resolve_all(resolve: Resolve, hosts: Iterable[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for host in hosts:
        try:
            found[host] = resolve(host)
        except OSError as error:
            logger.warning("address of member %s not found: %s", host, error)
            found[host] = frozenset()
    return found


def _plain(address: str) -> str:
    """Return an address without its zone, and an IPv4 address inside IPv6 as IPv4."""
    address = address.partition("%")[0]
    return address[7:] if address.lower().startswith("::ffff:") and "." in address else address
