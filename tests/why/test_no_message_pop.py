"""``rmqpy why no-message`` for groups that receive by POP, with stores that Java 5.3.3 wrote.

The group with the long name received four messages and acknowledged the first; the others returned
to it. ``another`` received five messages for an hour and acknowledged two, ``third`` received five.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from why.conftest import Ran

from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.unread.pop import PopReceipt
from rmqpy.store.unread.rocksdb_reader import can_read_rocksdb
from rmqpy.why.answer import Answer
from rmqpy.why.gathering.messages import no_message_facts
from rmqpy.why.message_id import parse_message_id
from rmqpy.why.questions.message_facts import NoMessageFacts, PopFacts, QueueFacts
from rmqpy.why.questions.no_message import explain_no_message
from rmqpy.why.sources.directory import StoreDirectorySource

TOPIC = "a-topic-of-a-hundred-letters-".ljust(100, "t")
GROUP = "a-group-of-forty-letters-".ljust(40, "g")
LATER_MS = 1_900_000_000_000
POPPED_MS = 1_795_472_370_651
"""When ``another`` received its messages; they return an hour later."""
STORES = [
    "log",
    pytest.param(
        "kv", marks=pytest.mark.skipif(not can_read_rocksdb(), reason="without rmqpy[rocksdb]")
    ),
]

pytestmark = pytest.mark.slow


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> Path:
    return golden("F-pop-v533") / str(request.param)


def facts_of(store: Path, group: str, *, key: str = "", now_ms: int = LATER_MS) -> NoMessageFacts:
    source = StoreDirectorySource(OsFileSystem(), str(store))
    wanted = parse_message_id(key, now_ms) if key else None
    return no_message_facts(source, now_ms, wanted, TOPIC, group)


def first(facts: NoMessageFacts) -> str:
    return explain_no_message(facts).causes[0].text


def texts(answer: Answer) -> list[str]:
    return [cause.text for cause in answer.causes]


@pytest.mark.parametrize(("group", "count"), [("another", 3), ("third", 5)])
def test_messages_that_are_not_acknowledged_are_counted(
    store: Path, group: str, count: int
) -> None:
    facts = facts_of(store, group)
    answer = explain_no_message(facts)
    assert answer.causes[0].text.startswith(
        f"{count} messages were received by POP and not acknowledged in time"
    )
    assert answer.causes[0].evidence == (f"{TOPIC} queue 0: {count} messages",)
    assert answer.is_proven
    before = first(evolve(facts, now_ms=min(each.returns_ms for each in facts.pop.receipts) - 1))
    assert f"{count} messages were received by POP and are not acknowledged: other" in before


def test_returned_messages_are_counted(store: Path) -> None:
    """The three messages are in the retry topic, and the group has not received them again."""
    found = texts(explain_no_message(facts_of(store, GROUP)))
    retry = f"%RETRY%{GROUP}_{TOPIC}"
    assert (
        f"3 messages in {retry}: received by POP, not acknowledged, and returned to the group"
        in found
    )
    assert not any("in time" in each for each in found)


def test_a_message_is_followed(golden: Callable[[str], Path]) -> None:
    store = golden("F-pop-v533") / "log"
    assert "acknowledged it: it was consumed" in first(facts_of(store, GROUP, key="key0"))
    assert "received it by POP 1 time and did not ack" in first(facts_of(store, GROUP, key="key2"))
    assert "has not reached it" in first(facts_of(store, GROUP, key="key7"))
    due = first(facts_of(store, "another", key="key3"))
    assert "Its time was over 2026-11-23 23:19:30+00:00" in due
    invisible = first(facts_of(store, "another", key="key3", now_ms=POPPED_MS + 60_000))
    assert "other clients do not see it until 2026-11-23 23:19:30+00:00, in 59 min" in invisible


def test_a_message_without_a_record_in_rocksdb_was_acknowledged(store: Path) -> None:
    """An acknowledgement removes the record there; a record of the log stays."""
    text = first(facts_of(store, "another", key="key0"))
    assert "acknowledged" in text
    assert "has not reached it" not in text


def test_what_the_reviver_has_handled_does_not_wait(golden: Callable[[str], Path]) -> None:
    facts = facts_of(golden("F-pop-v533") / "log", "third")
    receipts = tuple(evolve(each, handled=True) for each in facts.pop.receipts)
    answer = explain_no_message(evolve(facts, pop=PopFacts(receipts=receipts)))
    assert not any("POP" in each for each in texts(answer))
    one = facts_of(golden("F-pop-v533") / "log", "third", key="key1")
    gone = first(evolve(one, pop=PopFacts(receipts=receipts)))
    assert "The broker has returned it to the group since" in gone


def test_a_store_without_pop_says_nothing(store_of: Callable[[str], Path]) -> None:
    source = StoreDirectorySource(OsFileSystem(), str(store_of("A-classic-clean-v497")))
    facts = no_message_facts(source, LATER_MS, None, "Normal", "CID_push")
    assert facts.pop == PopFacts()


def test_records_in_rocksdb_without_the_library_are_named(
    golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqpy.why.sources.directory.can_read_rocksdb", lambda: False)
    answer = explain_no_message(facts_of(golden("F-pop-v533") / "kv", "third"))
    assert any("pip install 'rmqpy[rocksdb]'" in each for each in answer.not_examined)


class ManyRecords(StoreDirectorySource):
    """A running broker with more records of POP than are read."""

    is_live = True

    def settings(self) -> tuple[Any, str]:
        values, name = super().settings()
        return {**values, "popConsumerKVServiceInit": "true"}, name

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int] | None:
        return (0, 2000) if topic.startswith("rmq_sys_") else super().bounds(topic, queue_id)

    def pop_records_in_rocksdb(self) -> list[PopReceipt] | None:
        return None


def test_what_is_not_read_of_a_running_broker_is_named(golden: Callable[[str], Path]) -> None:
    source = ManyRecords(OsFileSystem(), str(golden("F-pop-v533") / "log"))
    facts = no_message_facts(source, LATER_MS, None, TOPIC, "third")
    answer = explain_no_message(facts)
    assert "records of POP in rmq_sys_wheel_timer queue 0 before offset 1500" in answer.not_examined
    assert any("popConsumerKVServiceInit=true" in each for each in answer.not_examined)


def test_a_running_broker_is_asked_for_its_progress(golden: Callable[[str], Path]) -> None:
    facts = evolve(facts_of(golden("F-pop-v533") / "log", "third"), is_live=True)
    cause = explain_no_message(facts).causes[0]
    assert any("consumerProgress -g CID_RMQ_SYS_REVIVE_GROUP" in each for each in cause.next)


def test_the_command_reads_a_store(golden: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    store = golden("F-pop-v533") / "log"
    ran = run("why", "no-message", store, "-t", TOPIC, "-g", "third", "--format", "json")
    assert "5 messages were received by POP" in ran.json["causes"][0]["text"]
    assert ran.code == 0


def test_retry_topics_of_both_versions_count(golden: Callable[[str], Path]) -> None:
    facts = facts_of(golden("F-pop-v533") / "log", "third")
    assert facts.group is not None
    queue = QueueFacts(queue_id=0, first=0, end=4, offset=1)
    retries = ((f"%RETRY%third+{TOPIC}", queue),)
    answer = explain_no_message(evolve(facts, group=evolve(facts.group, pop_retries=retries)))
    assert any(f"3 messages in %RETRY%third+{TOPIC}" in each for each in texts(answer))
