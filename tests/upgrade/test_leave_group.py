"""``rmqpy upgrade leave`` for members that stopped at different entries, or must not leave."""

from __future__ import annotations

import base64
import itertools
import json
import os
from pathlib import Path

import pytest
from harness.kills import kills_of
from harness.store import CrashingFiles, StoreRig
from harness.upgrade import GOLDEN_SIZES, SHOWN, MakeUpgradeRig, RunUpgrade, log_of, tree_of

from rmqpy.codec.backend import scan_records
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.ledger import read_ledger
from rmqpy.upgrade.checks.replica import LocalReplica, RemoteReplica
from rmqpy.upgrade.plan.engine import apply_plan, roll_back
from rmqpy.upgrade.plan.node_context import ABSENT, NodeContext, digest_of
from rmqpy.upgrade.plan.operations import Fetch
from rmqpy.upgrade.plan.plan import NodePlan, Plan
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan
from rmqpy.upgrade.steps.fetch_entries import donor_of, fetch_entries

ROLES = "--role n0=SYNC_MASTER --role n1=SLAVE --role n2=SLAVE"
LEAVE = f"leave {SHOWN} {ROLES}"
HEADER = 48


def data_files(root: Path, member: str) -> list[Path]:
    return sorted((root / member / f"dledger-{member}/data").iterdir())


def entries_of(path: Path) -> list[tuple[int, int]]:
    """Return the start and the end of each entry in a data file."""
    base = int(path.name)
    scan = scan_records(memoryview(path.read_bytes()), base, dledger=True, check_crc=True)
    return [
        (offset - base - HEADER, offset - base + size)
        for offset, size in zip(scan.offset, scan.size, strict=True)
    ]


def drop_last(root: Path, member: str, count: int) -> None:
    """Remove the last entries of a member, over as many files as it takes."""
    for path in reversed(data_files(root, member)):
        entries = entries_of(path)
        if len(entries) <= count and path != data_files(root, member)[0]:
            count -= len(entries)
            path.unlink()
            continue
        data = bytearray(path.read_bytes())
        start = entries[len(entries) - count][0]
        data[start:] = bytes(len(data) - start)
        path.write_bytes(data)
        break
    know_less(root, member)


def know_less(root: Path, member: str) -> None:
    """Let a member know less to be committed than it has."""
    checkpoint = root / member / f"dledger-{member}/checkpoint"
    text = checkpoint.read_text().replace("committedIndex=280", "committedIndex=100")
    checkpoint.write_text(text)
    checkpoint.with_name("checkpoint.bak").unlink(missing_ok=True)


def set_term(root: Path, member: str, count: int, term: int) -> None:
    """Give the last entries of a member another term."""
    path = data_files(root, member)[-1]
    data = bytearray(path.read_bytes())
    for start, _ in entries_of(path)[-count:]:
        data[start + 16 : start + 24] = term.to_bytes(8)
    path.write_bytes(data)


def store_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {path: each for path, each in tree_of(root).items() if path != "lock"}


def messages_of(root: Path, member: str) -> list[tuple[str, int, int, bytes]]:
    reading = read_store(root / member)
    assert reading.problems == []
    return sorted((m.topic, m.queue_id, m.queue_offset, m.body) for m in reading.messages)


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(("n0", "n1", "n2")))[::2])
@pytest.mark.parametrize("count", [4, 150])
def test_entries_that_a_member_lacks_are_fetched(
    joined: Path, run: RunUpgrade, count: int, order: tuple[str, ...]
) -> None:
    """The members' parts are applied in any order: the plan contains the bytes."""
    whole = messages_of(joined, "n0")
    drop_last(joined, "n1", count)
    before = store_of(joined / "n1")
    code, out, err = run(f"{LEAVE} --out leave.json")
    assert code == 0 and "fetched from n0" in out, err
    for name in order:
        assert run(f"apply --plan leave.json --node {name} {SHOWN}")[0] == 0
    logs = [log_of(joined / name) for name in order]
    assert logs[0] == logs[1] == logs[2]
    assert messages_of(joined, "n1") == whole
    assert run(f"check {SHOWN}")[0] == 0
    assert run("rollback n1")[0] == 0
    assert store_of(joined / "n1") == before


@pytest.mark.slow
def test_entries_of_an_older_term_are_replaced_and_kept(joined: Path, run: RunUpgrade) -> None:
    for name in ("n0", "n1", "n2"):
        know_less(joined, name)
    for name in ("n0", "n1"):
        set_term(joined, name, 3, 9)
    code, out, err = run(f"{LEAVE} --apply")
    assert code == 0 and "fetched from n0" in out, err
    logs = [log_of(joined / name) for name in ("n0", "n1", "n2")]
    assert logs[0] == logs[1] == logs[2]
    assert list((joined / "n2/rmqpy/upgrade").glob("keep-*/cut/*"))


@pytest.mark.slow
def test_entries_of_one_member_without_a_quorum_are_cut(joined: Path, run: RunUpgrade) -> None:
    for name in ("n1", "n2"):
        drop_last(joined, name, 4)
    checkpoint = joined / "n0/dledger-n0/checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("committedIndex=280", "committedIndex=9"))
    code, out, _ = run(f"{LEAVE} --apply")
    assert code == 0 and "entries up to 276 are kept, 4 after it were never acknowledged" in out
    logs = [log_of(joined / name) for name in ("n0", "n1", "n2")]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
