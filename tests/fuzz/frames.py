"""Malformed and malicious frames, derived from a seed, for tests of all servers.

There are nineteen kinds. For most of them the right reaction of a server is known:

====================  ======================================================  ==================
kind                  what is wrong                                           expected
====================  ======================================================  ==================
truncated             a good frame, cut                                       WAITS
flipped_bits          a good frame with flipped bits                          any
lying_total_length    announces less, more or far too much                    CLOSES or WAITS
unknown_serialize     an unknown serialize type                               CLOSES
lying_header_length   a header longer or shorter than announced               CLOSES
header_not_json       other JSON than an object, or no JSON                   CLOSES
header_nested         up to 200,000 levels in the header                      CLOSES or ANSWERS
body_nested           up to 200,000 levels in the body                        REFUSES
header_wrong_types    fields of other types, extreme numbers                  CLOSES or ANSWERS
unknown_code          a code that is not served                               REFUSES
garbage_fields        known codes, each field garbage                         ANSWERS
hostile_names         names that leave a folder or are invalid                REFUSES
lying_batch           batch bodies whose lengths disagree                     REFUSES
near_limit            bodies and frames around the limits                     CLOSES or ANSWERS
compressed_bomb       bodies that inflate to a thousand times the size        ANSWERS
unsolicited_response  responses without a request                             ANSWERS (nothing)
broken_binary         ROCKETMQ headers with wrong lengths                     CLOSES or ANSWERS
class_names           ``@type`` in headers and bodies                         ANSWERS
plain_garbage         bytes that are not a frame                              any
====================  ======================================================  ==================

WAITS: the server waits for the rest of the frame until the peer ends the connection. CLOSES: it
closes the connection. ANSWERS: it answers at least the requests after the frame. REFUSES: it also
answers the frame itself, with a code other than 0.

Invariant: equal kinds and seeds give equal frames.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from enum import Flag, auto
from functools import cache
from random import Random
from struct import pack
from typing import Final

from attrs import define

from fuzz.requests import (
    TOPIC,
    batch,
    good_request,
    plain_request,
    register,
    requests_with_names,
    send,
)
from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    SERIALIZE_JSON,
    SERIALIZE_ROCKETMQ,
    RemotingCommand,
)
from rmqpy.remoting.command_header import header_fields
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.remoting.headers import REQUEST_HEADERS

PROBE_OPAQUE: Final = 0x7EADBEEF
"""The opaque of the probe for a live connection; no hostile frame has it."""
PROBE_CODE: Final = 32_000

LEVELS_MAX: Final = 200_000
COMPRESSED_FLAG: Final = 1
BODY_LIMITS: Final = (64 << 10, 64 << 10, 64 << 10, 4 << 20)
"""The maxMessageSize of a test's broker, which stores half of these bodies, and the default."""

NAMES_OUT_OF_RULE: Final = (
    "",
    "..",
    ".",
    "../x",
    "../../../../x",
    "../../../../../../../../tmp/x",
    "/x",
    "/",
    "a/b",
    "a\\..\\b",
    "a\0b",
    "\0",
    "a b",
    "a\nb",
    "\u202etxt",
    "%RETRY%../x",
    "x" * 300,
    "x" * 70_000,
)
"""Names that are invalid for topics, groups, brokers, and settings."""

TOPIC_NAMES_OUT_OF_RULE: Final = (*NAMES_OUT_OF_RULE, "x" * 128, "a@b", "Ünicode", "$(x)", "a;b")
"""Names that are invalid for topics, whose rule is the strictest."""


class Expected(Flag):
    """The possible reactions of a server to a frame, as the module describes them."""

    WAITS = auto()
    CLOSES = auto()
    ANSWERS = auto()
    REFUSES = auto()


ENDS: Final = Expected.CLOSES | Expected.ANSWERS
ANY: Final = Expected.WAITS | ENDS


@define(slots=True, frozen=True)
class HostileFrame:
    """The bytes of a frame. ``opaque`` is None if a server cannot read it."""

    kind: str
    data: bytes
    expected: Expected
    opaque: int | None = None


Content = tuple[bytes, Expected] | tuple[bytes, Expected, int]
"""The bytes of a frame, the expected reactions, and the opaque, if any."""

Generator = Callable[[Random], Content]


def hostile_frame(kind: str, rng: Random) -> HostileFrame:
    """Return one frame of ``kind``."""
    return HostileFrame(kind, *_GENERATORS[kind](rng))


