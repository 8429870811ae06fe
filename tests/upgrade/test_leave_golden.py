"""The step m0006_leave on stores that Java wrote, checked with `rmqpy.testing.store_reader`."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from harness.audit import directory_of, manifest_of
from harness.upgrade import GOLDEN_SIZES, LeaveOptions, log_of, plan_leave, tree_of

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.codec.reframe import RESERVED_PROPERTY
from rmqpy.config.loading import StoreSettings
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.testing.store_reader import read_store
from rmqpy.upgrade.checks.ledger import agreed_index, read_ledger
from rmqpy.upgrade.plan.engine import apply_plan, roll_back
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.plan import Plan

STORES = ["C-upgraded-v497", "C-upgraded-v533", "D-dledger-v497", "D-dledger-v533"]
MEMBERS = ["n0", "n1", "n2"]


def node_context(root: Path, member: str) -> NodeContext:
    settings = StoreSettings(
        store_path_root_dir=os.fspath(root),
        enable_dledger_commit_log=True,
        dledger_self_id=member,
        dledger_group="g",
        dledger_peers="n0-a:1;n1-a:2;n2-a:3",
        **GOLDEN_SIZES,
    )
    return NodeContext(OsFileSystem(), upgrade_work(str(root)), settings, now_ms=lambda: 1)


def plan_group(root: Path) -> tuple[Plan, dict[str, NodeContext]]:
    contexts = {member: node_context(root / member, member) for member in MEMBERS}
    ledgers = [read_ledger(context.files, context.settings) for context in contexts.values()]
    cut = agreed_index(ledgers, 3)
    parts = tuple(
        plan_leave(context, LeaveOptions(replica=member, cut_index=cut))
        for member, context in contexts.items()
    )
    return Plan(steps=("m0006_leave",), nodes=parts), contexts


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_the_messages_of_a_java_group_are_kept(
    name: str, golden_copy: Callable[[str], Path], manifest: Callable[[str], dict[str, Any]]
) -> None:
    root = golden_copy(name)
    plan, contexts = plan_group(root)
    expected_messages = manifest(name)["messages"]
    for member, context in contexts.items():
        apply_plan(context, plan, member)
    logs = [log_of(root / member) for member in MEMBERS]
    assert logs[0] == logs[1] == logs[2]
    for member in MEMBERS:
        reading = read_store(root / member)
        assert reading.problems == []
        found = {(m.topic, m.queue_offset, m.body) for m in reading.messages}
        assert not list((root / member).glob("dledger-*"))
    places = {message.physical_offset: message for message in reading.messages}
    for expected in expected_messages:
        offset = expected["commitLogOffset"]
        message = places.get(offset) or places[offset - 48]
        assert message.physical_offset == offset or offset % 65536 == 48
        assert (message.topic, message.queue_id) == (expected["topic"], expected["queueId"])
        assert message.queue_offset == expected["queueOffset"]
        kept = dict(message.properties)
        kept.pop(RESERVED_PROPERTY.decode(), None)
        assert kept == {k: v for k, v in expected["props"].items() if k in kept}
    assert len(found) >= len({(m["topic"], m["queueOffset"]) for m in expected_messages})


@pytest.mark.slow
def test_sums_tell_only_the_least_number_of_messages_that_have_moved(
    golden: Callable[[str], Path], golden_copy: Callable[[str], Path]
) -> None:
    """The files of before are gone when ``verify`` compares, unless someone has kept a copy."""
    name = "D-dledger-v497"
    stores = {"before": golden(name) / "n0", "n0": golden_copy(name) / "n0"}
    plan, contexts = plan_group(stores["n0"].parent)
    apply_plan(contexts["n0"], plan, "n0")
    manifests = [evolve(manifest_of(store), name=name) for name, store in stores.items()]
    files = {
        name: QueueMessages(OsFileSystem(), directory_of(store)) for name, store in stores.items()
    }
    certificates = [certify(manifests, 1, each, earlier=1) for each in ({}, files)]
    least, exact = (each.comparisons[0] for each in certificates)
    assert (least.same, least.moved_at_least, exact.moved_at_least) == (exact.same, True, False)
    assert 0 < least.moved < exact.moved
    printed = ["\n".join(certificate_lines(each)) for each in certificates]
    assert f" the same, at least {least.moved} of them moved" in printed[0]
    assert f" the same, {exact.moved} of them moved" in printed[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_a_rollback_restores_every_byte(name: str, golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy(name)
    before = tree_of(root / "n1")
    plan, contexts = plan_group(root)
    apply_plan(contexts["n1"], plan, "n1")
    roll_back(contexts["n1"])
    assert tree_of(root / "n1") == before


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_consume_queues_are_updated(name: str, golden_copy: Callable[[str], Path]) -> None:
    """Units of former entries have the new offset and size; tags codes are kept.

    The delivery times of the delay topic are among them.
    """
    root = golden_copy(name)
    before = queue_units(root / "n2")
    plan, contexts = plan_group(root)
    apply_plan(contexts["n2"], plan, "n2")
    after = queue_units(root / "n2")
    assert before.keys() == after.keys()
    changed = 0
    for queue, units in before.items():
        assert len(units) == len(after[queue])
        for old, new in zip(units, after[queue], strict=True):
            assert new[2] == old[2]
            assert new[0] in (old[0], old[0] - 48)
            assert new[1] - old[1] in (0, 48, 96)
            changed += new != old
    assert changed > 200


def queue_units(root: Path) -> dict[str, list[tuple[int, int, int]]]:
    """Return the units (offset, size, tags code) of every consume queue, by its path."""
    found = {}
    for queue in sorted((root / "consumequeue").glob("*/*")):
        data = b"".join(file.read_bytes() for file in sorted(queue.iterdir()))
        units = [unit for unit in struct.iter_unpack(">qiq", data) if unit[1]]
        found[os.fspath(queue.relative_to(root))] = units
    return found
