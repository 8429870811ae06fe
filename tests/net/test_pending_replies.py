"""``PendingReplies``: each reply is sent exactly once, never before its watermarks, and joined with
others of its channel.
"""

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
class RecordingChannel:
    """A channel that records its writes."""

    writes: list[bytes] = field(factory=list)
    peer: tuple[str, int] = ("127.0.0.1", 1)
    closed: bool = False
    congested: bool = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True


@define
class Scene:
    """Pending replies with their clock, their watermarks and a channel."""

    scheduler: ManualScheduler
    written: Watermark
    flushed: Watermark
    replicated: Watermark
    replies: PendingReplies[bytes]
    channel: RecordingChannel

    def reply(
        self, end: int, name: bytes, channel: RecordingChannel | None = None
    ) -> PendingReply[bytes]:
        return PendingReply(channel or self.channel, end, name, name)


@pytest.fixture
def scene() -> Scene:
    """Return a scene whose limit no test reaches."""
    return make_scene()


def make_scene(limit: int = 1000) -> Scene:
    scheduler = ManualScheduler()

    def late(ticket: bytes, status: PutMessageStatus) -> bytes:
        return ticket + b"!" + status.value.encode()

    patience = {"written": WRITTEN, "flushed": FLUSHED, "replicated": REPLICATED}
    replies: PendingReplies[bytes] = PendingReplies(scheduler, late, patience, limit)
    marks = Watermark("written"), Watermark("flushed"), Watermark("replicated")
    return Scene(scheduler, *marks, replies, RecordingChannel())


def test_replies_are_sent_in_one_write_when_the_watermark_passes_them(scene: Scene) -> None:
    scene.replies.hold((scene.written,), [scene.reply(10, b"a"), scene.reply(20, b"b")])
    scene.replies.hold((scene.written,), [scene.reply(30, b"c")])
    scene.replies.release()
    assert scene.channel.writes == []
    scene.written.advance(19)
    assert scene.channel.writes == [b"a"]
    scene.written.advance(30)
    assert scene.channel.writes == [b"a", b"bc"]
    assert scene.replies.waiting == 0


def test_a_release_writes_once_to_each_channel(scene: Scene) -> None:
    other = RecordingChannel()
    scene.replies.hold(
        (scene.written,),
        [scene.reply(1, b"a"), scene.reply(2, b"x", other), scene.reply(3, b"b")],
    )
    scene.written.advance(3)
    assert scene.channel.writes == [b"ab"]
    assert other.writes == [b"x"]


def test_a_reply_waits_for_all_its_watermarks(scene: Scene) -> None:
    scene.replies.hold((scene.written, scene.flushed), [scene.reply(10, b"safe")])
    scene.replies.hold((scene.written,), [scene.reply(20, b"fast")])
    scene.written.advance(20)
    assert scene.channel.writes == [b"fast"]
    assert scene.replies.waits_for(scene.flushed)
    scene.flushed.advance(10)
    assert scene.channel.writes == [b"fast", b"safe"]
    assert not scene.replies.waits_for(scene.flushed)


def test_a_reply_without_watermarks_is_sent_at_the_next_release(scene: Scene) -> None:
    scene.replies.hold((), [scene.reply(10, b"a")])
    scene.replies.release()
    assert scene.channel.writes == [b"a"]


def test_a_late_reply_names_the_missing_watermark(scene: Scene) -> None:
    scene.replies.hold((scene.written, scene.flushed), [scene.reply(10, b"a")])
    scene.replies.release()
    scene.written.advance(10)
    scene.scheduler.advance(4999)
    assert scene.channel.writes == []
    scene.scheduler.advance(1)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"]
    scene.flushed.advance(10)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"], "answered exactly once"
    assert scene.replies.late_count == 1


def test_a_missing_replica_takes_precedence_over_a_missing_flush(scene: Scene) -> None:
    marks = (scene.written, scene.flushed, scene.replicated)
    scene.replies.hold(marks, [scene.reply(10, b"a")])
    scene.replies.release()
    scene.written.advance(10)
    scene.scheduler.advance(5000)
    assert scene.channel.writes == [b"a!FLUSH_SLAVE_TIMEOUT"]