def hostile_frames(kind: str, seed: int, count: int) -> Iterator[HostileFrame]:
    """Yield ``count`` frames of ``kind``."""
    rng = Random(f"{kind} {seed}")
    for _ in range(count):
        yield hostile_frame(kind, rng)


def probe_frame() -> bytes:
    """Return a good frame; a server answers it with code 3 and :data:`PROBE_OPAQUE`."""
    return encode_command(RemotingCommand(PROBE_CODE, PROBE_OPAQUE))


def _frame(
    header: bytes, body: bytes = b"", *, kind: int = 0, total: int | None = None, size: int = -1
) -> bytes:
    """Return a frame that states the lengths ``total`` of itself and ``size`` of its header.

    By default, these are the true lengths.
    """
    length = 4 + len(header) + len(body) if total is None else total
    word = kind << 24 | (len(header) if size < 0 else size) & 0xFFFFFF
    return pack(">II", length & 0xFFFFFFFF, word) + header + body


def _truncated(rng: Random) -> Content:
    whole = encode_command(good_request(rng))
    return whole[: rng.randrange(1, len(whole))], Expected.WAITS


def _flipped_bits(rng: Random) -> Content:
    frame = bytearray(encode_command(good_request(rng)))
    for _ in range(rng.randrange(1, 9)):
        frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    return bytes(frame), ANY


