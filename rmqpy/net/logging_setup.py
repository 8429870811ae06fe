"""The configuration of logging: one line per event, as text or as JSON (``--log-json``).

A traceback is on the line of its event: line breaks inside an event are written as ``\\n``. Names
in events come from frames of unauthenticated peers, so the other characters that a terminal
interprets are written as escapes, too.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TextIO

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators, and those that change the direction of text."""
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class PlainLines(logging.Formatter):
    """The text format: ``2026-01-31 12:00:00,123 INFO rmqpy.net.server.server: text``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(_escape, super().format(record))


class JsonLines(logging.Formatter):
    """The JSON format: an object with ``time_ms`` (since 1970), ``level``, ``logger``, ``text``,
    and ``fault`` if there is a traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            event["fault"] = self.formatException(record.exc_info)
        return _CONTROL.sub(_escape, json.dumps(event, ensure_ascii=False))


def configure_logging(*, as_json: bool, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write all events of at least ``level`` to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT_ESCAPES.get(char, f"\\u{ord(char):04x}")
