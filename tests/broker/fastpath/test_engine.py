"""The fast path and Python behave alike on recorded frames, and share their state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import define, evolve
from harness.fastpath import PULL_FIELDS, SEND_FIELDS, BrokerPair, MakeBrokerPair, SingleMember

from rmqpy.broker.services.flush import COMPANY_MS
from rmqpy.codec.message import encode_message
from rmqpy.config.keys import FlushDiskType
from rmqpy.dledger.node import Proposal
from rmqpy.model.message import marker
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder

GOLDEN_FRAMES = Path(__file__).parents[2] / "golden" / "wire" / "frames.jsonl"


def test_equal_on_recorded_frames(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    """Every recorded send and pull of Java clients is sent twice."""
    both = pair()
    frames = [
        bytes.fromhex(line["frame"])
        for line in map(json.loads, GOLDEN_FRAMES.read_text().splitlines())
        if line["type"] != "response" and line["code"] in (10, 310, 320, 11)
    ]
    assert len(frames) > 20
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for frame in frames * 2:
            side.receive(0, frame)
            side.end_turn()
    assert_same(both)


def _sends(count: int, **fields: str) -> bytes:
    header = {**SEND_FIELDS, **fields}
    return b"".join(
        encode_command(RemotingCommand(310, n, ext_fields=header, body=b"b" * 100))
        for n in range(count)
    )


def _pull(**fields: str) -> RemotingCommand:
    return RemotingCommand(11, ext_fields={**PULL_FIELDS, **fields})


def test_plain_sends_and_pulls_take_the_fast_path(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    """The comparison above would also pass if C left every request to Python."""
    both = pair()
    pull = _pull()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(3):
            side.receive(0, _sends(200))
            side.end_turn()
        for _ in range(5):
            side.receive(0, encode_command(pull))
            side.end_turn()
    assert_same(both)
    fast = both[1]
    assert fast.handed_back[310] <= 32, "at most those after the first one of a buffer"
    assert fast.handed_back[11] == 1


TAGGED = "TAGS\x01TagA\x02UNIQ_KEY\x01u"


@pytest.mark.parametrize(
    ("expression", "offset", "code"),
    [
        ("TagA", 0, 0),
        ("x||TagA", 0, 0),
        ("  x  || TagA |||| ", 0, 0),
        ("TagB", 0, 20),
        ("Tag", 0, 20),
        ("x|TagA", 0, 20),
        ("TagA", 40, 19),
        ("*", 40, 19),
    ],
)
def test_pulls_by_tag_take_the_fast_path(
    expression: str,
    offset: int,
    code: int,
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
) -> None:
    """Also those that find nothing, because no message has the tag or the queue has ended."""
    both = pair()
    pull = _pull(subscription=expression, queueOffset=str(offset))
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40, i=TAGGED))
        side.end_turn()
        for _ in range(3):
            side.receive(0, encode_command(pull))
            side.end_turn()
        assert side.harness.broker.statistics.counters.get_miss == (3 if code else 0)
    assert_same(both)
    fast = both[1]
    assert fast.handed_back[11] == 1, "the first, from which C learns the group"


@pytest.mark.parametrize(
    "expression", ["||", " ", "Täg", "Tag\tA", " || ".join(f"tag{n}" for n in range(33))]
)
def test_python_reads_unusual_tag_expressions(
    expression: str, pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40, i=TAGGED))
        side.end_turn()
        for _ in range(3):
            side.receive(0, encode_command(_pull(subscription=expression)))
            side.end_turn()
    assert_same(both)
    assert both[1].handed_back[11] == 3


@pytest.mark.parametrize(
    ("properties", "flag"),
    [
        ("DELAY\x013\x02UNIQ_KEY\x01u\x02WAIT\x01true", "0"),
        ("UNIQ_KEY\x01u\x02DELAY\x01099", "0"),
        ("TRAN_MSG\x01true\x02PGROUP\x01PG\x02WAIT\x01true\x02UNIQ_KEY\x01u", "4"),
        ("REAL_QID\x017\x02TRAN_MSG\x01true", "0"),
    ],
    ids=["delayed", "beyond the last level", "half", "half, sent again"],
)
def test_messages_that_wait_take_the_fast_path(
    properties: str,
    flag: str,
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for sends in (_sends(40), _sends(9, i=properties, f=flag), _sends(9)):
            side.receive(0, sends)
            side.end_turn()
        side.receive(0, _sends(5, i=properties, f=flag, e="3"))
        side.receive(0, _sends(5, i=properties, f=flag))
        side.end_turn()
    assert_same(both)
    fast = both[1]
    assert fast.handed_back[310] <= 32 + 5, "the first sends to queue 0 and to queue 3"


def test_python_refuses_half_messages_if_the_broker_rejects_them(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(reject_transaction_message=True)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        side.receive(0, _sends(5, i="TRAN_MSG\x01true"))
        side.end_turn()
    assert_same(both)
    assert both[1].harness.store.log.max_offset == both[0].harness.store.log.max_offset


def test_no_pull_takes_the_fast_path_while_slow_consumers_are_checked(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(disable_consume_if_consumer_read_slowly=True)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        for _ in range(5):
            side.receive(0, encode_command(_pull()))
            side.end_turn()
    assert_same(both)
    assert both[1].handed_back[11] == 5


@pytest.mark.slow
def test_a_paused_feed_leaves_requests_to_python(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
    fast = both[1]
    known = fast.handed_back[310]
    fast.feed.pause(True)
    for side in both:
        side.receive(0, _sends(100))
        side.end_turn()
    assert fast.handed_back[310] == known + 100
    fast.feed.pause(False)
    for side in both:
        side.receive(0, _sends(100))
        side.end_turn()
    assert fast.handed_back[310] == known + 100
    assert_same(both)


def test_an_arrival_resumes_held_pulls(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(50))
        side.end_turn()
        pull = side.harness.pull_command(queue_offset=50, sys_flag=6)
        side.harness.deliver(pull)
        assert side.harness.broker.hold.count == 1
        side.receive(0, _sends(40))
        side.end_turn()
        assert side.harness.broker.hold.count == 0
        assert len(side.harness.channel.take_one().body) > 0
    assert_same(both)


def test_nothing_is_answered_when_the_write_fails(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        side.channels[0].take()
        side.harness.files.fail_write("/commitlog/")
        side.receive(0, _sends(10))
        side.end_turn()
        answers = side.channels[0].take()
        assert [answer.code for answer in answers] == [14] * 10
    assert_same(both)


def test_a_deleted_topic_starts_again_at_offset_0(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        for _ in range(2):
            side.receive(0, _sends(40))
            side.end_turn()
        delete = RemotingCommand(215, ext_fields={"topic": "T"})
        side.receive(0, encode_command(delete))
        side.end_turn()
        side.channels[0].take()
        side.receive(0, _sends(40))
        side.end_turn()
        assert side.channels[0].take()[0].ext_fields["queueOffset"] == "0"
    assert_same(both)


def test_sync_flush_replies_wait(
    pair: MakeBrokerPair, assert_same: Callable[[BrokerPair], None]
) -> None:
    both = pair(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        side.receive(0, _sends(40))
        side.harness.broker.store.appender.commit()
        assert len(side.channels[0].written) in (0, 40)
        side.end_turn()
        side.harness.scheduler.run_until_idle()
        side.harness.scheduler.advance(COMPANY_MS)
        assert len(side.channels[0].written) == 80
    assert_same(both)


def test_late_replies_have_the_timeout_code(pair: MakeBrokerPair) -> None:
    from rmqpy.broker.processors.send import SendReplies
    from rmqpy.model.codes import PutMessageStatus

    _, fast = pair()
    fast.connect(("10.0.0.1", 1234))
    for _ in range(2):
        fast.receive(0, _sends(40))
        fast.end_turn()
    frames = fast.channels[0].written[-3:]
    replies = SendReplies(fast.harness.broker.identity)
    late = replies.on_ack_timeout(b"".join(frames), PutMessageStatus.FLUSH_DISK_TIMEOUT)
    commands = FrameDecoder().receive(late)
    assert [command.code for command in commands] == [10] * 3
    for before, after in zip(frames, commands, strict=True):
        sent = decode_command(memoryview(before)[4:])
        assert evolve(after, code=0, header_type=None) == evolve(sent, header_type=None)


@pytest.mark.slow
@pytest.mark.parametrize("subscription", ["*", "tag that nothing has"])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (8, (400).to_bytes(4)),
        (8, bytes(4)),
        (8, b"\xff" * 4),
        (0, (1 << 40).to_bytes(8)),
        (0, bytes(8)),
        (0, b"\xff" * 8),
        (0, (1 << 63).to_bytes(8)),
    ],
    ids=[
        "size",
        "no size",
        "size below 0",
        "after the log",
        "wrong message",
        "offset below 0",
        "smallest offset",
    ],
)
def test_units_that_point_to_wrong_places_are_skipped(
    pair: MakeBrokerPair,
    assert_same: Callable[[BrokerPair], None],
    place: int,
    value: bytes,
    subscription: str,
) -> None:
    """Both skip the units, and record that the queue must be rebuilt."""
    both = pair()
    for side in both:
        side.connect(("10.0.0.1", 1234))
        side.receive(0, _sends(40))
        side.end_turn()
        (path,) = [name for name in side.harness.files.nodes if "/consumequeue/T/0/" in name]
        file = side.harness.files.open(path)
        file.write(20 * 7 + place, value)
        file.close()
        side.channels[0].take()
        for begin in (0, 7, 39):
            pull = side.harness.pull_command(
                queue_offset=begin, sys_flag=4, subscription=subscription, max_msg_nums=32
            )
            side.receive(0, encode_command(pull))
            side.end_turn()
        answers = side.channels[0].take()
        recorded = "queuesToBuildAgain" in side.harness.store.runtime_info()
        if subscription == "*":
            assert answers[1].ext_fields["nextBeginOffset"] == "40" and recorded
        # Messages that do not match are not read, unless the unit cannot point to a message at all.
        assert recorded or (place, value) in ((8, (400).to_bytes(4)), (0, bytes(8)))
    assert_same(both)


@pytest.mark.parametrize("cleared", [False, True])
def test_units_that_c_has_written_are_flushed(pair: MakeBrokerPair, cleared: bool) -> None:
    """C writes to known queues without a call of Python that notes it, also before its tables are
    discarded.
    """
    _, fast = pair()
    store = fast.harness.store
    queue = None
    fast.connect(("10.0.0.1", 1234))
    for _ in range(3):
        fast.receive(0, _sends(50))
        fast.end_turn()
        if queue is not None and cleared:
            cast(Any, fast.feed)._tables.clear()
        queue = store.queues.find("T", 0)
        assert queue is not None and queue.take_sync() is not None
        task = store.flush_tracker.queue_flush_task()
        assert task is not None and [sync.queue for sync in task.queues] == [queue]
        task.run()
        store.flush_tracker.queues_flushed(task)
        assert queue.take_sync() is None
    assert fast.handed_back[310] < 150, "C has stored messages"


@define
class NewLeader(SingleMember):
    """A member that becomes the leader while it is asked for a grant, and appends its marker."""

    marked: bool = False

    def grant(self) -> tuple[Proposal, int]:
        if not self.marked:
            self.marked = True
            proposal, _ = SingleMember.grant(self)
            self.proposed += 1
            record = bytearray(encode_message(marker("", (bytes([127, 0, 0, 1]), 1), 1)))
            self.entries.append(proposal.term, proposal.first_index, [record], 1)
        return SingleMember.grant(self)


def test_a_marker_that_is_appended_during_a_grant_is_not_counted_as_granted(
    pair: MakeBrokerPair,
) -> None:
    """Every later append failed: the member expected it one index further."""
    _, fast = pair(
        enable_dledger_commit_log=True,
        dledger_group="broker-a",
        dledger_peers="n0-127.0.0.1:40911",
        dledger_self_id="n0",
    )
    fast.connect(("10.0.0.1", 1234))
    fast.receive(0, _sends(3))
    fast.end_turn()
    log = fast.harness.store.opened.dledger
    assert log is not None and log.entries.end.index == 2
    log.set_proposer(NewLeader(log.entries, limit=10_000, proposed=2))
    for _ in range(2):
        fast.receive(0, _sends(3))
        fast.end_turn()
    codes = [decode_command(memoryview(frame)[4:]).code for frame in fast.channels[0].written]
    assert codes == [0] * 9
    assert log.entries.end.index == 9, "nine messages and the marker"
