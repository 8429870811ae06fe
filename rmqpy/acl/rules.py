"""Accounts and their rights: the rules of Java's access control 1.0, independent of files and wire.

Resources are topics, and groups under the name of their retry topic (``%RETRY%group``). The right
of an entry is a bit field. DENY overrides all other rights, an entry overrides the default of its
kind, and a resource with neither is denied::

    account          has no entries at all        has entries
    ---------------  ---------------------------  -----------------------------------
    administrator    everything is allowed        its entries apply, then its defaults
    any other        its defaults apply           its entries apply, then its defaults
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import define, field

from rmqpy.acl.address_patterns import AddressPattern
from rmqpy.model.names import RETRY_PREFIX

DENY: Final = 1
ANY: Final = 2
"""Either PUB or SUB."""
PUB: Final = 4
SUB: Final = 8

_TEXTS: Final = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}

KEY_LENGTH_MIN: Final = 7
"""The minimum length of access key and secret. Java requires more than 6 characters."""

EXAMPLE_SECRET: Final = "12345678"
"""The secret of the accounts RocketMQ and rocketmq2 in the file that ships with the Java broker."""


def parse_right(text: str | None) -> int:
    """Return the right that one of Java's texts represents. Every other text means DENY."""
    return _TEXTS.get((text or "").strip(), DENY)


def is_right(text: str) -> bool:
    """Return whether ``text`` is one of Java's texts for rights."""
    return text.strip() in _TEXTS


def retry_resource(group: str) -> str:
    """Return the resource that represents a group."""
    return group if group.startswith(RETRY_PREFIX) else RETRY_PREFIX + group


@define(slots=True, frozen=True)
class RequiredPermission:
    """A right that a request needs on one resource."""

    resource: str
    right: int

    @property
    def is_group(self) -> bool:
        return self.resource.startswith(RETRY_PREFIX)

    def __str__(self) -> str:
        if self.is_group:
            return f"group:{self.resource.removeprefix(RETRY_PREFIX)}"
        return f"topic:{self.resource}"


@define(slots=True, frozen=True, kw_only=True)
class Account:
    """An account. ``rights`` maps resources to rights; None means no entries at all."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: AddressPattern
    admin: bool = False
    default_topic_right: int = DENY
    default_group_right: int = DENY
    rights: Mapping[str, int] | None = None

    def lacks(self, needs: Iterable[RequiredPermission]) -> RequiredPermission | None:
        """Return the first of ``needs`` that this account lacks, or None if it has all of them."""
        if self.rights is None and self.admin:
            return None
        rights = self.rights or {}
        for need in needs:
            default = self.default_group_right if need.is_group else self.default_topic_right
            if not _is_enough(need.right, rights.get(need.resource, default)):
                return need
        return None


@define(slots=True, frozen=True)
class AccessRules:
    """The merged rules of all access files."""

    accounts: Mapping[str, Account] = field(factory=dict)
    white_addresses: tuple[AddressPattern, ...] = ()


def _is_enough(needed: int, owned: int) -> bool:
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)
