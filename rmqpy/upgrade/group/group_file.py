"""``group.toml``: the members of a group, as ``rmqpy upgrade`` needs them.

=================  ===========================================================================
table ``[group]``  key
=================  ===========================================================================
broker             brokerName
cluster            brokerClusterName
dledger_group      dLegerGroup
token_file         the token for members that are read over ``https://`` (optional)
authority          the certificates to trust there, PEM (optional)
key                the secret that signs plans and certificates (optional)
=================  ===========================================================================

=======================  =====================================================================
table ``[member.NAME]``  key
=======================  =====================================================================
host                     ``local``, ``ssh://[USER@]HOST[:PORT]``, or the ``https://`` address
                         of ``rmqpy upgrade serve``
config                   the path of its broker.conf; relative to this file if it is local
directory                storePathRootDir
address                  HOST:PORT, at which clients reach the broker
id                       dLegerSelfId
peer                     HOST:PORT, at which the other members reach it (dLegerPeers)
role                     its role in a master/slave group, for the way back
start, stop              commands that start and stop the broker on its host (optional)
rmqpy                    the path of rmqpy on a host that is reached over ssh (optional)
=======================  =====================================================================

All values are strings. Paths of ``[group]`` are relative to the file.
:mod:`rmqpy.upgrade.group.group_file_text` writes it; a person may change it, and every reading
validates it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from attrs import define

from rmqpy.config.keys import BrokerRole, is_dledger_id, parse_dledger_peers
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean

__all__ = ["GROUP_FILE", "LOCAL", "GroupFile", "MemberSpec", "parse_group_file"]

GROUP_FILE: Final = "group.toml"
LOCAL: Final = "local"
SSH, HTTPS, HTTP = "ssh://", "https://", "http://"


@define(slots=True, frozen=True, kw_only=True)
class MemberSpec:
    """One member; the attributes are the keys of its table."""

    name: str
    host: str = LOCAL
    config: str
    directory: str
    address: str
    id: str
    peer: str
    role: str
    start: str = ""
    stop: str = ""
    rmqpy: str = ""

    @property
    def is_over_ssh(self) -> bool:
        return self.host.startswith(SSH)

    @property
    def is_local(self) -> bool:
        return self.host == LOCAL

    @property
    def replica(self) -> str:
        """The member as an argument of the long form: ``NAME=DIR`` or ``NAME=URL``."""
        if self.is_local:
            return f"{self.name}={self.directory}"
        if self.is_over_ssh:
            return f"{self.name}={self.host}{self.directory}"
        return f"{self.name}={self.host}"


@define(slots=True, frozen=True, kw_only=True)
class GroupFile:
    """The content of a ``group.toml``; ``members`` are in the order of the file."""

    broker: str
    cluster: str
    dledger_group: str
    members: tuple[MemberSpec, ...]
    token_file: str = ""
    authority: str = ""
    key: str = ""

    @property
    def is_local(self) -> bool:
        """Whether all members are on this host."""
        return all(each.is_local for each in self.members)

    @property
    def linked(self) -> list[MemberSpec]:
        """The members on other hosts."""
        return [each for each in self.members if not each.is_local]

    @property
    def peers(self) -> str:
        """The value of dLegerPeers."""
        return ";".join(f"{each.id}-{each.peer}" for each in self.members)

    def member(self, name: str) -> MemberSpec:
        """Return a member by its name. Raise RmqError if there is none."""
        for each in self.members:
            if each.name == name:
                return each
        known = [each.name for each in self.members]
        raise RmqError(
            f"found no member {name} in {GROUP_FILE}, expected one of {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )


_OPTIONAL: Final = frozenset(("token_file", "authority", "key", "start", "stop", "rmqpy"))
GROUP_KEYS: Final = tuple(each.name for each in attrs.fields(GroupFile) if each.name != "members")
MEMBER_KEYS: Final = tuple(each.name for each in attrs.fields(MemberSpec) if each.name != "name")


def parse_group_file(text: str, path: str) -> GroupFile:
    """Return the group. Raise RmqError with everything that is wrong with the file."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RmqError(
            f"{path}: found text that is not TOML ({error}), expected the form that rmqpy upgrade"
            " init writes; correct it, or run init again"
        ) from None
    wrong = list(_faults(tree))
    if not wrong:
        members = tuple(MemberSpec(name=name, **keys) for name, keys in tree["member"].items())
        group = GroupFile(**tree["group"], members=members)
        wrong = list(_contradictions(group))
        if not wrong:
            return group
    raise RmqError(f"{path}: " + "; ".join(wrong))


