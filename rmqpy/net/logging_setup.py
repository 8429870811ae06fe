"""Log setup: one line per event, for people or (``--log-json``) for machines.

A traceback stays on its event's line: line breaks inside an event are written as ``\\n``.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TextIO


class PlainLines(logging.Formatter):
    """The plain format: ``2026-01-31 12:00:00,123 INFO rmqpy.net.server.server: text``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\\n")


class JsonLines(logging.Formatter):
    """One JSON object per line: time (ms since 1970), level, logger, text and, if there is one,
    fault.
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
    """Send everything from ``level`` up to ``stream`` (default: standard error)."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
