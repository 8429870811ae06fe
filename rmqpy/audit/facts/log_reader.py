"""Read the records of a store by physical offset, and messages as values.

The identity of a message is everything that must not change when its store is copied, switched to
DLedger, or rolled back: all fields except its position and the properties that refer to it
(:data:`rmqpy.codec.tally.kernel.PLACE_PROPERTIES`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.log_bytes import read_frame
from rmqpy.audit.scan.queue_units import QueueUnits, map_file, unit_at
from rmqpy.codec import layout
from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.hashes import java_text
from rmqpy.codec.message import decode_message, offset_msg_id
from rmqpy.codec.properties import PROPERTY_UNIQ_KEY
from rmqpy.codec.scan import StopReason, measure_record
from rmqpy.codec.tally.backend import tally_frames
from rmqpy.codec.tally.kernel import PLACE_PROPERTIES, Tally, TallyPlan, add_sums
from rmqpy.model.files import FileSlices, FileSystem
from rmqpy.model.message import Host, StoredMessage
from rmqpy.model.values import define

__all__ = ["LogReader", "MessageValue", "QueueMessages", "Slot"]

_OPENED_MAX = 8

Slot = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@define(slots=True, frozen=True, kw_only=True)
class MessageValue:
    """One message as a reader sees it. ``properties`` excludes those that refer to the position."""

    queue_offset: int
    physical_offset: int
    message_id: str
    offset_id: str
    body_crc: int
    body_bytes: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    properties: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, message: StoredMessage) -> MessageValue:
        properties = tuple(
            (name, value)
            for name, value in sorted(message.properties.items())
            if name not in PLACE_PROPERTIES
        )
        offset_id = offset_msg_id(message.store_host, message.physical_offset)
        return cls(
            queue_offset=message.queue_offset,
            physical_offset=message.physical_offset,
            message_id=message.properties.get(PROPERTY_UNIQ_KEY, offset_id),
            offset_id=offset_id,
            body_crc=message.body_crc,
            body_bytes=len(message.body),
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=_host(message.born_host),
            store_timestamp_ms=message.store_timestamp_ms,
            store_host=_host(message.store_host),
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            properties=properties,
        )


def _host(host: Host) -> str:
    from ipaddress import ip_address  # only texts about differences have hosts

    return f"{ip_address(host[0])} port {host[1]}"


class LogReader:
    """Reads the records of a store by physical offset.

    ``scattered`` means that few of them will be read.
    """

    def __init__(
        self, files: FileSystem, directory: StoreDirectory, *, scattered: bool = False
    ) -> None:
        self.files = files
        self._scattered = scattered
        self._logs = directory.logs
        self._opened: dict[str, FileSlices] = {}

    @property
    def file_size(self) -> int:
        """The length of a log file, or 0 without files."""
        return self._logs[-1].file_size if self._logs else 0

    def place_of(self, offset: int) -> tuple[FileSlices, int] | None:
        """Return (bytes of the file, position in it) for a physical offset, or None if no file has
        the offset.
        """
        # The later log first: it owns an offset that both logs claim.
        for log in reversed(self._logs):
            file = log.file_at(offset)
            if file is None:
                continue
            found = self._opened.get(file.path)
            if found is None:
                if len(self._opened) >= _OPENED_MAX:
                    self._opened.pop(next(iter(self._opened)))
                found = self._opened[file.path] = self._open(file.path)
            return found, offset - file.first_offset
        return None

    def _open(self, path: str) -> FileSlices:
        return self.files.open_slices(path) if self._scattered else map_file(self.files, path)

    def _record(self, offset: int) -> memoryview:
        """Return the bytes of the record at ``offset``. There are fewer if there is no record."""
        found = self.place_of(offset)
        return memoryview(b"") if found is None else read_frame(*found, dledger=False)

    def identity(self, offset: int, size: int) -> Slot | None:
        """Return the slot of the message of this size at ``offset``, or None."""
        view = self._record(offset)
        if len(view) < layout.RECORD_SIZE_MIN:
            return None
        measured = measure_record(view, 0, len(view))
        if isinstance(measured, StopReason):
            return None
        fields, _, topic, properties = measured
        if fields[6] != offset or fields[0] != size:
            return None
        return java_text(bytes(view[topic : properties - 2])), fields[3], fields[5]

    def count(self, offset: int, tally: Tally) -> None:
        """Add the record at ``offset`` to a tally. The caller has checked that it is a record."""
        tally_frames(self._record(offset), offset, 0, 1, tally)

    def message(self, offset: int) -> StoredMessage | None:
        """Return the record at ``offset``, or None if there is none with this PHYSICALOFFSET."""
        try:
            message = decode_message(self._record(offset))
        except InvalidRecordError:
            return None
        return message if message.physical_offset == offset else None


class QueueMessages:
    """Reads the messages of a store by queue as a consumer does: through the consume queue."""

    def __init__(self, files: FileSystem, directory: StoreDirectory) -> None:
        self._units = QueueUnits(files, directory)
        self._log = LogReader(files, directory)

    def read(
        self, topic: str, queue_id: int, first: int, end: int
    ) -> Iterator[tuple[int, MessageValue | None]]:
        """Yield (queue offset, message) from ``first`` to before ``end``.

        The message is None where a consumer finds no message of this queue with this offset.
        """
        units = self._units(topic.encode("utf-8", "surrogateescape"), queue_id)
        for queue_offset in range(first, end):
            unit = unit_at(units, queue_offset) if units is not None else None
            message = self._log.message(unit[0]) if unit is not None and unit[1] > 0 else None
            if message is not None:
                slot = message.topic, message.queue_id, message.queue_offset
                message = message if slot == (topic, queue_id, queue_offset) else None
            yield queue_offset, MessageValue.of(message) if message else None

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int, int]:
        """Return (count, content, position, and mapped sum) of the messages that :meth:`read`
        yields.

        The sums are those of a bucket of :class:`rmqpy.audit.replicas.manifest.QueueDigest`.
        """
        plan = TallyPlan(dledger=False, check_crc=False, file_size=self._log.file_size)
        tally = Tally(plan)
        units = self._units(topic.encode("utf-8", "surrogateescape"), queue_id)
        for queue_offset in range(first, end):
            unit = unit_at(units, queue_offset) if units is not None else None
            if unit is None or unit[1] <= 0:
                continue
            slot = self._log.identity(unit[0], unit[1])
            if slot == (topic, queue_id, queue_offset):
                self._log.count(unit[0], tally)
        total = [0, 0, 0, 0]
        for bucket in (each for queue in tally.queues for each in queue.buckets.values()):
            add_sums(total, bucket)
        return total[0], total[1], total[2], total[3]
