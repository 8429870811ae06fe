"""The addresses that belong to the group of a broker: who may speak for a member of a DLedger
group, whose report counts as a replica, and who may fetch the log.

Java takes votes and entries from every address, counts every report, and sends the log to every
peer that sends eight zero bytes. Here an address belongs to the group if it is in
``replicationAddresses``, or if the name of a member or slave resolves to it. Names are resolved in
the background, again whenever a connection of another address arrives (a container that moved); a
name that cannot be resolved keeps its addresses. The names of slaves are looked up then, too.

====================  ==========================  ================================================
connection of         compatible                  secure, or with ``replicationAddresses``
====================  ==========================  ================================================
the group             allowed                     allowed
another address       allowed, a warning once     closed
                      per address; it speaks for
                      nobody and is no replica
====================  ==========================  ================================================

So in compatible mode a stranger may still fetch the log, as upgrades and Java's tools need it, but
changes nothing.

Bounds: refreshes are at least ``CONNECT_PERIOD_MS`` apart if connections of unknown addresses
arrive, otherwise ``PERIOD_MS``, and up to ``PERIOD_MS_MAX`` while they find nothing new;
``REMEMBERED_MAX`` addresses wait for their warning.
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
from rmqpy.net.once_log import OncePerCauseLog

REMEMBERED_MAX: Final = 1_000
CONNECT_PERIOD_MS: Final = 200
PERIOD_MS: Final = 1_000
PERIOD_MS_MAX: Final = 60_000

logger = logging.getLogger(__name__)

Lookup = Callable[[Callable[[Iterable[str], bool], None]], None]
"""A function that calls its argument with the names of the hosts that it has found so far, and
whether its search has ended, which happens once.
"""

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
    """The addresses of one group; ``allows`` is called for each new connection.

    ``consequence`` states what a stranger may do in compatible mode. ``lookup`` finds the names of
    hosts that the configuration does not contain.
    """

    given: tuple[AddressPattern, ...]
    strict: bool
    scheduler: Scheduler
    consequence: str
    once: OncePerCauseLog
    resolve: Resolve = resolve_host
    lookup: Lookup | None = None
    strangers: int = 0
    _hosts: dict[str, frozenset[str]] = field(factory=dict)
    """The addresses of each name, as of the last time that it was resolved."""
    _addresses: frozenset[str] = frozenset()
    _changed: list[Callable[[], None]] = field(factory=list)
    _suspects: dict[str, int] = field(factory=dict)
    """Unknown addresses, and their connections, which the current refresh may still find."""
    _is_awaited: bool = True
    """Whether the first member may still register: the brokers of a group often start together."""
    _refreshing: bool = False
    _refreshed_ms: int | None = None
    _period_ms: int = PERIOD_MS

    @classmethod
    def from_settings(
        cls,
        security: SecuritySettings,
        scheduler: Scheduler,
        consequence: str,
        hosts: Iterable[str] = (),
        lookup: Lookup | None = None,
    ) -> GroupAddresses:
        """Return the addresses by these settings, and those of ``hosts``, the names or addresses of
        the members of a DLedger group. Blocks while they are resolved.
        """
        given = split_patterns(security.replication_addresses)
        strict = bool(given) or security.security_mode is SecurityMode.SECURE
        group = cls(
            given, strict, scheduler, consequence, OncePerCauseLog(scheduler), lookup=lookup
        )
        group._take(_resolve_all(group.resolve, hosts))
        return group

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the addresses have changed."""
        self._changed.append(changed)

    def knows(self, address: str) -> bool:
        """Return whether ``address`` belongs to the group. Look for new addresses if not."""
        if self._is_known(address):
            return True
        self.refresh()
        return False

    def allows(self, address: str) -> bool:
        """Return whether a connection of ``address`` is accepted."""
        if self._is_known(address):
            return True
        self._period_ms = CONNECT_PERIOD_MS
        self.refresh()
        self._period_ms = PERIOD_MS
        if len(self._suspects) < REMEMBERED_MAX:
            self._suspects[address] = self._suspects.get(address, 0) + 1
        if not self._refreshing or self.strict:
            self._warn()
        return not self.strict

    def runtime_info(self) -> dict[str, str]:
        return {"replicationStrangers": str(self.strangers)}

    def refresh(self) -> None:
        """Look up the names and resolve them, unless that has just happened."""
        now_ms = self.scheduler.monotonic_ms()
        if self._refreshing or not (self._hosts or self.lookup):
            return
        if self._refreshed_ms is not None and now_ms - self._refreshed_ms < self._period_ms:
            return
        self._refreshing = True
        self._refreshed_ms = now_ms
        self._period_ms = min(2 * self._period_ms, PERIOD_MS_MAX)
        if self.lookup is None:
            self._resolve(self._hosts, True)
        else:
            self.lookup(lambda found, ended: self._resolve([*self._hosts, *found], ended))

    def _is_known(self, address: str) -> bool:
        return _plain(address) in self._addresses or any_matches(self.given, address)

    def _resolve(self, hosts: Iterable[str], last: bool) -> None:
        names = tuple(dict.fromkeys(hosts))

        def resolved(
            found: Mapping[str, frozenset[str]] | None, error: BaseException | None
        ) -> None:
            if error is not None:
                logger.error("cannot resolve the names of the group: %s", error)
            elif found is not None:
                self._take(found)
            if last:
                self._refreshing = False
                self._warn()

        self.scheduler.run_blocking(lambda: _resolve_all(self.resolve, names), resolved)

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
            self._period_ms = PERIOD_MS
            for changed in self._changed:
                changed()

    def _warn(self) -> None:
        """Warn of the connections of addresses that have turned out to be those of strangers."""
        if not self._suspects:
            return
        if self.lookup and not self._addresses and self._is_awaited and not self.strict:
            self._is_awaited = False
            return
        suspects, self._suspects = self._suspects, {}
        for address, connections in suspects.items():
            if self._is_known(address):
                continue
            self.strangers += connections
            self.once.warn(
                address,
                "%s belongs to no member of this group (%s): %s; if it is one, add it to"
                " replicationAddresses",
                address,
                ", ".join(sorted(self._addresses)) or "no address is known",
                "its connections are closed" if self.strict else self.consequence,
            )


def _resolve_all(resolve: Resolve, hosts: Iterable[str]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for host in hosts:
        try:
            found[host] = resolve(host)
        except (OSError, ValueError):  # ValueError: a text that cannot be a host name
            found[host] = frozenset()
    return found


def _plain(address: str) -> str:
    """Return an address without its zone, and an IPv4 address inside IPv6 as IPv4."""
    address = address.partition("%")[0]
    return address[7:] if address.lower().startswith("::ffff:") and "." in address else address
