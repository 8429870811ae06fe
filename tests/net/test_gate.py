"""The reply gate: every reply exactly once, never before its watermarks, joined per channel."""

from __future__ import annotations

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqpy.model.codes import PutMessageStatus
from rmqpy.net.pending_replies import AckTimeout, PendingReplies, PendingReply
from rmqpy.store.files.watermark import Watermark
from rmqpy.testing.manual_scheduler import ManualScheduler

FLUSHED = AckTimeout(5000, PutMessageStatus.FLUSH_DISK_TIMEOUT)
REPLICATED = AckTimeout(3000, PutMessageStatus.FLUSH_SLAVE_TIMEOUT)
WRITTEN = AckTimeout(5000, PutMessageStatus.UNKNOWN_ERROR)


@define(eq=False)
class Bytes:
    """A channel that keeps its writes."""

    writes: list[bytes] = field(factory=list)
    peer: tuple[str, int] = ("127.0.0.1", 1)
    closed: bool = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


@define
class Scene:
    scheduler: ManualScheduler
    written: Watermark
    flushed: Watermark
    replicated: Watermark
    gate: PendingReplies[bytes]
    channel: Bytes

    def waiting(self, end: int, name: bytes, channel: Bytes | None = None) -> PendingReply[bytes]:
        return PendingReply(channel or self.channel, end, name, name)


@pytest.fixture
def scene() -> Scene:
    return make_scene()


def make_scene(limit: int = 1000) -> Scene:
    scheduler = ManualScheduler()

    def late(ticket: bytes, status: PutMessageStatus) -> bytes:
        return ticket + b"!" + status.value.encode()

    patience = {"written": WRITTEN, "flushed": FLUSHED, "replicated": REPLICATED}
    gate: PendingReplies[bytes] = PendingReplies(scheduler, late, patience, limit)
    marks = Watermark("written"), Watermark("flushed"), Watermark("replicated")
    return Scene(scheduler, *marks, gate, Bytes())


def test_replies_leave_when_the_watermark_passes_them_joined_in_one_write(scene: Scene) -> None:
    scene.gate.hold((scene.written,), [scene.waiting(10, b"a"), scene.waiting(20, b"b")])
    scene.gate.hold((scene.written,), [scene.waiting(30, b"c")])
    scene.gate.release()
    assert scene.channel.writes == []
    scene.written.advance(19)
    assert scene.channel.writes == [b"a"]
    scene.written.advance(30)
    assert scene.channel.writes == [b"a", b"bc"]
    assert scene.gate.waiting == 0


def test_one_release_writes_once_to_each_channel(scene: Scene) -> None:
    other = Bytes()
    scene.gate.hold(
        (scene.written,),
        [scene.waiting(1, b"a"), scene.waiting(2, b"x", other), scene.waiting(3, b"b")],
    )
    scene.written.advance(3)
    assert scene.channel.writes == [b"ab"]
    assert other.writes == [b"x"]


def test_all_watermarks_of_a_lane_must_pass(scene: Scene) -> None:
    scene.gate.hold((scene.written, scene.flushed), [scene.waiting(10, b"safe")])
    scene.gate.hold((scene.written,), [scene.waiting(20, b"fast")])
    scene.written.advance(20)
    assert scene.channel.writes == [b"fast"]
    assert scene.gate.waits_for(scene.flushed)
    scene.flushed.advance(10)
    assert scene.channel.writes == [b"fast", b"safe"]
    assert not scene.gate.waits_for(scene.flushed)


def test_a_reply_that_waits_for_nothing_leaves_at_the_next_release(scene: Scene) -> None:
    scene.gate.hold((), [scene.waiting(10, b"a")])
    scene.gate.release()
    assert scene.channel.writes == [b"a"]


def test_a_late_reply_says_which_watermark_is_behind(scene: Scene) -> None:
    scene.gate.hold((scene.written, scene.flushed), [scene.waiting(10, b"a")])
    scene.gate.release()
    scene.written.advance(10)
    scene.scheduler.advance(4999)
    assert scene.channel.writes == []
    scene.scheduler.advance(1)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"]
    scene.flushed.advance(10)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"], "answered exactly once"
    assert scene.gate.late_count == 1


