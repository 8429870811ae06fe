"""The topics of a registration, read from its text as brokers write it: only those that differ from
the last registration of the same name, and a limited number at a time.

::

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{
    "NAME":{"order":false,"perm":6,"readQueueNums":16,…},   a row
    …                                                       }}}

This is the form of Java 4.x and 5.x brokers and of rmqpy. ``RegistrationText.read`` returns None
for any other text, and ``ChangedRows.step`` raises NotRowsError for any other row; the general JSON
reader then decodes the whole body.

Invariant: what is read here is what the general reader reads.
"""

from __future__ import annotations

import re
from typing import Final

from attrs import define, field

from rmqpy.remoting.bodies import BodyDecodeError, DataVersion, QueueData
from rmqpy.remoting.fastjson import FastjsonDecodeError, loads

_HEAD: Final = re.compile(
    rb'\{"filterServerList":\[\],"topicConfigSerializeWrapper":\{"dataVersion":(\{[^{}\\]{,200}\}),'
    rb'(?:"mappingDataVersion":\{[^{}\\]{,200}\},)?"topicConfigTable":\{'
)
_TAILS: Final = (b'},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}', b"}}}")
_NAME: Final = rb"[!#-.0-\[\]-~]{1,262}"
"""The names that :mod:`rmqpy.namesrv.names` allows and that need no escapes, and two paths."""
_NUMBER: Final = rb"(0|[1-9][0-9]{0,8})"
_ROW: Final = re.compile(
    rb'"(%b)":\{(?:"attributes":\{[^{}\\]*\},)?"order":(?:true|false),"perm":%b,"readQueueNums":%b,'
    rb'"topicFilterType":"[A-Z_]+","topicName":"%b","topicSysFlag":%b,"writeQueueNums":%b\}(?:,(?=")|\Z)'
    % (_NAME, _NUMBER, _NUMBER, _NAME, _NUMBER, _NUMBER)
)
_LAST_MEMBER: Final = b'"writeQueueNums":'
_ROW_BYTES_MIN: Final = 100
"""Less than any row has."""
_PATHS: Final = (b".", b"..")
_BLOCK: Final = 64 << 10


class NotRowsError(ValueError):
    """The text of the topics is not in the usual form."""


@define(slots=True, frozen=True, eq=False, repr=False)
class RegistrationText:
    """The body of a registration, divided but not decoded. ``rows`` is the text of its topics."""

    data_version: DataVersion
    rows: bytes

    @classmethod
    def read(cls, body: bytes) -> RegistrationText | None:
        head = _HEAD.match(body)
        tail = next(filter(body.endswith, _TAILS), None)
        if head is None or tail is None or len(body) - len(tail) < head.end():
            return None
        try:
            version = DataVersion.from_json(loads(head[1]))
        except (FastjsonDecodeError, BodyDecodeError):
            return None
        return cls(version, body[head.end() : len(body) - len(tail)])

    @property
    def topic_count(self) -> int:
        return self.rows.count(_LAST_MEMBER)

    def exceeds(self, topics_max: int) -> bool:
        """Return whether there are more topics. They are counted only if the size allows it: that
        takes as long as all else for a table that has not changed.
        """
        return len(self.rows) > topics_max * _ROW_BYTES_MIN and self.topic_count > topics_max


@define(slots=True, eq=False, repr=False)
class ChangedRows:
    """The rows of ``text`` that are not in ``known``, a text that was read before.

    Rows that were replaced, inserted, or removed one by one are found by comparing bytes. In a
    table whose order has changed, all rows from the first to the last difference are decoded.
    """

    broker_name: str
    text: bytes
    known: bytes
    topics: dict[str, QueueData] = field(factory=dict, init=False)
    """The decoded rows."""
    _position: int = field(default=0, init=False)
    _known_position: int = field(default=0, init=False)
    _end: int = field(init=False)
    """The end of the last difference."""
    _aligned: bool = field(default=True, init=False)
    """True if both positions are the starts of rows before which nothing is left to compare."""
    _equal: dict[tuple[bytes, ...], QueueData] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        start = self._skip_common()
        shorter = min(len(self.text), len(self.known)) - start
        self._end = len(self.text) - _common_suffix(self.text, self.known, shorter)

    def step(self, rows_max: int) -> int:
        """Decode up to ``rows_max`` rows. Return how many; a smaller number if none are left.
        Raises NotRowsError.
        """
        text, count = self.text, 0
        while count < rows_max:
            if self._aligned:
                self._skip_common()
            start = self._position
            # A row that starts at the end may differ from its equal in where it starts.
            if start >= len(text) or start > self._end:
                break
            row = _ROW.match(text, start)
            if row is None:
                raise NotRowsError
            count += 1
            self._position = row.end()
            if not self._aligned or not self._is_removed_before(row.group()):
                self._take(row)
        return count

    def _take(self, row: re.Match[bytes]) -> None:
        name, *values = row.groups()
        if name in _PATHS:
            return
        key = tuple(values)
        queues = self._equal.get(key)
        if queues is None:
            perm, read, flag, write = map(int, values)
            queues = self._equal[key] = QueueData(self.broker_name, read, write, perm, flag)
        self.topics[name.decode()] = queues

    def _is_removed_before(self, row: bytes) -> bool:
        """Align the known text with the end of ``row``, which differs from it. Return True if only
        a row before ``row`` was removed.
        """
        known, start = self.known, self._known_position
        known_row = _ROW.match(known, start)
        end = known_row.end() if known_row is not None else start
        following = _ROW.match(self.text, self._position)
        if following is not None and known.startswith(following.group(), start):
            return False  # inserted
        if known_row is not None and known.startswith(row, end):
            self._known_position = end + len(row)
            return True
        self._known_position = end
        same_name = known_row is not None and row.startswith(b'"%b":' % known_row[1])
        if not same_name:
            self._aligned = False
        return False

    def _skip_common(self) -> int:
        """Move both positions over the rows that both texts have here. Return how far the texts
        are equal.
        """
        text, known = self.text, self.known
        position, other = self._position, self._known_position
        length = _common_prefix(text, known, position, other)
        end = position + length
        if end == len(text):
            start = end
        else:
            start = _row_start(text, position, end)
        self._position, self._known_position = start, other + start - position
        return end


def _row_start(text: bytes, low: int, position: int) -> int:
    """Return the start of the last row that starts at or before ``position`` and not below
    ``low``. ``low`` is the start of a row.
    """
    mark = text.rfind(_LAST_MEMBER, low, position)
    while mark >= 0:
        start = text.find(b"}", mark) + 2
        if 1 < start <= position:
            return start
        mark = text.rfind(_LAST_MEMBER, low, mark)
    return low


def _common_prefix(text: bytes, known: bytes, position: int, other: int) -> int:
    """Return the length of the longest common prefix of ``text`` and ``known`` from there on."""
    length, longest = 0, min(len(text) - position, len(known) - other)
    step = _BLOCK
    while length < longest and step:
        at, size = position + length, min(step, longest - length)
        if text[at : at + size] == known[other + length : other + length + size]:
            length += size
        else:
            step //= 2
    return length


def _common_suffix(text: bytes, known: bytes, longest: int) -> int:
    """Return the length of the longest common suffix, at most ``longest``."""
    length, step = 0, _BLOCK
    while length < longest and step:
        size = min(step, longest - length)
        end, other = len(text) - length, len(known) - length
        if text[end - size : end] == known[other - size : other]:
            length += size
        else:
            step //= 2
    return length
