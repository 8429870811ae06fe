"""Shell completion: generated from the parsers, and tried in bash, zsh, and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.cli.command_line import every_parser
from rmqpy.cli.completion import nodes_of

BASH = shutil.which("bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(text: str, line: str, folder: Path) -> list[str]:
    """Return what bash offers at the end of ``line``."""
    assert BASH is not None
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    asked = (
        f"{text}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _rmqpy;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "--norc", "-c", asked], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_commands_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script("bash", capsys)
    (tmp_path / "store-n0").mkdir()
    cases = {
        "rmqpy sto": ["store"],
        "rmqpy store ": ["inspect", "fsck", "map", "backup", "dump", "-h", "--help"],
        "rmqpy why not": ["not-deleted"],
        "rmqpy why --log-json slow": ["slow-start"],
        "rmqpy store fsck --form": ["--format"],
        "rmqpy store fsck --format ": ["text", "json"],
        "rmqpy store fsck sto": ["store-n0"],
        "rmqpy store fsck -c sto": ["store-n0"],
        "rmqpy admin topicSt": ["topicStatus"],
        "rmqpy completion ": ["bash", "zsh", "fish", "-h", "--help"],
        "rmqpy upgrade check store-n0 --det": ["--details"],
    }
    for line, expected in cases.items():
        found = completed(text, line, tmp_path)
        assert found[: len(expected)] == expected, (line, found)


def test_every_command_is_in_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    paths = {node.path for node in nodes_of(every_parser())}
    assert {"/", "/store/fsck", "/why/election", "/admin/topicStatus"} <= paths
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, capsys)
        missing = [path for path in paths if path not in text]
        assert not missing, (shell, missing)


def test_fish_has_descriptions_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    lines = script("fish", capsys).splitlines()
    fsck = [line for line in lines if "'__rmqpy_path /store/fsck'" in line]
    (choices,) = [line for line in fsck if "-l format" in line]
    assert choices.endswith("-x -a 'text json' -d 'default text'")
    assert any("-f -a fsck -d 'check every record" in line for line in lines)


SHOW = "rmqpy() { echo GIVEN $# $*; }"
SHELLS = {
    "bash": (["bash", "--norc", "-i"], SHOW),
    "zsh": (["zsh", "-f", "-i"], SHOW),
    "fish": (
        ["fish", "--no-config", "-i"],
        "function rmqpy; echo GIVEN (count $argv) $argv; end",
    ),
}
"""Of each shell: its words, and a command that shows what it was given."""
PATIENCE_S = 30
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x1b\][^\x07]*\x07|\x1b\(B|[\x0e\x0f\r]")
_IDENTIFY = re.compile(rb"\x1b\[0?c")


class ShellTerminal:
    """A shell at a terminal, which is typed to."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._seen = b""

    def type(self, text: str, expected: str) -> None:
        """Type, and wait until what is expected is shown."""
        os.write(self._fd, text.encode())
        deadline = time.monotonic() + PATIENCE_S
        shown = b""
        while expected.encode() not in (shown := _ESCAPES.sub(b"", self._seen)):
            if not select.select([self._fd], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise AssertionError(f"{text!r}: {expected!r} is not in {shown[-500:]!r}")
            data = os.read(self._fd, 65536)
            self._seen += data
            if _IDENTIFY.search(data):
                os.write(self._fd, b"\x1b[?62;c")
        self._seen = b""


@contextmanager
def shell_at_terminal(words: list[str], folder: Path) -> Iterator[ShellTerminal]:
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.update(HOME=str(folder), TERM="xterm", PS1="> ")
        os.execvp(words[0], words)
    try:
        yield ShellTerminal(descriptor)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_completed_word_is_followed_by_a_space(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, show = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    (tmp_path / "the-store").mkdir()
    with shell_at_terminal(words, tmp_path) as terminal:
        terminal.type("source ./script\necho rea''dy\n", "ready")
        terminal.type(f"{show}\necho def''ined\n", "defined")
        terminal.type("rmqpy sto\t", "rmqpy store")
        terminal.type("fs\t", "fsck")
        terminal.type("--form\t", "--format")
        terminal.type("js\t", "json")
        terminal.type("the-s\t", "the-store/")
        terminal.type("\n", "GIVEN 5 store fsck --format json the-store")
