"""``rmqpy store``: its output and its exit codes."""

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
def upgraded(store_of: Callable[[str], Path]) -> Path:
    """Return a joined store, only to be read."""
    return store_of("C-upgraded-v497/n0")


def test_inspect_describes_a_directory(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "inspect", str(upgraded)]) == 0
    printed = capsys.readouterr().out
    assert "joined to the DLedger log of member n0" in printed
    assert "divided offset   262144" in printed
    assert "Java 4.9         can open it: with enableDLegerCommitLog=true" in printed


def test_inspect_prints_json(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "inspect", str(upgraded), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["mode"], facts["divided_offset"]) == ("joined", 262144)
    assert facts["ledger"]["last"]["index"] == 280


def test_a_missing_directory_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "inspect", str(tmp_path / "none")]) == 1
    assert "storePathRootDir" in capsys.readouterr().err


@pytest.fixture
def damaged(copy_of: Callable[[str], Path]) -> Path:
    """Return a copy of the joined store with a damaged record."""
    store = copy_of("C-upgraded-v497/n0")
    damage_record(store / "commitlog" / f"{65536:020d}")
    return store


def damage_record(file: Path) -> bytes:
    """Change the magic code of the first record of ``file`` and return the new content."""
    data = bytearray(file.read_bytes())
    data[4] ^= 1
    file.write_bytes(data)
    return bytes(data)


def test_fsck_of_a_clean_store_is_exit_code_0(
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


def test_fsck_prints_json(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "fsck", str(damaged), "--format", "json", "--workers", "1"]) == 2
    report = json.loads(capsys.readouterr().out)
    (finding, *_) = report["findings"]
    assert (finding["code"], finding["offset"]) == ("RECORD_MAGIC", 65536)
    assert report["clean"] is False and report["counts"]["RECORD_MAGIC"] == 1


def test_progress_shows_rate_and_remaining_time() -> None:
    now = [0.0]
    stream = io.StringIO()
    line = ProgressLine("checked", stream, lambda: now[0])
    line.expect(1 << 30)
    line.advance(1 << 20)
    assert stream.getvalue() == ""
    now[0] = 16.0
    line.advance((1 << 28) - (1 << 20))
    assert stream.getvalue() == "checked 256.0 MiB of 1.0 GiB, 16.0 MiB/s, 48 s left\n"


def test_progress_counts_other_units_and_further_parts() -> None:
    """The clock starts with the first expected amount."""
    now = [100.0]
    stream = io.StringIO()
    line = ProgressLine("checked", stream, lambda: now[0], things="tasks")
    now[0] = 200.0
    line.expect(30)
    line.advance(5)
    now[0] = 220.0
    line.expect(10)
    line.advance(5)
    assert stream.getvalue() == "checked 10 of 40 tasks, 0.5/s, 1 min 0 s left\n"


def dumped_messages(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_has_the_messages_of_the_java_consumer(
    store_of: Callable[[str], Path],
    manifest: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "A-classic-clean-v497"
    assert main(["store", "dump", str(store_of(name))]) == 0
    found = {message["physical_offset"]: message for message in dumped_messages(capsys)}
    for java in manifest(name)["messages"]:
        ours = found[java["commitLogOffset"]]
        assert ours["topic"] == java["topic"]
        assert (ours["queue_id"], ours["queue_offset"]) == (java["queueId"], java["queueOffset"])
        assert (ours["size"], ours["body_bytes"]) == (java["storeSize"], java["bodyLen"])
        assert ours["body_crc"] == java["bodyCRC"]
        assert ours["properties"] == java["props"]
        assert ours["offset_message_id"] == java["offsetMsgId"]


def test_dump_can_be_limited_to_a_queue_a_range_or_a_key(
    upgraded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["store", "dump", str(upgraded), "--topic", "Normal", "--queue", "1"]
    assert main([*command, "--from", "28", "--to", "32", "--body", "base64"]) == 0
    found = dumped_messages(capsys)
    assert [message["queue_offset"] for message in found] == [28, 29, 30, 31]
    assert found[0].keys() >= {"body_base64", "tags", "store_timestamp_ms"}
    assert found[3]["entry_index"] >= 0 and found[3]["term"] == 1
    assert "entry_index" not in found[0]
    key = found[2]["message_id"]
    assert main(["store", "dump", str(upgraded), "--key", key, "--body", "none"]) == 0
    (one,) = dumped_messages(capsys)
    assert one["queue_offset"] == 30 and "body" not in one
    assert main([*command, "--limit", "3"]) == 0
    assert len(dumped_messages(capsys)) == 3


def test_dump_can_start_at_a_time(upgraded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(upgraded), "--body", "none"]) == 0
    times = [message["store_timestamp_ms"] for message in dumped_messages(capsys)]
    middle = sorted(times)[len(times) // 2]
    moment = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    assert main(["store", "dump", str(upgraded), "--from", moment]) == 0
    assert len(dumped_messages(capsys)) == sum(time >= middle for time in times)
    assert main(["store", "dump", str(upgraded), "--from", "yesterday"]) == 1
    assert "2024-05-31T12:00:00Z" in capsys.readouterr().err


@pytest.mark.slow
def test_dump_continues_after_damage(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "dump", str(damaged), "--body", "none"]) == 2
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 559
    assert "at offset 65536" in captured.err


def test_a_repair_is_shown_first_and_applied_with_yes(
    copy_of: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of("A-classic-clean-v497")
    file = store / "commitlog" / f"{65536:020d}"
    data = damage_record(file)
    command = ["store", "fsck", str(store), "--quarantine"]
    assert main(command) == 2
    assert "nothing was changed; repeat with --yes" in capsys.readouterr().out
    assert file.read_bytes() == data
    assert not (store / "rmqpy").exists()
    main([*command, "--yes"])
    assert (store / "rmqpy/quarantine" / f"{65536:020d}.bin").exists()
    assert main(["store", "dump", str(store), "--body", "none"]) == 0
