"""Plans and alignments, on stores that Java wrote and on small ones killed at every operation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.kills import kills_of
from harness.store import CrashingFiles, StoreRig
from harness.upgrade import (
    GOLDEN_SIZES,
    SHOWN,
    MakeUpgradeRig,
    RunUpgrade,
    UpgradeRig,
    log_of,
    memory_context,
    small_group,
    tree_of,
)

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.codec.backend import scan_records
from rmqpy.codec.layout import QUEUE_UNIT_SIZE
from rmqpy.codec.units import QUEUE_UNIT
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import run_checks
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.engine import apply_plan, finalize, roll_back
from rmqpy.upgrade.plan.journal import load_journal
from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.plan.survey import SurveyPlan
from rmqpy.upgrade.steps.plan_context import PlanContext, SwitchOptions
from rmqpy.upgrade.steps.planning import plan_alignment, plan_switch
from rmqpy.upgrade.steps.reference import DivergedError
from rmqpy.upgrade.steps.states import GroupState, detect

PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"


def context(
    root: Path, names: tuple[str, ...], options: SwitchOptions | None = None
) -> PlanContext:
    replicas = []
    for name in names:
        conf = root / f"{name}.conf"
        plan = SurveyPlan(
            name=name,
            root=os.fspath(root / name),
            config_path=os.fspath(conf) if conf.exists() else None,
            now_ms=lambda: 1_800_000_000_000,
        )
        replicas.append(LocalReplica(OsFileSystem(), plan))
    return PlanContext(
        group=Group(tuple(replicas)), files=OsFileSystem(), options=options or SwitchOptions()
    )


def apply_all(made: PlanContext, plan: Plan) -> None:
    for part in plan.nodes:
        apply_plan(made.node_context(made.group.replica(part.replica)), plan, part.replica)


def bad_checks(made: PlanContext) -> set[str]:
    return {each.check for each in run_checks(made.group) if not each.is_note}


def certificate_of(made: PlanContext) -> Certificate:
    return certify([each.manifest for each in made.group.surveys], 1)


def write_confs(root: Path, names: tuple[str, ...]) -> None:
    for number, name in enumerate(names):
        (root / f"{name}.conf").write_text(
            f"# broker {name}\nbrokerName=b0\nlistenPort={15911 + 10 * number}\n"
            f"storePathRootDir={root / name}\nmappedFileSizeCommitLog=65536\n"
            "mappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
        )


@pytest.mark.slow
def test_two_intact_replicas_and_an_empty_one_become_a_group_of_three(
    golden_copy: Callable[[str], Path], golden: Callable[[str], Path]
) -> None:
    root, names = golden_copy("B-master-slave-v497"), ("master", "slave", "third")
    (root / "third").mkdir()
    write_confs(root, names)
    made = context(root, names)
    assert detect(made.group) is GroupState.LAGGING
    plan = plan_alignment(made)
    assert [len(part.ops) > 0 for part in plan.nodes] == [False, False, True]
    apply_all(made, plan)

    options = SwitchOptions(peers=PEERS, self_ids=dict(zip(names, ("n0", "n1", "n2"), strict=True)))
    made = context(root, names, options)
    assert bad_checks(made) == set()
    assert certificate_of(made).holds
    apply_all(made, plan_switch(made))

    # Java's own upgrade of the same store: the same bytes in the old files, the same divide.
    java = golden("C-upgraded-v497") / "n0"
    for name in names:
        log = log_of(root / name)
        for file, content in log_of(java).items():
            assert log[file] == content, (name, file)
        text = (root / f"{name}.conf").read_text()
        assert "enableDLegerCommitLog=true\n" in text
        assert text.startswith(f"# broker {name}\n")
    after = context(root, names)
    assert detect(after.group) is GroupState.SEALED
    assert {after.group.divide(each) for each in after.group.replicas} == {262144}
    assert certificate_of(after).holds


def test_a_lagging_slave_receives_the_missing_messages(golden_copy: Callable[[str], Path]) -> None:
    root, names = golden_copy("B-lagging-slave-v497"), ("master", "slave")
    before = tree_of(root / "slave")
    master = tree_of(root / "master")
    made = context(root, names)
    plan = plan_alignment(made)
    copied_bytes = sum(
        op.changed_bytes for op in plan.node("slave").ops if op.kind in ("copy", "create")
    )
    assert copied_bytes == (261120 - 229443 - 475) + 2 * 65536
    apply_all(made, plan)
    assert tree_of(root / "master") == master
    after = context(root, names)
    assert bad_checks(after) == set()
    assert certificate_of(after).holds
    assert plan_alignment(after).is_empty
    copied = log_of(root / "slave")
    for file, content in log_of(root / "master").items():
        assert copied[file] == content, file
    completed = root / "slave" / "commitlog" / "00000000000000262144"
    original = root / "master" / "commitlog" / "00000000000000262144"
    assert completed.stat().st_mtime_ns // 1_000_000 == original.stat().st_mtime_ns // 1_000_000

    slave = after.node_context(after.group.replica("slave"))
    roll_back(slave)
    assert tree_of(root / "slave") == before


def late_slave(store: Path) -> None:
    """Turn the store into that of a slave that joined late.

    It has only the last files, and its queues start with Java's blank units.
    """
    first = 196608
    for file in (store / "commitlog").iterdir():
        if int(file.name) < first:
            file.unlink()
    for path in (store / "consumequeue").rglob("0*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for place in range(0, len(data), QUEUE_UNIT_SIZE):
                offset, size, _ = QUEUE_UNIT.unpack_from(data, place)
                if size and offset < first:
                    QUEUE_UNIT.pack_into(data, place, 0, 0x7FFFFFFF, 0)
            path.write_bytes(data)
    shutil.rmtree(store / "index")


@pytest.mark.slow
def test_a_slave_that_joined_late_receives_the_first_files_and_their_queues(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("B-master-slave-v497"), ("master", "slave")
    late_slave(root / "slave")
    made = context(root, names)
    assert not certificate_of(made).holds
    apply_all(made, plan_alignment(made))
    after = context(root, names)
    assert certificate_of(after).holds
    assert {"queues-match", "same-log", "index-match"}.isdisjoint(bad_checks(after))


@pytest.mark.slow
def test_a_gap_in_one_file_of_a_joined_group_is_filled(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("X-gap_same_file-v497"), ("n0", "n1", "n2")
    made = context(root, names)
    assert {"same-log", "log-sound", "queues-match"} <= bad_checks(made)
    plan = plan_alignment(made)
    # Two messages have the same queue offset: a conflict, because it cannot be undone.
    assert [("has queue offset 32" in each) for each in plan.conflicts] == [True, True]
    apply_all(made, plan)
    after = context(root, names)
    assert "same-log" not in bad_checks(after)
    logs = [log_of(root / name) for name in names]
    assert logs[0] == logs[1] == logs[2]


def before_the_wrong_start(store: Path, member: str) -> None:
    """Turn a joined store into what it was before Java's start with the flag: a classic log."""
    shutil.rmtree(store / f"dledger-{member}")
    shutil.rmtree(store / "index")
    settings = StoreSettings(store_path_root_dir=os.fspath(store), **GOLDEN_SIZES)
    opened = open_store(StoreContext(settings, OsFileSystem(), ManualScheduler(), 1 << 34))
    while opened.dispatcher.is_behind:
        opened.dispatch()
    opened.shutdown()


