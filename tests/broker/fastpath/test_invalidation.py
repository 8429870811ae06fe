"""What the fast path has learned is discarded when its topic or group changes, and only then."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast
from weakref import ref

import pytest
from harness.calls import asked, calls
from harness.fastpath import (
    PULL_FIELDS,
    SEND_FIELDS,
    BrokerPair,
    FallbackDriver,
    FastPathDriver,
    MakeBrokerPair,
    PromptSlave,
)

from rmqpy.broker.fastpath import tables
from rmqpy.config.keys import BrokerRole
from rmqpy.model.codes import ResponseCode
from rmqpy.model.names import SCHEDULE_TOPIC, TRANSACTION_HALF_TOPIC
from rmqpy.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

Side = FallbackDriver | FastPathDriver


def send(topic: str = "T", queue_id: int = 0) -> RemotingCommand:
    properties = SEND_FIELDS["i"] + "\x02TAGS\x01TagA"
    fields = {**SEND_FIELDS, "b": topic, "e": str(queue_id), "i": properties}
    return RemotingCommand(310, ext_fields=fields, body=b"b" * 100)


def pull(
    group: str = "CG", topic: str = "T", queue_id: int = 0, offset: int = 0
) -> RemotingCommand:
    fields = {**PULL_FIELDS, "consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    fields["queueOffset"] = str(offset)
    return RemotingCommand(11, ext_fields=fields)


def heartbeat(group: str, sub_string: str = "*", version: int = 1) -> RemotingCommand:
    codes = [] if sub_string == "*" else [1]
    subscription = SubscriptionData("T", sub_string, [], codes, version)
    consumer = ConsumerData(
        group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", [subscription]
    )
    body = HeartbeatData(f"client-of-{group}", [], [consumer]).encode()
    return RemotingCommand(34, body=body)


def topic(name: str, queues: int = 4, perm: int = 6) -> RemotingCommand:
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return RemotingCommand(17, ext_fields=fields)


def group(name: str, enabled: bool) -> RemotingCommand:
    body = SubscriptionGroupConfig(group_name=name, consume_enable=enabled).encode()
    return RemotingCommand(200, body=body)


def run(side: Side, *commands: RemotingCommand) -> list[RemotingCommand]:
    """Return the answers to ``commands``, each sent in a turn of its own."""
    answers = []
    for command in commands:
        side.receive(0, encode_command(command))
        side.end_turn()
        side.harness.scheduler.run_until_idle()
        side.end_turn()
        answers += side.channels[0].take()
    return answers


def learned(pair: MakeBrokerPair, shared_max: int = 100) -> BrokerPair:
    """Return brokers with messages in each queue of T, of which C knows the queues and CG."""
    both = pair()
    both[1].harness.store.queues.shared_max = shared_max
    for side in both:
        side.connect(("10.0.0.1", 1234))
        run(side, heartbeat("CG"))
        for _ in range(3):
            run(side, *(send(queue_id=queue_id) for queue_id in range(4)))
            run(side, *(pull(queue_id=queue_id) for queue_id in range(4)))
        both[1].handed_back.clear()
    return both


def use(name: str) -> list[RemotingCommand]:
    of_topic = [each(topic=name) for each in (send, pull) for _ in range(2)]
    return [topic(name), *of_topic]


def delete(name: str) -> RemotingCommand:
    return RemotingCommand(215, ext_fields={"topic": name})


def use_all(side: Side) -> list[RemotingCommand]:
    return run(side, *(each(queue_id=queue_id) for queue_id in range(4) for each in (send, pull)))


UNRELATED: dict[str, Callable[[int], list[RemotingCommand]]] = {
    "new topic": lambda number: [topic(f"new-{number}")],
    "new group": lambda number: [group(f"new-{number}", True)],
    "new consumer": lambda number: [heartbeat(f"new-{number}")],
    "other topic": lambda number: [topic("U", queues=1 + number)],
    "deleted topic": lambda _: [*use("U"), delete("U")],
    "expired queues": lambda _: [*use("U"), RemotingCommand(306)],
}


@pytest.mark.parametrize("change", UNRELATED)
def test_a_change_of_others_costs_nothing(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], change: str
) -> None:
    """Before, each of them made one request for each queue in use fall back."""
    both = learned(pair)
    for number in range(3):
        for side in both:
            run(side, *UNRELATED[change](number))
            both[1].handed_back.clear()
            assert [answer.code for answer in use_all(side)] == [0] * 8
        assert not both[1].handed_back
    assert_same(both)


def test_a_changed_topic_is_learned_again_with_one_request(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair)
    for side in both:
        run(side, topic("T", queues=8))
        assert [answer.code for answer in use_all(side)] == [0] * 8
        assert run(side, send(queue_id=7))[0].code == 0
    assert_same(both)
    assert (both[1].handed_back[310], both[1].handed_back[11]) == (2, 1)


def test_fewer_and_again_more_queues(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair)
    for side in both:
        run(side, topic("T", queues=2))
        codes = [answer.code for answer in run(side, *map(lambda n: send(queue_id=n), range(4)))]
        assert codes == [0, 0, 1, 1]
        codes = [answer.code for answer in run(side, *map(lambda n: pull(queue_id=n), range(4)))]
        assert codes == [0, 0, 1, 1]
        run(side, topic("T", queues=4))
        assert [answer.code for answer in use_all(side)] == [0] * 8
    assert_same(both)


def test_a_topic_that_is_closed_is_refused(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair)
    for side in both:
        run(side, topic("T", perm=2))
        assert [answer.code for answer in run(side, send(), pull())] == [0, 16]
        run(side, topic("T", perm=4))
        assert run(side, pull())[0].code == 0
    assert_same(both)


def test_a_group_that_is_disabled_is_refused(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair)
    for side in both:
        run(side, group("CG", False))
        assert [answer.code for answer in run(side, send(), pull())] == [0, 16]
        run(side, group("CG", True))
        assert [answer.code for answer in run(side, pull(), pull())] == [0, 0]
    assert_same(both)
    assert (both[1].handed_back[310], both[1].handed_back[11]) == (0, 2)


def test_a_changed_subscription_is_used(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair)
    for side in both:
        of_group = pull()
        of_group.ext_fields["sysFlag"] = "0"
        assert [answer.code for answer in run(side, of_group, of_group)] == [0, 0]
        run(side, heartbeat("CG", "TagB", 2))
        assert [answer.code for answer in run(side, of_group, of_group)] == [20, 20]
    assert_same(both)


def test_more_names_than_slots(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, a table that was full forgot all of its entries."""
    monkeypatch.setattr("rmqpy.broker.fastpath.tables.NAMES_FIRST", 4)
    both = pair()
    names = [f"topic-{number}" for number in range(40)]
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for number in range(3):
            if number == 1:
                both[1].handed_back.clear()
            run(side, *(send(name) for name in names), *(pull("CG", name) for name in names))
    assert_same(both)
    assert both[1].handed_back[310] == 0
    assert both[1].handed_back[11] <= 40, "the first pull of each topic"


