"""Compare what a replay got with what was recorded, and group the differences as sentences.

==============================  ===================================================================
compared                        how
==============================  ===================================================================
answers of sends                the code, and the queue of a message that was stored
other answers                   the code
messages that were received     topic, body, properties, flags, and retries, at the mapped offset
==============================  ===================================================================

Not compared, because they depend on the place and the time: remarks (texts of an implementation),
message ids, hosts, store times, and which pull received a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from attrs import define, field

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.flags import BORN_HOST_V6, STORE_HOST_V6
from rmqpy.model.message import StoredMessage
from rmqpy.model.text import count_text

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
PLACE_PROPERTIES: Final = frozenset(
    {"MIN_OFFSET", "MAX_OFFSET", "CLUSTER", "MSG_REGION", "TRACE_ON", "TRAN_MSG", "__CRC32#"}
)
"""Properties that a broker adds, by its own name, or by the kind of its log."""
SHOWN_MAX: Final = 40


def code_name(code: int, kind: type[RequestCode | ResponseCode]) -> str:
    """Return ``number (NAME)``, or the number of an unknown code."""
    try:
        return f"{code} ({kind(code).name})"
    except ValueError:
        return str(code)


@define(slots=True)
class TrafficComparison:
    """The counts and differences of one replay. Each difference is kept by its kind, with the
    number of times and the first place.
    """

    target: str
    answers: int = 0
    messages: int = 0
    differences: Counter[str] = field(factory=Counter)
    left_out: Counter[str] = field(factory=Counter)
    notes: list[str] = field(factory=list)
    _first: dict[str, str] = field(factory=dict)

    def answer(self, request: int, recorded: int, found: int, place: str) -> None:
        """Compare the codes of two answers."""
        self.answers += 1
        if recorded != found:
            self.differ(
                f"{code_name(request, RequestCode)}: answered"
                f" {code_name(found, ResponseCode)} instead of {code_name(recorded, ResponseCode)}",
                place,
            )

    def message(self, recorded: StoredMessage, found: StoredMessage | None) -> None:
        """Compare two messages at one place of a queue."""
        self.messages += 1
        place = f"queue {recorded.queue_id}, recorded offset {recorded.queue_offset}"
        if found is None:
            self.differ(f"topic {recorded.topic}: a message is missing", place)
            return
        names = [name for name, value in content(recorded).items() if content(found)[name] != value]
        if names:
            self.differ(f"topic {recorded.topic}: a message differs in {', '.join(names)}", place)

    def differ(self, what: str, place: str) -> None:
        self.differences[what] += 1
        self._first.setdefault(what, place)

    @property
    def verdict(self) -> str:
        compared = f"{self.answers} answers and {self.messages} received messages compared"
        if self.differences:
            return f"DIFFERENT: {compared}, {count_text(self.differences.total(), 'difference')}"
        return f"EQUAL: {compared}" if self.answers + self.messages else "NOTHING COMPARED"

    @property
    def exit_code(self) -> int:
        """2 for differences, 1 if nothing was compared, otherwise 0."""
        if self.differences:
            return 2
        return 0 if self.answers + self.messages else 1

    def lines(self) -> Iterator[str]:
        for what, count in self.differences.most_common(SHOWN_MAX):
            times = "once" if count == 1 else f"{count} times, first"
            yield f"  {what} ({times} at {self._first[what]})"
        for what, count in sorted(self.left_out.items()):
            yield f"  not compared: {count} {what}"
        yield from (f"  {note}" for note in self.notes)
        yield f"{self.target}: {self.verdict}"

    def as_json(self) -> Mapping[str, Any]:
        return {
            "target": self.target,
            "verdict": self.verdict,
            "answers": self.answers,
            "messages": self.messages,
            "differences": [
                {"what": what, "count": count, "first": self._first[what]}
                for what, count in self.differences.most_common()
            ],
            "not_compared": dict(self.left_out),
            "notes": self.notes,
        }


def content(message: StoredMessage) -> dict[str, object]:
    """Return what a consumer sees of a message, wherever it is stored."""
    return {
        "topic": message.topic,
        "body": bytes(message.body),
        "flag": message.flag,
        "sysFlag": message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        "reconsumeTimes": message.reconsume_times,
        "properties": {
            key: value for key, value in message.properties.items() if key not in PLACE_PROPERTIES
        },
    }