def test_a_group_whose_member_has_rolled_back_is_not_rewritten(
    joined: Path, run: RunUpgrade
) -> None:
    store, hidden = joined / "n0", joined / "hidden"
    (store / "dledger-n0").rename(hidden)
    StoreRig(OsFileSystem(), os.fspath(store), changes=dict(GOLDEN_SIZES)).write(1, 2, 3)
    hidden.rename(store / "dledger-n0")
    before = tree_of(joined)
    for more in ("", " --apply"):
        code, _, err = run(f"{LEAVE}{more}")
        assert code == 2 and "the members cannot leave as they are, nothing was changed" in err
    assert tree_of(joined) == before


@pytest.mark.slow
def test_members_with_different_entries_are_not_rewritten(joined: Path, run: RunUpgrade) -> None:
    """No checksum covers the time at which a message was stored."""
    path = data_files(joined, "n1")[0]
    data = bytearray(path.read_bytes())
    data[entries_of(path)[3][0] + HEADER + 58] ^= 1
    path.write_bytes(data)
    before = tree_of(joined)
    code, _, err = run(f"{LEAVE} --apply")
    assert code == 2 and "have the same index and term and are not the same" in err, err
    assert tree_of(joined) == before


@pytest.mark.slow
def test_a_reference_is_not_chosen(joined: Path, run: RunUpgrade) -> None:
    code, _, err = run(f"{LEAVE} --reference n1")
    assert code == 2 and "the terms of the entries decide; leave it out" in err


@pytest.mark.slow
def test_a_fetched_plan_is_readable(joined: Path, run: RunUpgrade) -> None:
    drop_last(joined, "n1", 4)
    code, out, _ = run(f"{LEAVE} --format json")
    assert code == 0
    (part,) = [each for each in json.loads(out)["nodes"] if each["replica"] == "n1"]
    (op,) = [each for each in part["ops"] if each["op"] == "fetch"]
    assert op["replica"] == "n0" and op["why"]


class OtherHost(RemoteReplica):
    """A replica of which only the survey and ranges can be read."""

    def __init__(self, local: LocalReplica) -> None:
        super().__init__(local.name, "https://elsewhere")
        self.local = local

    def survey(self) -> Survey:
        return self.local.survey()

    def read(self, path: str, start: int, end: int) -> bytes:
        return self.local.read(path, start, end)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 150])
def test_entries_of_another_host_are_the_same(joined: Path, count: int) -> None:
    drop_last(joined, "n1", count)
    files = OsFileSystem()

    def context(name: str) -> NodeContext:
        root = os.fspath(joined / name)
        settings = StoreSettings(
            store_path_root_dir=root,
            enable_dledger_commit_log=True,
            dledger_self_id=name,
            **GOLDEN_SIZES,
        )
        return NodeContext(files, upgrade_work(root), settings)

    plan = SurveyPlan(name="n0", root=os.fspath(joined / "n0"), now_ms=lambda: 1)
    near = LocalReplica(files, plan)
    own = read_ledger(files, context("n1").settings)
    found = [
        fetch_entries(context("n1"), own, donor, 280, "/keep").ops
        for donor in (
            donor_of(near, context("n0"), own),
            donor_of(OtherHost(near), context("n1"), own),
        )
    ]
    assert found[0] and found[0] == found[1]


def test_a_fetch_killed_at_any_operation_can_be_resumed(make_rig: MakeUpgradeRig) -> None:
    rig = make_rig()
    path, new = f"{rig.root}/dledger-n0/data/old", f"{rig.root}/dledger-n0/data/new"
    rig.files.put(path, b"first" + bytes(95))
    ops = tuple(
        Fetch(
            path=target,
            start=start,
            end=start + 6,
            before=before,
            after=digest_of(b"second"),
            file_size=100,
            content=base64.b64encode(b"second").decode(),
            replica="n1",
        )
        for target, start, before in ((path, 5, digest_of(bytes(6))), (new, 0, ABSENT))
    )
    node = NodePlan(replica="n0", root=rig.root, keep=f"{rig.root}/rmqpy/upgrade/keep-1", ops=ops)
    plan = Plan(steps=("m0006_leave",), nodes=(node,))
    before = rig.tree()
    done = rig.after(rig.files.reopen(None))
    apply_plan(done.context(), plan, "n0")
    expected = done.tree()
    assert expected["dledger-n0/data/old"].startswith(b"firstsecond\0")
    assert expected["dledger-n0/data/new"] == b"second" + bytes(94)

    def act(files: CrashingFiles) -> None:
        apply_plan(rig.after(files).context(), plan, "n0")

    for dies_at, dying in kills_of(rig.files, act, more_than=8):
        forward = rig.after(dying.reopen(None))
        apply_plan(forward.context(), plan, "n0")
        assert forward.tree() == expected, dies_at
        back = rig.after(dying.reopen(None))
        if back.files.exists(f"{back.root}/rmqpy/upgrade/journal.json"):
            roll_back(back.context())
        assert back.tree() == before, dies_at
