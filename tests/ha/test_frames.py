"""Tests of the frames of classic replication: their bytes, partial input, and limits."""

from __future__ import annotations

import pytest
from harness.recorded import recorded_replication
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.ha.frames import (
    BODY_MAX,
    HEADER_SIZE,
    ReportReceiver,
    TransferFrame,
    TransferReceiver,
    encode_report,
    encode_transfer,
)
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import PhysicalOffset

RECORDED = recorded_replication()


def transfer(offset: int, body: bytes = b"") -> TransferFrame:
    return TransferFrame(PhysicalOffset(offset), body)


def test_frames_have_the_expected_bytes() -> None:
    assert encode_report(0x1122334455) == bytes.fromhex("0000001122334455")
    assert encode_transfer(4096, b"abc") == bytes.fromhex("0000000000001000 00000003 616263")
    assert encode_transfer(7) == bytes.fromhex("0000000000000007 00000000")
    assert TransferReceiver().receive(encode_transfer(7)) == [transfer(7)]
    assert transfer(7).is_heartbeat and not transfer(7, b"x").is_heartbeat
    assert transfer(7, b"xy").end == 9


def test_recorded_frames_are_decoded_and_encoded_to_the_same_bytes() -> None:
    transfers = reports = 0
    for recorded in RECORDED:
        if recorded.to == "master":
            offset = ReportReceiver().receive(recorded.frame)
            assert offset is not None and encode_report(offset) == recorded.frame
            reports += 1
        else:
            (found,) = TransferReceiver().receive(recorded.frame)
            assert encode_transfer(found.offset, found.body) == recorded.frame
            transfers += 1
    assert (reports, transfers) == (24, 40)


@pytest.mark.parametrize("recording", ["ha", "ha-binary"])
def test_a_recorded_stream_can_be_received_byte_by_byte(recording: str) -> None:
    frames = [each.frame for each in RECORDED if (each.source, each.to) == (recording, "slave")]
    stream = b"".join(frames)
    receiver = TransferReceiver()
    found = [each for place in range(len(stream)) for each in receiver.receive(stream[place:][:1])]
    assert found == TransferReceiver().receive(stream)
    assert len(found) == len(frames)
    assert receiver.pending_bytes == 0


@given(
    st.lists(st.tuples(st.integers(0, 1 << 60), st.binary(max_size=50)), max_size=12),
    st.lists(st.integers(1, 60)),
)
def test_any_cut_of_the_stream_gives_the_same_transfers(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_transfer(*frame) for frame in frames)
    receiver = TransferReceiver()
    found: list[TransferFrame] = []
    position = 0
    for size in [*cuts, len(stream)]:
        found += receiver.receive(stream[position : position + size])
        position = min(position + size, len(stream))
        assert receiver.pending_bytes <= HEADER_SIZE + 50
    assert found == [transfer(*frame) for frame in frames]


@given(st.lists(st.integers(0, 1 << 60), max_size=12), st.lists(st.integers(1, 30)))
def test_the_latest_complete_report_is_returned(offsets: list[int], cuts: list[int]) -> None:
    stream = b"".join(map(encode_report, offsets))
    receiver = ReportReceiver()
    position = 0
    for size in [*cuts, len(stream)]:
        piece = stream[position : position + size]
        before, position = position, min(position + size, len(stream))
        newest = receiver.receive(piece)
        complete = position // 8
        assert newest == (offsets[complete - 1] if complete > before // 8 else None)
        assert receiver.pending_bytes == position % 8


@pytest.mark.parametrize(
    "header",
    [
        "0000000000000000 ffffffff",
        "0000000000000000 80000000",
        "0000000000000000 003ffff5",
        "0000000000000000 7fffffff",
        "ffffffffffffffff 00000000",
        "8000000000000000 00000001",
        "7fffffffffffffff 00000001",
    ],
)
def test_impossible_sizes_and_offsets_are_refused(header: str) -> None:
    receiver = TransferReceiver()
    good = encode_transfer(1, b"x")
    assert receiver.receive(good) == [transfer(1, b"x")]
    with pytest.raises(RemoteProtocolError, match="the master sends"):
        receiver.receive(good + bytes.fromhex(header))
    assert receiver.pending_bytes == 0
    with pytest.raises(RemoteProtocolError):
        receiver.receive(good)


def test_the_largest_body_fits_the_buffer_of_a_java_slave() -> None:
    largest = encode_transfer(0, bytes(BODY_MAX))
    assert len(largest) == 4 << 20
    assert TransferReceiver().receive(largest) == [transfer(0, bytes(BODY_MAX))]
    with pytest.raises(AssertionError):
        encode_transfer(0, bytes(BODY_MAX + 1))


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="-1"):
        ReportReceiver().receive(encode_report(-1))
    receiver = ReportReceiver()
    newest = receiver.receive(encode_report(-1) + encode_report(5))
    assert newest == 5, "a later report supersedes the invalid one"


def test_only_received_bytes_are_buffered() -> None:
    receiver = TransferReceiver()
    assert receiver.receive(encode_transfer(0, bytes(BODY_MAX))[:100]) == []
    assert receiver.pending_bytes == 100
