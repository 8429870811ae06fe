"""Read all messages of a store in the order of the log, and select among them.

Damage does not end the iteration: it continues at the next frame and reports the skipped bytes.
"""

from __future__ import annotations

import base64
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from ipaddress import ip_address
from typing import Any

from attrs import define, evolve, field

from rmqpy.audit.scan.damage import FileView, next_frame
from rmqpy.audit.scan.directory import LogFile, StoreDirectory
from rmqpy.audit.scan.log_bytes import map_log
from rmqpy.codec.backend import scan_records, walk_records
from rmqpy.codec.hashes import java_text
from rmqpy.codec.message import decode_message, offset_msg_id
from rmqpy.codec.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY
from rmqpy.codec.scan import Scan, StopReason
from rmqpy.model.files import FileSystem
from rmqpy.model.flags import COMPRESSED
from rmqpy.model.message import Host, StoredMessage
from rmqpy.store.files.framing import Framing

__all__ = [
    "LogMessage",
    "MessageSelection",
    "MessageWalk",
    "each_message",
    "file_view",
    "host_text",
    "inflated",
    "message_json",
    "plain_body",
]

INFLATED_MAX = 64 << 20
"""The largest size in bytes of an inflated body; a larger one is shown as it is stored."""


@define(slots=True, frozen=True)
class LogMessage:
    """A message with the index and term of its entry, -1 in a classic log."""

    message: StoredMessage
    index: int = -1
    term: int = -1


@define(slots=True, frozen=True, kw_only=True)
class MessageSelection:
    """The criteria for messages; None selects all.

    Ranges of queue offsets and store times exclude their end. ``key`` is one of KEYS, UNIQ_KEY, or
    the message id. ``limit`` is the largest number of messages.
    """

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    first_ms: int | None = None
    end_ms: int | None = None
    key: str | None = None
    limit: int | None = None

    def matches_row(self, scan: Scan, row: int) -> bool:
        """Return whether row ``row`` of a scan meets the criteria that a scan can decide."""
        return (
            (self.queue_id is None or scan.queue_id[row] == self.queue_id)
            and _within(scan.queue_offset[row], self.first_offset, self.end_offset)
            and _within(scan.store_timestamp_ms[row], self.first_ms, self.end_ms)
            and (self.topic is None or java_text(scan.topic[row]) == self.topic)
        )

    def matches(self, message: StoredMessage) -> bool:
        """Return whether the keys of the message meet the criteria."""
        if self.key is None:
            return True
        properties = message.properties
        keys = properties.get(PROPERTY_KEYS, "").split(" ")
        unique_key = properties.get(PROPERTY_UNIQ_KEY)
        offset_id = offset_msg_id(message.store_host, message.physical_offset)
        return self.key in (*keys, unique_key, offset_id)


def _within(value: int, first: int | None, end: int | None) -> bool:
    return (first is None or value >= first) and (end is None or value < end)


OnDamage = Callable[[str, int, int], None]
"""Receives damaged ranges: file, offset, number of bytes."""


def each_message(
    files: FileSystem,
    directory: StoreDirectory,
    selection: MessageSelection,
    on_damage: OnDamage = lambda _file, _offset, _size: None,
    limit: int | None = None,
) -> Iterator[LogMessage]:
    """Yield the selected messages in the order of the log.

    Nothing at or after the offset ``limit`` is read.
    """
    left = selection.limit
    for log in directory.logs:
        for file in log.files:
            if limit is not None and file.first_offset >= limit:
                continue
            view = file_view(files, file, log.framing, limit)
            walk = MessageWalk(view, selection, partial(on_damage, directory.relative(file.path)))
            for found in walk.run(0):
                if left is not None and left <= 0:
                    return
                yield found
                left = None if left is None else left - 1


def file_view(
    files: FileSystem, file: LogFile, framing: Framing, limit: int | None = None
) -> FileView:
    """Return the view of a log file, up to the offset ``limit``."""
    data = map_log(files, file.path)
    if limit is not None:
        data = data.head(limit - file.first_offset)
    return FileView(data, file.first_offset, file.size, framing is Framing.DLEDGER)


