"""Journals that are damaged, of the previous version, or ambiguous: no road ends."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from harness.plans import CONF, Interrupted
from harness.store import CrashingFiles
from harness.upgrade import (
    MakeUpgradeRig,
    memory_context,
)

from rmqpy.model.errors import RmqError, StoreError
from rmqpy.store.upgrade_guard import COPY_BYTES, check_no_unfinished_upgrade, read_copies
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import (
    announced,
    apply_plan,
    begin_plan,
    finalize,
    resume,
    roll_back,
)
from rmqpy.upgrade.plan.evidence import current_journal
from rmqpy.upgrade.plan.journal import APPLIED, ROLLED_BACK, load_journal
from rmqpy.upgrade.plan.node_context import NodeContext, NoSource, UpgradeRefusedError
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import SwitchOptions
from rmqpy.upgrade.steps.planning import plan_switch

DATA = Path(__file__).parent / "data" / "journals-format-1.json.xz"
"""Directories in the middle of plans, written by the version before format 2 of the journal.

For each: its files (base64 without the zeros at the end, size, time), and the md5 of every file of
the replica before and after the plan.
"""

WORK = "/s/rmqpy/upgrade"


def sums_of(files: CrashingFiles, root: str) -> dict[str, str]:
    return {
        path: hashlib.md5(bytes(node.data)).hexdigest()
        for path, node in sorted(files.nodes.items())
        if "/rmqpy/" not in path and (path.startswith(f"{root}/") or path == f"{root}.conf")
    }


# The previous version


def stored_directories() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress(DATA.read_bytes()))
    return found


def files_of(stored: dict[str, Any]) -> CrashingFiles:
    files = CrashingFiles()
    for path, (text, size, mtime_ms) in stored["files"].items():
        files.put(path, base64.b64decode(text).ljust(size, b"\0"))
        files.nodes[path].mtime_ms = mtime_ms
    return files


def context_of(name: str, files: CrashingFiles, make_rig: MakeUpgradeRig) -> NodeContext:
    if name.startswith("leave"):
        return make_rig(files=files).context()
    rigs = (make_rig(files=files, root="/m"), make_rig(files=files, root="/s"))
    made = memory_context(files, *rigs)
    return made.node_context(made.group.replica("s"))


@pytest.mark.parametrize("name", sorted(stored_directories()))
@pytest.mark.parametrize("way", ["rollback", "resume"])
def test_a_plan_of_the_previous_version_is_finished(
    name: str, way: str, make_rig: MakeUpgradeRig
) -> None:
    stored = stored_directories()[name]
    files = files_of(stored)
    context, root = context_of(name, files, make_rig), "/store" if "leave" in name else "/s"
    if way == "resume":
        if name.endswith("applying"):
            assert resume(context).state == APPLIED
            assert sums_of(files, root) == stored["after"]
        else:
            with pytest.raises(UpgradeRefusedError, match=r"rollback|nothing to resume"):
                resume(context)
    roll_back(context)
    assert sums_of(files, root) == stored["before"]
    if "first" in stored:
        assert roll_back(context).state == ROLLED_BACK
        assert sums_of(files, root) == stored["first"]
    check_no_unfinished_upgrade(files, root)


# Damage

Damage = Callable[[bytes], bytes | None]


def flipped(at: int) -> Damage:
    def flip(raw: bytes) -> bytes:
        changed = bytearray(raw)
        changed[at % len(raw.rstrip())] ^= 4
        return bytes(changed)

    return flip


DAMAGES: dict[str, Damage] = {
    "truncated": lambda raw: raw[: len(raw.rstrip()) // 2],
    "empty": lambda raw: b"",
    "zeros": lambda raw: bytes(len(raw)),
    "missing": lambda raw: None,
    "flipped in front": flipped(20),
    "flipped in the middle": flipped(130),
    "another document": lambda raw: b'["state"]',
    "nested": lambda raw: b"[" * 100_000,
}


def damage(files: CrashingFiles, path: str, how: Damage) -> None:
    raw = how(files.read_bytes(path))
    if raw is None:
        files.unlink(path)
    else:
        files.put(path, raw)


def newest_copy(files: CrashingFiles, work: str = WORK) -> str:
    return read_copies(files, work)[0].path


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["newest", "both", "plan"])
def test_a_damaged_journal_stops_neither_resume_nor_rollback(
    interrupted: Interrupted, lost: str
) -> None:
    """A kill before an operation, then damage; both ways give the same bytes as without."""
    made = interrupted
    before = made.tree(made.files)
    done = made.files.reopen(None)
    apply_plan(made.context(done), made.plan, made.node)
    after = made.tree(done)
    damages = itertools.cycle(DAMAGES.items())
    count = 0
    for dies_at, killed in made.kills():
        count += 1
        name, how = next(damages)
        where = (dies_at, name)
        match lost:
            case "newest":
                damage(killed, newest_copy(killed, made.work), how)
            case "both":
                damage(killed, f"{made.work}/journal.bak", how)
                damage(killed, f"{made.work}/journal.json", flipped(dies_at))
            case "plan":
                damage(killed, f"{made.work}/{made.plan.id}/plan.json", how)
        back, forward = killed.reopen(None), killed.reopen(None)
        journal = current_journal(made.bare_context(back))
        assert journal is not None, where
        assert bool(journal.damage) or lost == "plan", where
        assert journal.is_half_done or journal.state == APPLIED, where
        if journal.is_half_done:
            assert resume(made.bare_context(forward)).state == APPLIED, where
        assert made.tree(forward) == after, where
        if journal.state == APPLIED and lost == "both":
            with pytest.raises(UpgradeRefusedError, match="--plan"):
                roll_back(made.bare_context(back))
        roll_back(made.bare_context(back), made.plan.id)
        assert made.tree(back) == before, where
        check_no_unfinished_upgrade(back, made.rigs[-1].root)
    assert count > 30


@pytest.mark.slow
def test_a_member_that_was_filled_after_a_kill_has_the_sizes_of_its_group(
    filling: Interrupted,
) -> None:
    """Only the directory is given, and its files do not show the sizes yet."""
    made = filling
    done = made.files.reopen(None)
    apply_plan(made.context(done), made.plan, made.node)
    after, records = made.tree(done), made.rigs[1].after(done).records()
    for dies_at, killed in made.kills():
        journal = load_journal(killed, made.work)
        assert journal is not None
        if journal.is_half_done:
            resume(made.bare_context(killed))
        assert made.tree(killed) == after, dies_at
        queue = [path for path in killed.nodes if path.startswith("/t/consumequeue/")]
        assert queue and {killed.size_of(path) for path in queue} == {400}
    assert made.rigs[1].after(killed).records() == records


@pytest.mark.parametrize("how", sorted(name for name in DAMAGES if not name.startswith("flipped")))
def test_a_damaged_journal_of_the_previous_version_is_replaced_by_evidence(
    how: str, make_rig: MakeUpgradeRig
) -> None:
    """Format 1 has no md5: a flipped digit cannot be detected there."""
    for name in ("alignment applying", "alignment rolling back", "leave applying"):
        stored = stored_directories()[name]
        root = "/store" if "leave" in name else "/s"
        for way in (resume, roll_back) if name != "alignment rolling back" else (roll_back,):
            files = files_of(stored)
            work = f"{root}/rmqpy/upgrade"
            damage(files, f"{work}/journal.json", DAMAGES[how])
            context = context_of(name, files, make_rig)
            if how == "missing":
                assert current_journal(context) is None
                continue
            with pytest.raises(StoreError, match="unreadable"):
                check_no_unfinished_upgrade(files, root)
            way(context)
            assert sums_of(files, root) == stored["after" if way is resume else "before"]


def test_status_says_what_is_damaged_and_what_can_be_done(alignment: Interrupted) -> None:
    killed = alignment.killed_at(40)
    assert killed is not None
    plan = SurveyPlan(name="s", root="/s", settings=alignment.rigs[1].settings(), now_ms=lambda: 5)
    for path in ("journal.json", "journal.bak"):
        damage(killed, f"{WORK}/{path}", DAMAGES["flipped in the middle"])
    state = LocalReplica(killed, plan).status()
    assert state["state"] == "applying" and "md5 does not match" in state["damage"]
    for name in ("plan.json", "plan.bak"):
        killed.unlink(f"{WORK}/{alignment.plan.id}/{name}")
    state = LocalReplica(killed, plan).status()
    assert state["state"] == "damaged" and "restore the folder from a backup" in state["damage"]


def test_a_final_plan_is_not_taken_back_on_evidence(alignment: Interrupted) -> None:
    """Its kept files are gone: taking the queues back would destroy them."""
    made = alignment
    apply_plan(made.context(), made.plan, "s")
    finalize(made.context())
    after = made.tree(made.files)
    for path in ("journal.json", "journal.bak"):
        damage(made.files, f"{WORK}/{path}", DAMAGES["empty"])
    with pytest.raises(UpgradeRefusedError, match="finalized"):
        roll_back(made.context(), made.plan.id)
    assert made.tree(made.files) == after


def test_copies_are_overwritten_in_place_by_turns(alignment: Interrupted) -> None:
    made = alignment
    killed = made.killed_at(40)
    assert killed is not None
    nodes = {path: killed.nodes[f"{WORK}/{path}"] for path in ("journal.json", "journal.bak")}
    assert {len(node.data) for node in nodes.values()} == {COPY_BYTES}
    first = newest_copy(killed)
    journal = load_journal(killed, WORK)
    assert journal is not None and not journal.damage
    resume(made.context(killed))
    roll_back(made.context(killed))
    assert all(killed.nodes[f"{WORK}/{path}"] is node for path, node in nodes.items())
    states = [copy.content["state"] for copy in read_copies(killed, WORK) if copy.content]
    assert states == [ROLLED_BACK, ROLLED_BACK], "a new state is in both copies"
    assert first in {f"{WORK}/journal.json", f"{WORK}/journal.bak"}


# What is meant


def switch_of(made: Interrupted) -> Plan:
    for node in ("m", "s"):
        context = memory_context(made.files, *made.pair)
        apply_plan(context.node_context(context.group.replica(node)), made.plan, node)
    made.files.put("/m.conf", CONF)
    options = SwitchOptions(peers="n0-h:1;n1-h:2", self_ids={"m": "n0", "s": "n1"})
    return plan_switch(memory_context(made.files, *made.pair, options=options))


def test_a_switch_that_was_killed_before_its_plan_does_not_cost_the_alignment(
    alignment: Interrupted,
) -> None:
    made = alignment
    switch_of(made)
    aligned = made.tree(made.files)
    killed: CrashingFiles | None = None
    with announced(made.context(), "switch"):
        killed = made.files.reopen(None)
    with pytest.raises(UpgradeRefusedError, match=r"switch was begun.*changed nothing.*--plan"):
        roll_back(made.context(killed))
    assert made.tree(killed) == aligned
    assert roll_back(made.context(killed), made.plan.id).state == ROLLED_BACK
    # The command that was not killed leaves no note.
    assert roll_back(made.context()).state == ROLLED_BACK


def test_a_switch_that_was_begun_is_what_rollback_takes_back(alignment: Interrupted) -> None:
    made = alignment
    switch = switch_of(made)
    aligned = made.tree(made.files)
    with announced(made.context(), "switch"):
        begin_plan(made.context(), switch, "s")
    with pytest.raises(StoreError, match="half done"):
        check_no_unfinished_upgrade(made.files, "/s")
    journal = roll_back(made.context())
    assert (journal.plan_id, journal.state) == (made.plan.id, APPLIED)
    assert made.tree(made.files) == aligned


def test_rollback_of_another_plan_than_the_newest_is_refused(alignment: Interrupted) -> None:
    made = alignment
    switch = switch_of(made)
    apply_plan(made.context(), switch, "s")
    tree = made.tree(made.files)
    with pytest.raises(UpgradeRefusedError, match=f"{switch.id}, {made.plan.id}"):
        roll_back(made.context(), made.plan.id)
    assert made.tree(made.files) == tree


# What is needed


def test_nothing_begins_without_the_bytes_that_will_be_copied(alignment: Interrupted) -> None:
    made = alignment
    alone = evolve(made.context(), source=NoSource())
    with pytest.raises(RmqError, match=r"found no replica m.*m=DIR"):
        apply_plan(alone, made.plan, "s")
    assert not made.files.exists(f"{WORK}/journal.json")
    made.files.unlink("/m/commitlog/00000000000000004096")
    with pytest.raises((RmqError, OSError)):
        apply_plan(made.context(), made.plan, "s")
    assert not made.files.exists(f"{WORK}/journal.json")


def test_a_moved_directory_is_not_rolled_back(alignment: Interrupted) -> None:
    """Its plan has the paths of the directory from which it was copied."""
    made = alignment
    apply_plan(made.context(), made.plan, "s")
    for path in [path for path in made.files.nodes if path.startswith("/s/")]:
        made.files.put(f"/copy{path[2:]}", bytes(made.files.nodes[path].data))
    tree = made.tree(made.files)
    moved = evolve(made.context(), work="/copy/rmqpy/upgrade")
    with pytest.raises(UpgradeRefusedError, match="move or copy"):
        roll_back(moved)
    assert made.tree(made.files) == tree


def test_operations_that_were_done_before_stay_done(alignment: Interrupted) -> None:
    made = alignment
    op = Write.of("/s/config/new.json", "absent", b"{}", "")
    part = NodePlan(replica="s", root="/s", keep=f"{WORK}/keep-1", ops=(op,))
    plan = Plan(steps=("m0002_align",), nodes=(part,))
    made.files.put("/s/config/new.json", b"{}")
    apply_plan(made.context(), plan, "s")
    roll_back(made.context())
    assert made.files.read_bytes("/s/config/new.json") == b"{}"


def kept_copies(files: CrashingFiles) -> Iterator[str]:
    return (path for path in files.nodes if path.endswith(".kept"))


def test_a_whole_file_is_put_back_by_a_rename(alignment: Interrupted) -> None:
    """No space is needed, and the file keeps its time."""
    made = alignment
    made.files.nodes["/s/config/topics.json"].mtime_ms = 77
    op = Write.of("/s/config/topics.json", md5_of(made.files, "topics.json"), b"{}", "")
    part = NodePlan(replica="s", root="/s", keep=f"{WORK}/keep-1", ops=(op,))
    apply_plan(made.context(), Plan(steps=("m0002_align",), nodes=(part,)), "s")
    (kept,) = kept_copies(made.files)
    node = made.files.nodes[kept]
    roll_back(made.context())
    assert made.files.nodes["/s/config/topics.json"] is node
    assert node.mtime_ms == 77


def md5_of(files: CrashingFiles, name: str) -> str:
    return hashlib.md5(files.read_bytes(f"/s/config/{name}")).hexdigest()
