"""Tests of the formats of log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from rmqpy.net.logging_setup import configure_logging

HOSTILE = "a\rb\x1b[2Jc\x7fd\x85e\u2028f\u202eg\th\ni ü"
logger = logging.getLogger("rmqpy.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Return a stream for log lines; the configuration of logging is restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_contains_nothing_that_a_terminal_interprets(stream: io.StringIO) -> None:
    configure_logging(as_json=False, stream=stream)
    logger.warning("member %s", HOSTILE)
    text = stream.getvalue()
    assert text.endswith(
        "WARNING rmqpy.test: member a\\rb\\u001b[2Jc\\u007fd\\u0085e\\u2028f\\u202eg\\th\\ni ü\n"
    )
    assert text.count("\n") == 1


def test_a_traceback_is_on_the_line_of_its_event(stream: io.StringIO) -> None:
    configure_logging(as_json=False, stream=stream)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("failed")
    text = stream.getvalue()
    assert text.count("\n") == 1 and "Traceback (most recent call last):\\n" in text
    assert "\x1b" not in text


def test_a_json_event_has_the_original_text(stream: io.StringIO) -> None:
    configure_logging(as_json=True, stream=stream)
    logger.warning("member %s", HOSTILE)
    line = stream.getvalue()
    assert line.count("\n") == 1 and not set(line[:-1]) & set("\x1b\x7f\x85\u2028\u202e\r\t")
    assert json.loads(line)["text"] == f"member {HOSTILE}"
