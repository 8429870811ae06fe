"""A group goes to DLedger and to a controller and back, again and again, and nothing is final.

From the second round on a plan is about the same files, or the same numbers of entries, as one of
the round before.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.upgrade import PEERS, SHOWN, RunUpgrade, tree_of, write_first_entry

pytestmark = pytest.mark.slow

MEMBERS = ("n0", "n1", "n2")
SELF_IDS = " ".join(f"--self-id {member}={member}" for member in MEMBERS)
TO_DLEDGER = f"switch {SHOWN} --peers '{PEERS}' {SELF_IDS}"
TO_CONTROLLER = f"switch {SHOWN} --to controller --controllers 127.0.0.1:1"
LEAVE = f"leave {SHOWN} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
ROUND = (TO_DLEDGER, f"{LEAVE} --apply")
CONTROLLER_ROUND = (TO_CONTROLLER, f"{LEAVE} --apply")


def bytes_of(root: Path) -> dict[str, bytes]:
    """Return all files of the members and their configurations, without rmqpy's own."""
    return {path: data for path, (data, _) in tree_of(root).items() if not path.endswith("/lock")}


def test_every_round_does_everything_again_and_can_be_taken_back(
    classic: Path, run: RunUpgrade
) -> None:
    passed = []
    for line in (*ROUND, *ROUND, *CONTROLLER_ROUND, *CONTROLLER_ROUND, TO_CONTROLLER):
        passed.append(bytes_of(classic))
        code, out, err = run(line)
        assert code == 0, (line, out, err)
        assert bytes_of(classic) != passed[-1], line
        if line == TO_DLEDGER:
            write_first_entry(classic)
            written = len(passed)
    assert passed[-1] == passed[-3], "the last two rounds begin with the same files"
    for before in reversed(passed[written:]):
        code, out, err = run("rollback n0")
        assert code == 0, (out, err)
        assert of_member(bytes_of(classic)) == of_member(before)
    code, _, err = run("rollback n0")
    assert code == 2 and "was written to since" in err


def of_member(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files of n0, and its configuration."""
    return {path: data for path, data in files.items() if path.startswith("n0")}


def test_a_plan_that_another_one_has_followed_is_not_applied(
    classic: Path, run: RunUpgrade
) -> None:
    """Its files may be the same again, but what it keeps would mix with that of the later one."""
    assert run(TO_CONTROLLER)[0] == 0
    assert run(f"{LEAVE} --out plan.json")[0] == 0
    for line in (
        "rollback n0",
        "rollback n1",
        "rollback n2",
        TO_CONTROLLER,
        f"{LEAVE} --apply",
        TO_CONTROLLER,
    ):
        assert run(line)[0] == 0, line
    before = bytes_of(classic)
    apply = f"apply --plan plan.json --node n0 {SHOWN}"
    for line in (f"{apply} --dry-run", apply):
        code, _, err = run(line)
        assert code == 2 and "the newest that is applied there" in err and "Plan again" in err
        assert bytes_of(classic) == before
    assert run(f"{LEAVE} --out plan.json")[0] == 0
    for line in (apply, f"{apply} --dry-run"):
        assert run(line)[0] == 0
