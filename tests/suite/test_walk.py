"""Walks that end early: their cases, and what is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.codec.epochs import Epoch, decode_epochs
from rmqpy.suite.cases import CaseStatus, SuiteResult
from rmqpy.suite.runner import SuiteRun, exit_code
from rmqpy.suite.suite_file import LIVE_STAGES, SuitePlan, read_suite

pytestmark = pytest.mark.slow

READ_ONLY = """
from pathlib import Path
for path in Path("work/b").glob("n*/broker.conf"):
    path.write_text(path.read_text() + "brokerPermission=4\\n")
"""


@pytest.fixture
def plan(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], SuitePlan]:
    golden_copy("B-lagging-slave-v497")

    def written(lines: str) -> SuitePlan:
        path = tmp_path / "suite.toml"
        replicas = "".join(
            f'[[store.replica]]\npath = "B-lagging-slave-v497/{name}"\n'
            for name in ("master", "slave")
        )
        path.write_text(f'stages = ["check", "prepare"]\n[[store]]\nname = "b"\n{lines}{replicas}')
        return read_suite(path)

    return written


def test_a_lagging_slave_is_prepared_and_the_store_is_not_changed(
    plan: Callable[[str], SuitePlan], tmp_path: Path
) -> None:
    made = plan("messages = 361\n")
    store = made.stores[0].replicas[1].path
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    run = SuiteRun(plan=made, work=tmp_path / "work")
    shown: list[str] = []
    check, prepare = run.run(lambda case: shown.append(case.case)).cases
    assert shown == ["check", "prepare"]
    assert check.status is CaseStatus.PASSED and check.notes
    assert prepare.status is CaseStatus.PASSED
    assert prepare.facts["certificate"] == "EQUAL" and prepare.facts["messages"] == 361
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    assert not (tmp_path / "work" / "b").exists()
    shown.clear()
    assert run.run(lambda case: shown.append(case.case)).cases == (check, prepare)
    assert not shown, "the results of the first run are read"


def test_without_java_the_copies_are_handed_over_and_the_case_is_not_tested(
    plan: Callable[[str], SuitePlan], tmp_path: Path
) -> None:
    """It says what was not tested; the members that other cases need have no epochs."""
    plan("")
    path = tmp_path / "suite.toml"
    path.write_text(path.read_text().replace('"prepare"]', '"prepare", "controller"]'))
    run = SuiteRun(plan=read_suite(path), work=tmp_path / "work", keep=True)
    _, prepare, controller = run.run(lambda _case: None).cases
    assert controller.status is CaseStatus.NOT_TESTED
    [finding] = controller.findings
    assert "no version of 5.x in java" in finding and "fail-over" in finding
    assert controller.facts["certificate"] == "EQUAL"
    assert controller.facts["messages"] == prepare.facts["messages"] == 361
    assert exit_code(SuiteResult("suite", (prepare, controller))) == 1
    for member in ("n0", "n1", "n2"):
        copied = tmp_path / "work" / "b" / "controller" / member
        epochs = decode_epochs((copied / "store" / "epochFileCheckpoint").read_bytes())
        assert epochs == (Epoch(0, 0),)
        lines = (copied / "broker.conf").read_text().splitlines()
        assert {"enableControllerMode=true", "allAckInSyncStateSet=true"} <= {*lines}
        assert not any(line.startswith(("brokerId", "brokerRole")) for line in lines)
        prepared = tmp_path / "work" / "b" / member
        assert not (prepared / "store" / "epochFileCheckpoint").exists()
        assert "enableControllerMode" not in (prepared / "broker.conf").read_text()


def test_without_the_jars_of_a_version_its_case_says_so(
    plan: Callable[[str], SuitePlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQPY_JAVA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    plan("")
    path = tmp_path / "suite.toml"
    text = path.read_text().replace('"prepare"]', '"prepare", "controller"]')
    path.write_text(f'java = ["5.3.3"]\n{text}')
    case = SuiteRun(plan=read_suite(path), work=tmp_path / "work").run(lambda _case: None).cases[2]
    assert (case.case, case.status) == ("controller-5.3.3", CaseStatus.NOT_TESTED)
    assert "java is neither in JAVA_HOME nor on the PATH" in case.findings[0]
    assert case.facts["certificate"] == "EQUAL"


def test_damage_is_a_finding_and_later_stages_are_not_tested(
    plan: Callable[[str], SuitePlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in [each.path for each in plan("").stores[0].replicas]:
        log = store / "commitlog" / "00000000000000000000"
        data = bytearray(log.read_bytes())
        data[1000:1040] = bytes(40)
        log.write_bytes(data)
    (tmp_path / "suite.toml").write_text(
        (tmp_path / "suite.toml").read_text().replace('"prepare"]', '"prepare", "switch"]')
    )
    report = tmp_path / "suite.json"
    assert main(["suite", "run", str(tmp_path / "suite.toml"), "--json", str(report)]) == 2
    assert "FAILED: 1 passed, 1 failed, 1 not tested" in capsys.readouterr().out
    cases = json.loads(report.read_text())["cases"]
    assert [case["status"] for case in cases] == ["passed", "failed", "not tested"]
    assert cases[2]["findings"] == ["prepare was not carried out"]


def test_a_group_that_accepts_nothing_ends_the_stage(
    plan: Callable[[str], SuitePlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook makes all members read-only from their next start on."""
    monkeypatch.setattr("rmqpy.suite.suite_file.STALL_SECONDS_MAX", 5.0)
    plan("")
    path = tmp_path / "suite.toml"
    (tmp_path / "read_only.py").write_text(READ_ONLY)
    hook = f"{sys.executable} read_only.py"
    limits = "\n".join(f"{stage}_pause_s = 1" for stage in LIVE_STAGES)
    text = path.read_text().replace('"prepare"]', '"prepare", "switch", "failover"]')
    path.write_text(
        text.replace(
            "[[store]]", f'[limits]\n{limits}\n[hooks]\nbefore_switch = ["{hook}"]\n[[store]]'
        )
    )
    run = SuiteRun(plan=read_suite(path), work=tmp_path / "work")
    _, _, switch, failover = run.run(lambda _case: None).cases
    assert switch.status is CaseStatus.FAILED
    [finding] = switch.findings
    assert finding.startswith("switch was not carried out: no send was acknowledged for 5 s: ")
    assert failover.status is CaseStatus.NOT_TESTED
    assert failover.findings == ("switch was not carried out",)


