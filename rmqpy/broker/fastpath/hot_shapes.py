"""What the hot path in Python knows of sends: shapes of headers, and plans of properties.

A producer's JSON headers differ in three values only, if in more than the queue::

    {"code":310,"extFields":{"a":"PG",...,"g":" 17637... ","h":"0","i":" UNIQ_KEY... ","j":"0",...,
    |---------------- front -----------------|  born     |-- middle --|   properties  |-- gap ...
     "m":"false"},"flag":0,"language":"JAVA","opaque": 77 ,"serializeTypeCurrentRPC":"JSON",...}
    --------------------- gap -----------------------| opaque |------------- back ----------|

The parts around the three are the *shape*. A shape is learned from a header that the ordinary
decoder has read and the ordinary processor has answered: when the decoder reads the same header
with other values in the three places as just these values. So nothing of JSON is known here, and
what a shape stands for (:class:`SendLine`) is computed once, by the functions of the ordinary way.

A *plan* says for the names of a message's properties in which order they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Final

from attrs import define, evolve

from rmqpy.broker.processors.send_request import stored_properties
from rmqpy.codec.hashes import java_hash_of_bytes
from rmqpy.codec.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_KEYS,
    PROPERTY_SEPARATOR,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 2048
PLANS_MAX: Final = 1024
NAMES_BYTES_MAX: Final = 1024
TAGS_MAX: Final = 1024
TAGS_BYTES_MAX: Final = 128
PROPERTIES_MAX: Final = 64
"""A message with more of them is for the ordinary way."""
BORN_DIGITS_MAX: Final = 18
OPAQUE_DIGITS_MAX: Final = 9
"""Larger numbers may be none of 64 and of 32 bits."""

_BORN: Final = b'"g":"'
_PROPERTIES: Final = b'"i":"'
_OPAQUE: Final = b'"opaque":'
_QUOTE: Final = b'"'
_WORD: Final = Struct(">I")

_ELSEWHERE: Final = {
    PROPERTY_DELAY,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_CLUSTER,
}
"""Properties that make a message one for the ordinary way."""


@define(slots=True, frozen=True, eq=False, repr=False)
class SendLine:
    """What all sends of a shape have in common; the record's head is ``head`` of all its fields."""

    queue_id: int
    cell: int
    """The queue's place in the table of next queue offsets."""
    sys_flag: int
    flag: int
    reconsume_times: int
    oneway: bool
    head: Callable[..., bytes]
    topic_part: bytes
    """TOPICLENGTH and TOPIC."""
    fixed_size: int
    """Of a record without body and properties."""
    reply: bytes
    """A format of physical offset, queue offset and opaque."""
    key_hash: Callable[[bytes], int]
    queue_name: tuple[str, int]


Send = tuple[SendLine, int, bytes, bytes]
"""A send whose shape is known: line, born time (ms), properties as they stand in the header, and
opaque. (These are tuples because one is made for each message.)
"""


Parts = tuple[bytes, bytes, bytes, bytes]
"""Front, middle, gap and back of a header."""


@define(slots=True, frozen=True, eq=False, repr=False)
class _Shape:
    line: SendLine
    middle: bytes
    gap: bytes
    back: bytes
    middle_length: int
    gap_length: int
    back_length: int


