"""``check`` compares the members' DLedger logs entry by entry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqpy.cli import main
from rmqpy.codec.entry import ENTRY_HEADER

HEADER = 48
NAMES = ("n0", "n1", "n2")


@pytest.fixture
def group(golden_copy: Callable[[str], Path]) -> Path:
    """Return the directory of three members that Java wrote."""
    return golden_copy("C-upgraded-v497")


@pytest.fixture
def check(group: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[], dict[str, Any]]:
    """Return a function that runs ``check`` on the group and returns its report."""

    def run() -> dict[str, Any]:
        code = main(["upgrade", "check", *(str(group / name) for name in NAMES), "--format=json"])
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == (2 if report["findings"] else 0)
        return report

    return run


def entry_file(group: Path, name: str) -> Path:
    return sorted((group / name / f"dledger-{name}" / "data").iterdir())[0]


def change(file: Path, position: int, new: bytes | None = None) -> None:
    """Flip one bit at a position of a file, or write other bytes there."""
    with file.open("r+b") as stream:
        stream.seek(position)
        data = new if new is not None else bytes([stream.read(1)[0] ^ 1])
        stream.seek(position)
        stream.write(data)


def positions(file: Path) -> list[int]:
    """Return the positions of the entries of a data file."""
    data, found, position = file.read_bytes(), [], 0
    while int.from_bytes(data[position : position + 4]) == 1:
        found.append(position)
        position += int.from_bytes(data[position + 4 : position + 8])
    return found


def of_check(report: dict[str, Any], severity: str) -> list[dict[str, Any]]:
    return [each for each in report[severity] if each["check"] == "same-entries"]


def test_equal_members_have_no_finding(check: Callable[[], dict[str, Any]]) -> None:
    report = check()
    assert report["findings"] == [] and report["verdict"] == "EQUAL"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "name"),
    [
        (19, "FLAG"),
        (36, "SYSFLAG"),
        (47, "BORNTIMESTAMP"),
        (50, "BORNHOST"),
        (63, "STORETIMESTAMP"),
        (67, "STOREHOST"),
        (75, "RECONSUMETIMES"),
        (83, "PREPAREDTRANSACTIONOFFSET"),
    ],
)
def test_a_changed_field_without_a_crc_is_found(
    group: Path, check: Callable[[], dict[str, Any]], position: int, name: str
) -> None:
    file = entry_file(group, "n1")
    change(file, positions(file)[30] + HEADER + position)
    report = check()
    found = of_check(report, "findings")
    assert [each["replica"] for each in found] == ["n0, n1", "n1, n2"]
    assert f"{name} differs" in found[0]["text"] and "from index 30 to 30" in found[0]["text"]
    assert report["verdict"] == "DIFFERENT"


@pytest.mark.slow
def test_many_changed_entries_are_one_finding(
    group: Path, check: Callable[[], dict[str, Any]]
) -> None:
    file = entry_file(group, "n1")
    changed = positions(file)[10:]
    for position in changed:
        change(file, position + HEADER + 19)
    text = f"{len(changed)} entries from index 10 to {9 + len(changed)} have the same index"
    assert [text in each["text"] for each in of_check(check(), "findings")] == [True, True]


def set_last_term(group: Path, name: str) -> None:
    """Give the last entry of a member another term."""
    file = sorted((group / name / f"dledger-{name}" / "data").iterdir())[-1]
    last = positions(file)[-1]
    header = list(ENTRY_HEADER.unpack_from(file.read_bytes(), last))
    header[3] += 1
    change(file, last, ENTRY_HEADER.pack(*header))


@pytest.mark.slow
def test_entries_of_different_terms_are_damage_only_if_both_are_committed(
    group: Path, check: Callable[[], dict[str, Any]]
) -> None:
    set_last_term(group, "n1")
    found = of_check(check(), "findings")
    assert len(found) == 2 and "were committed with different content" in found[0]["text"]
    checkpoint = group / "n1/dledger-n1/checkpoint"
    text = checkpoint.read_text()
    checkpoint.write_text(text.replace("committedIndex=280", "committedIndex=279"))
    report = check()
    assert of_check(report, "findings") == []
    assert "not known to be committed on both" in of_check(report, "notes")[0]["text"]


@pytest.mark.slow
def test_a_log_whose_framing_is_lost_is_found(
    group: Path, check: Callable[[], dict[str, Any]]
) -> None:
    file = entry_file(group, "n1")
    change(file, positions(file)[1], bytes(HEADER))
    report = check()
    assert "no entry can be read in one of them" in of_check(report, "findings")[0]["text"]
    assert report["verdict"] == "DIFFERENT"


def test_a_member_that_lags_is_contained(
    golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = golden_copy("B-lagging-slave-v497")
    for words in (["master", "slave"], ["slave", "master"]):
        assert main(["upgrade", "check", *(str(root / word) for word in words)]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert lines[-2] == "logs: CONTAINED: slave in master, which has 70 messages more"
        assert not any("\\x0a" in line for line in lines)


def test_an_empty_member_is_contained_and_hides_no_other(
    golden_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = golden_copy("B-lagging-slave-v497")
    (root / "new").mkdir()
    words = [str(root / name) for name in ("new", "slave", "master")]
    assert main(["upgrade", "check", *words]) == 2
    verdict = capsys.readouterr().out.splitlines()[-2]
    assert verdict == (
        "logs: CONTAINED: new in master, which has 361 messages more;"
        " slave in master, which has 70 messages more"
    )