def test_the_replica_outweighs_the_disk(scene: Scene) -> None:
    marks = (scene.written, scene.flushed, scene.replicated)
    scene.gate.hold(marks, [scene.waiting(10, b"a")])
    scene.gate.release()
    scene.written.advance(10)
    scene.scheduler.advance(5000)
    assert scene.channel.writes == [b"a!FLUSH_SLAVE_TIMEOUT"]


def test_each_reply_has_its_own_deadline(scene: Scene) -> None:
    scene.gate.hold((scene.flushed,), [scene.waiting(10, b"a")])
    scene.gate.release()
    scene.scheduler.advance(3000)
    scene.gate.hold((scene.flushed,), [scene.waiting(20, b"b")])
    scene.gate.release()
    scene.scheduler.advance(2000)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"]
    scene.flushed.advance(20)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT", b"b"]


def test_nothing_is_planned_while_nobody_waits(scene: Scene) -> None:
    scene.gate.hold((scene.written,), [scene.waiting(10, b"a")])
    scene.written.advance(10)
    scene.gate.release()
    assert scene.scheduler.waiting == 0


def test_fail_answers_what_was_not_earned(scene: Scene) -> None:
    scene.gate.hold((scene.written,), [scene.waiting(10, b"a"), scene.waiting(20, b"b")])
    scene.written.advance(10)
    scene.gate.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
    assert scene.channel.writes == [b"a", b"b!SERVICE_NOT_AVAILABLE"]
    scene.written.advance(20)
    scene.scheduler.advance(60_000)
    assert len(scene.channel.writes) == 2
    assert scene.gate.failed_count == 1


def test_the_number_of_waiting_replies_is_bounded() -> None:
    scene = make_scene(limit=2)
    assert scene.gate.has_room(2)
    scene.gate.hold((scene.written,), [scene.waiting(10, b"a"), scene.waiting(20, b"b")])
    assert not scene.gate.has_room(1)
    scene.written.advance(10)
    assert scene.gate.has_room(1)


Step = st.one_of(
    st.tuples(st.just("hold"), st.sampled_from(["w", "wf", "wfr", "f"]), st.integers(1, 5)),
    st.tuples(st.just("advance"), st.sampled_from(["w", "f", "r"]), st.integers(0, 60)),
    st.tuples(st.just("time"), st.just(""), st.integers(0, 4000)),
    st.tuples(st.just("fail"), st.just(""), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(Step, max_size=40))
def test_every_reply_exactly_once_and_never_before_its_watermarks(
    steps: list[tuple[str, str, int]],
) -> None:
    scene = make_scene()
    marks = {"w": scene.written, "f": scene.flushed, "r": scene.replicated}
    needs: dict[bytes, tuple[int, str]] = {}
    end = 0

    class Checking(Bytes):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            for reply in bytes(data).split(b";")[:-1]:
                self.writes.append(reply)
                name, late, _ = reply.partition(b"!")
                if not late:
                    end, lane = needs[name]
                    assert all(marks[mark].value >= end for mark in lane), (name, end)

    channel = Checking()

    def late(ticket: bytes, status: PutMessageStatus) -> bytes:
        return ticket + b"!" + status.value.encode() + b";"

    scene.gate._late = late
    for kind, which, number in steps:
        if kind == "hold":
            replies = []
            for _ in range(number):
                end += 7
                name = b"%d" % len(needs)
                needs[name] = (end, which)
                replies.append(PendingReply(channel, end, name + b";", name))
            scene.gate.hold([marks[mark] for mark in which], replies)
            scene.gate.release()
        elif kind == "advance":
            marks[which].advance(number * 7)
        elif kind == "time":
            scene.scheduler.advance(number)
        else:
            scene.gate.fail(PutMessageStatus.UNKNOWN_ERROR)
    scene.scheduler.advance(60_000)
    answered = [reply.partition(b"!")[0] for reply in channel.writes]
    assert sorted(answered) == sorted(needs), "each exactly once"
    assert scene.gate.waiting == 0
