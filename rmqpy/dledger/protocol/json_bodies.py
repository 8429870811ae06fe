"""The bodies of DLedger's remoting frames: JSON, with entry bodies in Base64.

The frame around a body contains only the request code; in answers the remoting code is always 200
and the result is in the body. Members are written in alphabetical order, absent ones are omitted.
The derived members of a push (batch, count, firstEntryIndex, lastEntryIndex, totalSize) are written
but not read; ``totalSize`` is nonzero only in batches.

==========================  =============  =================================================
message                     wire name      attribute
==========================  =============  =================================================
VoteResponse                voteResult     result
AppendEntryResponse         pos            position
PushEntryRequest            entry          entries[0], unless a batch; absent from a COMMIT
PushEntryRequest            batchEntry     entries of a batch, else []
every other attribute                      its camelCase form
==========================  =============  =================================================

Invariants: for any bytes, decoding returns a message or raises a RemoteProtocolError that names the
field; a decoded entry has the size and magic that match its body. Peers are not authenticated by
default, so a body without entries has at most ``TOLERANT_REQUEST_MAX`` bytes, and a longer one must
be strict JSON: the tolerant reader would stop the member for seconds.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

from attrs import astuple, fields

from rmqpy.codec.entry import EntryHeader
from rmqpy.codec.entry_batch import ENTRY_BODY_MAX, entry_text
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, ENTRY_MAGIC
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.protocol import push_binary
from rmqpy.dledger.protocol.messages import (
    REQUESTS,
    RESPONSES,
    AppendEntryRequest,
    DLedgerMessage,
    Entry,
    GetEntriesResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    Request,
    Response,
    VoteResult,
)
from rmqpy.dledger.protocol.push_text import (
    BATCH_HEAD,
    read_answer,
    read_push,
    take_run,
    write_answer,
    write_push,
    write_run,
)
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX, FastjsonDecodeError, dumps, loads
from rmqpy.remoting.java_values import INT32_MAX, INT64_MAX, parse_decimal

RESPONSE_FRAME_CODE: Final = 200
"""The remoting code of every answer."""

M = TypeVar("M", bound=DLedgerMessage)


def encode(message: DLedgerMessage) -> bytes:
    """Return the body of ``message``."""
    if isinstance(message, PushEntryRequest):
        return _push_text(message)
    if isinstance(message, PushEntryResponse):
        return write_answer(message)
    return dumps(
        {
            member.wire_name: member.write(value)
            for member in _MEMBERS[type(message)]
            if (value := getattr(message, member.attribute)) is not None
        }
    )


def encode_in_pieces(message: DLedgerMessage) -> Sequence[bytes]:
    """Return the body of ``message`` in pieces; the entries of a batch push are one piece."""
    if isinstance(message, PushEntryRequest):
        entries = message.entries
        if isinstance(entries, EntryRun) and message.batch:
            return write_run(message, entries)
    return (encode(message),)


def encode_answer(code: int, response: Response) -> bytes:
    """Return the body of the answer to a request of ``code``."""
    if code == RequestCode.RMQPY_PUSH_RUN and isinstance(response, PushEntryResponse):
        return push_binary.write_answer(response)
    return encode(response)


def decode_request(code: int, body: bytes | memoryview) -> Request:
    """Return the request in a frame of ``code``. Raises RemoteProtocolError."""
    if code == RequestCode.RMQPY_PUSH_RUN:
        return push_binary.read_run(bytes(body))
    kind = REQUESTS.get(code)
    if kind is None:
        raise RemoteProtocolError(f"code {code} is not a request of a DLedger member")
    return _decode(kind, body)


def decode_response(request: type[Request], body: bytes | memoryview) -> Response:
    """Return the response to a request of type ``request``. Raises RemoteProtocolError."""
    if request is PushEntryRequest and body[:4] == push_binary.ANSWER_MAGIC:
        return push_binary.read_answer(body)
    return _decode(RESPONSES[request], body)


def _decode(kind: type[M], body: bytes | memoryview) -> M:
    run = None
    if kind is PushEntryRequest:
        body = bytes(body)
        taken = take_run(body)
        if taken is not None:
            run, end = taken
            usual = read_push(body, run, end)
            if usual is not None:
                return cast(M, usual)
            body = BATCH_HEAD + b"]" + body[end:]
    elif kind is PushEntryResponse:
        answer = read_answer(body)
        if answer is not None:
            return cast(M, answer)
    if kind not in _LARGE and len(body) > TOLERANT_REQUEST_MAX:
        size = f"has {len(body)} bytes, expected at most {TOLERANT_REQUEST_MAX}"
        raise RemoteProtocolError(f"a {kind.__name__} {size}")
    try:
        value = loads(body, TOLERANT_REQUEST_MAX)
    except FastjsonDecodeError as fault:
        raise RemoteProtocolError(f"a {kind.__name__} is not JSON: {str(fault)[:200]}") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"a {kind.__name__} is not an object but {type(value).__name__}")
    try:
        if kind is PushEntryRequest:
            return kind(**_push_arguments(value, run))
        return kind(**_arguments(_MEMBERS[kind], value))
    except _FieldError as fault:
        raise RemoteProtocolError(f"a {kind.__name__}: {fault}") from None


class _FieldError(Exception):
    """A field has an invalid value."""


class _WireField:
    """A field of a message: its name on the wire, its reader and its writer."""

    __slots__ = ("attribute", "read", "wire_name", "write")

    def __init__(
        self,
        attribute: str,
        wire_name: str,
        read: Callable[[Any], Any],
        write: Callable[[Any], Any],
    ) -> None:
        self.attribute = attribute
        self.wire_name = wire_name
        self.read = read
        self.write = write


def _identity(value: Any) -> Any:
    return value


def _shown(value: object) -> str:
    return repr(value)[:64]


def _integer(value: object, maximum: int) -> int:
    if isinstance(value, str):
        try:
            return parse_decimal(value, maximum)
        except ValueError:
            pass
    elif type(value) is int and -maximum - 1 <= value <= maximum:
        return value
    bits = maximum.bit_length() + 1
    raise _FieldError(f"expected a {bits}-bit integer, found {_shown(value)}")


def _int32(value: object) -> int:
    return _integer(value, INT32_MAX)


def _int64(value: object) -> int:
    return _integer(value, INT64_MAX)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _FieldError(f"expected a string, found {_shown(value)}")
    return value


def _bytes(value: object) -> bytes:
    try:
        return a2b_base64(_text(value), strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise _FieldError(f"invalid Base64: {error}") from None


def _write_bytes(value: bytes | bytearray | memoryview) -> str:
    return b2a_base64(value, newline=False).decode("ascii")


def _list(value: object, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _FieldError(f"expected a list, found {_shown(value)}")
    items = []
    for number, item in enumerate(value):
        try:
            items.append(read(item))
        except _FieldError as fault:
            raise _FieldError(f"[{number}]: {fault}") from None
    return tuple(items)


def _peers(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _FieldError(f"expected an object, found {_shown(value)}")
    return {_text(member): _text(address) for member, address in value.items()}


def _vote_result(value: object) -> VoteResult:
    try:
        return VoteResult(_text(value))
    except ValueError:
        return VoteResult.UNKNOWN


def _push_type(value: object) -> PushType:
    try:
        return PushType(_text(value))
    except ValueError:
        raise _FieldError(f"unknown push type {_shown(value)}") from None


_USUAL_ZEROS: Final = ("bodyCrc", "chainCrc", "channel")


def _usual_entry(value: Mapping[Any, Any]) -> Entry | None:
    """Return an entry in the usual form, or None if each of its fields must be checked."""
    try:
        body = a2b_base64(value["body"], strict_mode=True)
        index, term, position = value["index"], value["term"], value["pos"]
        usual = (
            value["magic"] == ENTRY_MAGIC
            and value["size"] == ENTRY_HEADER_SIZE + len(body)
            and len(body) <= ENTRY_BODY_MAX
            and type(index) is type(term) is type(position) is int
            and 0 <= index <= INT64_MAX
            and 0 <= term <= INT64_MAX
            and 0 <= position <= INT64_MAX
            and all(type(value[name]) is int and value[name] == 0 for name in _USUAL_ZEROS)
            and type(value["size"]) is type(value["magic"]) is int
        )
    except (KeyError, TypeError, ValueError):
        return None
    return Entry.of(index, term, position, body) if usual else None


def _entry(value: object) -> Entry:
    if not isinstance(value, dict):
        raise _FieldError(f"expected an entry, found {_shown(value)}")
    usual = _usual_entry(value)
    if usual is not None:
        return usual
    found = _arguments(_ENTRY, value)
    body: bytes = found.pop("body", b"")
    if len(body) > ENTRY_BODY_MAX:
        raise _FieldError(f"body: {len(body)} bytes, more than {ENTRY_BODY_MAX}")
    if found.get("magic") != ENTRY_MAGIC:
        raise _FieldError(f"magic: {found.get('magic')}, expected {ENTRY_MAGIC}")
    if found.get("size") != ENTRY_HEADER_SIZE + len(body):
        raise _FieldError(
            f"size: {found.get('size')}, expected {ENTRY_HEADER_SIZE + len(body)} for a body of"
            f" {len(body)} bytes"
        )
    for name in ("index", "term", "position"):
        if found.get(name, -1) < 0:
            raise _FieldError(f"{'pos' if name == 'position' else name}: {found.get(name)}")
    header = EntryHeader(
        size=found["size"],
        index=LedgerIndex(found["index"]),
        term=Term(found["term"]),
        position=found["position"],
        channel=found.get("channel", 0),
        chain_crc=found.get("chain_crc", 0),
        body_crc=found.get("body_crc", 0),
        body_length=len(body),
    )
    return Entry(header, body)


def _write_entry(entry: Entry) -> dict[str, object]:
    header = entry.header
    return {
        "body": _write_bytes(entry.body),
        "bodyCrc": header.body_crc,
        "chainCrc": header.chain_crc,
        "channel": header.channel,
        "index": header.index,
        "magic": header.magic,
        "pos": header.position,
        "size": header.size,
        "term": header.term,
    }


def _push_text(push: PushEntryRequest) -> bytes:
    """Return the text of a push. The entries, which are most of it, are inserted as text."""
    entries = push.entries
    if isinstance(entries, EntryRun):
        return write_push(push, entries.text, entries.size)
    size = sum(entry.size for entry in entries) if push.batch else 0
    return write_push(push, _texts(entries), size)


def _texts(entries: Sequence[Entry]) -> bytes:
    return b",".join(map(_entry_text, entries))


def _entry_text(entry: Entry) -> bytes:
    """Return the text that ``dumps`` returns for :func:`_write_entry`."""
    return entry_text(astuple(entry.header), entry.body)


def _push_arguments(value: Mapping[Any, Any], run: EntryRun | None) -> dict[str, Any]:
    found = _arguments(_PUSH, value)
    batch = found.pop("batch_entry", ())
    if run is not None:
        if batch:
            raise _FieldError("batchEntry: duplicate field")
        batch = run
    single = found.pop("entry", None)
    found["entries"] = batch or ((single,) if single is not None else ())
    found["batch"] = bool(batch)
    kind = found.get("type", PushType.APPEND)
    if kind is not PushType.COMMIT and not found["entries"]:
        raise _FieldError(f"entry: absent from a push of type {kind.value}")
    if kind is not PushType.APPEND and batch:
        raise _FieldError(f"batchEntry: not empty in a push of type {kind.value}")
    for before, after in pairwise(() if run is not None else batch):
        if after.index != before.index + 1:
            raise _FieldError(f"batchEntry: index {after.index} follows {before.index}")
    return found


def _arguments(members: tuple[_WireField, ...], value: Mapping[Any, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for member in members:
        found = value.get(member.wire_name)
        if found is None:
            continue
        try:
            arguments[member.attribute] = member.read(found)
        except _FieldError as fault:
            raise _FieldError(f"{member.wire_name}: {fault}") from None
    return arguments


_INT32_FIELDS: Final = frozenset({"code", "count", "max_size"})
_KINDS: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "group": (_text, _identity),
    "remote_id": (_text, _identity),
    "local_id": (_text, _identity),
    "leader_id": (_text, _identity),
    "transfer_id": (_text, _identity),
    "transferee_id": (_text, _identity),
    "body": (_bytes, _write_bytes),
    "peers": (_peers, dict),
    "result": (_vote_result, lambda result: result.value),
    "type": (_push_type, lambda kind: kind.value),
    "entry": (_entry, _write_entry),
    "batch_entry": (lambda value: _list(value, _entry), _identity),
    "entries": (
        lambda value: _list(value, _entry),
        lambda entries: [_write_entry(entry) for entry in entries],
    ),
    "batch_msgs": (lambda value: _list(value, _bytes), lambda bodies: [*map(_write_bytes, bodies)]),
    "index_list": (lambda value: _list(value, _int64), list),
}
_WIRE_NAMES: Final[Mapping[str, str]] = {"result": "voteResult", "position": "pos"}


def _member(attribute: str) -> _WireField:
    read, write = _KINDS.get(
        attribute, (_int32 if attribute in _INT32_FIELDS else _int64, _identity)
    )
    head, *tail = attribute.split("_")
    wire_name = head + "".join(word.capitalize() for word in tail)
    return _WireField(attribute, _WIRE_NAMES.get(attribute, wire_name), read, write)


def _members_of(kind: type[DLedgerMessage]) -> tuple[_WireField, ...]:
    members = (_member(attribute.name) for attribute in fields(kind))
    return tuple(sorted(members, key=lambda member: member.wire_name))


_LARGE: Final = frozenset({AppendEntryRequest, GetEntriesResponse, PushEntryRequest})
"""The messages that contain entries."""
_MEMBERS: Final[Mapping[type[DLedgerMessage], tuple[_WireField, ...]]] = {
    kind: _members_of(kind) for kind in (*RESPONSES, *RESPONSES.values())
}
_ENTRY: Final = tuple(
    _member(name) if name not in ("magic", "size", "channel", "chain_crc", "body_crc")
    else _WireField(name, _member(name).wire_name, _int32, _identity)
    for name in (
        "body", "body_crc", "chain_crc", "channel", "index", "magic", "position", "size", "term"
    )
)  # fmt: skip
_PUSH: Final = tuple(
    _member(name)
    for name in (
        "group", "remote_id", "local_id", "code", "leader_id", "term", "type", "commit_index",
        "entry", "batch_entry",
    )
)  # fmt: skip
