"""The configuration of logging: one line per event, as text or as JSON (``--log-json``).

A traceback is on the line of its event: line breaks inside an event are written as ``\\n``. Names
in events come from frames of unauthenticated peers, so the other characters that a terminal
interprets are written as escapes, too.

Peers can also cause the same event as often as they like, on any port. Therefore each place in the
code that logs writes at most ``LINES_MAX`` lines in ``PERIOD_S``; more are counted, and the next
line of that place states how many. A line has at most ``CHARACTERS_MAX`` characters of text.

A file (``--log-file``) is that of :mod:`rmqpy.net.log_file`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

from attrs import field

from rmqpy.model.text import count_text
from rmqpy.model.values import define

LINES_MAX: Final = 100
PERIOD_S: Final = 60
CHARACTERS_MAX: Final = 16_384

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and those that change the direction of text."""
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


@define(slots=True)
class _LoggingPlace:
    since_s: float
    lines: int = 0
    left_out: int = 0


@define(slots=True, eq=False, repr=False)
class LineLimit:
    """The filter that limits the lines of each place in the code. ``now_s`` returns a time in
    seconds that never decreases.
    """

    now_s: Callable[[], float] = time.monotonic
    _places: dict[tuple[str, int], _LoggingPlace] = field(factory=dict)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the event is written. May add the number of lines that were not."""
        where, now_s = (record.pathname, record.lineno), self.now_s()
        place = self._places.get(where)
        left_out = 0
        if place is None or now_s - place.since_s >= PERIOD_S:
            left_out = 0 if place is None else place.left_out
            place = self._places[where] = _LoggingPlace(now_s)
        place.lines += 1
        if place.lines > LINES_MAX:
            place.left_out += 1
            return False
        text = record.getMessage()
        if len(text) > CHARACTERS_MAX:
            text = f"{text[:CHARACTERS_MAX]} … ({len(text) - CHARACTERS_MAX} more characters)"
        elif not left_out and place.lines < LINES_MAX:
            return True
        if left_out:
            text += f" ({count_text(left_out, 'more line')} like this one not written before)"
        if place.lines == LINES_MAX:
            text += f" (more lines like this one are only counted, for up to {PERIOD_S} s)"
        record.msg, record.args = text, ()
        return True


class PlainLines(logging.Formatter):
    """The text format: ``2026-01-31 12:00:00,123 INFO rmqpy.net.server.server: text``, with the
    name of the broker before that of the logger if several brokers write to one stream.
    """

    def __init__(self, broker: str = "") -> None:
        self._broker = f"{broker} " if broker else ""
        super().__init__("%(asctime)s %(levelname)s %(broker)s%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.broker = self._broker
        return _CONTROL.sub(_escape, super().format(record))


class JsonLines(logging.Formatter):
    """The JSON format: an object with ``time_ms`` (since 1970), ``level``, ``logger``, ``text``,
    ``broker`` if several write to one stream, and ``fault`` if there is a traceback.
    """

    def __init__(self, broker: str = "") -> None:
        self._broker = {"broker": broker} if broker else {}
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **self._broker,
        }
        if record.exc_info:
            event["fault"] = self.formatException(record.exc_info)
        return _CONTROL.sub(_escape, json.dumps(event, ensure_ascii=False))


def configure_logging(
    *,
    as_json: bool,
    level: str = "INFO",
    stream: TextIO | None = None,
    broker: str = "",
    path: str | None = None,
) -> None:
    """Write all events of at least ``level`` to the file ``path``, or else to ``stream`` (default:
    standard error), with the name of the ``broker`` if it is given. Raises OSError if the file
    cannot be opened.
    """
    handler: logging.Handler
    if path is not None:
        # Its base class imports pickle and more, which a start without a file does not need.
        from rmqpy.net.log_file import RotatedFile

        handler = RotatedFile(path)
    else:
        handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines(broker) if as_json else PlainLines(broker))
    handler.addFilter(LineLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT_ESCAPES.get(char, f"\\u{ord(char):04x}")
