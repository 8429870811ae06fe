"""The declaration of a setting: an attribute of an attrs class with its Java key in the metadata.

``key("mappedFileSizeCommitLog", 1 << 30, minimum=1024, unit="bytes", doc=...)`` is the default
value of the attribute, and the only definition of the key: its text form, range, effect and
meaning. :mod:`rmqpy.config.loading` and :mod:`rmqpy.config.reference_page` read, print and document
settings from these declarations alone. The tables of keys are exempt from the formatter, which
would put each argument on its own line.

Files use Java's names unchanged; an attribute is the snake_case form of the key (``DLeger`` in a
name becomes ``dledger``). Java's names of times and sizes lack a unit, which ``unit`` states.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

import attrs
from attrs import field

from rmqpy.model.errors import ConfigError
from rmqpy.model.values import define

V = TypeVar("V")

JAVA_INT_MAX = 2**31 - 1
JAVA_LONG_MAX = 2**63 - 1


class Effect(Enum):
    """The effect of a key in rmqpy."""

    USED = "used"
    ACCEPTED = "accepted"
    """The key is checked, stored and printed, but does not affect rmqpy's behaviour."""
    THREADS = "accepted (Java thread pool)"
    """Same as ACCEPTED. The key sizes a pool, a pool's queue or a buffer that exists only in the
    Java broker.
    """
    LATER = "not yet"
    """Same as ACCEPTED in this version, which does not implement the feature of the key yet."""
    REFUSED = "only the default"
    """Any other value than the default stops the start, because it must not be ignored silently."""


class BrokerRole(Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(Enum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@define(frozen=True, kw_only=True)
class Kind:
    """The type of a setting and its text form. ``parse`` raises ValueError with the reason."""

    java_type: str
    allowed: str
    parse: Callable[[str], Any]
    print: Callable[[Any], str]
    trims: bool = True


@define(frozen=True, kw_only=True)
class KeyFacts:
    """The declaration of a key. ``kind.allowed`` includes the range of a number.

    An admin request may change a ``runtime`` key of a running server. Such keys are few on purpose:
    none is a path, an address, a role or an access key. The value of a ``secret`` key is never
    shown.
    """

    name: str
    attribute: str
    kind: Kind
    default: Any
    unit: str
    effect: Effect
    doc: str
    runtime: bool
    secret: bool
    clamp: Callable[[Any], Any] | None


@define(frozen=True, kw_only=True)
class _Declared:
    name: str
    kind: Kind
    unit: str
    effect: Effect
    doc: str
    runtime: bool
    secret: bool
    clamp: Callable[[Any], Any] | None


_METADATA = "rmqpy"


def key(
    name: str,
    default: V,
    *,
    doc: str,
    unit: str = "",
    effect: Effect = Effect.USED,
    minimum: int = 0,
    maximum: int | None = None,
    long: bool = False,
    kind: Kind | None = None,
    runtime: bool = False,
    secret: bool = False,
    clamp: Callable[[V], V] | None = None,
    converter: Callable[[V], V] | None = None,
) -> V:
    """Declare the setting of the Java key ``name``. Its kind is derived from the default unless it
    is passed.

    ``clamp`` limits a value as Java does, which is reported to the operator; ``converter`` adjusts
    a value silently.
    """
    if kind is None:
        kind = _kind_of(default, minimum, maximum, long)
    declared = _Declared(
        name=name,
        kind=kind,
        unit=unit,
        effect=effect,
        doc=doc,
        runtime=runtime,
        secret=secret,
        clamp=clamp,
    )
    value: V = field(default=default, converter=converter, metadata={_METADATA: declared})
    return value


def key_facts(settings: type[Any]) -> Mapping[str, KeyFacts]:
    """Return the declared keys of a settings class, by Java name, in the order of declaration."""
    if settings not in _FACTS:
        _FACTS[settings] = _declared_facts(settings)
    return _FACTS[settings]


_FACTS: dict[type[Any], Mapping[str, KeyFacts]] = {}


def _declared_facts(settings: type[Any]) -> dict[str, KeyFacts]:
    facts: dict[str, KeyFacts] = {}
    for attribute in attrs.fields(settings):
        declared: _Declared = attribute.metadata[_METADATA]
        assert declared.name not in facts, declared.name
        default = attribute.default
        facts[declared.name] = KeyFacts(
            name=declared.name,
            attribute=attribute.name,
            kind=declared.kind,
            default=None if isinstance(default, _FACTORY) else default,
            unit=declared.unit,
            effect=declared.effect,
            doc=declared.doc,
            runtime=declared.runtime,
            secret=declared.secret,
            clamp=declared.clamp,
        )
    return facts


# The stubs of attrs say that Factory is a function, which isinstance cannot take.
_FACTORY: type = type(attrs.Factory(list))


def printed(settings: Any) -> Mapping[str, str]:
    """Return Java key and text of each value that is not null, in order of declaration."""
    values = {
        name: (facts.kind, getattr(settings, facts.attribute))
        for name, facts in key_facts(type(settings)).items()
    }
    return {name: kind.print(value) for name, (kind, value) in values.items() if value is not None}


# ------------------------------------------------------------------------------ kinds


def number(java_type: str, minimum: int, maximum: int) -> Kind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ValueError("not a whole number")
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError("out of range")
        return value

    top = {JAVA_INT_MAX: "2^31-1", JAVA_LONG_MAX: "2^63-1"}.get(maximum, str(maximum))
    return Kind(java_type=java_type, allowed=f"{minimum} … {top}", parse=parse, print=str)


def _parse_boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError("not a boolean") from None


def choice(of: type[Enum]) -> Kind:
    def parse(text: str) -> Enum:
        try:
            return of(text)
        except ValueError:
            raise ValueError("unknown value") from None

    return Kind(
        java_type=of.__name__,
        allowed=", ".join(str(member.value) for member in of),
        parse=parse,
        print=lambda member: str(member.value),
    )


BOOLEAN = Kind(
    java_type="boolean",
    allowed="true, false",
    parse=_parse_boolean,
    print=lambda value: "true" if value else "false",
)
TEXT = Kind(java_type="String", allowed="text", parse=str, print=str, trims=False)


def checked_text(allowed: str, check: Callable[[str], object]) -> Kind:
    """Return a kind whose texts are stored unchanged and are valid if ``check`` raises no
    ValueError.
    """

    def parse(text: str) -> str:
        check(text)
        return text

    return Kind(java_type="String", allowed=allowed, parse=parse, print=str)


def _kind_of(default: Any, minimum: int, maximum: int | None, long: bool) -> Kind:
    if isinstance(default, bool):
        return BOOLEAN
    if isinstance(default, int):
        if long:
            return number("long", minimum, JAVA_LONG_MAX if maximum is None else maximum)
        return number("int", minimum, JAVA_INT_MAX if maximum is None else maximum)
    if isinstance(default, Enum):
        return choice(type(default))
    return TEXT


# ------------------------------------------------------------------------------ value syntaxes


def parse_hours(text: str) -> tuple[int, ...]:
    """Return the hours of the day in ``text``, which has the form of ``deleteWhen``: ``02;04;16``.

    Raises ValueError.
    """
    if re.fullmatch(r"[0-9]{1,2}(;[0-9]{1,2})*", text) is None:
        raise ValueError("not a list of hours")
    hours = tuple(int(part) for part in text.split(";"))
    if max(hours) > 23:
        raise ValueError("no such hour")
    return hours


HOURS = Kind(
    java_type="String",
    allowed="hours 00 … 23, separated by ;",
    parse=parse_hours,
    print=lambda hours: ";".join(f"{hour:02d}" for hour in hours),
)

_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@lru_cache(maxsize=16)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays of levels 1, 2, … in ms. ``text`` has the form of ``messageDelayLevel``:
    ``1s 2h``. Raises ValueError.
    """
    levels = []
    for part in text.split(" "):
        match = re.fullmatch(r"([0-9]{1,9})([smhd])", part)
        if match is None:
            raise ValueError(f"{part!r} is not a delay")
        levels.append(int(match[1]) * _DELAY_UNITS_MS[match[2]])
    return tuple(levels)


DELAY_LEVELS = checked_text("delays <number><s|m|h|d>, separated by one blank", parse_delay_levels)


def _parse_folder(text: str) -> str:
    if not text or "," in text:
        raise ValueError("a log in several directories is not supported" if text else "empty")
    return text


ONE_FOLDER = checked_text("one directory", _parse_folder)


def _parse_store_type(text: str) -> str:
    if text not in ("default", "MEMORY", "defaultRocksDB"):
        raise ValueError("unknown value")
    return text


STORE_TYPE = checked_text("default, MEMORY", _parse_store_type)


def host_and_port(address: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port`` into host and port. The host may be an IPv6 address in brackets. Raises
    ValueError.
    """
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^\s:;\[\]]+):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return match[1].strip("[]"), int(match[2])


