"""Tests of the formats of log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqpy.net.logging_setup import (
    CHARACTERS_MAX,
    LINES_MAX,
    PERIOD_S,
    LineLimit,
    configure_logging,
)

HOSTILE = "a\rb\x1b[2Jc\x7fd\x85e\u2028f\u202eg\th\ni ü"
logger = logging.getLogger("rmqpy.test")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


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


def test_no_place_in_the_code_fills_the_log(stream: io.StringIO) -> None:
    """A peer can cause some lines as often as it likes."""
    configure_logging(as_json=False, stream=stream)
    for number in range(10_000):
        logger.warning("closing 10.0.0.1:%d: 100%% broken", number)
    logger.warning("another place")
    lines = stream.getvalue().splitlines()
    assert len(lines) == LINES_MAX + 1
    assert lines[0].endswith("closing 10.0.0.1:0: 100% broken")
    assert lines[-2].endswith(
        f"(more lines like this one are only counted, for up to {PERIOD_S} s)"
    )
    assert lines[-1].endswith("another place")


def test_lines_that_were_not_written_are_counted() -> None:
    times = [0.0]
    limit = LineLimit(lambda: times[0])

    def written() -> str | None:
        record = logging.LogRecord("r", logging.INFO, "file.py", 7, "from %s", ("peer",), None)
        return record.getMessage() if limit.filter(record) else None

    assert sum(written() is not None for _ in range(250)) == LINES_MAX
    times[0] = PERIOD_S - 1
    assert written() is None
    times[0] = PERIOD_S
    left_out = 251 - LINES_MAX
    assert written() == f"from peer ({left_out} more lines like this one not written before)"
    assert written() == "from peer"


def test_a_line_has_a_longest_text(stream: io.StringIO) -> None:
    configure_logging(as_json=True, stream=stream)
    logger.warning("group %s", "x" * 100_000)
    text = json.loads(stream.getvalue())["text"]
    assert text.endswith(f" … ({100_006 - CHARACTERS_MAX} more characters)")
    assert len(text) < CHARACTERS_MAX + 50


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "log"
    folder.mkdir()
    configure_logging(as_json=False, path=str(folder / "broker.log"))
    yield folder / "broker.log"
    for handler in logging.getLogger().handlers:
        handler.close()
    configure_logging(as_json=False)


def texts(file: Path) -> list[str]:
    return [line.partition("rmqpy.test: ")[2] for line in file.read_text().splitlines()]


def test_a_file_that_was_moved_is_created_again(log_file: Path) -> None:
    logger.warning("one")
    rotated = log_file.rename(log_file.with_suffix(".log.1"))
    logger.warning("two")
    log_file.unlink()
    logger.warning("three")
    assert (texts(rotated), texts(log_file)) == (["one"], ["three"])


def test_a_file_is_appended_to(log_file: Path) -> None:
    logger.warning("one")
    configure_logging(as_json=False, path=str(log_file))
    logger.warning("two")
    assert texts(log_file) == ["one", "two"]


def test_without_its_folder_lines_go_to_standard_error(
    log_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger.warning("one")
    gone = log_file.parent.rename(log_file.parent.with_name("gone"))
    logger.warning("two")
    logger.warning("three")
    log_file.parent.mkdir()
    logger.warning("four")
    reason, *lines = capsys.readouterr().err.splitlines()
    assert reason.startswith(f"the log file {log_file} cannot be written: ")
    assert [line.partition("rmqpy.test: ")[2] for line in lines] == ["two", "three"]
    assert (texts(gone / log_file.name), texts(log_file)) == (["one"], ["four"])


def test_with_a_full_disk_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(as_json=False, path="/dev/full")
    logger.warning("one")
    logger.warning("two")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("rmqpy.test: ")[2] for line in lines] == ["", "one", "two"]
    configure_logging(as_json=False)


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        configure_logging(as_json=False, path=str(tmp_path / "no" / "broker.log"))
