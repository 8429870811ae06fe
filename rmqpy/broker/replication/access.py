"""The addresses that may fetch the log: at the port of classic replication and at that of a DLedger
member.

Java sends the log to every peer that sends eight zero bytes. Here the known addresses are those in
``replicationAddresses`` and, at a member's port, those of the other members. The treatment of any
other address depends on the security mode:

==========  =======================================================================
compatible  a warning, once per address; counted; allowed (so that upgrades continue)
secure      refused, counted
==========  =======================================================================

With ``replicationAddresses`` set, other addresses are refused in both modes. Bound:
``REMEMBERED_MAX`` addresses are recorded for the warning.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Final

from attrs import define, field

from rmqpy.acl.address_patterns import AddressPattern, any_matches, parse_pattern
from rmqpy.config.security import SecurityMode, SecuritySettings, split_patterns

REMEMBERED_MAX: Final = 1_000

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class ReplicationAllowList:
    """The peers that may fetch the log; ``allows`` is called for each new connection."""

    known: tuple[AddressPattern, ...]
    strict: bool
    strangers: int = 0
    _warned: set[str] = field(factory=set)

    @classmethod
    def from_settings(
        cls, security: SecuritySettings, hosts: Sequence[str] = ()
    ) -> ReplicationAllowList:
        """Return the list for these settings; ``hosts`` are names or addresses of the members of a
        DLedger group.
        """
        given = split_patterns(security.replication_addresses)
        members = [address for host in hosts for address in _addresses(host)]
        strict = bool(given) or security.security_mode is SecurityMode.SECURE
        return cls((*given, *map(parse_pattern, members)), strict)

    def knows(self, address: str) -> bool:
        """Return whether ``address`` belongs to a member or is in ``replicationAddresses``."""
        return any_matches(self.known, address)

    def allows(self, address: str) -> bool:
        if self.knows(address):
            return True
        self.strangers += 1
        if address not in self._warned and len(self._warned) < REMEMBERED_MAX:
            self._warned.add(address)
            logger.warning(
                "%s is not in replicationAddresses: %s",
                address,
                "the log is not sent" if self.strict else "the log is sent, in compatible mode",
            )
        return not self.strict

    def runtime_info(self) -> dict[str, str]:
        return {"replicationStrangers": str(self.strangers)}


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.warning("address of member %s not found: %s", host, error)
        return []
    return sorted({str(info[4][0]).partition("%")[0] for info in found})
