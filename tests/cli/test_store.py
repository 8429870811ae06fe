"""``rmqpy store``: what it prints and how it ends."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.cli.progress import ProgressLine


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


@pytest.fixture
def damaged(golden_copy: Callable[[str], Path]) -> Path:
    store = golden_copy("C-upgraded-v497") / "n0"
    file = store / "commitlog" / f"{65536:020d}"
    data = bytearray(file.read_bytes())
    data[4] ^= 1
    file.write_bytes(data)
    return store


def test_fsck_of_a_sound_store_is_exit_code_0(
    upgraded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "fsck", str(upgraded)]) == 0
    assert capsys.readouterr().out == "560 records, 22 queues: clean\n"


def test_fsck_of_a_damaged_store_is_exit_code_2(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "fsck", str(damaged)]) == 2
    first, *_, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("damage   RECORD_MAGIC commitlog/00000000000000065536 at offset 65536")
    assert verdict.endswith("damage was found")


def test_fsck_as_json(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "fsck", str(damaged), "--format", "json", "--workers", "1"]) == 2
    report = json.loads(capsys.readouterr().out)
    (finding, *_) = report["findings"]
    assert (finding["code"], finding["offset"]) == ("RECORD_MAGIC", 65536)
    assert report["clean"] is False and report["counts"]["RECORD_MAGIC"] == 1


def test_progress_tells_rate_and_time() -> None:
    now = [0.0]
    stream = io.StringIO()
    line = ProgressLine("checked", stream, lambda: now[0])
    line.expect(1 << 30)
    line.advance(1 << 20)
    assert stream.getvalue() == ""
    now[0] = 16.0
    line.advance((1 << 28) - (1 << 20))
    assert stream.getvalue() == "checked 256.0 MiB of 1.0 GiB, 16.0 MiB/s, 48 s left\n"
