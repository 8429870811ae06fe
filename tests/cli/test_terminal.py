"""The terminal: colour, width, and progress; files and pipes get plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.scan.findings import Finding, FindingCode
from rmqpy.cli import main
from rmqpy.cli.progress import ProgressLine
from rmqpy.cli.render_findings import Report
from rmqpy.cli.terminal import Rows, show

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
LINES = (
    "NOT READY for switching n0, n1: 1 cause",
    "1. n1 lags behind n0 by 2 messages (Orders queue 0 offset 7-8), 336 B (hazard H2)",
    "   -> rmqpy upgrade plan, then apply: they copy the rest of the log from n0",
)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_a_pipe_gets_the_lines_as_they_are() -> None:
    stream = io.StringIO()
    show(LINES, stream)
    assert stream.getvalue() == "".join(f"{line}\n" for line in LINES)


def test_a_terminal_gets_colours_and_lines_that_fit(terminal: Terminal) -> None:
    show(LINES, terminal)
    assert "\x1b[1;31m" in terminal.getvalue()
    plain = ESCAPE.sub("", terminal.getvalue())
    shown = plain.splitlines()
    assert all(len(line) <= 60 for line in shown) and len(shown) == 5
    assert shown[2].startswith("   ") and shown[2].strip().endswith("(hazard H2)")
    assert shown[4].startswith("      ")  # below the text, not below the arrow
    assert " ".join(plain.split()) == " ".join(" ".join(LINES).split())


def test_a_word_that_is_too_long_stays_whole(terminal: Terminal) -> None:
    path = "/mnt/" + "a" * 90
    show([f"found the file {path} and more text", path], terminal)
    plain = ESCAPE.sub("", terminal.getvalue())
    assert plain.splitlines() == ["found the file", f"  {path}", "  and more text", path]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colour_gets_no_escapes(
    name: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    show(LINES, terminal)
    assert "\x1b" not in terminal.getvalue()


def test_control_characters_are_escaped_everywhere(terminal: Terminal) -> None:
    stream = io.StringIO()
    for each in (stream, terminal):
        show(["name\x1b[2J\nnext"], each)
    assert stream.getvalue() == "name\\x1b[2J\\x0anext\n"
    assert ESCAPE.sub("", terminal.getvalue()) == stream.getvalue()


def test_progress_is_erased_before_anything_is_printed(terminal: Terminal) -> None:
    now = [0.0]
    line = ProgressLine("checked", terminal, lambda: now[0])
    line.expect(1 << 30)
    now[0] = 16.0
    line.advance(1 << 28)
    drawn = terminal.getvalue()
    assert drawn.startswith("\r\x1b[K") and not drawn.endswith("\n")
    assert len(ESCAPE.sub("", drawn).removeprefix("\r\x1b[K")) < 60
    assert "checked 256.0 MiB" in ESCAPE.sub("", drawn)
    report = Report(as_json=False, stream=terminal, before=line.clear)
    report.findings([Finding(code=FindingCode.UNCLEAN_STOP, file="abort")])
    assert terminal.getvalue().removeprefix(drawn).startswith("\r\x1b[K")
    erased = terminal.getvalue()
    with line:
        pass
    assert terminal.getvalue() == erased  # nothing is left to erase


def test_commands_are_plain_when_stdout_is_no_terminal(
    store_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    main(["why", "not-deleted", str(store_of("A-classic-clean-v497"))])
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert max(map(len, printed.out.splitlines())) > 50


TABLE = Rows(
    ("member", "role", "state"),
    [("n0", "leader", "runs as member"), ("n1", "SLAVE (configured)", "stopped uncleanly")],
)


def test_a_table_in_a_pipe_has_columns() -> None:
    stream = io.StringIO()
    show([TABLE], stream)
    assert stream.getvalue().splitlines() == [
        "member  role                state",
        "n0      leader              runs as member",
        "n1      SLAVE (configured)  stopped uncleanly",
    ]


@pytest.mark.parametrize("columns", [30, 60, 120])
def test_a_table_on_a_terminal_fits(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show([TABLE], terminal)
    assert "\x1b[1;31m" in terminal.getvalue()
    plain = ESCAPE.sub("", terminal.getvalue())
    assert all(len(line.rstrip()) <= columns for line in plain.splitlines())
    assert "leader" in plain and ("stopped uncleanly" in plain or columns < 60)


def test_a_table_that_does_not_fit_is_shown_row_by_row(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [["n0", "member n0 (configured)", "2026-11-23 15:41:25Z", "501902", "never"]]
    show([Rows(["member", "role", "since", "log end", "last proof"], rows)], terminal)
    shown = ESCAPE.sub("", terminal.getvalue()).splitlines()
    assert shown[:2] == ["member n0", "  role: member n0 (configured)"]
    assert shown[-1] == "  last proof: never"
