"""Access files (Java's ``plain_acl.yml``): parsing, changing, and formatting them.

============================  ====================================================================
key                           shape
============================  ====================================================================
``globalWhiteRemoteAddresses``  list of address patterns (:mod:`.address_patterns`)
``accounts``                  list of maps: ``accessKey``, ``secretKey``, ``whiteRemoteAddress``,
                              ``admin``, ``defaultTopicPerm``, ``defaultGroupPerm``,
                              ``topicPerms`` and ``groupPerms`` (lists of ``name=PERM``)
``dataVersion``               list with one map: ``counter``, ``timestamp``; raised by each change
                              over the wire
============================  ====================================================================

The file is YAML. Operators write it by hand, the Java broker in block and in flow form, so it is
read by PyYAML (the extra ``acl``); a reader of a subset would reject, or worse misread, files that
Java accepts. Every scalar remains a string (a secret of digits is not a number).

Invariant: content that cannot be understood raises a ConfigError with file, account and key, and
never creates an account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define, evolve, field

from rmqpy.acl.address_patterns import parse_pattern, parse_patterns
from rmqpy.acl.rules import (
    KEY_LENGTH_MIN,
    AccessRules,
    Account,
    is_right,
    parse_right,
    retry_resource,
)
from rmqpy.model.errors import ConfigError

WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
BYTES_MAX: Final = 4 << 20
"""The maximum size of a file."""

_LISTS: Final = ("topicPerms", "groupPerms")
_TEXTS: Final = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
)
_TRUTH: Final = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}


@define(slots=True, frozen=True, kw_only=True)
class PlainAccount:
    """An account as written in a file."""

    access_key: str
    secret_key: str = field(default="", repr=False)
    white_remote_address: str = ""
    admin: bool = False
    default_topic_perm: str = ""
    default_group_perm: str = ""
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()

    def account(self, where: str) -> Account:
        """Return the account with its parsed rights. Raises ConfigError if it is invalid."""
        for name, value in (("accessKey", self.access_key), ("secretKey", self.secret_key)):
            if len(value) < KEY_LENGTH_MIN:
                raise ConfigError(
                    f"{where}: {name} of the account {self.access_key!r} needs at least "
                    f"{KEY_LENGTH_MIN} characters"
                )
        try:
            white = parse_pattern(self.white_remote_address)
        except ValueError as error:
            reason = f"whiteRemoteAddress of {self.access_key}: {error}"
            raise ConfigError(f"{where}: {reason}") from None
        rights = {
            **_rights(where, self.access_key, "topicPerms", self.topic_perms),
            **{
                retry_resource(name): right
                for name, right in _rights(
                    where, self.access_key, "groupPerms", self.group_perms
                ).items()
            },
        }
        return Account(
            access_key=self.access_key,
            secret_key=self.secret_key,
            white_address=white,
            admin=self.admin,
            default_topic_right=parse_right(self.default_topic_perm),
            default_group_right=parse_right(self.default_group_perm),
            rights=rights or None,
        )


@define(slots=True, frozen=True, kw_only=True)
class AccessFile:
    """The content of a file. ``version`` is (counter, timestamp in ms)."""

    white: tuple[str, ...] = ()
    accounts: tuple[PlainAccount, ...] = ()
    version: tuple[int, int] = (0, 0)

    def rules(self, where: str) -> AccessRules:
        """Return the rules of the file. Of two accounts with the same key the first counts. Raises
        ConfigError.
        """
        accounts: dict[str, Account] = {}
        for plain in self.accounts:
            accounts.setdefault(plain.access_key, plain.account(where))
        try:
            white = parse_patterns(self.white)
        except ValueError as error:
            raise ConfigError(f"{where}: {WHITE}: {error}") from None
        return AccessRules(accounts, white)

    def find(self, access_key: str) -> PlainAccount | None:
        return next((each for each in self.accounts if each.access_key == access_key), None)

    def changed(self, now_ms: int, **changes: Any) -> AccessFile:
        """Return a copy with ``changes`` and the next version."""
        return evolve(self, version=(self.version[0] + 1, now_ms), **changes)

    def with_account(self, account: PlainAccount, now_ms: int) -> AccessFile:
        """Return a copy in which ``account`` replaces the account with the same key, or is appended
        if there is none.
        """
        if self.find(account.access_key) is None:
            return self.changed(now_ms, accounts=(*self.accounts, account))
        accounts = [
            account if each.access_key == account.access_key else each for each in self.accounts
        ]
        return self.changed(now_ms, accounts=tuple(accounts))

    def without_account(self, access_key: str, now_ms: int) -> AccessFile:
        kept = tuple(each for each in self.accounts if each.access_key != access_key)
        return self.changed(now_ms, accounts=kept)


def parse_access_file(text: str, where: str) -> AccessFile:
    """Parse the text of an access file. Raises ConfigError if it is invalid."""
    value = parse_yaml(text, where)
    if value in ("", None):
        return AccessFile()
    table = _map(where, "the file", value)
    accounts = [_account(where, each) for each in _list(where, ACCOUNTS, table.get(ACCOUNTS))]
    versions = _list(where, VERSION, table.get(VERSION))
    return AccessFile(
        white=tuple(_texts(where, WHITE, table.get(WHITE))),
        accounts=tuple(accounts),
        version=_version(where, versions[0]) if versions else (0, 0),
    )


def format_access_file(file: AccessFile) -> str:
    """Return the text of ``file`` in the form that Java and :func:`parse_access_file` read."""
    counter, timestamp = file.version
    content: dict[str, Any] = {
        WHITE: list(file.white),
        ACCOUNTS: [_account_map(each) for each in file.accounts],
        VERSION: [{"counter": counter, "timestamp": timestamp}],
    }
    text: str = _yaml("an access file").safe_dump(content, sort_keys=False, allow_unicode=True)
    return text


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML into maps, lists and strings. Raises ConfigError if it is invalid."""
    if len(text) > BYTES_MAX:
        raise ConfigError(f"{where}: larger than {BYTES_MAX} bytes")
    yaml = _yaml(where)
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: invalid YAML: {reason[:300]}") from None


