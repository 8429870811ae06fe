"""The readable form of a plan."""

from __future__ import annotations

import json
from pathlib import Path

from harness.upgrade import RunUpgrade

from rmqpy.upgrade.plan.operations import Create, Derive, MakeDir, Op, Write
from rmqpy.upgrade.plan.plan import NodePlan, Plan

COUNT = 100


def test_a_summary_comes_first_and_operations_only_with_details() -> None:
    ops = tuple(MakeDir(path=f"/n1/folder{number:03}") for number in range(COUNT))
    plan = Plan(
        steps=("m0002_align",),
        nodes=(
            NodePlan(replica="n0", root="/n0", keep="/n0/keep", ops=(), notes=("common",)),
            NodePlan(replica="n1", root="/n1", keep="/n1/keep", ops=ops, notes=("common", "own")),
        ),
        facts={"reference": "n0", "others": {"n1": {"verdict": "CONTAINED", "end": 5}}},
        conflicts=(),
    )
    lines = list(plan.lines({"n1": 3 << 30}))
    summary = "n1 (/n1): 100 make_dir; writes at most 0 B, 3.0 GiB free"
    assert lines[1:3] == ["n0 (/n0): nothing", summary]
    assert lines[3:6] == ["  reference: n0", "  others:", "    n1: verdict CONTAINED, end 5"]
    assert lines[6:8] == ["  note: common", "  note: n1: own"]
    assert lines[8:] == ["100 operations; --details lists them"]
    detailed = list(plan.lines(details=True))
    assert detailed[2] == "n1 (/n1): 100 make_dir; writes at most 0 B", "the disk is not known"
    assert detailed[3:9] == [*lines[3:8], "n1:"] and len(detailed) == 9 + COUNT
    assert all("folder" in line for line in detailed[9:])


def test_what_is_written_leaves_out_holes() -> None:
    copied = Create(
        path="/n1/commitlog/0",
        replica="n0",
        source_path="/n0/0",
        size=1 << 30,
        after="a",
        mtime_ms=1,
        data_bytes=4096,
    )
    built = Derive(
        path="/n1/b",
        commit_log="/n1/commitlog",
        queues="",
        index="",
        config="",
        from_offset=0,
        bytes_max=1000,
    )
    ops: tuple[Op, ...] = (
        copied,
        built,
        Write(path="/n1.conf", before="b", content="YWJj"),
        MakeDir(path="/n1/d"),
    )
    assert NodePlan(replica="n1", root="/n1", keep="/n1/keep", ops=ops).written_bytes == 5099


def test_a_plan_says_what_space_it_needs_and_what_there_is(lagging: Path, run: RunUpgrade) -> None:
    run("init n0.conf n1.conf n2.conf")
    (lagging / "key").write_text("secret")
    code, out, _ = run("plan --key key --format json")
    rows = {each["member"]: each for each in json.loads(out)["space"]}
    assert code == 0 and rows.keys() == {"n1", "n2"}, "nothing is written on n0"
    for name, row in rows.items():
        assert row["folder"].startswith(str(lagging / name))
        assert 0 < row["needed"] < row["free"]
    assert rows["n1"]["needed"] < rows["n2"]["needed"]
    assert json.loads((lagging / "plan.json").read_text()) == json.loads(out)
    assert run("apply --key key --dry-run")[0] == 0
