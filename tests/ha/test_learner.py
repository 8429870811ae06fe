"""A learner of a controller group of 5.x: frames, epochs, and masters that do what they must not.

tests/interop/test_rehearse_controller.py copies from a real master of 5.3.3.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec.epochs import Epoch, common_end
from rmqpy.ha.autoswitch import AutoSwitchReceiver, EpochTransfer, MasterEpochs
from rmqpy.ha.learner import LearnedCopy, LearnerLink
from rmqpy.ha.link import LinkSettings
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

FILE_SIZE = 1000
SETTINGS = LinkSettings(
    file_size=FILE_SIZE, heartbeat_interval_ms=5_000, housekeeping_interval_ms=20_000
)
HANDSHAKE = struct.pack(">ihhq", 1, 0, 1, -1)
"""The first frame of a learner without an id."""
EPOCHS = ((0, 0), (1, 1500))


def handshake(end: int, *epochs: tuple[int, int]) -> bytes:
    body = b"".join(struct.pack(">iq", *each) for each in epochs)
    last = epochs[-1][0] if epochs else -1
    return struct.pack(">iiqi", 1, len(body), end, last) + body


def transfer(offset: int, body: bytes, epoch: int, start: int, confirmed: int = 0) -> bytes:
    return struct.pack(">iiqiqq", 2, len(body), offset, epoch, start, confirmed) + body


def report(offset: int) -> bytes:
    return struct.pack(">iq", 2, offset)


def learner(begin: int = 0, end: int = 0, request: int = 0, *epochs: Epoch) -> LearnerLink:
    copy = LearnedCopy(begin=begin, end=end, request=request, epochs=epochs)
    return LearnerLink(SETTINGS, copy, 0)


def sent(link: LearnerLink) -> bytes:
    ready = link.take_ready()
    return ready.send if ready is not None else b""


def following(*epochs: tuple[int, int], end: int = 2500) -> LearnerLink:
    link = learner()
    assert sent(link) == HANDSHAKE
    link.receive(handshake(end, *(epochs or EPOCHS)), 1)
    assert sent(link) == report(0)
    return link


def closed_by(link: LearnerLink, data: bytes) -> str:
    link.receive(data, 2)
    ready = link.take_ready()
    assert ready is not None and ready.close == link.closed and not ready.send
    assert not ready.append
    link.receive(transfer(0, b"x", 0, 0), 3)
    assert link.take_ready() is None, "a closed link does nothing more"
    assert link.closed is not None
    return link.closed


def test_a_learner_asks_for_the_whole_log_and_never_acknowledges_it() -> None:
    link = following()
    link.receive(transfer(0, b"a" * 900, 0, 0) + transfer(900, b"b" * 100, 0, 0), 2)
    ready = link.take_ready()
    assert ready is not None and not ready.send
    assert [(each.offset, len(each.body)) for each in ready.append] == [(0, 900), (900, 100)]
    link.stored(PhysicalOffset(1000), 3)
    assert link.take_ready() is None, "what was stored is not reported"
    link.tick(5_001)
    assert sent(link) == report(0), "it only says that it is there"
    link.receive(transfer(1000, b"", 0, 0, 777), 6_000)
    assert link.confirm_offset == 777 and link.has_worked and link.was_of_use
    link.tick(26_000)
    assert link.closed == "the master has been silent for 20000 ms"


def test_a_copy_is_continued_from_the_offset_that_is_compared() -> None:
    link = learner(0, 1600, 1400, Epoch(0, 0), Epoch(1, 1500))
    assert sent(link) == HANDSHAKE
    link.receive(handshake(2500, *EPOCHS), 1)
    assert sent(link) == report(1400)
    link.receive(transfer(1400, b"a" * 100, 0, 0) + transfer(1500, b"b" * 300, 1, 1500), 2)
    ready = link.take_ready()
    assert ready is not None and [each.offset for each in ready.append] == [1400, 1500]


def test_an_epoch_that_begins_on_the_connection_is_learned() -> None:
    link = following()
    link.receive(transfer(0, b"a" * 1000, 0, 0) + transfer(1000, b"b" * 500, 0, 0), 2)
    link.receive(transfer(1500, b"c" * 100, 1, 1500) + transfer(1600, b"d" * 9, 4, 1600), 2)
    assert link.epochs == (Epoch(0, 0), Epoch(1, 1500), Epoch(4, 1600))
    assert link.closed is None


def test_java_names_the_next_epoch_with_the_last_bytes_of_the_one_before() -> None:
    link = following()
    link.receive(transfer(0, b"a" * 1000, 0, 0) + transfer(1000, b"b" * 500, 1, 1500), 2)
    link.receive(transfer(1500, b"c" * 100, 1, 1500), 2)
    ready = link.take_ready()
    assert ready is not None and [each.offset for each in ready.append] == [0, 1000, 1500]
    assert link.closed is None


@pytest.mark.parametrize(
    ("copy_epochs", "told"),
    [
        ((Epoch(0, 0), Epoch(1, 1500), Epoch(2, 1600)), "up to 1600, the copy ends at 1700"),
        ((Epoch(0, 0), Epoch(1, 1400)), "up to 1400, the copy ends at 1700"),
        ((Epoch(7, 0),), "up to 0, the copy ends at 1700"),
    ],
)
def test_a_group_that_has_cut_off_what_the_copy_has_is_told(
    copy_epochs: tuple[Epoch, ...], told: str
) -> None:
    link = learner(0, 1700, 1300, *copy_epochs)
    sent(link)
    assert told in closed_by(link, handshake(1600, *EPOCHS))


@pytest.mark.parametrize("epochs", [(), ((1, 5000),)])
def test_a_master_that_would_never_send_anything_is_told(
    epochs: tuple[tuple[int, int], ...],
) -> None:
    """5.3.3 answers with heartbeats only, for ever, and one line in its own log."""
    link = learner(1000, 0, 1000)
    sent(link)
    assert "serves no replica that lacks older bytes" in closed_by(link, handshake(9000, *epochs))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (transfer(1, b"a", 0, 0), "continues at 1, expected 0"),
        (transfer(0, b"a" * 1001, 0, 0), "across the end of a file of 1000 bytes"),
        (transfer(0, b"a", 3, 9), "bytes of epoch 3-9, and its last one is 1-1500" ),
        (transfer(0, b"a", 0, 5), "bytes of epoch 0-5, and its last one is 1-1500"),
        (transfer(0, b"a", 1, 1500), "as bytes of epoch 1-1500"),
        (handshake(2500, *EPOCHS), "a second handshake"),
        (struct.pack(">ii", 3, 0), "a frame of state 3"),
        (struct.pack(">ii", 2, -1), "a transfer of -1 bytes"),
        (struct.pack(">ii", 2, 1 << 30), "a transfer of 1073741824 bytes"),
        (transfer(-1, b"a", 0, 0), "at the invalid offset -1"),
        (transfer((1 << 63) - 1, b"a", 0, 0), "at the invalid offset"),
    ],
)  # fmt: skip
def test_wrong_frames_close_the_connection_and_nothing_is_stored(data: bytes, told: str) -> None:
    assert told in closed_by(following(), data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (transfer(0, b"a", 0, 0), "before its handshake"),
        (struct.pack(">ii", 1, 13), "13 bytes of epochs"),
        (struct.pack(">ii", 1, 12_012), "12012 bytes of epochs"),
        (struct.pack(">ii", 1, -12), "-12 bytes of epochs"),
        (handshake(9, (2, 0), (1, 5)), "epoch 1-5 after 2-0"),
        (handshake(9, (1, 7), (2, 5)), "epoch 2-5 after 1-7"),
        (handshake(-9, (1, 0)), "the end -9"),
        (handshake(9, (1, -4)), "epochs from"),
        (struct.pack(">qi", 4096, 900), "of state 0"),  # a classic master
    ],
)
def test_a_wrong_handshake_closes_the_connection(data: bytes, told: str) -> None:
    link = learner()
    sent(link)
    assert told in closed_by(link, data)


def test_a_difference_of_epochs_that_only_one_side_has_yet_is_none() -> None:
    mine, theirs = (Epoch(0, 0), Epoch(1, 50)), (Epoch(0, 0), Epoch(1, 50), Epoch(3, 90))
    assert common_end(mine, 80, theirs, 200) == 80
    assert common_end(mine, 95, theirs, 200) == 90
    assert common_end(mine, 40, theirs, 200) == 40
    assert common_end((), 40, theirs, 200) == -1
    assert common_end(mine, 40, (Epoch(2, 0),), 200) == -1


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(1, 40))
def test_the_result_does_not_depend_on_how_the_stream_is_split(
    bodies: list[bytes], step: int
) -> None:
    stream = handshake(2500, *EPOCHS) + transfer(-1, b"", 0, 0)
    stream += b"".join(transfer(9, body, 0, 0) for body in bodies)

    def received(size: int, data: bytes) -> tuple[list[MasterEpochs | EpochTransfer], str]:
        receiver, frames = AutoSwitchReceiver(), []
        try:
            for at in range(0, len(data), size):
                frames += receiver.receive(data[at : at + size])
                assert receiver.pending_bytes < 100
        except RemoteProtocolError as fault:
            return frames, str(fault)
        return frames, ""

    frames, fault = received(len(stream), stream)
    assert not fault and len(frames) == 2 + len(bodies)
    assert received(step, stream) == (frames, "")
    wrong = struct.pack(">ii", 7, 7)
    assert received(step, stream + wrong)[1] == received(1, wrong)[1] != ""
