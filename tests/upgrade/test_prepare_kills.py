"""``prepare`` is cut off before every file operation; its results are used whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attrs import define, field
from harness.kills import kills_of
from harness.plans import leaving, prepare_in_memory
from harness.store import CrashingFiles
from harness.upgrade import (
    MakeUpgradeRig,
    UpgradeRig,
    index_entries,
    memory_context,
    plan_leave,
    small_group,
)

from rmqpy.audit.facts.learned import PARTS, Learned
from rmqpy.upgrade.plan.engine import apply_plan
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.steps.planning import plan_alignment


@define
class Prepared:
    """Replicas in memory that are prepared; the last of them gets what waits on its stage."""

    files: CrashingFiles
    rigs: tuple[UpgradeRig, ...]
    apply: Callable[[CrashingFiles], None]
    """Plans and carries out what was prepared."""
    leave: bool = False
    stage: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stage = f"{self.rigs[-1].root}/rmqpy/upgrade/stage/"

    def prepare(self, files: CrashingFiles) -> None:
        rigs = [rig.after(files) for rig in self.rigs]
        prepare_in_memory(files, *rigs, leave=self.leave)

    def staged(self, files: CrashingFiles) -> dict[str, bytes]:
        return {
            path: bytes(node.data)
            for path, node in files.nodes.items()
            if path.startswith(self.stage)
        }

    def stores(self, files: CrashingFiles) -> dict[str, bytes]:
        """Return everything that a broker could see."""
        return {
            path: bytes(node.data) for path, node in files.nodes.items() if "/rmqpy/" not in path
        }

    def meaning(self, files: CrashingFiles) -> tuple[dict[str, bytes], list[Any]]:
        """Return everything that a broker could see, of each index only its entries."""
        others, entries = self.stores(files), []
        for rig in self.rigs:
            names = [path for path in others if path.startswith(f"{rig.root}/index/")]
            index = {path: others.pop(path) for path in names}
            entries.append(index_entries(index, rig.settings().max_hash_slot_num))
        return others, entries

    def learned(self, files: CrashingFiles) -> dict[tuple[str, str], Any]:
        """Return everything that would be believed about the files on the stage and below it."""
        found: dict[tuple[str, str], Any] = {}
        for rig in self.rigs:
            known = Learned(files, rig.root, lambda: 5000)
            for path in files.nodes:
                if path.startswith(f"{rig.root}/") and "/learned/" not in path:
                    values = ((part, known.known(path, part)) for part in PARTS)
                    found |= {(path, part): value for part, value in values if value is not None}
        return found


def prepared_leave(make_rig: MakeUpgradeRig) -> Prepared:
    rig = make_rig()
    rig.write(*range(10))
    joined = rig.with_flag(True)
    joined.write(*range(10, 60))

    def apply(files: CrashingFiles) -> None:
        at = joined.after(files)
        plan = Plan(steps=("m0006_leave",), nodes=(plan_leave(at.context(files), leaving(at)),))
        apply_plan(at.context(files), plan, "n0")

    return Prepared(rig.files, (joined,), apply, leave=True)


def prepared_filling(make_rig: MakeUpgradeRig) -> Prepared:
    master, _ = small_group(make_rig)
    empty = make_rig(files=master.files, root="/t")
    master.files.make_dirs("/t")

    def apply(files: CrashingFiles) -> None:
        context = memory_context(files, master.after(files), empty.after(files))
        plan = plan_alignment(context)
        apply_plan(context.node_context(context.group.replica("t")), plan, "t")

    return Prepared(master.files, (master, empty), apply)


MAKERS = {"leave": prepared_leave, "filling": prepared_filling}


@pytest.fixture(params=sorted(MAKERS))
def prepared(request: pytest.FixtureRequest, make_rig: MakeUpgradeRig) -> Prepared:
    return MAKERS[request.param](make_rig)


def kills(made: Prepared) -> Iterator[tuple[int, CrashingFiles]]:
    """Yield what each kill of ``prepare`` leaves, with the number of the operation it prevented."""
    for dies_at, dying in kills_of(made.files, made.prepare, more_than=50):
        yield dies_at, dying.reopen(None)


@pytest.mark.slow
def test_preparing_killed_at_any_operation_is_finished(prepared: Prepared) -> None:
    made = prepared
    before = made.stores(made.files)
    done = made.files.reopen(None)
    made.prepare(done)
    staged, learned = made.staged(done), made.learned(done)
    assert staged and learned
    for dies_at, after in kills(made):
        assert made.stores(after) == before, dies_at
        believed = made.learned(after)
        assert believed.items() <= learned.items(), dies_at
        made.prepare(after)
        assert made.staged(after) == staged, dies_at
        assert made.learned(after) == learned, dies_at
        assert made.stores(after) == before, dies_at


@pytest.mark.slow
def test_what_a_kill_leaves_on_the_stage_is_used_whole_or_not_at_all(prepared: Prepared) -> None:
    made = prepared
    plain = made.files.reopen(None)
    made.apply(plain)
    expected = made.meaning(plain)
    for dies_at, after in kills(made):
        made.apply(after)
        assert made.meaning(after) == expected, dies_at
