"""The store map of a group from its surveys: damage, equal blocks, and the age of the proof."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.audit.facts.proof_age import ProofAge
from rmqpy.audit.picture.layout import MapLayout
from rmqpy.audit.picture.layout_json import layout_json, layout_of_json
from rmqpy.audit.picture.svg import map_svg
from rmqpy.model.errors import RmqError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.upgrade.checks.group_map import map_of_surveys
from rmqpy.upgrade.checks.replica import LinkedReplica, LocalReplica
from rmqpy.upgrade.checks.requests import ReplicaRequests
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan

FILE = "commitlog/00000000000000065536"
HOUR_MS = 3_600_000


def local(root: Path) -> LocalReplica:
    plan = SurveyPlan(name=root.name, root=os.fspath(root), now_ms=lambda: 7)
    return LocalReplica(OsFileSystem(), plan)


def two(
    golden_copy: Callable[[str], Path], asked: list[str]
) -> tuple[Path, Callable[[], list[Survey]]]:
    """Return a store, and a function to the surveys of it and of a copy on another host, before
    which the copy can be changed. ``asked`` gets the files whose blocks are requested of the other.
    """
    root = golden_copy("B-lagging-slave-v497")
    shutil.copytree(root / "master", root / "copy")

    def surveys() -> list[Survey]:
        requests = ReplicaRequests(local(root / "copy"))

        def fetch(what: str, query: Mapping[str, object]) -> bytes:
            if what == "blocks":
                asked.append(str(query["path"]))
            return requests.answer(what, {name: str(value) for name, value in query.items()})

        far = LinkedReplica("copy", "ssh://far", fetch=fetch)
        return [local(root / "master").survey(), far.survey()]

    return root / "copy", surveys


def test_equal_stores_are_equal_without_requests_for_blocks(
    golden_copy: Callable[[str], Path],
) -> None:
    asked: list[str] = []
    _, surveys = two(golden_copy, asked)
    layout = map_of_surveys(surveys(), 0)
    assert layout.verdict == "All blocks are equal in all replicas." and asked == []
    assert [row.damage for row in layout.rows] == [[], []]
    assert "the whole log was read for this map" in layout.rows[0].facts


def test_a_changed_byte_is_a_different_block_and_damage(golden_copy: Callable[[str], Path]) -> None:
    asked: list[str] = []
    copy, surveys = two(golden_copy, asked)
    data = bytearray((copy / FILE).read_bytes())
    data[300] ^= 1
    (copy / FILE).write_bytes(data)
    layout = map_of_surveys(surveys(), 0)
    assert layout.verdict == "Some blocks differ between the replicas." and asked == [FILE]
    assert [len(row.damage) for row in layout.rows] == [0, 1]
    kinds = {shape.kind for shape in layout.agreement}
    assert kinds == {"equal", "different"}
    drawn = map_svg(layout_of_json(json.loads(json.dumps(layout_json(layout)))))
    assert drawn == map_svg(layout) and 'class="damage"' in drawn


def test_the_age_of_a_proof_is_on_the_map(golden_copy: Callable[[str], Path]) -> None:
    _, surveys = two(golden_copy, [])
    one, other = surveys()
    age = ProofAge(read_bytes=10, learned_bytes=1 << 20, oldest_ms=HOUR_MS)
    aged = evolve(one, manifest=evolve(one.manifest, age=age))
    layout = map_of_surveys([aged, other], 3 * HOUR_MS)
    assert any("learned earlier 1.0 MiB, the oldest part 2 h" in f for f in layout.rows[0].facts)


def test_a_lagging_member_lacks_blocks(golden: Callable[[str], Path]) -> None:
    root = golden("B-lagging-slave-v497")
    found = map_of_surveys([local(root / each).survey() for each in ("master", "slave")], 0)
    assert found.verdict.startswith("The blocks that all replicas have are equal")


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {},
        {"rows": 5, "agreement": [], "ticks": [], "verdict": ""},
        {"rows": [], "agreement": [{"kind": 5}], "ticks": [], "verdict": ""},
        {"rows": [{"name": "x"}], "agreement": [], "ticks": [], "verdict": ""},
        {"rows": [], "agreement": [], "ticks": [[1]], "verdict": ""},
    ],
)
def test_what_is_no_layout_is_refused(tree: object) -> None:
    with pytest.raises(RmqError, match="found no store map"):
        layout_of_json(tree)


def test_an_empty_layout_is_one() -> None:
    empty = MapLayout(rows=[], agreement=[], ticks=[], verdict="")
    assert layout_of_json(json.loads(json.dumps(layout_json(empty)))) == empty
