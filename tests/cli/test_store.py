"""``rmqpy store``: what it prints and how it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmqpy.cli import main
from rmqpy.cli.progress import ProgressLine


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


@pytest.mark.slow
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


def test_progress_of_things_and_of_a_second_part() -> None:
    """The clock begins when something is expected."""
    now = [100.0]
    stream = io.StringIO()
    line = ProgressLine("asked", stream, lambda: now[0], things="tasks")
    now[0] = 200.0
    line.expect(30)
    line.advance(5)
    now[0] = 220.0
    line.expect(10)
    line.advance(5)
    assert stream.getvalue() == "asked 10 of 40 tasks, 0.5/s, 1 min 0 s left\n"


def dumped(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_is_what_the_java_consumer_got(
    golden: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "A-classic-clean-v497"
    (log,) = golden(name).rglob("commitlog")
    assert main(["store", "dump", str(log.parent)]) == 0
    found = {message["physical_offset"]: message for message in dumped(capsys)}
    for java in manifest(name)["messages"]:
        mine = found[java["commitLogOffset"]]
        assert mine["topic"] == java["topic"]
        assert (mine["queue_id"], mine["queue_offset"]) == (java["queueId"], java["queueOffset"])
        assert (mine["size"], mine["body_bytes"]) == (java["storeSize"], java["bodyLen"])
        assert mine["body_crc"] == java["bodyCRC"]
        assert mine["properties"] == java["props"]
        assert mine["offset_message_id"] == java["offsetMsgId"]


def test_dump_takes_what_is_asked_for(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["store", "dump", str(upgraded), "--topic", "Normal", "--queue", "1"]
    assert main([*command, "--from", "28", "--to", "32", "--body", "base64"]) == 0
    found = dumped(capsys)
    assert [message["queue_offset"] for message in found] == [28, 29, 30, 31]
    assert found[0].keys() >= {"body_base64", "tags", "store_timestamp_ms"}
    assert found[3]["entry_index"] >= 0 and found[3]["term"] == 1
    assert "entry_index" not in found[0]
    key = found[2]["message_id"]
    assert main(["store", "dump", str(upgraded), "--key", key, "--body", "none"]) == 0
    (one,) = dumped(capsys)
    assert one["queue_offset"] == 30 and "body" not in one
    assert main([*command, "--limit", "3"]) == 0
    assert len(dumped(capsys)) == 3


def test_dump_by_time(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(upgraded), "--body", "none"]) == 0
    times = [message["store_timestamp_ms"] for message in dumped(capsys)]
    middle = sorted(times)[len(times) // 2]
    moment = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    assert main(["store", "dump", str(upgraded), "--from", moment]) == 0
    assert len(dumped(capsys)) == sum(time >= middle for time in times)
    assert main(["store", "dump", str(upgraded), "--from", "yesterday"]) == 1
    assert "2024-05-31T12:00:00Z" in capsys.readouterr().err


@pytest.mark.slow
def test_dump_goes_on_behind_damage(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(damaged), "--body", "none"]) == 2
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 559
    assert "at offset 65536" in told.err


def test_a_repair_is_shown_and_then_done(
    golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (log,) = golden_copy("A-classic-clean-v497").rglob("commitlog")
    file = log / f"{65536:020d}"
    data = bytearray(file.read_bytes())
    data[4] ^= 1
    file.write_bytes(data)
    command = ["store", "fsck", str(log.parent), "--quarantine"]
    assert main(command) == 2
    assert "nothing was changed; repeat with --yes" in capsys.readouterr().out
    assert file.read_bytes() == data
    assert not (log.parent / "rmqpy").exists()
    main([*command, "--yes"])
    assert (log.parent / "rmqpy/quarantine" / f"{65536:020d}.bin").exists()
    assert main(["store", "dump", str(log.parent), "--body", "none"]) == 0
