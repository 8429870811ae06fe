"""``rmqpy store``: what it prints and how it ends."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.cli import main


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def upgraded(golden: Callable[[str], Path]) -> Path:
    return golden("C-upgraded-v497") / "n0"


def test_inspect_tells_what_a_directory_is(
    upgraded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "inspect", str(upgraded)]) == 0
    printed = capsys.readouterr().out
    assert "joined to the DLedger log of member n0" in printed
    assert "divided offset   262144" in printed
    assert "Java 4.9         can open it: with enableDLegerCommitLog=true" in printed


def test_inspect_as_json(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "inspect", str(upgraded), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["mode"], facts["divided_offset"]) == ("joined", 262144)
    assert facts["ledger"]["last"]["index"] == 280


def test_no_directory_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "inspect", str(tmp_path / "none")]) == 1
    assert "storePathRootDir" in capsys.readouterr().err