@pytest.mark.slow
def test_a_gap_in_one_file_is_filled_and_certified_before_the_wrong_start(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("X-gap_same_file-v497"), ("n0", "n1", "n2")
    for name in names:
        before_the_wrong_start(root / name, name)
    write_confs(root, names)
    made = context(root, names, SwitchOptions(peers=PEERS, self_ids={name: name for name in names}))
    assert "same-log" in bad_checks(made)
    assert not certificate_of(made).holds
    before = made.group.survey("n0").manifest
    plan = plan_alignment(made)
    assert plan.facts["reference"] == "n0"
    copied = {part.replica: [op for op in part.ops if op.kind == "copy"] for part in plan.nodes}
    assert not copied["n0"] and len(copied["n1"]) == len(copied["n2"]) == 1
    with pytest.raises(UpgradeRefusedError, match="align"):
        plan_switch(made)
    apply_all(made, plan)
    after = context(root, names, made.options)
    assert bad_checks(after) == set()
    manifests = [before, *(each.manifest for each in after.group.surveys)]
    certificate = certify(manifests, 1, earlier=1)
    assert certificate.holds, list(certificate_lines(certificate))
    assert {each.same for each in certificate.comparisons} == {before.messages}
    apply_all(after, plan_switch(after))
    assert detect(context(root, names).group) is GroupState.SEALED


def diverge(root: Path) -> int:
    """Change a message of the slave and return its offset."""
    path = root / "slave/commitlog/00000000000000196608"
    data = bytearray(path.read_bytes())
    scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
    data[scan.offset[-3] + 16] ^= 1
    path.write_bytes(data)
    return 196608 + scan.offset[-3]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["master", "slave"])
