"""``FrameDecoder``: the same commands however the stream is cut, and errors that persist."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from struct import pack

import pytest
from harness.recorded import Recorded
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import MAX_FRAME, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder

SOME = [
    RemotingCommand(10, 1, ext_fields={"topic": "T"}, body=b"x" * 40),
    RemotingCommand(11, 2, serialize_type=1, ext_fields={"topic": "T", "queueId": "1"}),
    RemotingCommand(0, 3, flag=1, remark="ok"),
    RemotingCommand(15, 4, flag=2, serialize_type=1, body=b"y"),
]
STREAM = b"".join(map(encode_command, SOME))


def test_a_complete_stream_is_decoded() -> None:
    assert FrameDecoder().receive(STREAM) == SOME


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_each_kind_of_buffer_is_accepted(kind: type[bytes | bytearray | memoryview]) -> None:
    assert FrameDecoder().receive(kind(STREAM)) == SOME


def test_a_stream_is_decoded_byte_by_byte() -> None:
    receiver = FrameDecoder()
    received = [command for byte in STREAM for command in receiver.receive(bytes([byte]))]
    assert received == SOME
    assert receiver.pending_bytes == 0


def test_recorded_frames_are_decoded_byte_by_byte(all_recorded: list[Recorded]) -> None:
    smallest = sorted(all_recorded, key=lambda item: len(item.frame))[:120]
    receiver = FrameDecoder()
    count = 0
    for item in smallest:
        for byte in item.frame[:-1]:
            assert receiver.receive(bytes([byte])) == []
        (command,) = receiver.receive(item.frame[-1:])
        assert encode_command(command).endswith(command.body)
        count += 1
    assert count == 120


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    receiver = FrameDecoder()
    received = []
    ends = sorted({*cuts, len(STREAM)})
    for start, end in zip([0, *ends], ends, strict=False):
        received += receiver.receive(STREAM[start:end])
    assert received == SOME


def test_trailing_bytes_are_kept() -> None:
    receiver = FrameDecoder()
    assert receiver.receive(STREAM + STREAM[:10]) == SOME
    assert receiver.pending_bytes == 10
    assert receiver.receive(STREAM[10:]) == SOME


def test_commands_do_not_share_memory_with_the_input() -> None:
    data = bytearray(encode_command(SOME[0]))
    (command,) = FrameDecoder().receive(data)
    data[:] = bytes(len(data))
    assert command.body == b"x" * 40


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(pack(">I", MAX_FRAME - 3), id="one byte too large"),
        pytest.param(pack(">I", 0x80000000), id="negative"),
        pytest.param(pack(">I", 3), id="too short for a header word"),
        pytest.param(b"GET / HTTP/1.1\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="TLS"),
    ],
)
def test_an_invalid_length_is_an_error_immediately_and_for_good(start: bytes) -> None:
    receiver = FrameDecoder()
    with pytest.raises(RemoteProtocolError, match="expected 4 to"):
        receiver.receive(start)
    with pytest.raises(RemoteProtocolError, match="expected 4 to"):
        receiver.receive(STREAM)
    assert receiver.pending_bytes == 0


def test_an_error_in_the_second_frame_is_raised() -> None:
    with pytest.raises(RemoteProtocolError, match="serialize type 9"):
        FrameDecoder().receive(encode_command(SOME[0]) + pack(">II", 4, 9 << 24))


def test_a_decoder_can_have_its_own_limit() -> None:
    frame = encode_command(SOME[0])
    assert FrameDecoder(len(frame)).receive(frame) == SOME[:1]
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(len(frame) - 1).receive(frame)


def test_memory_follows_the_bytes_received() -> None:
    receiver = FrameDecoder()
    tracemalloc.start()
    try:
        receiver.receive(pack(">II", MAX_FRAME - 4, 0) + b"x" * 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert receiver.pending_bytes == 1008
    assert peak < 100_000


def test_a_large_frame_is_decoded_in_small_pieces() -> None:
    command = RemotingCommand(10, 5, body=bytes(2_000_000))
    frame = encode_command(command)
    receiver = FrameDecoder()
    received = []
    for start in range(0, len(frame), 1500):
        received += receiver.receive(frame[start : start + 1500])
    assert received == [command]


@given(st.lists(st.binary(max_size=100), max_size=8))
def test_garbage_raises_only_remote_protocol_errors(chunks: list[bytes]) -> None:
    receiver = FrameDecoder()
    for chunk in chunks:
        with suppress(RemoteProtocolError):
            receiver.receive(chunk)