class SendShapes:
    """The shapes of one kind of connection, by their fronts."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}

    def clear(self) -> None:
        self._shapes.clear()

    def read(self, data: bytes, start: int, end: int) -> Send | None:
        """The send whose header stands there; None when it is one for the ordinary way."""
        born_at = data.find(_BORN, start, end) + len(_BORN)
        shape = self._shapes.get(data[start:born_at])
        if shape is None:
            return None
        born_end = data.find(_QUOTE, born_at, end)
        if not data.startswith(shape.middle, born_end):
            return None
        text_at = born_end + shape.middle_length
        text_end = data.find(_QUOTE, text_at, end)
        if not data.startswith(shape.gap, text_end):
            return None
        opaque_at = text_end + shape.gap_length
        opaque_end = end - shape.back_length
        if not data.startswith(shape.back, opaque_end):
            return None
        born, opaque = data[born_at:born_end], data[opaque_at:opaque_end]
        if not (born.isdigit() and len(born) <= BORN_DIGITS_MAX and _is_opaque(opaque)):
            return None
        return shape.line, int(born), data[text_at:text_end], opaque

    def knows(self, parts: Parts) -> bool:
        """Whether there is nothing to learn from such a header."""
        front, middle, gap, back = parts
        known = self._shapes.get(front)
        return known is not None and (known.middle, known.gap, known.back) == (middle, gap, back)

    def learn(self, parts: Parts, command: RemotingCommand, line: SendLine) -> None:
        """``command`` was read from a header of these parts; ``line`` says how it was answered."""
        front, middle, gap, back = parts
        other = b"".join((front, b"17", middle, b"x\\u0001y", gap, b"77", back))
        changed = {**command.ext_fields, "g": "17", "i": "x\x01y"}
        if _decoded(other) != evolve(command, ext_fields=changed, opaque=77, body=b""):
            return
        if len(self._shapes) == SHAPES_MAX:
            self._shapes.clear()
        lengths = (len(middle), len(gap), len(back))
        self._shapes[front] = _Shape(line, middle, gap, back, *lengths)


def cut_header(header: bytes) -> Parts | None:
    """The parts of a header that may have a shape."""
    born_at = header.find(_BORN) + len(_BORN)
    born_end = header.find(_QUOTE, born_at)
    text_at = header.find(_PROPERTIES, born_end) + len(_PROPERTIES)
    text_end = header.find(_QUOTE, text_at)
    opaque_at = header.find(_OPAQUE, text_end) + len(_OPAQUE)
    opaque_end = header.find(b",", opaque_at)
    if not len(_BORN) <= born_at <= born_end < text_at <= text_end < opaque_at <= opaque_end:
        return None
    parts = (
        header[:born_at],
        header[born_end:text_at],
        header[text_end:opaque_at],
        header[opaque_end:],
    )
    return parts if sum(map(len, parts)) <= SHAPE_BYTES_MAX else None


def _is_opaque(text: bytes) -> bool:
    return text.isdigit() and len(text) <= OPAQUE_DIGITS_MAX and (text[0] != 48 or len(text) == 1)


def _decoded(header: bytes) -> RemotingCommand | None:
    try:
        return decode_command(memoryview(_WORD.pack(len(header)) + header))
    except RemoteProtocolError:
        return None


Properties = tuple[bytes, int, bytes, bytes]
"""A message's properties as they are stored, and what is to be known of them: tags code, unique
key, keys; empty where there are none.
"""


@define(slots=True, frozen=True, eq=False, repr=False)
class _Plan:
    order: Callable[[list[bytes]], tuple[bytes, ...]]
    wait: int
    tags: int
    unique_key: int
    keys: int


class PropertyPlans:
    """Properties of plain messages, from the text in a header to what is stored."""

    def __init__(self, cluster: str, wait_false_is_hot: bool) -> None:
        self._cluster = PROPERTY_CLUSTER.encode() + NAME_VALUE_SEPARATOR + cluster.encode()
        self._waits = {b"true", b"false"} if wait_false_is_hot else {b"true"}
        self._plans: dict[tuple[bytes, ...], _Plan | None] = {}
        self._tags_codes: dict[bytes, int] = {}

    def read(self, text: bytes) -> Properties | None:
        """None: they are for the ordinary way."""
        raw = text.replace(b"\\u0001", NAME_VALUE_SEPARATOR).replace(b"\\u0002", PROPERTY_SEPARATOR)
        if b"\\" in raw or not raw.isascii():
            return None
        pieces = raw.removesuffix(PROPERTY_SEPARATOR).split(PROPERTY_SEPARATOR)
        if len(pieces) > PROPERTIES_MAX:
            return None
        parts = [piece.partition(NAME_VALUE_SEPARATOR) for piece in pieces]
        names = tuple([part[0] for part in parts])
        plan = self._plans.get(names)
        if plan is None:
            plan = self._make(names)
            if plan is None:
                return None
        values = [part[2] for part in parts]
        if b"" in values or (plan.wait >= 0 and values[plan.wait] not in self._waits):
            return None
        pieces.append(self._cluster)
        return (
            PROPERTY_SEPARATOR.join(plan.order(pieces)),
            self._tags_code(values[plan.tags]) if plan.tags >= 0 else 0,
            values[plan.unique_key] if plan.unique_key >= 0 else b"",
            values[plan.keys] if plan.keys >= 0 else b"",
        )

    def _make(self, raw_names: tuple[bytes, ...]) -> _Plan | None:
        names = [name.decode() for name in raw_names]
        if len(set(names)) < len(names) or "" in names or not _ELSEWHERE.isdisjoint(names):
            return None
        if sum(map(len, names)) > NAMES_BYTES_MAX:
            return None
        places = {name: place for place, name in enumerate([*names, PROPERTY_CLUSTER])}
        stored = [places[name] for name in stored_properties(dict.fromkeys(places, ""))]
        if len(self._plans) == PLANS_MAX:
            self._plans.clear()
        plan = self._plans[raw_names] = _Plan(
            itemgetter(*stored) if len(stored) > 1 else lambda pieces: (pieces[stored[0]],),
            *(
                places.get(name, -1)
                for name in (PROPERTY_WAIT, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, PROPERTY_KEYS)
            ),
        )
        return plan

    def _tags_code(self, tags: bytes) -> int:
        code = self._tags_codes.get(tags)
        if len(tags) > TAGS_BYTES_MAX:
            return java_hash_of_bytes(tags)
        if code is None:
            if len(self._tags_codes) == TAGS_MAX:
                self._tags_codes.clear()
            code = self._tags_codes[tags] = java_hash_of_bytes(tags)
        return code