def _faults(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the form: tables, keys, and types."""
    for name in tree:
        if name not in ("group", "member"):
            near = did_you_mean(name, ("group", "member"))
            yield f"found {name}, expected the tables [group] and [member.NAME]{near}"
    yield from _table_faults("[group]", tree.get("group"), GROUP_KEYS)
    members = tree.get("member")
    if not isinstance(members, dict) or len(members) < 2:
        yield "found fewer than two tables [member.NAME], expected one for each member"
        return
    for name, table in members.items():
        yield from _table_faults(f"[member.{name}]", table, MEMBER_KEYS)


def _table_faults(title: str, table: object, known: Sequence[str]) -> Iterator[str]:
    if not isinstance(table, dict):
        yield f"found no table {title}, expected it"
        return
    for key, value in table.items():
        if key not in known:
            near = did_you_mean(key, known) or f"; the keys are {', '.join(known)}"
            yield f"{title}: found the key {key}, which has no meaning{near}"
        elif not isinstance(value, str):
            yield f'{title}: found {key} = {value}, expected a text: {key} = "{value}"'
        elif not value and key not in _OPTIONAL:
            yield f"{title}: found no text for {key}, expected one"
    missing = [key for key in known if key not in table and key not in (*_OPTIONAL, "host")]
    if missing:
        yield f"{title}: found no key {', no key '.join(missing)}, expected one"


def _contradictions(group: GroupFile) -> Iterator[str]:
    """Yield what makes the members impossible, each alone and together."""
    for each in group.members:
        yield from _member_faults(each)
    for what, values in (
        ("id", {each.name: each.id for each in group.members}),
        ("peer", {each.name: each.peer for each in group.members}),
        ("address", {each.name: each.address for each in group.members}),
        ("config", {each.name: f"{each.host} {each.config}" for each in group.members}),
        ("directory", {each.name: f"{each.host} {each.directory}" for each in group.members}),
    ):
        for one, two in _equal_pairs(values):
            yield (
                f"found the {what} {values[two].rpartition(' ')[2]} for {one} and {two}, expected"
                " one for each"
            )
    masters = [each.name for each in group.members if each.role != BrokerRole.SLAVE.name]
    if len(masters) != 1:
        listed = ", ".join(masters) or "none"
        yield f"found {listed} as master (role), expected one, and the others as SLAVE"
    try:
        parse_dledger_peers(group.peers)
    except ValueError as error:
        yield f"the peers {group.peers}: {error}"


def _member_faults(member: MemberSpec) -> Iterator[str]:
    title = f"[member.{member.name}]"
    if member.host != LOCAL and not member.host.startswith((SSH, HTTPS, HTTP)):
        yield (
            f"{title}: found host = {member.host}, expected local, ssh://HOST, or the https://"
            " address of rmqpy upgrade serve"
        )
    if not member.directory.startswith("/"):
        yield f"{title}: found the directory {member.directory}, expected an absolute path"
    if not member.is_local and not member.config.startswith("/"):
        yield f"{title}: found the config {member.config}, expected an absolute path on its host"
    if not is_dledger_id(member.id):
        yield f"{title}: found the id {member.id}, expected one letter and a number, as n0"
    if member.role not in BrokerRole.__members__:
        near = did_you_mean(member.role, BrokerRole.__members__)
        roles = ", ".join(BrokerRole.__members__)
        yield f"{title}: found the role {member.role}, expected one of {roles}{near}"
    for key, value in (("address", member.address), ("peer", member.peer)):
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            yield f"{title}: found {key} = {value}, expected HOST:PORT"


def _equal_pairs(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    owners: dict[str, str] = {}
    for name, value in values.items():
        other = owners.setdefault(value, name)
        if other != name:
            yield other, name