def test_each_reply_has_its_own_deadline(scene: Scene) -> None:
    scene.replies.hold((scene.flushed,), [scene.reply(10, b"a")])
    scene.replies.release()
    scene.scheduler.advance(3000)
    scene.replies.hold((scene.flushed,), [scene.reply(20, b"b")])
    scene.replies.release()
    scene.scheduler.advance(2000)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT"]
    scene.flushed.advance(20)
    assert scene.channel.writes == [b"a!FLUSH_DISK_TIMEOUT", b"b"]


def test_no_timer_runs_while_no_reply_waits(scene: Scene) -> None:
    scene.replies.hold((scene.written,), [scene.reply(10, b"a")])
    scene.written.advance(10)
    scene.replies.release()
    assert scene.scheduler.waiting == 0


def test_fail_answers_the_replies_that_still_wait(scene: Scene) -> None:
    scene.replies.hold((scene.written,), [scene.reply(10, b"a"), scene.reply(20, b"b")])
    scene.written.advance(10)
    scene.replies.fail(PutMessageStatus.SERVICE_NOT_AVAILABLE)
    assert scene.channel.writes == [b"a", b"b!SERVICE_NOT_AVAILABLE"]
    scene.written.advance(20)
    scene.scheduler.advance(60_000)
    assert len(scene.channel.writes) == 2
    assert scene.replies.failed_count == 1


def test_the_number_of_waiting_replies_is_bounded() -> None:
    scene = make_scene(limit=2)
    assert scene.replies.has_room(2)
    scene.replies.hold((scene.written,), [scene.reply(10, b"a"), scene.reply(20, b"b")])
    assert not scene.replies.has_room(1)
    scene.written.advance(10)
    assert scene.replies.has_room(1)


Step = st.one_of(
    st.tuples(st.just("hold"), st.sampled_from(["w", "wf", "wfr", "f"]), st.integers(1, 5)),
    st.tuples(st.just("advance"), st.sampled_from(["w", "f", "r"]), st.integers(0, 60)),
    st.tuples(st.just("time"), st.just(""), st.integers(0, 4000)),
    st.tuples(st.just("fail"), st.just(""), st.just(0)),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(Step, max_size=40))
def test_each_reply_is_sent_once_and_never_before_its_watermarks(
    steps: list[tuple[str, str, int]],
) -> None:
    scene = make_scene()
    marks = {"w": scene.written, "f": scene.flushed, "r": scene.replicated}
    needs: dict[bytes, tuple[int, str]] = {}
    end = 0

    class CheckingChannel(RecordingChannel):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            for reply in bytes(data).split(b";")[:-1]:
                self.writes.append(reply)
                name, late, _ = reply.partition(b"!")
                if not late:
                    end, watermarks = needs[name]
                    assert all(marks[mark].value >= end for mark in watermarks), (name, end)

    channel = CheckingChannel()

    def late(ticket: bytes, status: PutMessageStatus) -> bytes:
        return ticket + b"!" + status.value.encode() + b";"

    scene.replies._late = late
    for kind, which, number in steps:
        if kind == "hold":
            held = []
            for _ in range(number):
                end += 7
                name = b"%d" % len(needs)
                needs[name] = (end, which)
                held.append(PendingReply(channel, end, name + b";", name))
            scene.replies.hold([marks[mark] for mark in which], held)
            scene.replies.release()
        elif kind == "advance":
            marks[which].advance(number * 7)
        elif kind == "time":
            scene.scheduler.advance(number)
        else:
            scene.replies.fail(PutMessageStatus.UNKNOWN_ERROR)
    scene.scheduler.advance(60_000)
    answered = [reply.partition(b"!")[0] for reply in channel.writes]
    assert sorted(answered) == sorted(needs), "each reply exactly once"
    assert scene.replies.waiting == 0
