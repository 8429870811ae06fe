"""The comparison of two answers without values that always differ: addresses, times, rates.

A *seen* value consists of plain JSON values; :func:`differences` compares two of them. Of members
in ``_HISTORY`` only the type is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rmqpy.codec.message import decode_message
from rmqpy.model.message import StoredMessage
from rmqpy.remoting.fastjson import ObjectKey, loads

Seen = Any
"""An answer in comparable form: plain JSON values of any shape."""

TIME: Final = "TIME"
RUNTIME_INFO: Final = 28
_STEADY: Final = frozenset(
    {"brokerVersion", "brokerVersionDesc", "commitLogMaxOffset", "commitLogMinOffset"}
    | {"msgPutTotalTodayNow", "putMessageFailedTimes", "startAcceptSendRequestTimeStamp"}
)
"""The members of the runtime information that do not depend on the clock."""
_FIRST_TIME_MS: Final = 1_000_000_000_000
_HISTORY: Final = frozenset(
    {
        "avgpt",
        "consumeTps",
        "counter",
        "delayTime",
        "spentTimeMills",
        "sum",
        "tps",
    }
)
"""The members whose values depend on the clock."""

_PLACES: Final = frozenset(
    {"commitLogMaxOffset", "commitLogOffset", "indexLastUpdatePhyoffset", "physicOffset"}
    | {"physicSize", "physical_offset", "prepared_transaction_offset", "size"}
)
_ANY: Final = frozenset({"brokerAddr"})
"""The members that hold one of several values at random (code 304)."""


def masked_text(text: str, masks: Mapping[str, str]) -> str:
    """Return ``text`` with the keys of ``masks`` replaced by their names, and without times."""
    for secret, name in masks.items():
        text = text.replace(secret, name)
    if re.fullmatch(r"1\d{12}", text):
        return TIME
    text = re.sub(r"(127\.0\.0\.1:)[3-6]\d{4}\b", r"\1CLIENT", text)
    text = re.sub(r"(?<!\d)1[789]\d{11}(?!\d)", TIME, text)
    return re.sub(r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:]\d{1,3})?", TIME, text)


def plain(value: object, masks: Mapping[str, str], name: str = "") -> Seen:
    """Return a JSON value without members that always differ."""
    if name in _ANY:
        return "any"
    if name in _HISTORY:
        return "number" if isinstance(value, int | float) else type(value).__name__
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return TIME if value >= _FIRST_TIME_MS and value < 1 << 62 else value
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return masked_text(value, masks)
    if isinstance(value, Mapping):
        masked = {_key(key, masks): plain(item, masks, str(key)) for key, item in value.items()}
        return dict(sorted(masked.items()))
    assert isinstance(value, list | tuple), value
    items = [plain(item, masks) for item in value]
    return sorted(items, key=repr)


def _steady(name: str, value: object) -> Seen:
    return value if name in _STEADY else "any"


def _key(key: object, masks: Mapping[str, str]) -> str:
    if isinstance(key, ObjectKey):
        return repr(sorted(key.as_dict().items()))
    return masked_text(str(key), masks)


def body_seen(code: int, body: bytes, masks: Mapping[str, str]) -> Seen:
    """Return a body in comparable form; ``code`` is that of the request."""
    if not body:
        return ""
    if code in (11, 12, 33):
        return [_message(message, masks) for message in _messages(body)]
    if code == RUNTIME_INFO:
        parsed = loads(body)
        assert isinstance(parsed, dict)
        table = parsed["table"]
        assert isinstance(table, dict)
        return {masked_text(name, masks): _steady(name, table[name]) for name in sorted(table)}
    if body[:1] in (b"{", b"["):
        return plain(loads(body), masks)
    text = body.decode()
    lines = [line.partition("=") for line in text.splitlines() if "=" in line]
    if len(lines) > 1:
        return {key: "" for key, _, _ in sorted(lines)}
    return masked_text(text, masks)


def _messages(body: bytes) -> Iterator[StoredMessage]:
    position = 0
    while position < len(body):
        message = decode_message(body, position)
        yield message
        position += message.size


def _message(message: StoredMessage, masks: Mapping[str, str]) -> Seen:
    names = ("size", "topic", "queue_id", "queue_offset", "physical_offset", "flag", "sys_flag") + (
        "body_crc",
        "reconsume_times",
        "prepared_transaction_offset",
    )
    seen = {name: getattr(message, name) for name in names}
    seen["properties"] = masked_text(message.raw_properties.decode(), masks)
    return seen


def without_places(seen: Seen, name: str = "") -> Seen:
    """Return ``seen`` without sizes and offsets, for logs whose sizes differ on purpose."""
    if name in _PLACES:
        return "any"
    if isinstance(seen, dict):
        return {key: without_places(value, key) for key, value in seen.items()}
    if isinstance(seen, list):
        return [without_places(value) for value in seen]
    return re.sub(r"HOST[0-9A-F]{16}", "HOST", seen) if isinstance(seen, str) else seen


def differences(java: Seen, ours: Seen, *, more: bool = False, path: str = "") -> list[str]:
    """Return how ``ours`` differs from ``java``; with ``more``, further members are allowed."""
    if isinstance(java, dict) and isinstance(ours, dict):
        missing, extra = java.keys() - ours.keys(), ours.keys() - java.keys()
        found = [f"{path}.{key}: only Java has it" for key in sorted(missing)]
        if not more:
            found += [f"{path}.{key}: only rmqpy has it" for key in sorted(extra)]
        for key in sorted(java.keys() & ours.keys()):
            found += differences(java[key], ours[key], more=more, path=f"{path}.{key}")
        return found
    if isinstance(java, list) and isinstance(ours, list):
        if len(java) != len(ours):
            return [f"{path}: {len(ours)} items {ours!r}, Java {len(java)} {java!r}"]
        return [
            text
            for number, (expected, found) in enumerate(zip(java, ours, strict=True))
            for text in differences(expected, found, more=more, path=f"{path}[{number}]")
        ]
    return [] if java == ours else [f"{path}: {ours!r}, Java {java!r}"]