@define(slots=True)
class MessageWalk:
    """An iteration over the selected messages of one file.

    ``on_damage`` receives damaged ranges: offset, number of bytes. After the iteration ``end`` is
    the position at which the next frame starts, and ``closed`` is True if the file has no further
    frame.
    """

    file: FileView
    selection: MessageSelection
    on_damage: Callable[[int, int], None] = lambda _offset, _size: None
    end: int = field(init=False, default=0)
    closed: bool = field(init=False, default=False)

    def run(self, position: int, stop: int | None = None) -> Iterator[LogMessage]:
        """Yield the messages of the frames that start in ``[position, stop)``.

        ``position`` must be a frame boundary.
        """
        for scan, rest, count in self.scans(position, stop):
            yield from self._take(scan, rest, count)

    def scans(
        self, position: int, stop: int | None = None
    ) -> Iterator[tuple[Scan, memoryview, int]]:
        """Yield (scan, bytes from its first frame on, number of its rows before ``stop``)."""
        base, dledger = self.file.base_offset, self.file.dledger
        stop = len(self.file.view) if stop is None else stop
        while position < stop:
            rest = self.file.view[position:]
            scan = scan_records(rest, base + position, dledger=dledger, check_crc=False)
            count = bisect_left(scan.frame_offset, base + stop)
            if count:
                yield scan, rest, count
            position = (scan.end if count == len(scan) else scan.frame_offset[count]) - base
            if position >= stop or scan.stop is StopReason.LIMIT:
                continue
            after = self._next_position(position, scan.stop)
            if after is None:
                self.closed = True
                break
            position = after
        self.end = position
        is_whole = self.file.data.rest is None
        self.closed = self.closed or (is_whole and position >= len(self.file.view))

    def skip(self, stop: int, position: int = 0) -> int:
        """Return the position of the first frame at or after ``stop``, found by reading all frames
        before it from ``position`` on, which must be a frame boundary.
        """
        base, dledger = self.file.base_offset, self.file.dledger
        while position < stop:
            rest = self.file.view[position:]
            end, why = walk_records(rest, base + position, base + stop, dledger=dledger)
            position = end - base
            if position >= stop or why is StopReason.LIMIT:
                continue
            after = self._next_position(position, why)
            if after is None:
                self.closed = True
                break
            position = after
        self.end = position
        return position

    def _take(self, scan: Scan, view: memoryview, count: int) -> Iterator[LogMessage]:
        shift = self.file.record_shift
        start = scan.frame_offset[0] if count else 0
        for row in range(count):
            if not self.selection.matches_row(scan, row):
                continue
            position = scan.frame_offset[row] - start + shift
            message = decode_message(view, position)
            if self.selection.matches(message):
                yield LogMessage(message, scan.entry_index[row], scan.term[row])

    def _next_position(self, position: int, stop: StopReason) -> int | None:
        """Return where the next frame is after a position without a frame, or None."""
        if stop in (StopReason.END, StopReason.BLANK):
            return None
        rest = self.file.data.rest
        if rest is not None:
            self.file = evolve(self.file, data=rest())
            return position
        view = self.file.view
        if self.file.data.content_end(position) == position:
            return None
        after = next_frame(self.file, position)
        # An entry whose index does not follow the previous one is a frame nevertheless.
        if stop is StopReason.BAD_FIELDS and after is not None and self._is_entry(position):
            return position
        size = (len(view) if after is None else after) - position
        self.on_damage(self.file.base_offset + position, size)
        return after

    def _is_entry(self, position: int) -> bool:
        """Return whether a scan that starts at ``position`` finds a frame."""
        scan = scan_records(
            self.file.view[position:],
            self.file.base_offset + position,
            dledger=self.file.dledger,
            check_crc=False,
            max_records=1,
        )
        return len(scan) == 1


def message_json(found: LogMessage, body: str = "auto") -> dict[str, Any]:
    """Return a message as plain values.

    ``body`` is "text", "base64", "auto" (text if it is UTF-8), or "none".
    """
    message = found.message
    offset_id = offset_msg_id(message.store_host, message.physical_offset)
    tree: dict[str, Any] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "message_id": message.properties.get(PROPERTY_UNIQ_KEY, offset_id),
        "offset_message_id": offset_id,
        "keys": message.properties.get(PROPERTY_KEYS, "").split(),
        "tags": message.properties.get(PROPERTY_TAGS),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": host_text(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": host_text(message.store_host),
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
    raw = plain_body(message)
    result = {"body_bytes": len(raw)}
    if form != "base64":
        try:
            return {
                **result,
                "body": raw.decode("utf-8", "strict" if form == "auto" else "replace"),
            }
        except UnicodeDecodeError:
            pass
    return {**result, "body_base64": base64.b64encode(raw).decode()}


def plain_body(message: StoredMessage) -> bytes:
    """Return the body as the producer passed it, inflated if it was compressed with zlib."""
    return inflated(message.body) if message.sys_flag & COMPRESSED else message.body


def inflated(body: bytes) -> bytes:
    """Return the inflated body, or the body itself if it cannot be inflated."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(body, INFLATED_MAX)
    except zlib.error:
        return body
    return raw if inflater.eof else body


def host_text(host: Host) -> str:
    address = ip_address(host[0])
    return f"[{address}]:{host[1]}" if address.version == 6 else f"{address}:{host[1]}"
