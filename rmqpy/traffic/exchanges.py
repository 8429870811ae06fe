"""The exchanges of a recording: a request and its answer."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command
from rmqpy.traffic.recording import RecordingReader, RecordKind, TrafficRecord

WAITING_MAX = 20_000
"""The requests whose answers are still to come; a held pull waits up to a minute for its answer."""


@define(slots=True, frozen=True)
class RecordedExchange:
    """A request with its answer, None for a one-way request; ``time_us`` is that of the answer."""

    connection: int
    time_us: int
    request: RemotingCommand
    answer: RemotingCommand | None


@define(slots=True, eq=False)
class ExchangeReader:
    """Joins requests and answers, in the order of the answers. ``unanswered`` counts requests
    without an answer, ``unreadable`` frames that cannot be decoded.
    """

    reader: RecordingReader
    unanswered: int = field(default=0, init=False)
    unreadable: int = field(default=0, init=False)
    _waiting: dict[tuple[int, int], RemotingCommand] = field(factory=dict, init=False)

    def __iter__(self) -> Iterator[RecordedExchange]:
        for record in self.reader:
            if record.kind in (RecordKind.REQUEST, RecordKind.ANSWER):
                try:
                    command = decode_command(memoryview(record.data)[LENGTH_BYTES:])
                except RmqError:
                    self.unreadable += 1
                    continue
                exchange = self._joined(record, command)
                if exchange is not None:
                    yield exchange
        self.unanswered += len(self._waiting)
        self._waiting.clear()

    def _joined(self, record: TrafficRecord, command: RemotingCommand) -> RecordedExchange | None:
        key = record.connection, command.opaque
        if record.kind is RecordKind.ANSWER:
            request = self._waiting.pop(key, None) if command.is_response else None
            if request is None:  # A request of the broker, or an answer that nobody waits for.
                return None
            return RecordedExchange(record.connection, record.time_us, request, command)
        if command.is_response:
            return None
        if command.is_oneway:
            return RecordedExchange(record.connection, record.time_us, command, None)
        if len(self._waiting) >= WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self.unanswered += 1
        self._waiting[key] = command
        return None
