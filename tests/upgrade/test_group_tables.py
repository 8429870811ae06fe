"""Plans for replicas of which each has other newest table entries: nothing of them is lost."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.upgrade import SHOWN, RunUpgrade, tree_of

from rmqpy.upgrade.checks.tables import merge_tables

MEMBERS = ("n0", "n1", "n2")
LEAVE = f"leave {SHOWN} --role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
Change = Callable[[dict[str, Any]], object]


def read(root: Path, name: str) -> dict[str, Any]:
    # The broker writes numbers as keys, which JSON does not allow.
    text = (root / "config" / name).read_text()
    table: dict[str, Any] = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text))
    return table


def change(root: Path, name: str, edit: Change) -> None:
    table = read(root, name)
    edit(table)
    (root / "config" / name).write_text(json.dumps(table))


def without_group(table: dict[str, Any]) -> None:
    """The version before the last change of the groups."""
    del table["subscriptionGroupTable"]["CID_push"]
    table["dataVersion"]["counter"] -= 1


def without_topic(table: dict[str, Any]) -> None:
    """The version before a topic was created, and before another one got fewer queues."""
    del table["topicConfigTable"]["Order"]
    table["topicConfigTable"]["Keyed"]["readQueueNums"] = 99
    table["dataVersion"]["counter"] -= 2


def without_progress(table: dict[str, Any]) -> None:
    table["offsetTable"]["Normal@CID_push"] = {"0": 1}


def scatter(root: Path) -> dict[str, Any]:
    """Give each member another table of an earlier time; return the newest tables."""
    names = ("subscriptionGroup.json", "topics.json", "consumerOffset.json")
    newest = {name: read(root / "n0", name) for name in names}
    change(root / "n1", names[0], without_group)
    change(root / "n2", names[1], without_topic)
    change(root / "n0", names[2], without_progress)
    return newest


def assert_newest(root: Path, member: str, newest: dict[str, Any]) -> None:
    """Versions count changes; a table with the newest entries is not written for its version."""
    for name, table in newest.items():
        assert read(root / member, name) | {"dataVersion": 0} == table | {"dataVersion": 0}, member


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_that_leaves_takes_the_newest_tables(
    joined: Path, run: RunUpgrade, member: str
) -> None:
    """Any of them may be the master afterwards, whose tables the others take over."""
    newest = scatter(joined)
    before = tree_of(joined / member)
    code, _, err = run(f"{LEAVE} --out leave.json")
    assert code == 0, err
    assert run(f"apply --plan leave.json --node {member} {SHOWN}")[0] == 0
    assert_newest(joined, member, newest)
    assert run(f"rollback {member}")[0] == 0
    left = {path: each for path, each in tree_of(joined / member).items() if path != "lock"}
    assert left == {path: each for path, each in before.items() if path != "lock"}


@pytest.mark.slow
def test_members_that_have_left_are_equal(joined: Path, run: RunUpgrade) -> None:
    newest = scatter(joined)
    assert run(f"{LEAVE} --apply")[0] == 0
    for member in MEMBERS:
        assert_newest(joined, member, newest)
    code, out, _ = run(f"verify {SHOWN}")
    assert code == 0 and out.splitlines()[-1] == "EQUAL", out


@pytest.mark.slow
def test_aligned_replicas_have_the_newest_tables(classic: Path, run: RunUpgrade) -> None:
    newest = scatter(classic)
    code, out, _ = run(f"check {SHOWN}")
    assert code == 2 and "[tables-agree]" in out, out
    assert run(f"plan {SHOWN} --out plan.json")[0] == 0
    for member in MEMBERS:
        assert run(f"apply --plan plan.json --node {member} {SHOWN}")[0] == 0
        assert_newest(classic, member, newest)
    assert run(f"check {SHOWN}")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("newer", ["n0", "n2"])
def test_a_member_that_joins_has_the_newer_tables(
    joined: Path, run: RunUpgrade, newer: str
) -> None:
    older = "n2" if newer == "n0" else "n0"
    newest = {"subscriptionGroup.json": read(joined / newer, "subscriptionGroup.json")}
    change(joined / older, "subscriptionGroup.json", without_group)
    shutil.rmtree(joined / "n2/commitlog")
    code, out, err = run("join n2=n2 --from n0=n0 -c n2=n2.conf -c n0=n0.conf --yes")
    assert code == 0, out + err
    assert_newest(joined, "n2", newest)


@pytest.mark.slow
def test_progress_of_a_group_with_entries_is_a_note(joined: Path, run: RunUpgrade) -> None:
    change(joined / "n1", "consumerOffset.json", without_progress)
    code, out, _ = run(f"check {SHOWN} --details")
    assert code == 0, out
    assert "note    [tables-agree] n0, n1: consumerOffset.json: n1 is behind n0 by " in out
    code, out, _ = run(f"verify {SHOWN}")
    last = "CONTAINED: n1 in n0, which has newer entries in its tables"
    assert code == 0 and out.splitlines()[-1] == last, out


def test_the_later_version_decides_over_the_largest_value() -> None:
    def topics(queues: int, counter: int, *more: str) -> dict[str, str]:
        table = {name: {"readQueueNums": queues} for name in ("T", *more)}
        version = {"counter": counter, "timestamp": counter}
        value = {"topicConfigTable": table, "dataVersion": version}
        return {"topics.json": json.dumps(value)}

    earlier, later = topics(8, 3, "Old"), topics(4, 5)
    for reference in ("a", "b"):
        merged = merge_tables({"a": earlier, "b": later}, reference, {})
        value = json.loads(merged.tables["topics.json"])
        assert value["topicConfigTable"] == {
            "T": {"readQueueNums": 4},
            "Old": {"readQueueNums": 8},
        }
        assert value["dataVersion"]["counter"] == 5
        assert merged.conflicts == []
    independent = merge_tables({"a": topics(8, 3), "b": topics(4, 3)}, "b", {})
    assert len(independent.conflicts) == 1
