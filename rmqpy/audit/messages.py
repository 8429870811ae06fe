"""All messages of a store in the order of the log, and which of them are wanted.

Damage does not end the walk: it goes on at the next frame, and tells what it passed.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any

from attrs import define, field

from rmqpy.audit.damage import FileView, next_frame
from rmqpy.audit.directory import FileRow, LogFile, StoreDirectory
from rmqpy.audit.queue_units import map_file
from rmqpy.codec import layout
from rmqpy.codec.chosen import scan_records
from rmqpy.codec.hashes import java_text
from rmqpy.codec.message import decode_message, offset_msg_id
from rmqpy.codec.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.codec.search import content_end
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.message import Host, StoredMessage
from rmqpy.store.commitlog.recovery import Framing
from rmqpy.store.files import FileLayer

__all__ = ["LogMessage", "Selection", "each_message", "message_json"]

INFLATED_MAX = 64 << 20
"""A compressed body is shown as it is stored when it would become longer."""


@define(slots=True, frozen=True)
class LogMessage:
    """A message and its entry's index and term, -1 in a classic log."""

    message: StoredMessage
    index: int = -1
    term: int = -1


@define(slots=True, frozen=True, kw_only=True)
class Selection:
    """Which messages are wanted; None: all. Queue offsets and store times are from … to before.
    ``key``: one of KEYS, UNIQ_KEY or the message id. ``limit``: messages at most.
    """

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None
    key: str | None = None
    limit: int | None = None

    def takes_row(self, scan: Scan, row: int) -> bool:
        """By what a scan tells already."""
        return (
            (self.queue_id is None or scan.queue_id[row] == self.queue_id)
            and _within(scan.queue_offset[row], self.first_offset, self.end_offset)
            and _within(scan.store_timestamp_ms[row], self.first_ms, self.end_ms)
            and (self.topic is None or java_text(scan.topic[row]) == self.topic)
        )

    def takes(self, message: StoredMessage) -> bool:
        """By its keys."""
        if self.key is None:
            return True
        properties = message.properties
        keys = properties.get(PROPERTY_KEYS, "").split(" ")
        own = properties.get(PROPERTY_UNIQ_KEY)
        place = offset_msg_id(message.store_host, message.physical_offset)
        return self.key in (*keys, own, place)


def _within(value: int, first: int | None, end: int | None) -> bool:
    return (first is None or value >= first) and (end is None or value < end)


Passed = Callable[[str, int, int], None]
"""Is told of damage: file, offset, bytes."""


def each_message(
    files: FileLayer,
    directory: StoreDirectory,
    wanted: Selection,
    passed: Passed = lambda _file, _offset, _size: None,
    limit: int | None = None,
) -> Iterator[LogMessage]:
    """The wanted messages in the order of the log. ``limit``: nothing at or behind this offset."""
    left = wanted.limit
    for row in directory.logs:
        for file in row.files:
            for found in _Walk(files, directory, row, file, wanted, passed).run(limit):
                if left is not None and left <= 0:
                    return
                yield found
                left = None if left is None else left - 1


@define(slots=True)
class _Walk:
    files: FileLayer
    directory: StoreDirectory
    row: FileRow
    file: LogFile
    wanted: Selection
    passed: Passed
    view: memoryview = field(init=False, default=memoryview(b""))

    def run(self, limit: int | None) -> Iterator[LogMessage]:
        base = self.file.first_offset
        if limit is not None and base >= limit:
            return
        view = map_file(self.files, self.file.path)
        self.view = view[: limit - base] if limit is not None else view
        dledger = self.row.framing is Framing.DLEDGER
        position = 0
        while position < len(self.view):
            rest = self.view[position:]
            scan = scan_records(rest, base + position, dledger=dledger, check_crc=False)
            yield from self._take(scan, rest)
            position = scan.end - base
            if scan.stop is StopReason.LIMIT:
                continue
            after = self._behind(position, scan.stop)
            if after is None:
                return
            position = after

    def _take(self, scan: Scan, view: memoryview) -> Iterator[LogMessage]:
        shift = layout.ENTRY_HEADER_SIZE if self.row.framing is Framing.DLEDGER else 0
        start = scan.frame_offset[0] if len(scan) else 0
        for row in range(len(scan)):
            if not self.wanted.takes_row(scan, row):
                continue
            position = scan.frame_offset[row] - start + shift
            message = decode_message(view, position)
            if self.wanted.takes(message):
                yield LogMessage(message, scan.entry_index[row], scan.term[row])

    def _behind(self, position: int, stop: StopReason) -> int | None:
        """Where the walk goes on behind a place that holds no frame; None when it does not."""
        if stop in (StopReason.END, StopReason.BLANK):
            return None
        if content_end(self.view, position) == position:
            return None
        dledger = self.row.framing is Framing.DLEDGER
        file = FileView(self.view, self.file.first_offset, self.file.size, dledger)
        after = next_frame(file, position)
        # An entry whose index does not follow the one before is a frame all the same.
        if stop is StopReason.BAD_FIELDS and after is not None and self._is_entry(position):
            return position
        size = (len(self.view) if after is None else after) - position
        name = self.directory.relative(self.file.path)
        self.passed(name, self.file.first_offset + position, size)
        return after

    def _is_entry(self, position: int) -> bool:
        """Whether a scan that begins here finds a frame."""
        base = self.file.first_offset
        dledger = self.row.framing is Framing.DLEDGER
        scan = scan_records(
            self.view[position:], base + position, dledger=dledger, check_crc=False, max_records=1
        )
        return len(scan) == 1


def message_json(found: LogMessage, body: str = "auto") -> dict[str, Any]:
    """A message as plain values. ``body``: "text", "base64", "auto" (text where it is UTF-8) or
    "none".
    """
    message = found.message
    place = offset_msg_id(message.store_host, message.physical_offset)
    tree: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.properties.get(PROPERTY_UNIQ_KEY, place),
        "offset_message_id": place,
        "keys": message.properties.get(PROPERTY_KEYS, "").split(),
        "tags": message.properties.get(PROPERTY_TAGS),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": _host(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": _host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "properties": message.properties,
    }
    if found.index >= 0:
        tree["entry_index"], tree["term"] = found.index, found.term
    return tree | _body(message, body)


def _body(message: StoredMessage, form: str) -> dict[str, Any]:
    if form == "none":
        return {"body_bytes": len(message.body)}
    raw = _inflated(message)
    told = {"body_bytes": len(raw)}
    if form != "base64":
        try:
            return {**told, "body": raw.decode("utf-8", "strict" if form == "auto" else "replace")}
        except UnicodeDecodeError:
            pass
    return {**told, "body_base64": base64.b64encode(raw).decode()}


def _inflated(message: StoredMessage) -> bytes:
    """The body as the producer gave it, where it was compressed with zlib."""
    if not message.sys_flag & COMPRESSED:
        return message.body
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(message.body, INFLATED_MAX)
    except zlib.error:
        return message.body
    return raw if inflater.eof else message.body


def _host(host: Host) -> str:
    address = ip_address(host[0])
    return f"[{address}]:{host[1]}" if address.version == 6 else f"{address}:{host[1]}"