def parse_addresses(text: str) -> tuple[str, ...]:
    """Return the non-empty parts of ``host:port;host:port``. Raises ValueError."""
    parts = tuple(part.strip() for part in text.split(";") if part.strip())
    if not parts:
        raise ValueError("no address")
    for part in parts:
        split_address(part)
    return parts


ADDRESS = checked_text("host:port", split_address)

ADDRESSES = checked_text("host:port, separated by ;", parse_addresses)


@define(frozen=True)
class DLedgerPeer:
    """A member of a DLedger group: its id, and the host and port of its DLedger server."""

    peer_id: str
    host: str
    port: int

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


_SELF_ID = re.compile(r"[a-zA-Z][0-9]{1,9}")


def is_dledger_id(text: str) -> bool:
    """Return whether ``text`` is one letter and a number. Java uses number + 1 as the broker id."""
    return _SELF_ID.fullmatch(text) is not None


def parse_dledger_peers(text: str) -> tuple[DLedgerPeer, ...]:
    """Return the members in ``text``, which has the form of ``dLegerPeers``:
    ``n0-host:port;n1-host:port``.

    An id ends at the first ``-``. Raises ValueError.
    """
    peers = []
    for part in text.split(";"):
        peer_id, dash, address = part.strip().partition("-")
        if not peer_id or not dash:
            raise ValueError(f"{part!r} is not id-host:port")
        peers.append(DLedgerPeer(peer_id, *split_address(address)))
    for what, seen in (
        ("id", [peer.peer_id for peer in peers]),
        ("address", [peer.address for peer in peers]),
    ):
        if len(set(seen)) != len(seen):
            raise ValueError(f"the same {what} twice")
    return tuple(peers)


def config_fault(where: str, name: str, text: str, reason: str, allowed: str) -> ConfigError:
    """Return the error for a wrong setting, in the form that all such errors have."""
    return ConfigError(f"{where}: {name}={text!r}: {reason}; allowed: {allowed}")