def test_the_operator_decides_a_divergence(golden_copy: Callable[[str], Path], chosen: str) -> None:
    root, names = golden_copy("B-master-slave-v497"), ("master", "slave")
    offset = diverge(root)
    with pytest.raises(DivergedError, match="--reference NAME") as refused:
        plan_alignment(context(root, names))
    ((pair, sides),) = refused.value.sides.items()
    assert f"from offset {offset}" in pair
    assert [len(lines) for lines in sides.values()] == [3, 3]
    assert f"offset {offset}: " in sides["slave"][0]

    made = context(root, names, SwitchOptions(reference=chosen))
    plan = plan_alignment(made)
    kept = tree_of(root / chosen)
    apply_all(made, plan)
    assert tree_of(root / chosen) == kept
    after = context(root, names)
    assert certificate_of(after).holds


@pytest.mark.slow
def test_cut_files_of_the_longer_side_are_kept(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("B-lagging-slave-v497"), ("master", "slave")
    before = tree_of(root / "master")
    made = context(root, names, SwitchOptions(reference="slave"))
    apply_all(made, plan_alignment(made))
    after = context(root, names)
    assert certificate_of(after).holds
    assert after.group.survey("master").manifest.end == 229443
    kept = list((root / "master/rmqpy/upgrade").rglob("commitlog/0*"))
    assert sorted(file.name for file in kept) == [f"{n:020d}" for n in (262144, 327680)]
    roll_back(after.node_context(after.group.replica("master")))
    assert tree_of(root / "master") == before


def test_merged_tables_have_the_largest_values(golden_copy: Callable[[str], Path]) -> None:
    root, names = golden_copy("B-master-slave-v497"), ("master", "slave")
    offsets = root / "slave/config/consumerOffset.json"
    offsets.write_text(offsets.read_text().replace("0:22", "0:9").replace("0:40", "0:9999"))
    (root / "slave/config/topics.json").unlink()
    (root / "slave/config/topics.json.bak").unlink()
    made = context(root, names)
    plan = plan_alignment(made)
    assert any("9999, the queue ends at" in each for each in plan.conflicts)
    apply_all(made, plan)
    after = context(root, names)
    assert bad_checks(after) == set()
    tables = after.group.survey("slave").tables
    assert '"Normal@CID_push":{0:22' in tables["consumerOffset.json"]
    master_topics = (root / "master/config/topics.json").read_text()
    assert tables["topics.json"].count("topicName") == master_topics.count("topicName")


def wrong_upgrade(name: str, root: Path, golden: Callable[[str], Path]) -> tuple[str, ...]:
    """Create the files that one of the nine wrong upgrades leaves; return the names of replicas."""
    names = ("n0", "n1", "n2")
    joined = golden("C-upgraded-v497")
    if name == "gap_whole_file":
        source = golden("B-lagging-slave-v497")
        shutil.copytree(source / "master", root / "n0")
        shutil.copytree(source / "slave", root / "n1")
        shutil.copytree(source / "slave", root / "n2")
    elif name in ("third_empty", "empty_leads", "bare_leads"):
        source = golden("B-master-slave-v497")
        shutil.copytree(source / "master", root / "n0")
        shutil.copytree(source / "slave", root / "n1")
        (root / "n2").mkdir()
        if name == "bare_leads":
            shutil.copytree(source / "slave" / "commitlog", root / "n2" / "commitlog")
    elif name == "killed_store":
        source = golden("A-classic-killed-v497")
        for node in names:
            shutil.copytree(source / "store", root / node)
        log = root / "n1/commitlog/00000000000000196608"
        data = bytearray(log.read_bytes())
        scan = scan_records(memoryview(data), 0, dledger=False, check_crc=False)
        data[scan.end - 60 : scan.end] = bytes(60)
        log.write_bytes(data)
    else:
        for node in names:
            shutil.copytree(joined / node, root / node, copy_function=copy_sparse)
    if name == "delete_old":
        shutil.rmtree(root / "n1/commitlog")
    return names


def copy_sparse(source: str, target: str) -> None:
    """Copy a file unless it is the index of a ledger, nearly all of it holes."""
    if os.stat(source).st_size < 1 << 26:
        shutil.copy2(source, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check", "repairable"),
    [
        ("gap_whole_file", "same-divide", True),
        ("third_empty", "same-log", True),
        ("empty_leads", "same-log", True),
        ("bare_leads", "tables-there", True),
        ("killed_store", "clean-stop", False),
        ("delete_old", "same-log", True),
    ],
)
def test_wrong_upgrades_are_refused_or_repaired(
    name: str, check: str, repairable: bool, tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    names = wrong_upgrade(name, tmp_path, golden)
    made = context(tmp_path, names)
    assert check in bad_checks(made)
    if not repairable:
        with pytest.raises(UpgradeRefusedError):
            plan_alignment(made)
        return
    apply_all(made, plan_alignment(made))
    after = context(tmp_path, names)
    assert not {"same-log", "same-divide", "tables-there"} & bad_checks(after)


@pytest.mark.slow
def test_another_file_size_is_found_and_a_joined_group_is_not_switched(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("B-master-slave-v497"), ("master", "slave")
    write_confs(root, names)
    conf = root / "slave.conf"
    conf.write_text(conf.read_text().replace("65536", "131072"))
    assert {"same-sizes", "file-sizes"} & bad_checks(context(root, names))
    joined, members = golden_copy("C-upgraded-v497"), ("n0", "n1", "n2")
    write_confs(joined, members)
    made = context(joined, members)
    assert "switched" in bad_checks(made)
    with pytest.raises(UpgradeRefusedError, match="continue in a DLedger log"):
        plan_switch(made)


def test_a_node_without_the_old_log_is_not_switched(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("B-master-slave-v497")
    (root / "third").mkdir()
    write_confs(root, ("third",))
    options = SwitchOptions(peers=PEERS, self_ids={"third": "n2"})
    with pytest.raises(UpgradeRefusedError, match="no old log"):
        plan_switch(context(root, ("third",), options))


def write_with_the_flag_off(root: Path, member: str) -> None:
    """Overwrite the filler, as Java does when the flag of a joined store is turned off."""
    store, hidden = root / member, root / "hidden"
    (store / f"dledger-{member}").rename(hidden)
    rig = StoreRig(OsFileSystem(), os.fspath(store), changes=dict(GOLDEN_SIZES))
    rig.write(1, 2, 3, topic=b"Normal")
    hidden.rename(store / f"dledger-{member}")


@pytest.mark.slow
def test_messages_written_while_the_flag_was_off_are_refused_until_a_reference_is_chosen(
    golden_copy: Callable[[str], Path],
) -> None:
    root, names = golden_copy("C-upgraded-v497"), ("n0", "n1", "n2")
    write_with_the_flag_off(root, "n0")
    made = context(root, names)
    assert {"divide-fits", "same-log"} <= bad_checks(made)
    with pytest.raises(UpgradeRefusedError, match="old log of n0 was written to after the switch"):
        plan_alignment(made)
    chosen = context(root, names, SwitchOptions(reference="n1"))
    apply_all(chosen, plan_alignment(chosen))
    after = context(root, names)
    assert not {"divide-fits", "same-log", "same-divide"} & bad_checks(after)
    logs = [log_of(root / name) for name in names]
    assert logs[0] == logs[1] == logs[2]
    assert list((root / "n0/rmqpy/upgrade").rglob("cut/0*")), "the cut files are kept"


@pytest.mark.slow
def test_entries_that_start_inside_the_old_log_are_not_aligned(
    golden_copy: Callable[[str], Path],
) -> None:
    """A member with one file less led first, so Java's group starts at its end on all members."""
    root, names = golden_copy("C-upgraded-v497"), ("n0", "n1", "n2")
    data = root / "n0/commitlog/00000000000000196608"
    (root / "n0/commitlog/00000000000000262144").write_bytes(data.read_bytes())
    made = context(root, names, SwitchOptions(reference="n0"))
    with pytest.raises(UpgradeRefusedError, match="begins at 262144, the old log of n0 ends at"):
        plan_alignment(made)


# Small stores in memory, killed at every operation


def test_a_slave_receives_the_queues_of_an_unknown_topic(
    make_rig: MakeUpgradeRig,
) -> None:
    """Tables are merged before the queues are built; otherwise the topic looks deleted."""
    master, slave = small_group(make_rig)
    files = master.files
    files.put("/s/config/topics.json", b'{"topicConfigTable":{"Topic":{}}}')
    files.put("/m/config/topics.json", b'{"topicConfigTable":{"Topic":{},"New":{}}}')
    master.write(50, 51, topic=b"New")
    made = memory_context(files, master, slave)
    apply_all(made, plan_alignment(made))
    after = memory_context(files, master, slave)
    assert files.is_dir("/s/consumequeue/New/0") and files.is_dir("/s/consumequeue/New/1")
    assert "queues-match" not in bad_checks(after)


def configure(rig: UpgradeRig) -> None:
    """Write the broker.conf and the tables of a replica in memory."""
    text = "brokerName=b0\nmappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=400\n"
    rig.files.put(f"{rig.root}.conf", f"{text}maxHashSlotNum=10\nmaxIndexNum=20\n".encode())
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        rig.files.put(f"{rig.root}/config/{name}.json", b"{}")


@pytest.mark.slow
def test_an_alignment_killed_at_any_operation_can_be_resumed(
    make_rig: MakeUpgradeRig,
) -> None:
    rigs = small_group(make_rig)
    rig, files = rigs[1], rigs[0].files
    plan = plan_alignment(memory_context(files, *rigs))
    kinds = {op.kind for op in plan.node("s").ops}
    assert {"copy", "create", "derive", "write"} <= kinds

    def context(on: CrashingFiles) -> NodeContext:
        made = memory_context(on, *rigs)
        return made.node_context(made.group.replica("s"))

    def act(on: CrashingFiles) -> None:
        apply_plan(context(on), plan, "s")

    tree = rig.after(files).tree()
    completed = files.reopen(None)
    act(completed)
    expected = rig.after(completed).tree()
    for dies_at, dying in kills_of(files, act, more_than=50):
        forward = dying.reopen(None)
        act(forward)
        assert rig.after(forward).tree() == expected, dies_at
        back = dying.reopen(None)
        if back.exists(f"{rig.root}/rmqpy/upgrade/journal.json"):
            roll_back(context(back))
        assert rig.after(back).tree() == tree, dies_at


def test_a_switch_killed_at_any_operation_can_be_resumed(
    make_rig: MakeUpgradeRig,
) -> None:
    rigs = small_group(make_rig)
    files = rigs[0].files
    made = memory_context(files, *rigs)
    for node in ("m", "s"):
        apply_plan(made.node_context(made.group.replica(node)), plan_alignment(made), node)
    for rig in rigs:
        configure(rig)
    options = SwitchOptions(peers="n0-h:1;n1-h:2", self_ids={"m": "n0", "s": "n1"})
    plan = plan_switch(memory_context(files, *rigs, options=options))
    assert {op.kind for op in plan.node("s").ops} == {"fill", "write"}
    rig = rigs[1]

    def context(on: CrashingFiles) -> NodeContext:
        made = memory_context(on, *rigs, options=options)
        return made.node_context(made.group.replica("s"))

    def all_of(on: CrashingFiles) -> tuple[dict[str, bytes], bytes]:
        return rig.after(on).tree(), on.read_bytes("/s.conf")

    before = all_of(files)
    completed = files.reopen(None)
    assert apply_plan(context(completed), plan, "s").earlier
    expected = all_of(completed)
    assert expected[0] != before[0] and expected[1] != before[1]

    def act(on: CrashingFiles) -> None:
        apply_plan(context(on), plan, "s")

    for dies_at, dying in kills_of(files, act, more_than=8):
        forward = dying.reopen(None)
        act(forward)
        assert all_of(forward) == expected, dies_at
        back = dying.reopen(None)
        journal = load_journal(back, context(back).work)
        assert journal is not None
        if journal.plan_id == plan.id:
            roll_back(context(back))
        assert all_of(back) == before, dies_at


def test_a_switch_can_be_rolled_back_until_the_first_message(make_rig: MakeUpgradeRig) -> None:
    rigs = small_group(make_rig)
    files = rigs[0].files
    master = rigs[0]
    configure(master)
    options = SwitchOptions(peers="n0-h:1", self_ids={"m": "n0"})
    tree = master.tree()

    def only_master() -> PlanContext:
        made = memory_context(files, *rigs, options=options)
        return PlanContext(
            group=Group(made.group.replicas[:1]),
            files=files,
            options=options,
            settings=made.settings,
        )

    def context() -> NodeContext:
        return only_master().node_context(only_master().group.replicas[0])

    apply_plan(context(), plan_switch(only_master()), "m")
    joined = master.with_flag(True)
    joined.open().shutdown()
    roll_back(context())
    rolled_back = master.tree()
    assert {path for path in tree if tree[path] != rolled_back.get(path)} <= {"checkpoint"}
    assert not any(path.startswith("dledger-") for path in rolled_back)

    apply_plan(context(), plan_switch(only_master()), "m")
    joined.write(500)
    with pytest.raises(UpgradeRefusedError, match="rmqpy upgrade leave"):
        roll_back(context())
    finalize(context())


def test_a_changed_plan_is_refused(make_rig: MakeUpgradeRig) -> None:
    rigs = small_group(make_rig)
    value = plan_alignment(memory_context(rigs[0].files, *rigs)).to_json()
    assert Plan.from_json(value).to_json() == value
    value["nodes"][1]["ops"].pop()
    with pytest.raises(Exception, match="changed after it was created"):
        Plan.from_json(value)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["n0", "n1"])
def test_messages_that_one_replica_does_not_find_by_key_are_indexed(
    classic: Path, run: RunUpgrade, member: str
) -> None:
    """Java deletes the newest index file when it starts after a kill."""
    max((classic / member / "index").iterdir()).unlink()
    stores = " ".join(f"{name}={classic / name}" for name in ("n0", "n1", "n2"))
    code, out, _ = run(f"verify {stores}")
    assert code == 2 and "found by their keys in only one store" in out
    assert run(f"plan {SHOWN} --out plan.json")[0] == 0
    for name in ("n0", "n1", "n2"):
        assert run(f"apply --plan plan.json --node {name} {SHOWN}")[0] == 0
    code, out, _ = run(f"verify {stores}")
    assert (code, out.splitlines()[-1]) == (0, "EQUAL")
