"""The readable form of a plan."""

from __future__ import annotations

from rmqpy.upgrade.plan.operations import MakeDir
from rmqpy.upgrade.plan.plan import SHOWN_MAX, NodePlan, Plan


def test_the_summary_comes_first_and_operations_are_capped() -> None:
    count = SHOWN_MAX + 7
    ops = tuple(MakeDir(path=f"/n1/folder{number:03}") for number in range(count))
    plan = Plan(
        steps=("m0002_align",),
        nodes=(
            NodePlan(replica="n0", root="/n0", keep="/n0/keep", ops=(), notes=("common",)),
            NodePlan(replica="n1", root="/n1", keep="/n1/keep", ops=ops, notes=("common", "own")),
        ),
        facts={"reference": "n0", "others": {"n1": {"verdict": "CONTAINED", "end": 5}}},
        conflicts=(),
    )
    lines = list(plan.lines())
    assert lines[1:3] == ["n0 (/n0): nothing", f"n1 (/n1): {count} {ops[0].kind}"]
    assert lines[3:6] == ["  reference: n0", "  others:", "    n1: verdict CONTAINED, end 5"]
    assert sum("folder" in line for line in lines) == SHOWN_MAX
    assert lines[-1] == "  and 7 more; --format json shows all"
    assert list(plan.note_lines()) == ["common", "n1: own"]
