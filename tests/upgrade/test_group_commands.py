"""The verbs of ``rmqpy upgrade`` without arguments, in the directory of a ``group.toml``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.upgrade import RunUpgrade, log_of, tree_of, write_first_entry

from rmqpy.cli.upgrade.base.given import GivenGroup
from rmqpy.cli.upgrade.group.facts import GroupView, view_group
from rmqpy.upgrade.group.group_file import parse_group_file
from rmqpy.upgrade.group.states import BACKWARD, FORWARD
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.operations import Copy

CONFS = "n0.conf n1.conf n2.conf"
NAMES = ("n0", "n1", "n2")


def test_init_writes_a_file_that_says_what_it_assumed(lagging: Path, run: RunUpgrade) -> None:
    code, out, _ = run(f"init {CONFS}")
    assert code == 0 and "listenPort + 10000" in out
    text = (lagging / "group.toml").read_text()
    group = parse_group_file(text, "group.toml")
    assert [each.config for each in group.members] == CONFS.split()
    assert "# dLegerSelfId" in text and '# start = "' in text
    assert run(f"init {CONFS}")[0] == 1, "an existing file is kept"
    assert run(f"init --force {CONFS}")[0] == 0


def test_init_refuses_what_a_broker_would_refuse(lagging: Path, run: RunUpgrade) -> None:
    with (lagging / "n1.conf").open("a") as conf:
        conf.write("listenPort=tall\n")
    code, _, err = run(f"init {CONFS}")
    assert code == 1 and "n1.conf:9: listenPort='tall'" in err
    assert not (lagging / "group.toml").exists()


def test_a_verb_without_replicas_and_without_a_file_says_so(lagging: Path, run: RunUpgrade) -> None:
    code, _, err = run("check")
    assert code == 1 and "no group.toml in this directory" in err


def test_a_contradiction_with_a_broker_conf_is_refused(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    with (lagging / "n1.conf").open("a") as conf:
        conf.write("listenPort=4711\n")
    code, _, err = run("check")
    assert code == 1 and "n1: found listenPort=4711" in err


def test_the_long_form_does_not_read_the_file(lagging: Path, run: RunUpgrade) -> None:
    long = run("check n0 n1 -c n0=n0.conf -c n1=n1.conf")
    (lagging / "group.toml").write_text("[nonsense")
    assert run("check n0 n1 -c n0=n0.conf -c n1=n1.conf") == long


@pytest.mark.slow
def test_a_dry_run_says_what_prevents_writing(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(f"init {CONFS}")[0] == 0
    assert run("plan")[0] == 0
    monkeypatch.setattr("os.access", lambda path, mode: "n1" not in path)
    monkeypatch.setattr(
        "rmqpy.audit.facts.lock_probe.find_lock_owner", lambda path: 77 if "n2" in path else None
    )
    code, out, _ = run("apply --dry-run")
    lines = out.splitlines()
    assert code == 2 and len(lines) == 2
    assert lines[0].startswith(f"n1: {lagging}/n1: found no permission to write, expected it")
    assert lines[1].startswith(f"n2: {lagging}/n2: found its lock held by process 77")


@pytest.mark.slow
def test_a_group_is_switched_and_rolled_back_without_arguments(
    lagging: Path, run: RunUpgrade
) -> None:
    names = ("n0", "n1", "n2")

    def trees() -> dict[str, dict[str, tuple[bytes, int]]]:
        found = {name: tree_of(lagging / name) for name in names}
        return {name: {**tree, "lock": (b"", 0)} for name, tree in found.items()}

    before = trees()
    confs = {name: (lagging / f"{name}.conf").read_bytes() for name in names}
    assert run(f"init {CONFS}")[0] == 0
    assert run("check")[0] == 2
    assert run("plan")[0] == 0
    plan = json.loads((lagging / "plan.json").read_text())
    assert [node["replica"] for node in plan["nodes"]] == [*names]
    code, out, _ = run("apply --dry-run")
    assert (code, out) == (0, "every operation could be done\n")
    assert run("apply")[0] == 0
    assert run("check")[0] == 0
    logs = [log_of(lagging / name) for name in names]
    assert logs[0] == logs[1] == logs[2]
    code, out, _ = run("verify")
    assert code == 0 and "n0 before" in out and (lagging / "certificate.json").exists()
    code, out, _ = run("switch")
    assert code == 0 and out.count("dLegerGroup=b0\n") == 1, "what all have in common, once"
    assert "\nn1: dLegerSelfId=n1\n" in out and "then run rmqpy upgrade verify" in out
    for name in names:
        text = (lagging / f"{name}.conf").read_text()
        assert f"dLegerSelfId={name}\n" in text and "enableDLegerCommitLog=true\n" in text
    code, out, _ = run("rollback")
    assert code == 0 and out.count("the switch is taken back") == 3, out
    code, out, _ = run("rollback")
    assert code == 0 and out.count("the alignment is taken back") == 3, out
    stated, _, done = out.partition("n0: the alignment is taken back")
    assert stated and "undoes" not in done, "first on all members, then it is done"
    for line in (
        "n0: messages: none were written since the plan was applied, so none are lost",
        "n1: files of the log: 1 changed back, 2 removed",
        "n1: consume queues and key index: 2 moved back, 2 removed",
        "n1: messages: those copied from n0 are removed here again",
        "n2: configuration: unchanged",
        "n2: tables: 5 removed",
    ):
        assert f"{line}\n" in stated, (line, out)
    assert trees() == before
    assert {name: (lagging / f"{name}.conf").read_bytes() for name in names} == confs
    code, _, err = run("rollback")
    assert code == 2 and "nothing to roll back" in err


@pytest.mark.slow
def test_a_rollback_without_what_the_plan_has_kept_is_refused(
    lagging: Path, run: RunUpgrade
) -> None:
    """It ended with "is as before", and had left what the records were to restore."""
    assert run(f"init {CONFS}")[0] == 0
    assert run("run --until switched --yes")[0] == 0

    def trees() -> dict[str, dict[str, tuple[bytes, int]]]:
        found = {name: tree_of(lagging / name) for name in ("n0", "n1", "n2")}
        return {name: {**tree, "lock": (b"", 0)} for name, tree in found.items()}

    switched = trees()
    plan = json.loads(run("rollback n1 --dry-run --format json")[1])["plan"]
    undo = lagging / "n1/rmqpy/upgrade" / plan / "undo/000001"
    undo.rename(undo.with_suffix(".gone"))
    for line in ("rollback --dry-run", "rollback", "rollback n1"):
        code, _, err = run(line)
        assert code == 1 and f"{undo}: found no such file, expected what 'write " in err, err
        assert "restore it from a backup" in err
    assert trees() == switched, "no member went back"
    undo.with_suffix(".gone").rename(undo)
    code, _, err = run("rollback")
    assert code == 0, err
    for each in (lagging / "n1/rmqpy/upgrade").glob("*/undo/*"):
        each.unlink()
    code, _, err = run("rollback")
    assert code == 1 and "found no such file, expected what" in err, err


@pytest.mark.slow
def test_a_rollback_without_a_folder_that_the_plan_has_moved_aside_is_refused(
    lagging: Path, run: RunUpgrade
) -> None:
    """What the plan has put in its place does not stand for it."""
    assert run(f"init {CONFS}")[0] == 0
    assert run("run --until aligned --yes")[0] == 0
    (aside,) = (lagging / "n1/rmqpy/upgrade").glob("keep-*/consumequeue")
    aside.rename(lagging / "gone")
    code, _, err = run("rollback n1")
    assert code == 1 and f"{aside}: found no such file, expected what 'move_aside " in err, err
    (lagging / "gone").rename(aside)
    code, _, err = run("rollback n1")
    assert code == 0, err


def test_what_stands_where_a_file_of_the_group_should_be_is_named(
    lagging: Path, run: RunUpgrade
) -> None:
    assert run(f"init {CONFS}")[0] == 0
    (lagging / "n0.conf").rename(lagging / "elsewhere")
    code, _, err = run("status")
    assert code == 1 and "n0.conf: found no file, expected the replica's broker.conf;" in err
    (lagging / "group.toml").unlink()
    (lagging / "group.toml").mkdir()
    code, _, err = run("status")
    assert code == 1 and "group.toml: found a directory, expected a file" in err, err


@pytest.mark.slow
def test_a_group_leaves_without_arguments(
    joined: Path, run: RunUpgrade, holders: Callable[[Path], None]
) -> None:
    assert run(f"init {CONFS}")[0] == 0
    holders(joined)
    assert run("leave")[0] == 0
    assert list(joined.glob("n*/dledger-*")), "leave plans only"
    assert run("apply")[0] == 0
    assert not list(joined.glob("n*/dledger-*"))
    assert "brokerRole=SYNC_MASTER\n" in (joined / "n0.conf").read_text()
    assert "brokerRole=SLAVE\n" in (joined / "n2.conf").read_text()
    code, out, _ = run("verify")
    assert code == 0 and "\nEQUAL\ngroup b0: left-verified;" in out and "\nnext: start" in out, out
    assert run(f"finalize {joined}/n0")[0] == 0 and state_of(run) == "left-final"
    code, _, err = run("rollback")
    assert code == 2 and "the way back final on n0" in err and "n1, n2 cannot go back alone" in err
    code, out, _ = run("finalize")
    assert code == 0 and out.count("the upgrade is final") == 3
    assert "group b0: left-final;" in out and "next: start the brokers" in out
    assert run("rollback")[0] == 2
    assert run("plan")[0] == 0 and state_of(run) == "planned", "the group can switch again"
    (joined / "plan.json").unlink()
    code, out, err = run("run --until returned --yes")
    assert code == 0 and state_of(run) == "classic", (out, err)


def state_of(run: RunUpgrade) -> str:
    _, out, _ = run("status --format json")
    return str(json.loads(out)["state"])


@pytest.mark.slow
def test_run_goes_on_until_a_person_must_decide(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    assert state_of(run) == "stopped"
    code, out, _ = run("status")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("group b0: stopped;")
    assert lines[2].split()[:3] == ["member", "role", "state"] and "840" not in lines[5]
    assert (
        "next: rmqpy upgrade plan (compare the members" in out
        and "way back: start the brokers again" in out
    )
    code, _, err = run("run --until verified")
    assert code == 2 and "expected --yes" in err and state_of(run) == "stopped"
    code, out, _ = run("next --yes")
    assert code == 0 and state_of(run) == "planned"
    code, out, _ = run("run --until verified --yes")
    assert code == 2 and state_of(run) == "switched", out
    assert "start the brokers of n0, n1, n2, in this order" in out
    code, out, _ = run("next --back --yes")
    assert code == 0 and state_of(run) == "aligned", "before the first entry the way back is undo"


@pytest.mark.slow
def test_run_starts_and_stops_brokers_with_the_commands_of_the_group(
    lagging: Path, run: RunUpgrade, holders: Callable[[Path], None]
) -> None:
    run(f"init {CONFS}")
    holders(lagging)
    code, out, err = run("run --until verified --yes")
    assert code == 0 and state_of(run) == "verified", (out, err)
    assert out.count("\nstarting") == 0 and "switched: start the brokers" in out
    code, _, err = run("run --until final --yes")
    assert code == 2 and "found no entry in the DLedger log of n0, n1, n2" in err
    assert state_of(run) == "verified", "finalize left the only way back"
    assert run("next --back --yes --no-fence")[0] == 0 and state_of(run) == "switched"
    write_first_entry(lagging)
    code, out, _ = run("run --until final --yes --format json")
    value = json.loads(out)
    assert code == 0 and value["state"] == "final"
    assert [step["step"] for step in value["steps"]] == ["verify", "start", "finalize"]
    code, _, err = run("run --until halted --yes")
    assert code == 1 and "cannot be fenced" in err and "add --no-fence" in err
    assert state_of(run) == "final", "nothing was stopped"
    code, out, err = run("run --until halted --yes --no-fence")
    assert code == 0 and state_of(run) == "proven", (out, err)


def test_a_new_member_needs_its_directory(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    (lagging / "n2").rmdir()
    code, out, _ = run("status")
    assert code == 2 and f"\nn2: {lagging}/n2: found no directory" in out
    assert "if this is a new member, create it" in out


@pytest.mark.slow
def test_one_part_of_the_plan_of_a_group(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    assert run("plan")[0] == 0
    code, _, err = run("apply --node n22")
    assert code == 1 and "found no part for n22 in the plan" in err and "did you mean n2?" in err
    assert run("apply --node n2")[0] == 0 and state_of(run) == "aligning"


@pytest.mark.slow
def test_finalize_after_the_way_back(
    joined: Path, run: RunUpgrade, holders: Callable[[Path], None]
) -> None:
    """Its brokers run; a classic group needs no rollback any more, and a second time changes
    nothing.
    """
    run(f"init {CONFS}")
    holders(joined)
    code, out, err = run("run --until returned --yes")
    assert code == 0 and "next: rmqpy upgrade finalize" in out, (out, err)
    assert list(joined.glob("n*/rmqpy/upgrade/keep-*"))
    for _ in range(2):
        code, out, err = run("finalize")
        assert code == 0 and "group b0: classic;" in out, (out, err)
        assert not list(joined.glob("n*/rmqpy/upgrade/keep-*"))
    assert run("rollback")[0] == 2 and state_of(run) == "classic"


@pytest.mark.slow
def test_a_killed_apply_is_continued_by_the_next_step(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"init {CONFS}")
    run("plan")
    performed = 0

    def perform(op: Copy, context: NodeContext) -> None:
        nonlocal performed
        performed += 1
        if performed == 1:
            raise KeyboardInterrupt
        original(op, context)

    original = Copy.perform
    monkeypatch.setattr(Copy, "perform", perform)
    assert run("apply")[0] == 130
    code, out, _ = run("status")
    assert code == 2 and "group b0: interrupted;" in out and "next: rmqpy upgrade apply" in out
    assert "way back: rmqpy upgrade rollback\n" in out
    kept = (lagging / "plan.json").read_bytes()
    for verb in ("plan", "switch"):
        code, _, err = run(verb)
        assert code == 2 and "half done on n1 (" in err, err
        assert "finish it with rmqpy upgrade apply, or take it back with" in err
    code, _, err = run("leave")
    assert code == 1 and f"finish it with rmqpy upgrade apply --resume {lagging}/n2, or" in err
    assert (lagging / "plan.json").read_bytes() == kept
    code, out, _ = run("check")
    assert code == 2 and "\n1. a plan is half done on n1, n2 (" in out
    code, out, err = run("run --until aligned --yes")
    assert code == 0 and state_of(run) == "aligned", (out, err)
    assert run("check")[0] == 0


def test_a_plan_that_is_refused_on_one_member_begins_on_none(
    lagging: Path, run: RunUpgrade
) -> None:
    run(f"init {CONFS}")
    assert run("plan")[0] == 0
    (log,) = sorted((lagging / "n1/commitlog").iterdir())[-1:]
    with log.open("r+b") as file:
        file.seek(40_000)
        file.write(b"changed")
    code, _, err = run("apply")
    assert code == 2 and "plan again" in err
    for name in NAMES:
        assert not (lagging / name / "rmqpy/upgrade/journal.json").exists(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switch", "half", "whole"),
    [
        ("switch", "switching", "switched"),
        ("switch --to controller --controllers 127.0.0.1:1", "handing-over", "handed-over"),
    ],
)
def test_a_switch_that_is_continued_is_rolled_back_as_one(
    lagging: Path, run: RunUpgrade, switch: str, half: str, whole: str
) -> None:
    run(f"init {CONFS}")
    assert run("run --until aligned --yes")[0] == 0
    before = {name: tree_of(lagging / name) for name in NAMES}
    assert run(switch)[0] == 0 and run(f"rollback {lagging}/n2")[0] == 0
    assert state_of(run) == half
    code, out, err = run("next --yes")
    assert code == 0 and state_of(run) == whole, (out, err)
    code, out, err = run("rollback")
    assert code == 0 and state_of(run) == "aligned", (out, err)
    for name in NAMES:
        after = tree_of(lagging / name)
        assert {**after, "lock": ()} == {**before[name], "lock": ()}


@pytest.mark.slow
def test_finalize_does_not_remove_the_only_way_back(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    code, out, err = run("finalize")
    assert code == 0 and "nothing to give up" in out, (out, err)
    code, out, _ = run("finalize --format json")
    rows = [{"member": name, "state": "untouched"} for name in NAMES]
    value = json.loads(out)
    assert code == 0 and (value["members"], value["next"]) == (rows, "plan")
    code, _, err = run("rollback")
    assert code == 2 and "nothing to roll back" in err, "an empty member is no obstacle"
    assert run("run --until switched --yes")[0] == 0
    assert run("verify")[0] == 0, "a certificate is no way back"
    for line in ("finalize", "finalize n1"):
        code, _, err = run(line)
        assert code == 2 and "because finalize removes rollback" in err, line
    code, _, err = run("leave")
    assert code == 2 and "rmqpy upgrade rollback takes a switch without entries back" in err
    assert run("rollback")[0] == 0 and state_of(run) == "aligned"
    code, _, err = run("leave")
    assert code == 2 and "start the brokers as they are" in err and "rollback" not in err


def test_a_verb_in_the_wrong_place_names_the_right_one(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"init {CONFS}")
    code, _, err = run("apply")
    assert code == 1 and "write it with rmqpy upgrade plan" in err
    monkeypatch.chdir(lagging / "n0")
    code, _, err = run("status")
    assert code == 1 and f"change to {lagging}" in err


@pytest.mark.slow
def test_an_unknown_state_is_refused_with_the_nearest(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    code, _, err = run("run --until verifid --yes")
    assert code == 1 and "did you mean verified?" in err


@pytest.mark.slow
def test_run_shows_the_state_that_has_stopped_it(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that could not be read for a moment can be read again when the run has ended."""
    run(f"init {CONFS}")
    views: list[str] = []

    def view(options: argparse.Namespace, group: GivenGroup) -> GroupView:
        views.append("")
        if len(views) != 2:
            return view_group(options, group)
        (lagging / "n1").rename(lagging / "away")
        found = view_group(options, group)
        (lagging / "away").rename(lagging / "n1")
        return found

    monkeypatch.setattr("rmqpy.cli.upgrade.group.driving.view_group", view)
    code, out, err = run("run --until aligned --yes")
    assert code == 2 and "group b0: unreachable;" in out and f"{lagging}/n1: found no" in out, err


