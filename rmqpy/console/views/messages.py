"""A message for the reader: its body as text, JSON, or hex, and where it is in the log.

Bodies and properties are of unknown origin and size: at most ``BODY_SHOWN`` bytes are shown, and
characters that a terminal or browser might act upon are replaced by their code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from attrs import define

from rmqpy.client.core.message import MessageExt, host_address, inflated_start
from rmqpy.console.facts import BrokerFacts, number_of
from rmqpy.model.errors import RemoteProtocolError

__all__ = ["BODY_FORMS", "MessageView", "body_text", "message_view", "place_of", "preview", "shown"]

BODY_SHOWN: Final = 65_536
PREVIEW_CHARACTERS: Final = 120
BODY_FORMS: Final = ("auto", "text", "json", "hex")
_HEX_COLUMNS: Final = 16


@define(slots=True, frozen=True, kw_only=True)
class MessageView:
    """``place`` has (label, text) of where the record is; ``is_whole`` is False
    if only the beginning of the body is shown."""

    message: MessageExt
    form: str
    body: str
    stored_bytes: int
    is_whole: bool
    fault: str
    properties: Sequence[tuple[str, str]]
    place: Sequence[tuple[str, str]]
    born_host: str
    store_host: str


def message_view(message: MessageExt, broker: BrokerFacts | None, form: str) -> MessageView:
    """Return a message, with its body in one of ``BODY_FORMS``."""
    stored, fault = message.stored, ""
    try:
        body, is_whole = inflated_start(stored.body, stored.sys_flag, BODY_SHOWN)
    except RemoteProtocolError as error:
        fault, form = str(error), "hex"
        body, is_whole = stored.body[:BODY_SHOWN], len(stored.body) <= BODY_SHOWN
    used, text = body_text(body, form)
    return MessageView(
        message=message,
        form=used,
        body=text,
        stored_bytes=len(stored.body),
        is_whole=is_whole,
        fault=fault,
        properties=[(shown(name), shown(value)) for name, value in message.properties.items()],
        place=place_of(message, broker),
        born_host=host_address(message.stored.born_host),
        store_host=host_address(message.stored.store_host),
    )


def body_text(body: bytes, form: str) -> tuple[str, str]:
    """Return the form that was used and the text of a body; ``auto`` chooses JSON, text, or hex."""
    if form in ("auto", "json"):
        try:
            value = json.loads(body)
            if form == "json" or isinstance(value, dict | list):
                return "json", shown(json.dumps(value, indent=2, ensure_ascii=False), keep="\n")
        except (ValueError, RecursionError):
            pass
    if form == "hex" or (form == "auto" and not _is_text(body)):
        return "hex", _hex(body)
    return "text", shown(body.decode("utf-8", "replace"), keep="\n\t")


def preview(message: MessageExt) -> str:
    """Return the beginning of a body in one line."""
    try:
        stored = message.stored
        body, _ = inflated_start(stored.body, stored.sys_flag, 4 * PREVIEW_CHARACTERS)
    except RemoteProtocolError as error:
        return f"({error})"
    if not _is_text(body):
        return body[: PREVIEW_CHARACTERS // 3].hex(" ")
    return shown(body.decode("utf-8", "replace"))[:PREVIEW_CHARACTERS]


def shown(text: str, keep: str = "") -> str:
    """Return a text with every character that is not printable as its code, such as ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else f"\\u{ord(each):04x}" for each in text
    )


def place_of(message: MessageExt, broker: BrokerFacts | None) -> list[tuple[str, str]]:
    """Return where the record of a message is, as far as its broker says what is needed."""
    offset = message.stored.physical_offset
    found = [("physical offset", f"{offset:,}"), ("size", f"{message.stored.size:,} bytes")]
    if broker is None:
        return [*found, ("broker", "not a broker of this cluster")]
    found.append(("broker", f"{broker.name} ({broker.address})"))
    size = number_of(broker.settings, "mappedFileSizeCommitLog")
    divide = number_of(broker.info, "dividedCommitlogOffset")
    folder, side = "commitlog", "classic log"
    if broker.is_dledger:
        member = broker.settings.get("dLegerSelfId", "")
        if divide is not None and offset < divide:
            side = f"classic log, {divide - offset:,} bytes before the divide"
        else:
            folder, side = f"dledger-{member}/data", "DLedger log"
            if divide is not None:
                side += f", {offset - divide:,} bytes after the divide"
    found.append(("side", side))
    if size:
        begin = offset // size * size
        found += [("file", f"{folder}/{begin:020d}"), ("position", f"{offset - begin:,}")]
    return found


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        if error.start < len(body) - 3:  # else the preview ends inside of a character
            return False
        text = body[: error.start].decode()
    odd = sum(not (each.isprintable() or each in "\r\n\t") for each in text)
    return odd * 20 <= len(text)


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), _HEX_COLUMNS):
        row = body[start : start + _HEX_COLUMNS]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_COLUMNS}} {text}")
    return "\n".join(lines)
