"""The checks of tables while brokers run, which write their files some time after a change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from harness.replicas import Replicas

from rmqpy.audit.facts.table_content import GROUPS, OFFSETS, TOPICS
from rmqpy.model.names import INITIAL_GROUPS
from rmqpy.upgrade.checks.findings import CheckFinding, Group
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.checks.table_checks import tables_agree, tables_there
from rmqpy.upgrade.plan.survey import Survey


class RunningReplica(LocalReplica):
    """A replica whose broker runs."""

    def survey(self) -> Survey:
        survey = super().survey()
        return attrs.evolve(survey, manifest=attrs.evolve(survey.manifest, running=True))


@pytest.fixture
def pair(golden_copy: Callable[[str], Path]) -> Replicas:
    return Replicas(golden_copy("B-master-slave-v497"), ("master", "slave"), {})


def stopped(pair: Replicas) -> list[CheckFinding]:
    return list(results(pair.group()))


def running(pair: Replicas) -> list[CheckFinding]:
    found = []
    for each in pair.group().replicas:
        assert isinstance(each, LocalReplica)
        found.append(RunningReplica(each.files, each.plan))
    return list(results(Group(tuple(found))))


def results(group: Group) -> Iterator[CheckFinding]:
    yield from tables_agree(group)
    yield from tables_there(group)


def findings(found: list[CheckFinding]) -> list[str]:
    return [each.sentence for each in found if not each.is_note]


def remove(pair: Replicas, name: str, *tables: str) -> None:
    for table in tables:
        for suffix in ("", ".bak"):
            pair.path(name, f"config/{table}{suffix}").unlink(missing_ok=True)


def test_a_master_that_has_not_written_the_groups_of_every_start(pair: Replicas) -> None:
    """Its slave has copied and written them; as a leader the master would know them."""
    remove(pair, "master", GROUPS, OFFSETS)
    remove(pair, "slave", GROUPS, OFFSETS)
    rows = {each: {"groupName": each} for each in INITIAL_GROUPS}
    table = json.dumps({"subscriptionGroupTable": rows})
    pair.path("slave", f"config/{GROUPS}").write_text(table)
    assert findings(running(pair)) == []
    assert findings(stopped(pair)) == []


def test_what_a_running_broker_has_not_written_is_a_note(pair: Replicas) -> None:
    remove(pair, "master", GROUPS, OFFSETS)
    found = running(pair)
    assert findings(found) == []
    assert any("has not written it yet (check again when the" in each.sentence for each in found)
    assert any(
        f"master lacks {GROUPS}" in text or GROUPS in text for text in findings(stopped(pair))
    )


def test_offsets_that_a_running_slave_has_not_copied_are_a_note(pair: Replicas) -> None:
    path = pair.path("slave", f"config/{OFFSETS}")
    path.write_text(path.read_text().replace("22", "20"))
    (text,) = findings(stopped(pair))
    assert "slave is behind master" in text
    found = running(pair)
    assert findings(found) == []
    assert any("slave is behind master" in each.sentence for each in found)


def test_what_no_replication_explains_is_a_finding_while_brokers_run(pair: Replicas) -> None:
    path = pair.path("slave", f"config/{TOPICS}")
    table = json.loads(path.read_text())
    del table["topicConfigTable"][max(table["topicConfigTable"])]
    path.write_text(json.dumps(table))
    assert findings(running(pair)) == findings(stopped(pair)) != []


def forget_topics(pair: Replicas, *names: str) -> None:
    for name in names:
        path = pair.path(name, "config/topics.json")
        table = json.loads(path.read_text())
        for topic in ("Keyed", "Normal", "%RETRY%CID_retry", "SCHEDULE_TOPIC_XXXX"):
            del table["topicConfigTable"][topic]
        path.write_text(json.dumps(table))


def test_topics_that_all_replicas_have_lost_are_found(pair: Replicas) -> None:
    """A broker creates retry topics and its own ones by itself."""
    forget_topics(pair, "master", "slave")
    (found,) = findings(stopped(pair))
    assert "2 topics with messages on all replicas are in no topics.json: Keyed, Normal;" in found
    assert found in findings(running(pair))


def test_a_topic_that_was_deleted_on_the_master_is_not_lost(pair: Replicas) -> None:
    """The queues of a slave stay."""
    forget_topics(pair, "master", "slave")
    for topic in ("Keyed", "Normal"):
        shutil.rmtree(pair.path("master", f"consumequeue/{topic}"))
    assert findings(stopped(pair)) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"topicConfigTable":{}}'])
def test_a_damaged_table_does_not_count_as_one_without_topics(pair: Replicas, content: str) -> None:
    """Another check reports it."""
    for name in ("master", "slave"):
        pair.path(name, "config/topics.json").write_text(content)
    assert not any("in no topics.json" in each for each in findings(stopped(pair)))
