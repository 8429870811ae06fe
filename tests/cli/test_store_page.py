"""The commands of docs/how-to/inspect-a-store.md succeed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/inspect-a-store.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ rmqpy (.*)$", PAGE, re.MULTILINE)
STORE = "/var/lib/rocketmq/store"


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 9 and all(STORE in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_succeeds_and_changes_nothing(
    command: str, store_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of("A-classic-clean-v497")
    before = sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*"))
    assert main(shlex.split(command.replace(STORE, str(store)))) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out or "--key order-7" in command
    assert sorted((path, path.stat().st_mtime_ns) for path in store.rglob("*")) == before
    if "--limit 3" in command:
        assert len(captured.out.splitlines()) == 3


def test_the_python_code_of_the_page_works(store_of: Callable[[str], Path]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    store = store_of("A-classic-clean-v497")
    names: dict[str, object] = {}
    exec(code.replace(STORE, str(store)), names)
    assert getattr(names["audit"], "is_clean", None) is True