def _yaml(where: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(f"{where} is YAML: pip install rmqpy[acl] (PyYAML)") from error
    return yaml


def _account(where: str, value: object) -> PlainAccount:
    table = _map(where, f"an item of {ACCOUNTS}", value)
    key = str(table.get("accessKey", ""))
    unknown = sorted(table.keys() - {*_TEXTS, *_LISTS})
    if unknown:
        raise ConfigError(f"{where}: account {key!r} has unknown keys: {', '.join(unknown)}")
    texts = {name: table.get(name, "") for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ConfigError(f"{where}: {name} of {key!r} is not a string")
    for name in ("defaultTopicPerm", "defaultGroupPerm"):
        if texts[name] and not is_right(texts[name]):
            raise ConfigError(
                f"{where}: {name} of {key!r} is {texts[name]!r}; allowed: DENY, PUB, SUB, PUB|SUB"
            )
    admin = texts["admin"].lower()
    if admin and admin not in _TRUTH:
        raise ConfigError(f"{where}: admin of {key!r} is {admin!r}; allowed: true, false")
    return PlainAccount(
        access_key=texts["accessKey"],
        secret_key=texts["secretKey"],
        white_remote_address=texts["whiteRemoteAddress"],
        admin=_TRUTH.get(admin, False),
        default_topic_perm=texts["defaultTopicPerm"],
        default_group_perm=texts["defaultGroupPerm"],
        topic_perms=tuple(_texts(where, "topicPerms", table.get("topicPerms"))),
        group_perms=tuple(_texts(where, "groupPerms", table.get("groupPerms"))),
    )


def _account_map(account: PlainAccount) -> dict[str, Any]:
    values: dict[str, Any] = {
        "accessKey": account.access_key,
        "secretKey": account.secret_key,
        "whiteRemoteAddress": account.white_remote_address,
        "admin": account.admin,
        "defaultTopicPerm": account.default_topic_perm,
        "defaultGroupPerm": account.default_group_perm,
        "topicPerms": list(account.topic_perms),
        "groupPerms": list(account.group_perms),
    }
    return {name: value for name, value in values.items() if value not in ("", [])}


def _rights(where: str, key: str, name: str, entries: Sequence[str]) -> dict[str, int]:
    rights = {}
    for entry in entries:
        resource, equals, right = (part.strip() for part in entry.partition("="))
        if not equals or not resource or not is_right(right):
            raise ConfigError(
                f"{where}: {name} of {key}: {entry!r} is not NAME=DENY, NAME=PUB, NAME=SUB or "
                "NAME=PUB|SUB"
            )
        rights[resource] = parse_right(right)
    return rights


def _map(where: str, what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: {what} is not a map of keys to values")
    return value


def _list(where: str, what: str, value: object) -> list[Any]:
    if value in (None, ""):
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {what} is not a list")
    return value


def _texts(where: str, what: str, value: object) -> list[str]:
    texts = _list(where, what, value)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}: {what} is not a list of strings")
    return texts


def _version(where: str, value: object) -> tuple[int, int]:
    table = _map(where, VERSION, value)
    try:
        return int(table.get("counter", "0")), int(table.get("timestamp", "0"))
    except (ValueError, TypeError):
        raise ConfigError(f"{where}: {VERSION} is not a counter and a timestamp") from None