def _lying_total_length(rng: Random) -> Content:
    frame = bytearray(encode_command(good_request(rng)))
    header = int.from_bytes(frame[5:8])
    length, expected = rng.choice(
        (
            (rng.randrange(4), Expected.CLOSES),
            (4 + rng.randrange(header), Expected.CLOSES),
            (rng.randrange(MAX_FRAME, 1 << 32), Expected.CLOSES),
            (len(frame) + rng.randrange(1000, MAX_FRAME // 2), Expected.WAITS),
        )
    )
    frame[:4] = length.to_bytes(4)
    return bytes(frame), expected


def _unknown_serialize(rng: Random) -> Content:
    frame = bytearray(encode_command(good_request(rng)))
    frame[4] = rng.randrange(2, 256)
    return bytes(frame), Expected.CLOSES


def _lying_header_length(rng: Random) -> Content:
    command = good_request(rng)
    command.serialize_type = SERIALIZE_JSON
    frame = bytearray(encode_command(command))
    header = int.from_bytes(frame[5:8])
    rest = len(frame) - 8
    size = rng.choice((rng.randrange(header), rng.randrange(rest + 1, 1 << 24)))
    frame[5:8] = size.to_bytes(3)
    return bytes(frame), Expected.CLOSES


def _header_not_json(rng: Random) -> Content:
    header = rng.choice(
        (
            b"",
            b"null",
            b"[]",
            b'"code"',
            b"12",
            b"{",
            b"}",
            b'{"code":10',
            b'{"code":10}}',
            b'{"code":,}',
            b'{"code" 10}',
            b'{"code":"10}',
            b'{"code":10}\0',
            b"<code>10</code>",
            b"\xff\xfe" + rng.randbytes(20),
            b"{" + b"'a':/*" * 100,
            b'{"code":1e5' + b"0" * rng.randrange(5000) + b"x}",
        )
    )
    return _frame(header), Expected.CLOSES


def _header_nested(rng: Random) -> Content:
    nested = _nested(rng)
    form = rng.choice((b"%s", b'{"code":10,"x":%s}', b'{"code":10,"extFields":%s}'))
    return _frame(form % nested), ENDS


def _nested(rng: Random) -> bytes:
    levels = rng.choice((65, 900, 5_000, 50_000, LEVELS_MAX))
    opened, closed = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a:", b"}"), (b"{{", b"}")))
    if len(opened) > 1 and levels == LEVELS_MAX:
        levels //= 2  # a megabyte is enough
    return opened * levels + (b"1" + closed * levels if rng.random() < 0.5 else b"")


_BODY_CODES: Final = (
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.REGISTER_BROKER,
)


def _body_nested(rng: Random) -> Content:
    code = rng.choice(_BODY_CODES)
    members = (b"clientID", b"mqSet", b"groupName", b"topicConfigSerializeWrapper")
    body = rng.choice((b"%s", b'{"' + rng.choice(members) + b'":%s}')) % _nested(rng)
    command = register(rng) if code == RequestCode.REGISTER_BROKER else plain_request(code, {})
    command.body = body
    return _refused(rng, command)


def _header_wrong_types(rng: Random) -> Content:
    values = (
        "10",
        "null",
        "true",
        "[]",
        "{}",
        "[10]",
        '{"a":1}',
        "10.5",
        "1e400",
        "-0",
        "2147483648",
        "-2147483649",
        "9" * 399,
        "9" * 6000,
        '"x"',
        '""',
        '"' + "9" * 50 + '"',
        "NaN",
        "Infinity",
        '"\\ud800"',
        '"\\u0000"',
    )
    keys = ("code", "opaque", "flag", "language", "version", "remark", "extFields")
    members = {"code": "10", "opaque": str(rng.randrange(1000)), "flag": "0"}
    for _ in range(rng.randrange(1, 4)):
        members[rng.choice(keys)] = rng.choice(values)
    if rng.random() < 0.3:
        inner = ",".join(f'"{key}":{rng.choice(values)}' for key in ("topic", "a", "b", "queueId"))
        members["extFields"] = f"{{{inner}}}"
    text = ",".join(f'"{key}":{value}' for key, value in members.items())
    return _frame(f"{{{text}}}".encode(), rng.randbytes(4)), ENDS


def _unknown_code(rng: Random) -> Content:
    code = rng.choice((0, -1, -32768, 9999, 31_999, 77_777, 2**31 - 1, -(2**31)))
    command = plain_request(code, {"topic": TOPIC}, rng.randbytes(rng.randrange(50)))
    command.flag = rng.choice((0, FLAG_ONEWAY))
    if -32768 <= code <= 32767:
        command.serialize_type = rng.choice((SERIALIZE_JSON, SERIALIZE_ROCKETMQ))
    if command.is_oneway:
        return encode_command(command), Expected.ANSWERS
    return _refused(rng, command)


_GARBAGE: Final = (
    *("", "0", "-1", "1", "true", "2147483647", "-2147483648", "2147483648", "9223372036854775807"),
    *("-9223372036854775808", "9" * 60, "1e9", "NaN", "0x10", "null", "*", "a||b", "||", "SQL92"),
    *("TAG", "MULTI_TAG", "a\1b\2c", "\1\2", "\0", "\ud800", "Ünicode", "x" * 5000, "٣", "1_000"),
    *("../../x", "%RETRY%", "%RETRY%../x", TOPIC, "7F00000100002A9F0000000000000000", "A" * 32),
)


def _garbage_fields(rng: Random) -> Content:
    code = rng.choice(_HEADER_CODES)
    fields: dict[str, object] = {
        item.wire_name: rng.choice(_GARBAGE)
        for item in header_fields(REQUEST_HEADERS[code])
        if rng.random() < 0.9
    }
    command = plain_request(code, fields, rng.randbytes(rng.randrange(30)))
    command.opaque = rng.randrange(1 << 30)
    command.serialize_type = rng.choice((SERIALIZE_JSON, SERIALIZE_ROCKETMQ))
    return encode_command(command), Expected.ANSWERS


_HEADER_CODES: Final = tuple(code for code in REQUEST_HEADERS if code < 1 << 15)


def _hostile_names(rng: Random) -> Content:
    topic, name = rng.choice(TOPIC_NAMES_OUT_OF_RULE), rng.choice(NAMES_OUT_OF_RULE)
    command = rng.choice(list(requests_with_names(rng, topic, name).values()))
    return _refused(rng, command)


def _lying_batch(rng: Random) -> Content:
    command = batch(rng)
    body = bytearray(command.body)
    lie = rng.choice((0, -1, 1, 19, len(body) + 1, 2**31 - 1, -(2**31), rng.randrange(2**31)))
    place = rng.choice((0, 16))
    honest = int.from_bytes(body[place : place + 4], signed=True)
    body[place : place + 4] = (lie if lie != honest else -2).to_bytes(4, signed=True)
    command.body = bytes(body) if rng.random() < 0.8 else bytes(body[: rng.randrange(20)])
    return _refused(rng, command)


def _near_limit(rng: Random) -> Content:
    command = send(rng)
    if rng.random() < 0.2:  # the largest frame, or one more
        over = rng.randrange(2)
        command.code = RequestCode.UPDATE_AND_CREATE_TOPIC
        command.body = b""
        room = MAX_FRAME - len(encode_command(command))
        header = encode_command(command)[8:]
        frame = _frame(header, bytes(room + over))
        return frame, Expected.CLOSES if over else Expected.ANSWERS
    command.body = bytes(rng.choice(BODY_LIMITS) + rng.randrange(-300, 100))
    command.opaque = rng.randrange(1 << 30)
    return encode_command(command), Expected.ANSWERS


def _compressed_bomb(rng: Random) -> Content:
    if rng.random() < 0.3:
        command = register(rng)
        command.ext_fields["compressed"] = "true"
        command.body = rng.choice(_bombs())
        return _refused(rng, command)
    command = send(rng)
    command.ext_fields["f" if command.code == RequestCode.SEND_MESSAGE_V2 else "sysFlag"] = str(
        COMPRESSED_FLAG
    )
    command.opaque = rng.randrange(1 << 30)
    command.body = rng.choice(_bombs())
    return encode_command(command), Expected.ANSWERS


@cache
def _bombs() -> tuple[bytes, ...]:
    """Return zeros, zeros compressed twice, and a registration of a million topics, compressed."""
    zeros = zlib.compress(bytes(64 << 20), 9)
    version = b'{"timestamp":1,"counter":1}'
    line = b"a 1 1 6 SINGLE_TAG"
    topics = pack(">i", len(line)) + line
    whole = pack(">i", len(version)) + version + pack(">i", 1_000_000) + topics * 1_000_000
    return zeros, zlib.compress(zeros, 9), zlib.compress(whole + pack(">i", 2) + b"[]", 9)


def _unsolicited_response(rng: Random) -> Content:
    command = good_request(rng)
    command.flag = FLAG_RESPONSE | rng.choice((0, FLAG_ONEWAY, 1 << 30))
    command.code = rng.choice((0, 1, command.code, -1))
    return encode_command(command), Expected.ANSWERS


def _broken_binary(rng: Random) -> Content:
    command = good_request(rng)
    command.serialize_type = SERIALIZE_ROCKETMQ
    frame = encode_command(command)
    size = int.from_bytes(frame[5:8])
    header = bytearray(frame[8 : 8 + size])
    if rng.random() < 0.3:
        return _frame(bytes(header[: rng.randrange(size)]), kind=1), ENDS
    place = rng.choice((13, 17, 21, 23 + rng.randrange(max(1, size - 30))))
    lie = rng.choice((-1, 2**31 - 1, -(2**31), size, size + 1, 0x7F, 0xFFFF))
    header[place : place + 4] = lie.to_bytes(4, signed=True)
    return _frame(bytes(header[:size]), kind=1), ENDS


def _class_names(rng: Random) -> Content:
    name = rng.choice(("com.sun.rowset.JdbcRowSetImpl", "java.lang.AutoCloseable", "[[[[", "L;"))
    planted = {"@type": name, "dataSourceName": "ldap://127.0.0.1:1/x", "autoCommit": True}
    opaque = rng.randrange(1 << 30)
    members: dict[str, object] = {"code": 34, "opaque": opaque, "flag": 0, "extFields": {}}
    if rng.random() < 0.5:
        header = json.dumps(members | planted).encode()
        return _frame(header, b"{}"), Expected.ANSWERS
    body = rng.choice((planted, {"clientID": planted}, {"clientID": "c", "consumerDataSet": [
        planted]}))  # fmt: skip
    members["code"] = rng.choice([int(code) for code in _BODY_CODES])
    return _frame(json.dumps(members).encode(), json.dumps(body).encode()), Expected.ANSWERS


def _plain_garbage(rng: Random) -> Content:
    text = rng.choice(
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(64),
            b"\0" * rng.randrange(1, 64),
            b"\xff" * rng.randrange(1, 64),
        )
    )
    return text if rng.random() < 0.3 else rng.randbytes(rng.randrange(1, 2000)), ANY


def _refused(rng: Random, command: RemotingCommand) -> Content:
    command.opaque = rng.randrange(1 << 30)
    return encode_command(command), Expected.REFUSES, command.opaque


_GENERATORS: Final[dict[str, Generator]] = {
    "truncated": _truncated,
    "flipped_bits": _flipped_bits,
    "lying_total_length": _lying_total_length,
    "unknown_serialize": _unknown_serialize,
    "lying_header_length": _lying_header_length,
    "header_not_json": _header_not_json,
    "header_nested": _header_nested,
    "body_nested": _body_nested,
    "header_wrong_types": _header_wrong_types,
    "unknown_code": _unknown_code,
    "garbage_fields": _garbage_fields,
    "hostile_names": _hostile_names,
    "lying_batch": _lying_batch,
    "near_limit": _near_limit,
    "compressed_bomb": _compressed_bomb,
    "unsolicited_response": _unsolicited_response,
    "broken_binary": _broken_binary,
    "class_names": _class_names,
    "plain_garbage": _plain_garbage,
}

KINDS: Final = tuple(_GENERATORS)
HEAVY_KINDS: Final = frozenset({"near_limit", "header_nested", "body_nested", "compressed_bomb"})
"""The kinds with frames of up to megabytes."""