@pytest.mark.slow
def test_run_says_which_step_has_changed_nothing(
    lagging: Path, run: RunUpgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(f"init {CONFS}")
    monkeypatch.setattr("rmqpy.cli.upgrade.group.driving._perform", lambda *_given: (0, None))
    code, out, _ = run("run --until aligned --yes")
    assert code == 2
    assert "rmqpy upgrade plan has ended without an error, but the group is still in the" in out
    code, out, _ = run("run --until aligned --yes --format json")
    assert code == 2 and "still in the state stopped" in json.loads(out)["stuck"]


@pytest.mark.slow
def test_run_without_a_state_lists_the_states(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    code, _, err = run("run --yes")
    assert code == 1 and "found no --until STATE, expected one of classic, stopping" in err
    assert all(each.name in err for each in (*FORWARD, *BACKWARD))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["verify", "leave"])
def test_an_empty_member_is_named_with_its_remedies(
    lagging: Path, run: RunUpgrade, verb: str
) -> None:
    run(f"init {CONFS}")
    code, _, err = run(verb)
    assert code == 1 and f"n2: {lagging}/n2: found an empty directory, expected" in err
    assert "rmqpy upgrade plan and apply" in err and "rmqpy upgrade join n2 --from" in err


@pytest.mark.slow
def test_a_group_whose_disk_is_not_mounted_is_unreachable(lagging: Path, run: RunUpgrade) -> None:
    run(f"init {CONFS}")
    (lagging / "n1").rename(lagging / "elsewhere")
    code, out, _ = run("status")
    assert code == 2 and "group b0: unreachable;" in out and "n1: " in out
    assert run("run --until aligned --yes")[0] == 2
