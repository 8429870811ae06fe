"""Frames: the bytes of one RemotingCommand, in both serialize types.

======  =====  ============================================================
offset  bytes  field
======  =====  ============================================================
0       4      length of all following fields
4       1      serialize type: 0 JSON, 1 ROCKETMQ
5       3      header length
8       n      header
8+n     rest   body
======  =====  ============================================================

ROCKETMQ header: code 2, language 1, version 2, opaque 4, flag 4, remark length 4, remark, ext
length 4, then entries of key length 2, key, value length 4, value. A length of 0 means null, so the
field is absent. The last of duplicate keys wins.

JSON header: one object with keys in alphabetical order. Every ext value is a string; on reading, a
number or boolean becomes its text.

Invariants: for any bytes, decoding returns a command or raises RemoteProtocolError, and allocates
at most a small multiple of the header. Encoding produces the same bytes as Java: ext fields are in
HashMap order, except for the fast codec headers in a ROCKETMQ frame.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain
from struct import Struct, error
from typing import Any, Final, NoReturn

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError
from rmqpy.remoting.command import (
    CURRENT_VERSION,
    FLAG_RESPONSE,
    LANGUAGE_CODES,
    LANGUAGE_JAVA,
    LANGUAGE_UNKNOWN,
    LANGUAGES,
    SERIALIZE_JSON,
    SERIALIZE_ROCKETMQ,
    RemotingCommand,
)
from rmqpy.remoting.command_header import CommandHeader, wire_names
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX, escape, find_special
from rmqpy.remoting.fastjson_reader import FastjsonDecodeError, FastjsonReader
from rmqpy.remoting.java_values import (
    INT32_MAX,
    hashmap_ordered,
    java_double,
    order_of_known_keys,
    parse_decimal,
)

MAX_FRAME: Final = 16_777_216
"""The maximum size of a frame, including the length word (Java
``com.rocketmq.remoting.frameMaxLength``).
"""

MAX_HEADER: Final = 1 << 20
"""The maximum size of a header. Java has no such limit, but a parsed header takes many times its
size in memory.
"""

LENGTH_BYTES: Final = 4
WORD_BYTES: Final = 4
_KEY_BYTES_MAX: Final = 32767

_PLAIN: Final = (
    b'{"code":%d,"flag":%d,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":%d}'
)
"""The header of a command that has only a body, as most commands between members of a DLedger
group.
"""

_PLAIN_NUMBER: Final = rb"(0|1[0-9]{9}|[1-9][0-9]{0,8})"
_PLAIN_HEADER: Final = re.compile(
    rb'\{"code":%b,"flag":%b,"language":"JAVA","opaque":%b,"serializeTypeCurrentRPC":"JSON",'
    rb'"version":%b\}' % ((_PLAIN_NUMBER,) * 4)
)
_PLAIN_BYTES_MAX: Final = len(_PLAIN % ((INT32_MAX,) * 4))
_ONLY_TEXTS = {str}
_JSON_BLANKS: Final = " \t\n\r"
_NUMBERS: Final = ("code", "opaque", "flag", "version")
_PREFIX = Struct(">II")
_WORD = Struct(">I")
_BINARY_FIXED = Struct(">hBhiii")
_LENGTH = Struct(">i")
_SHORT = Struct(">h")


def is_head_whole(begin: bytes | bytearray | memoryview) -> bool:
    """Return whether the start of an unfinished frame contains its complete header."""
    if len(begin) < LENGTH_BYTES + WORD_BYTES:
        return False
    (word,) = _WORD.unpack_from(begin, LENGTH_BYTES)
    return len(begin) >= LENGTH_BYTES + WORD_BYTES + int(word & 0xFFFFFF)


def encode_command(command: RemotingCommand) -> bytes:
    """Return the complete frame of ``command``."""
    head = encode_head(command, len(command.body), command.opaque, command.flag)
    return b"".join((head, command.body))


def encode_head(command: RemotingCommand, body_length: int, opaque: int, flag: int) -> bytes:
    """Return the frame of ``command`` up to its body, which has ``body_length`` bytes. ``opaque``
    and ``flag`` replace those of the command. Raises RequestRejectedError if the frame or its
    header would be larger than a peer accepts.
    """
    plain = command.remark is None and command.header_type is None and not command.ext_fields
    if command.serialize_type == SERIALIZE_JSON:
        if plain and command.language == LANGUAGE_JAVA:
            header = _PLAIN % (command.code, flag, opaque, command.version)
        else:
            header = json_header(command, opaque, flag).encode("utf-8", "replace")
    else:
        assert command.serialize_type == SERIALIZE_ROCKETMQ, command.serialize_type
        header = _encode_binary(command, opaque, flag)
    return frame_prefix(command, len(header), body_length) + header


def frame_prefix(command: RemotingCommand, header_length: int, body_length: int) -> bytes:
    """Return the eight bytes before the header of a frame. Raises as :func:`encode_head`."""
    length = WORD_BYTES + header_length + body_length
    if length + LENGTH_BYTES > MAX_FRAME or header_length > MAX_HEADER:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            f"a frame of code {command.code} with a header of {header_length} and a body of "
            f"{body_length} bytes is larger than a peer accepts: {MAX_HEADER} bytes of "
            f"header, {MAX_FRAME} in all",
        )
    return _PREFIX.pack(length, command.serialize_type << 24 | header_length)


def decode_command(frame: memoryview) -> RemotingCommand:
    """Return the command in ``frame``, which does not include the length word. Raises
    RemoteProtocolError.
    """
    frame_length = len(frame)
    if frame_length < WORD_BYTES:
        raise RemoteProtocolError(f"a frame of {frame_length} bytes has no header word")
    (word,) = _WORD.unpack_from(frame)
    serialize_type = word >> 24
    header_length = word & 0xFFFFFF
    header_end = WORD_BYTES + header_length
    if header_end > frame_length:
        raise RemoteProtocolError(
            f"header length {header_length} does not fit into a frame of {frame_length} bytes"
        )
    if header_length > MAX_HEADER:
        raise RemoteProtocolError(f"header length {header_length} is larger than {MAX_HEADER}")
    if serialize_type == SERIALIZE_JSON and header_length <= _PLAIN_BYTES_MAX:
        plain = _PLAIN_HEADER.fullmatch(frame, WORD_BYTES, header_end)
        if plain is not None:
            code, flag, opaque, version = map(int, plain.groups())
            body = bytes(frame[header_end:])
            return RemotingCommand(code, opaque, flag, LANGUAGE_JAVA, version, None, {}, body)
    header = bytes(frame[WORD_BYTES:header_end])
    if serialize_type == SERIALIZE_JSON:
        command = _decode_json(header)
    elif serialize_type == SERIALIZE_ROCKETMQ:
        command = _decode_binary(header)
    else:
        raise RemoteProtocolError(f"unknown serialize type {serialize_type}")
    command.body = bytes(frame[header_end:])
    return command


def answer_frame(code: int, opaque: int, body: bytes) -> bytes:
    """Return the complete frame of a response with a JSON header and only a body."""
    header = _PLAIN % (code, FLAG_RESPONSE, opaque, CURRENT_VERSION)
    size = len(header)
    return b"%b%b%b" % (_PREFIX.pack(WORD_BYTES + size + len(body), size), header, body)


def json_header(command: RemotingCommand, opaque: int, flag: int) -> str:
    """Return the JSON header of ``command`` with this opaque and flag."""
    fields, remark = command.ext_fields, command.remark
    items: list[tuple[str, str]] = []
    if fields:
        order = order_of_known_keys(tuple(fields))
        items = list(zip(order, map(fields.__getitem__, order), strict=True))
        if find_special("".join(chain.from_iterable(items))) is not None:
            items = [(escape(key), escape(value)) for key, value in items]
    if remark is not None and find_special(remark) is not None:
        remark = escape(remark)
    parts = [f'{{"code":{command.code}']
    if fields or command.header_type is not None:
        inner = ",".join(map('"%s":"%s"'.__mod__, items))
        parts.append(f'"extFields":{{{inner}}}')
    parts.append(f'"flag":{flag}')
    if command.language < len(LANGUAGES):
        parts.append(f'"language":"{LANGUAGES[command.language]}"')
    parts.append(f'"opaque":{opaque}')
    if remark is not None:
        parts.append(f'"remark":"{remark}"')
    parts.append(f'"serializeTypeCurrentRPC":"JSON","version":{command.version}}}')
    return ",".join(parts)


def _encode_binary(command: RemotingCommand, opaque: int, flag: int) -> bytes:
    assert -0x8000 <= command.code <= 0x7FFF, f"code {command.code} does not fit: use JSON"
    remark = command.remark.encode("utf-8", "replace") if command.remark else b""
    entries = _encode_entries(_binary_order(command))
    fixed = _BINARY_FIXED.pack(
        command.code,
        command.language,
        command.version,
        opaque,
        flag,
        len(remark),
    )
    return b"".join((fixed, remark, _LENGTH.pack(len(entries)), entries))


def _binary_order(command: RemotingCommand) -> Iterable[tuple[str, str]]:
    if command.header_type is None or not command.header_type.FAST_CODEC:
        return hashmap_ordered(command.ext_fields)
    others = dict(command.ext_fields)
    first = [(name, others.pop(name)) for name in wire_names(command.header_type) if name in others]
    return chain(first, hashmap_ordered(others))


def _encode_entries(items: Iterable[tuple[str, str]]) -> bytes:
    parts: list[bytes] = []
    for key, value in items:
        raw_key = key.encode("utf-8", "replace")
        raw_value = value.encode("utf-8", "replace")
        assert len(raw_key) <= _KEY_BYTES_MAX, key[:64]
        parts += (_SHORT.pack(len(raw_key)), raw_key, _LENGTH.pack(len(raw_value)), raw_value)
    return b"".join(parts)


def _decode_binary(header: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, size = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size
        remark, position = _text(header, position, size, len(header))
        (size,) = _LENGTH.unpack_from(header, position)
        position += _LENGTH.size
        ext_fields: dict[str, str] = {}
        if size > 0:
            if size > len(header) - position:
                raise RemoteProtocolError(
                    f"ext fields of {size} bytes do not fit into a header of {len(header)} bytes"
                )
            ext_fields = _decode_entries(header, position, position + size)
    except error:
        raise RemoteProtocolError(
            f"a ROCKETMQ header ends early, after {len(header)} bytes"
        ) from None
    return RemotingCommand(
        code, opaque, flag, language, version, remark, ext_fields, b"", SERIALIZE_ROCKETMQ
    )


def _decode_entries(header: bytes, position: int, end: int) -> dict[str, str]:
    ext_fields: dict[str, str] = {}
    while position < end:
        (size,) = _SHORT.unpack_from(header, position)
        key, position = _text(header, position + _SHORT.size, size, end)
        (size,) = _LENGTH.unpack_from(header, position)
        value, position = _text(header, position + _LENGTH.size, size, end)
        if key is None:
            continue
        if value is None:
            ext_fields.pop(key, None)
        else:
            ext_fields[key] = value
    return ext_fields


def _text(header: bytes, position: int, size: int, end: int) -> tuple[str | None, int]:
    if size == 0:
        return None, position
    if not 0 < size <= end - position:
        raise RemoteProtocolError(
            f"a string of {size} bytes at {position} ends after its header ({end})"
        )
    return header[position : position + size].decode("utf-8", "replace"), position + size


def _decode_json(header: bytes) -> RemotingCommand:
    text = header.decode("utf-8", "replace").strip(_JSON_BLANKS)
    try:
        decoded, end = _scan_json(text, 0)
    except (StopIteration, ValueError, RecursionError):
        end = -1
    if end != len(text):
        decoded = _read_tolerantly(text)
    if not isinstance(decoded, dict):
        raise RemoteProtocolError(f"a JSON header is not an object but {type(decoded).__name__}")
    get = decoded.get
    code, opaque, flag, version = get("code"), get("opaque"), get("flag"), get("version")
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and 0 <= code | opaque | flag | version <= INT32_MAX
    ):
        code, opaque, flag, version = [_number(decoded, key) for key in _NUMBERS]
    remark, ext_fields, language = get("remark"), get("extFields"), get("language", "JAVA")
    return RemotingCommand(
        code,
        opaque,
        flag,
        LANGUAGE_JAVA if language == "JAVA" else _language(language),
        version,
        remark if remark is None or type(remark) is str else _scalar_text("remark", remark),
        _ext_fields(ext_fields),
        b"",
        SERIALIZE_JSON,
        header_type=None if ext_fields is None else CommandHeader,
    )


def _read_tolerantly(text: str) -> object:
    if len(text) > TOLERANT_REQUEST_MAX:
        raise RemoteProtocolError(f"a JSON header of {len(text)} characters is not strict JSON")
    try:
        decoded = FastjsonReader(text).read()
    except FastjsonDecodeError as fault:
        raise RemoteProtocolError(f"a JSON header cannot be read: {str(fault)[:200]}") from None
    ext_fields = decoded.get("extFields") if isinstance(decoded, dict) else None
    if isinstance(ext_fields, dict) and not all(isinstance(key, str) for key in ext_fields):
        raise RemoteProtocolError("a JSON header has an object as the key of an ext field")
    return decoded


def _number(decoded: dict[str, Any], key: str) -> int:
    value = decoded.get(key, 0)
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            value = parse_decimal(value, INT32_MAX)
        except ValueError:
            value = None
    if type(value) is not int or not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise RemoteProtocolError(f"{key} of a JSON header is not a 32-bit integer")
    return value


def _language(value: object) -> int:
    if isinstance(value, str):
        return LANGUAGE_CODES.get(value, LANGUAGE_UNKNOWN)
    if isinstance(value, int) and 0 <= value <= LANGUAGE_UNKNOWN:
        return int(value)
    return LANGUAGE_UNKNOWN


def _ext_fields(decoded: object) -> dict[str, str]:
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise RemoteProtocolError(
            f"extFields of a JSON header is not an object but {type(decoded).__name__}"
        )
    if set(map(type, decoded.values())) <= _ONLY_TEXTS:
        return decoded
    return {key: _scalar_text(key, value) for key, value in decoded.items() if value is not None}


def _scalar_text(key: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return java_double(value)
    raise RemoteProtocolError(
        f"{str(key)[:64]!r} of a JSON header is not a string but {type(value).__name__}"
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


# Numbers with a fraction keep their text: only ext values may have one, and those are strings.
_JSON = json.JSONDecoder(parse_float=str, parse_constant=_no_constant, strict=False)
# Its method decode() also looks for blanks around the text, which takes as long as all the rest.
_scan_json: Callable[[str, int], tuple[object, int]] = _JSON.scan_once  # type: ignore[attr-defined]