def test_readers_beyond_the_maximum(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new reader takes the place of a discarded one, or is left to Python."""
    monkeypatch.setattr("rmqpy.broker.fastpath.tables.READERS_MAX", 3)
    monkeypatch.setattr("rmqpy.broker.fastpath.tables.NAMES_FIRST", 4)
    both = learned(pair)
    for side in both:
        for number in range(12):
            run(side, heartbeat(f"G{number}"), pull(f"G{number}"), pull(f"G{number}"))
            run(side, group("G1", bool(number % 2)))
            run(side, *(pull(f"G{each}") for each in range(number)), pull())
    assert_same(both)
    fast = both[1]
    before = fast.handed_back[11]
    run(fast, pull())
    assert fast.handed_back[11] == before, "CG keeps its place"


def test_a_master_without_the_replicas_it_needs_refuses_on_the_fast_path(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    """``minInSyncReplicas``: C must not store what the processors would refuse."""
    both = learned(
        lambda: pair(broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=3, min_in_sync_replicas=2)
    )
    for side in both:
        slaves = side.harness.broker.replication.slaves
        assert isinstance(slaves, PromptSlave)
        codes = []
        for slaves.count in (2, 1, 0, 2):
            codes += [answer.code for answer in run(side, send())]
        assert codes == [0, 11, 1, 0]
    assert_same(both)
    assert both[1].handed_back[310] == 2


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
def test_the_fast_path_asks_for_slaves_once_for_all_sends_of_a_turn(
    pair: MakeBrokerPair, role: BrokerRole
) -> None:
    """Only on a synchronous master. A broker without slaves asks nothing."""
    fast = learned(lambda: pair(broker_role=role))[1]
    before = fast.handed_back[310]
    with calls() as found:
        fast.receive(0, encode_command(send()) * 20)
        fast.end_turn()
    fast.harness.scheduler.run_until_idle()
    fast.end_turn()
    assert len(fast.channels[0].take()) == 20
    assert fast.handed_back[310] == before, "the fast path has answered them"
    asks = {"required_marks": 1, "in_sync_count": 1}
    assert asked(found) == (asks if role is BrokerRole.SYNC_MASTER else {})


def test_a_topic_that_is_deleted_and_created_again_starts_empty(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C must use neither the queues nor the queue offsets that it knows. Their places in its tables
    are used again.
    """
    both = learned(pair)
    entries = cast(Any, both[1].feed)._tables
    monkeypatch.setattr(tables, "TOPICS_MAX", len(entries._topic_order) + 1)
    monkeypatch.setattr(tables, "QUEUES_MAX", len(entries._queue_names) + 4)
    for number in range(3):
        for side in both:
            assert run(side, delete("T"), pull())[-1].code == ResponseCode.TOPIC_NOT_EXIST
            run(side, topic("T", queues=8 - 2 * number), topic("T"))
            assert [answer.code for answer in run(side, *map(each_queue, range(4)))] == [0] * 4
            assert [answer.code for answer in use_all(side)] == [0] * 8
            if side is both[1]:
                both[1].handed_back.clear()
            assert [answer.code for answer in use_all(side)] == [0] * 8
            assert {queue.max_offset for queue in side.harness.store.queues} == {3}
        assert not both[1].handed_back, "C has learned all of it again"
        for side in both:
            for name in ("U", "V"):
                run(side, *use(name), delete(name))
    assert_same(both)


def each_queue(queue_id: int) -> RemotingCommand:
    return send(queue_id=queue_id)


@pytest.mark.parametrize("queues_max", [1 << 20, 1])
def test_a_queue_that_is_deleted_and_created_again_between_two_turns_of_c(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    monkeypatch: pytest.MonkeyPatch,
    queues_max: int,
) -> None:
    """Also if C knows only where the next queue offset is, which belongs to another queue then."""
    monkeypatch.setattr(tables, "QUEUES_MAX", queues_max)
    both = learned(pair)
    fast_path = cast(Any, both[1].feed)
    assert len(fast_path._tables._queues) == min(queues_max, 4)
    for side in both:
        store = side.harness.store
        store.delete_topic_queues("T")
        for number in range(4):
            store.appender.tails.index_of((b"another", number))
        store.queues.of("T", 0)
        if side is both[1]:
            fast_path.refresh()
            assert not fast_path._tables._queues
        assert [answer.code for answer in run(side, *map(each_queue, range(4)))] == [0] * 4
        assert {queue.max_offset for queue in store.queues} == {1}
        assert [answer.code for answer in use_all(side)] == [0] * 8
    assert_same(both)


def test_removed_files_of_one_queue_cost_the_others_nothing(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    """Before, each file that expired made one request for each queue in use fall back."""
    both = learned(
        lambda: pair(
            mapped_file_size_commit_log=8192, mapped_file_size_consume_queue=400, delete_when=()
        )
    )
    fast = both[1]
    for side in both:
        harness = side.harness
        harness.files.now_ms = harness.scheduler.now_ms()
        harness.scheduler.advance(61_000)  # The first check of transactions creates their topics.
        for _ in range(60):
            run(side, send())
        assert len(harness.store.queues.of("T", 0).segments) > 2
        run(side, pull(offset=0), pull(offset=63 - 4))
        for queue_id in range(1, 4):
            run(side, send(queue_id=queue_id), pull(queue_id=queue_id, offset=3))
    views = cast(Any, fast.feed)._tables._queues["T", 0].files
    assert len(views._mapped) == 2
    for side in both:
        harness = side.harness
        harness.scheduler.jump_wall_clock(73 * 3_600_000)
        assert harness.call(329).code == 0
        harness.scheduler.advance(60_000)
        assert harness.store.queues.of("T", 0).segments.min_offset > 0
        for queue_id in range(1, 4):
            newest = int(harness.store.queues.of("T", queue_id).max_offset)
            run(side, send(queue_id=queue_id), pull(queue_id=queue_id, offset=newest))
            if queue_id == 1:
                fast.handed_back.clear()  # C learns the file of the log that the cleaning has left.
    assert not fast.handed_back
    remaining = set(fast.harness.store.queues.of("T", 0).segments)
    assert set(views._mapped) <= remaining, "the disk has the space of removed files"
    for side in both:
        run(side, send(), pull(offset=61), pull(offset=0))
    assert_same(both)


@pytest.mark.parametrize("cause", ["created", "expired", "deleted"])
def test_a_topic_in_which_messages_wait_costs_the_others_nothing(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None], cause: str
) -> None:
    """Before, the first check of transactions, and each file of delayed messages that expired, made
    one request for each queue in use fall back.
    """
    both = learned(pair)
    fast = both[1]
    for side in both:
        harness = side.harness
        if cause == "created":
            harness.scheduler.advance(61_000)
            assert TRANSACTION_HALF_TOPIC in harness.broker.topics
        elif cause == "expired":
            harness.store.queues.changes.note(SCHEDULE_TOPIC)
        else:
            run(side, *delayed(2))
            harness.store.delete_topic_queues(SCHEDULE_TOPIC)
            assert harness.store.queues.find(SCHEDULE_TOPIC, 2) is None
        assert [answer.code for answer in run(side, *delayed(2))] == [0] * 2
        assert harness.store.queues.of(SCHEDULE_TOPIC, 2).max_offset == 2
        fast.handed_back.clear()
        assert [answer.code for answer in use_all(side)] == [0] * 8
        assert [answer.code for answer in run(side, *delayed(1))] == [0]
    assert not fast.handed_back
    assert_same(both)


def delayed(count: int) -> list[RemotingCommand]:
    command = send()
    command.ext_fields["i"] += "\x02DELAY\x013"
    return [command] * count


def test_discarded_entries_are_freed_little_by_little(
    pair: MakeBrokerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 200,000 queues at once would take a tenth of a second of one turn."""
    fast = learned(pair)[1]
    monkeypatch.setattr(tables, "FREED_AT_ONCE", 0)
    fast_path = cast(Any, fast.feed)
    entries = [ref(entry) for entry in fast_path._tables._queues.values()]
    assert len(entries) == 4
    fast.harness.store.queues.changes.note_all()
    assert [answer.code for answer in use_all(fast)] == [0] * 8, "they are learned again"
    alive = [4]
    monkeypatch.setattr(tables, "FREED_AT_ONCE", 1)
    for _ in range(200):
        fast_path.refresh()
        alive.append(sum(entry() is not None for entry in entries))
    assert alive[-1] == 0 and {before - after for before, after in pairwise(alive)} == {0, 1}


def test_queues_take_turns_if_c_may_not_have_the_files_of_all(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = learned(pair, shared_max=2)
    fast = both[1]
    queues = fast.harness.store.queues
    for _ in range(3):
        assert use_all(both[0]) == use_all(fast)
        assert {queue.name for queue in queues.shared} == {("T", 2), ("T", 3)}
        assert {queue.name for queue in queues if queue.is_open} == {("T", 2), ("T", 3)}
    both[1].handed_back.clear()
    for side in both:
        run(side, send(queue_id=2), pull(queue_id=2), send(queue_id=3))
    assert not fast.handed_back, "C has the files of these"
    for side in both:
        side.harness.store.flush_tracker.flush_queues()
    assert_same(both)
