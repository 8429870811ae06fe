"""Rules that remove or replace what must not reach a table.

A file of rules is TOML::

    key_file = "mask.key"        # for "hash": the secret, at least 16 bytes

    [[rule]]
    topics = ["orders-*"]        # patterns; without them, all topics
    body = "customer.email"      # a path in JSON bodies; every element of a list is masked
    with = "hash"

    [[rule]]
    property = "KEYS"            # the column keys, too; TAGS: tags and tagsCode
    with = "remove"

    [[rule]]
    column = "bornHost"          # bornHost or storeHost
    with = "redact"

``hash`` is HMAC-SHA256 in hexadecimal digits, so equal values stay equal; ``redact`` writes
``***``; ``remove`` removes the value. The path ``$`` is the whole body. A path rule never lets a
body pass that it cannot read: a body that is not JSON becomes null and is counted. ``bodyCrc``
becomes null where a body is masked, because a checksum tells short bodies.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from rmqpy.model.errors import ConfigError

__all__ = ["REMOVED", "WHOLE_BODY", "MaskKind", "Masking", "MaskingRule", "read_masking"]

REDACTED: Final = "***"
WHOLE_BODY: Final = "$"
COLUMNS: Final = ("bornHost", "storeHost")
TARGETS: Final = ("body", "property", "column")
KEY_BYTES_MIN: Final = 16


class _Removed:
    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = _Removed()
"""The masked value of a removed value."""

MaskKind = str
KINDS: Final = ("hash", "redact", "remove")


@define(slots=True, frozen=True)
class MaskingRule:
    """One rule. ``what`` is one of TARGETS, ``name`` the path, the property or the column."""

    what: str
    name: str
    kind: MaskKind
    topics: tuple[str, ...] = ("*",)

    def is_for(self, topic: str) -> bool:
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.name.split("."))


@define(slots=True, frozen=True)
class Masking:
    """All rules. ``digest`` identifies them and the key, which it does not tell."""

    rules: tuple[MaskingRule, ...] = ()
    digest: str = ""
    _key: bytes = field(default=b"", repr=False)

    def rules_for(self, topic: str, what: str) -> tuple[MaskingRule, ...]:
        return tuple(rule for rule in self.rules if rule.what == what and rule.is_for(topic))

    def value(self, kind: MaskKind, value: Any) -> Any:
        """Return the masked value: a string, REMOVED, or None for None."""
        if value is None:
            return None
        if kind == "remove":
            return REMOVED
        if kind == "redact":
            return REDACTED
        raw = value if isinstance(value, bytes) else _bytes_of(value)
        return hmac.new(self._key, raw, hashlib.sha256).hexdigest()

    def document(self, rules: Sequence[MaskingRule], document: Any) -> Any:
        """Return a copy of a parsed body with the paths of ``rules`` masked."""
        for rule in rules:
            document = self._masked(rule.path, rule.kind, document)
        return document

    def _masked(self, path: tuple[str, ...], kind: MaskKind, value: Any) -> Any:
        if isinstance(value, list) and not (value and isinstance(value[0], tuple)):
            if path:
                return [self._masked(path, kind, each) for each in value]
        elif isinstance(value, list):  # a map as Arrow takes it
            return list(self._masked(path, kind, dict(value)).items())
        if not path:
            return self.value(kind, value)
        if not isinstance(value, dict) or path[0] not in value:
            return value
        inner = self._masked(path[1:], kind, value[path[0]])
        kept = {name: each for name, each in value.items() if name != path[0]}
        return kept if inner is REMOVED else {**value, path[0]: inner}


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode()


def read_masking(path: str) -> Masking:
    """Return the rules in a file. Raise ConfigError with what was found and expected."""
    try:
        raw = Path(path).read_bytes()
        data = tomllib.loads(raw.decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a file of masking rules") from None
    except ValueError as error:
        raise ConfigError(f"{path}: found no TOML ({error}), expected masking rules") from None
    found = data.get("rule")
    if unknown := sorted(set(data) - {"key_file", "rule"}):
        raise ConfigError(f"{path}: found {unknown[0]}, expected key_file and [[rule]]")
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{path}: found no rules, expected at least one [[rule]]; add one")
    rules = tuple(
        _rule(each, f"{path}: rule {number}") for number, each in enumerate(found, start=1)
    )
    key = b""
    if any(rule.kind == "hash" for rule in rules):
        key = _key(path, data.get("key_file"))
    # Another key gives other hashes: such rows must not meet in one table.
    return Masking(rules, hmac.new(key, raw, hashlib.sha256).hexdigest(), key)


def _rule(data: Any, where: str) -> MaskingRule:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: found {data!r}, expected a table; correct it")
    if unknown := sorted(set(data) - {*TARGETS, "topics", "with"}):
        raise ConfigError(
            f"{where}: found {unknown[0]}, expected {', '.join(TARGETS)}, topics, with"
        )
    named = [what for what in TARGETS if what in data]
    if len(named) != 1:
        raise ConfigError(
            f"{where}: found {' and '.join(named) or 'nothing to mask'}, expected one of"
            f" {', '.join(TARGETS)}; split or complete the rule"
        )
    what, kind, topics = named[0], data.get("with"), data.get("topics", ["*"])
    name = data[what]
    if kind not in KINDS:
        raise ConfigError(f"{where}: found with = {kind!r}, expected {', '.join(KINDS)}")
    if not isinstance(name, str) or "" in name.split("."):
        raise ConfigError(f"{where}: found {what} = {name!r}, expected a name or a path a.b")
    if what == "column" and name not in COLUMNS:
        raise ConfigError(f"{where}: found the column {name}, expected {' or '.join(COLUMNS)}")
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise ConfigError(f"{where}: found topics = {topics!r}, expected a list of patterns")
    return MaskingRule(what, name, kind, tuple(topics))


def _key(path: str, named: Any) -> bytes:
    if not isinstance(named, str):
        raise ConfigError(
            f"{path}: found a rule with hash and no key_file, expected the file of a secret;"
            " without one, short values could be found by trying"
        )
    file = Path(path).parent / named
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; create the key file of {path}") from None
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"{file}: found {len(key)} bytes, expected at least {KEY_BYTES_MIN}; create a longer"
            " secret"
        )
    return key
