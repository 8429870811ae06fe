"""docs/how-to/inspect-a-store.md: its commands do what it says."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.cli import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/inspect-a-store.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ rmqpy (.*)$", PAGE, re.MULTILINE)
STORE = "/var/lib/rocketmq/store"


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) >= 9 and all(STORE in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page(
    command: str, golden: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (log,) = golden("A-classic-clean-v497").rglob("commitlog")
    before = sorted((path, path.stat().st_mtime_ns) for path in log.parent.rglob("*"))
    assert main(shlex.split(command.replace(STORE, str(log.parent)))) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out or "--key order-7" in command
    assert sorted((path, path.stat().st_mtime_ns) for path in log.parent.rglob("*")) == before
    if "--limit 3" in command:
        assert len(told.out.splitlines()) == 3


def test_the_python_of_the_page(golden: Callable[[str], Path]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (log,) = golden("A-classic-clean-v497").rglob("commitlog")
    names: dict[str, object] = {}
    exec(code.replace(STORE, str(log.parent)), names)
    assert getattr(names["audit"], "is_clean", None) is True
