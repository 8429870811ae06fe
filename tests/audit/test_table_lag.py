"""Tests of tables of which one is behind the other, by what replication explains or by more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.audit import manifest_of

from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.compare import compare_manifests, verdict_on
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.replicas.verdict import DIFFERENT, EQUAL, Containment, Word
from rmqpy.model.names import INITIAL_GROUPS

Pair = tuple[Path, Path]
Change = Callable[[dict[str, Any]], object]

BEHIND = (Containment("slave", "master", 0),)


@pytest.fixture
def pair(copy_of: Callable[[str], Path]) -> Pair:
    """Return copies of a master and its slave, stopped by Java; their tables are equal."""
    return copy_of("B-master-slave-v497/master"), copy_of("B-master-slave-v497/slave")


def change_table(store: Path, name: str, change: Change) -> None:
    """Change a table of the store and its backup."""
    for path in (store / "config" / name, store / "config" / f"{name}.bak"):
        # The broker writes numbers as keys, which JSON does not allow.
        tree = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', path.read_text()))
        change(tree)
        path.write_text(json.dumps(tree))


def certificate_of(*stores: Path, earlier: list[Manifest] | None = None) -> Certificate:
    past = earlier or []
    return certify([*past, *map(manifest_of, stores)], 11, earlier=len(past))


def text_of(certificate: Certificate) -> str:
    return "\n".join(certificate_lines(certificate))


def zero_offsets(tree: dict[str, Any]) -> None:
    for queues in tree["offsetTable"].values():
        queues.update(dict.fromkeys(queues, 0))


def a_backlog(tree: dict[str, Any]) -> None:
    """Offsets of messages that were stored long before the last one, as after a backlog."""
    tree["offsetTable"]["Normal@CID_push"] = {"0": 3, "1": 0}


OFFSETS_BEHIND: list[tuple[str, Change, str]] = [
    ("consumerOffset.json", zero_offsets, "slave is behind master by "),
    ("consumerOffset.json", a_backlog, "CID_push in Normal queue 0 is 3, not 22"),
    (
        "delayOffset.json",
        lambda tree: tree["offsetTable"].update({"1": 0}),
        "slave is behind master by 7 messages in 1 offset: level 1 is 0, not 7",
    ),
]


@pytest.mark.parametrize(("name", "change", "sentence"), OFFSETS_BEHIND)
def test_offsets_that_are_behind_make_a_store_contained(
    pair: Pair, name: str, change: Change, sentence: str
) -> None:
    """No file says when an offset was committed, so a smaller one is never a difference."""
    change_table(pair[1], name, change)
    for stores in (pair, pair[::-1]):
        certificate = certificate_of(*stores)
        assert certificate.verdict.word is Word.CONTAINED and certificate.holds
        assert certificate.verdict.contained == BEHIND
        text = text_of(certificate)
        assert f"{name}: " in text and sentence in text
        assert text.endswith("CONTAINED: slave in master, which has newer entries in its tables")
        assert Certificate.decode(certificate.encode()) == certificate


def test_each_store_may_be_behind_the_other_in_another_queue(pair: Pair) -> None:
    """A new leader takes over with older offsets, and its consumers go on from there."""

    def queue(number: str) -> Change:
        return lambda tree: tree["offsetTable"]["Normal@CID_push"].update({number: 3})

    change_table(pair[0], "consumerOffset.json", queue("0"))
    change_table(pair[1], "consumerOffset.json", queue("1"))
    certificate = certificate_of(*pair)
    assert certificate.holds
    assert certificate.verdict.contained == (Containment("master", "slave", 0), *BEHIND)


def test_a_group_of_java_that_was_stopped_under_consumption_is_not_different(
    copy_of: Callable[[str], Path],
) -> None:
    """One member has offsets that neither the leader nor the other follower has."""
    manifests = [manifest_of(copy_of(f"D-dledger-v497/{name}")) for name in ("n0", "n1")]
    tables = [each for each in compare_manifests(*manifests) if each.kind.name == "TABLE"]
    assert [each.log for each in tables] == ["consumerOffset.json"]
    assert verdict_on(tables, *manifests).contained == (Containment("n0", "n1", 0),)
    assert verdict_on([], manifests[0], manifests[0]) == EQUAL


def lag(tree: dict[str, Any], member: str, lost: str, *, earlier_ms: int, changes: int = 1) -> None:
    """Make this an earlier version of a table, without an entry."""
    del tree[member][lost]
    tree["dataVersion"]["counter"] -= changes
    tree["dataVersion"]["timestamp"] -= earlier_ms


def change_last(store: Path, before_end_ms: int) -> None:
    """Let the groups of the store have been changed so long before its last message."""
    logs = manifest_of(store).facts
    end_ms = logs["classic"]["last"]["store_timestamp_ms"]
    change_table(
        store,
        "subscriptionGroup.json",
        lambda tree: tree["dataVersion"].update(timestamp=end_ms - before_end_ms),
    )


def lose_group(tree: dict[str, Any]) -> None:
    lag(tree, "subscriptionGroupTable", "CID_push", earlier_ms=1_000)


def test_a_group_created_before_the_stop_is_lacking_in_an_earlier_version(pair: Pair) -> None:
    for store in pair:
        change_last(store, 2_000)
    change_table(pair[1], "subscriptionGroup.json", lose_group)
    for stores in (pair, pair[::-1]):
        certificate = certificate_of(*stores)
        assert certificate.holds and certificate.verdict.contained == BEHIND
        text = text_of(certificate)
        assert "slave lacks CID_push: slave has an earlier version of the table, of " in text
        assert "that of master was changed last at 2026-11-21 " in text


def test_a_group_deleted_before_the_stop_is_left_in_an_earlier_version(pair: Pair) -> None:
    """The later version has fewer entries, and another configuration of one."""
    for store in pair:
        change_last(store, 2_000)

    def delete(tree: dict[str, Any]) -> None:
        del tree["subscriptionGroupTable"]["CID_push"]
        tree["subscriptionGroupTable"]["CID_tag"]["retryMaxTimes"] = 3
        tree["dataVersion"]["counter"] += 1

    change_table(pair[0], "subscriptionGroup.json", delete)
    certificate = certificate_of(*pair)
    assert certificate.verdict.contained == BEHIND
    assert "master lacks CID_push, the configuration of CID_tag differs" in text_of(certificate)


def test_a_version_that_is_too_old_makes_stores_different(pair: Pair) -> None:
    """The slave received messages for a minute after the last change, but not the table."""
    for store in pair:
        change_last(store, 60_000)
    change_table(pair[1], "subscriptionGroup.json", lose_group)
    for stores in (pair, pair[::-1]):
        certificate = certificate_of(*stores)
        assert certificate.verdict == DIFFERENT
        assert "60 s before the last message of slave: older than replication explains" in (
            text_of(certificate)
        )


def test_an_entry_that_is_lost_without_a_change_of_the_version_is_a_difference(pair: Pair) -> None:
    change_table(pair[1], "topics.json", lambda tree: tree["topicConfigTable"].pop("Keyed"))
    assert certificate_of(*pair).verdict == DIFFERENT


def test_what_another_replica_has_is_not_gone_since_an_earlier_state(pair: Pair) -> None:
    before = manifest_of(pair[0])
    for store in pair:
        change_last(store, 2_000)
    change_table(pair[1], "subscriptionGroup.json", lose_group)
    change_table(pair[1], "consumerOffset.json", a_backlog)
    certificate = certificate_of(*pair, earlier=[before])
    assert certificate.holds and "slave lacks CID_push: slave has an earlier" in text_of(
        certificate
    )
    alone = certificate_of(pair[1], earlier=[before])
    assert alone.verdict == DIFFERENT
    assert "slave lacks CID_push" in text_of(alone)
    assert "went back since master: CID_push in Normal queue 0 is 3, not 22" in text_of(alone)


def test_groups_that_every_start_creates_are_not_missing(pair: Pair) -> None:
    """A Java member that has just started has not written them yet."""

    def forget_initial_groups(tree: dict[str, Any]) -> None:
        for name in INITIAL_GROUPS:
            tree["subscriptionGroupTable"].pop(name, None)

    before = manifest_of(pair[1])
    change_table(pair[1], "subscriptionGroup.json", forget_initial_groups)
    assert certificate_of(*pair).verdict.word is Word.EQUAL
    assert "lacks" not in text_of(certificate_of(pair[1], earlier=[before]))
    change_table(
        pair[1],
        "subscriptionGroup.json",
        lambda tree: tree["subscriptionGroupTable"].pop("CID_push"),
    )
    assert "slave lacks CID_push" in text_of(certificate_of(*pair))


@pytest.mark.parametrize(
    ("attributes", "verdict"), [({}, EQUAL), ({"+message.type": "FIFO"}, DIFFERENT)]
)
def test_empty_attributes_of_5x_are_none(
    pair: Pair, attributes: dict[str, str], verdict: object
) -> None:
    def give(tree: dict[str, Any]) -> None:
        for settings in tree["topicConfigTable"].values():
            settings["attributes"] = attributes

    change_table(pair[1], "topics.json", give)
    assert certificate_of(*pair).verdict == verdict


@pytest.mark.parametrize(("minutes", "verdict"), [(15, EQUAL), (30, DIFFERENT)])
def test_default_settings_of_groups_in_5x_are_none(
    pair: Pair, minutes: int, verdict: object
) -> None:
    def give(tree: dict[str, Any]) -> None:
        for settings in tree["subscriptionGroupTable"].values():
            settings |= {
                "attributes": {},
                "consumeMessageOrderly": False,
                "consumeTimeoutMinute": minutes,
                "groupRetryPolicy": {"type": "CUSTOMIZED"},
                "groupSysFlag": 0,
            }

    change_table(pair[1], "subscriptionGroup.json", give)
    assert certificate_of(*pair).verdict == verdict
