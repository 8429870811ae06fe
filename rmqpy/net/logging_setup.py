"""The configuration of logging: one line per event, as text or as JSON (``--log-json``).

A traceback is on the line of its event: line breaks inside an event are written as ``\\n``.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO


class PlainLines(logging.Formatter):
    """The text format: ``2026-01-31 12:00:00,123 INFO rmqpy.net.server.server: text``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\\n")


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
        return json.dumps(event, ensure_ascii=False)


def configure_logging(*, as_json: bool, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write all events of at least ``level`` to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
