"""Messages that would be discarded are counted, and given up only by their number."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness.upgrade import SHOWN, RunUpgrade, tree_of

LEAVE = f"leave {SHOWN} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"


def long_and_short(root: Path) -> None:
    """Make n2 a copy of the longer log n0; n1 is short."""
    shutil.rmtree(root / "n2")
    shutil.copytree(root / "n0", root / "n2")


@pytest.mark.slow
def test_a_shorter_reference_needs_the_number(lagging: Path, run: RunUpgrade) -> None:
    long_and_short(lagging)
    before = tree_of(lagging)
    plan = f"plan {SHOWN} --reference n1 --out plan.json"
    for asked in ("", "--give-up 7"):
        code, _, err = run(f"{plan} {asked}")
        assert code == 2 and "messages of n0, n2 would be given up (" in err, err
        assert "found " in err and "nothing was changed" in err
    assert not (lagging / "plan.json").exists()
    count = int(err.split("expected --give-up ")[1].split(";")[0])
    assert count == 361 - 291, "a message that both have counts once"
    code, out, _ = run(f"{plan} --give-up {count}")
    assert code == 0 and "messages: 70" in out
    for name, code in (("n1", 0), ("n0", 2), ("n2", 2)):
        found, _, err = run(f"apply --plan plan.json --node {name} {SHOWN} --dry-run")
        assert found == code, err
    assert run(f"apply --plan plan.json --node n1 {SHOWN} --give-up {count}")[0] == 2
    assert tree_of(lagging) == before | {"plan.json": tree_of(lagging)["plan.json"]}
    for name in ("n0", "n2"):
        assert run(f"apply --plan plan.json --node {name} {SHOWN} --give-up {count}")[0] == 0
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
def test_nothing_to_give_up_is_not_confirmed(lagging: Path, run: RunUpgrade) -> None:
    code, _, err = run(f"plan {SHOWN} --give-up 3")
    assert code == 2 and "no message would be given up" in err
    assert run(f"plan {SHOWN} --give-up 0")[0] == 0


@pytest.mark.slow
def test_joining_a_shorter_log_needs_the_number(lagging: Path, run: RunUpgrade) -> None:
    before = tree_of(lagging / "n0")
    code, _, err = run("join n0 --from n1=n1 --yes")
    assert code == 2 and "70 messages of n0 would be given up" in err
    assert tree_of(lagging / "n0") == before
    assert run("join n0 --from n1=n1 --yes --give-up 70")[0] == 0


@pytest.mark.slow
def test_an_early_cut_needs_the_number(joined: Path, run: RunUpgrade) -> None:
    before = tree_of(joined)
    for more in ("", " --apply"):
        code, _, err = run(f"{LEAVE} --cut-index 270{more}")
        assert code == 2 and "10 messages of n0, n1, n2 would be given up" in err, err
    assert tree_of(joined) == before
    assert run(f"{LEAVE} --cut-index 280")[0] == 0
    assert run(f"{LEAVE} --cut-index 270 --apply --give-up 10")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("index", [281, 99_999, -2])
def test_a_cut_that_no_member_has_is_refused(joined: Path, run: RunUpgrade, index: int) -> None:
    before = tree_of(joined)
    code, _, err = run(f"{LEAVE} --cut-index {index} --give-up 281 --apply")
    assert code == 2 and f"found --cut-index {index}, expected a number up to 280" in err, err
    assert tree_of(joined) == before