def test_a_wrong_number_of_messages_is_a_finding(
    plan: Callable[[str], SuitePlan], tmp_path: Path
) -> None:
    run = SuiteRun(plan=plan("messages = 360\n"), work=tmp_path / "work")
    check = run.run(lambda _case: None).cases[0]
    assert check.findings == ("messages: found 361, expected 360 (suite file)",)


def test_wrong_calls_are_sentences(
    plan: Callable[[str], SuitePlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan("")
    suite = str(tmp_path / "suite.toml")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "b.json").write_text("[]")
    for words, text in [
        ([str(tmp_path / "none.toml")], "found no such file or directory"),
        ([suite, "--keep"], "expected --work DIR"),
        ([suite, "--html", "/nowhere/at/all.html"], "expected an existing one"),
        ([suite, "--work", str(tmp_path / "used")], "an earlier run"),
    ]:
        assert main(["suite", "run", *words]) == 1
        assert text in capsys.readouterr().err


def test_a_group_of_a_controller_leaves_it_before_all_else(
    golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    group = golden_copy("I-controller-v533")
    path = tmp_path / "suite.toml"
    replicas = "".join(
        f'[[store.replica]]\npath = "{group.name}/{name}"\n' for name in ("n0", "n1")
    )
    path.write_text(f'stages = ["check", "prepare"]\n[[store]]\nname = "c"\n{replicas}')
    run = SuiteRun(plan=read_suite(path), work=tmp_path / "work", keep=True)
    check, prepare = run.run(lambda _case: None).cases
    assert check.status is CaseStatus.PASSED
    assert prepare.status is CaseStatus.PASSED, prepare.findings
    assert prepare.facts["certificate"] == "EQUAL"
    assert prepare.facts["messages"] == check.facts["messages"]
    for member in ("n0", "n1", "n2"):
        copied = tmp_path / "work" / "c" / member
        assert not (copied / "store" / "brokerIdentity").exists()
        assert "enableControllerMode" not in (copied / "broker.conf").read_text()
    assert (group / "n0" / "brokerIdentity").exists(), "the store itself is only read"
