"""Headers that are read by the form of earlier ones give what parsing them gives."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGE_GO,
    SERIALIZE_ROCKETMQ,
    RemotingCommand,
)
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.remoting.frame import MAX_HEADER, decode_command, encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.known_headers import ATTEMPTS_MAX, FORMS_MAX, PARSED_MIN, KnownHeaders

SENT = RemotingCommand(
    0,
    7,
    FLAG_RESPONSE,
    ext_fields={"queueId": "3", "TRACE_ON": "true", "msgId": "7F00,7F01", "queueOffset": "12"},
    header_type=CommandHeader,
)
PULLED = RemotingCommand(
    0,
    8,
    FLAG_RESPONSE,
    remark="FOUND",
    ext_fields={"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "maxOffset": "2"},
    body=b"records",
    header_type=CommandHeader,
)


def frame_of(command: RemotingCommand) -> memoryview:
    return memoryview(encode_command(command))[4:]


def frame(header: bytes, body: bytes = b"") -> memoryview:
    return memoryview(len(header).to_bytes(4) + header + body)


def learned(*commands: RemotingCommand) -> KnownHeaders:
    """Return what a connection knows after many such responses."""
    known = KnownHeaders()
    for command in commands:
        for _ in range(PARSED_MIN + 1):
            assert known.decode_command(frame_of(command)) == command
    return known


def parses(known: KnownHeaders, data: memoryview) -> bool:
    """Return whether the header is parsed. In both ways the result is the same."""
    before = known._parsed
    try:
        expected = decode_command(data)
    except RemoteProtocolError as fault:
        with pytest.raises(RemoteProtocolError) as raised:
            known.decode_command(data)
        assert str(raised.value) == str(fault)
        return True
    found = known.decode_command(data)
    assert found == expected
    assert found.header_type is expected.header_type
    assert list(found.ext_fields) == list(expected.ext_fields)
    assert encode_command(found) == encode_command(expected)
    return known._parsed > before


@pytest.mark.parametrize("model", [SENT, PULLED], ids=["send", "pull"])
def test_a_header_with_other_values_is_not_parsed(model: RemotingCommand) -> None:
    known = learned(SENT, PULLED)
    for value in ("", "0", "7F" * 5000, "{}[]:,", "%s"):
        fields = dict.fromkeys(model.ext_fields, value)
        other = evolve(model, opaque=999_999_999, ext_fields=fields, body=b"other")
        assert not parses(known, frame_of(other))


def test_a_value_with_a_control_character_is_not_parsed() -> None:
    assert not parses(learned(SENT), frame(HEADER.replace(b'"3"', b'"\n\0\x7f"')))


@pytest.mark.parametrize(
    "other",
    [
        evolve(SENT, ext_fields=SENT.ext_fields | {"msgId": 'a"b'}),
        evolve(SENT, ext_fields=SENT.ext_fields | {"msgId": "a\\b"}),
        evolve(SENT, ext_fields=SENT.ext_fields | {"msgId": "é"}),
        evolve(SENT, ext_fields=SENT.ext_fields | {"more": "1"}),
        evolve(SENT, ext_fields={"queueId": "3"}),
        evolve(SENT, ext_fields={}),
        evolve(SENT, opaque=1_000_000_000),
        evolve(SENT, code=1),
        evolve(SENT, version=1),
        evolve(SENT, remark="r"),
        evolve(SENT, flag=0),
        evolve(SENT, flag=FLAG_RESPONSE | FLAG_ONEWAY),
        evolve(SENT, language=LANGUAGE_GO),
        evolve(SENT, serialize_type=SERIALIZE_ROCKETMQ),
        RemotingCommand(0, 5, FLAG_RESPONSE, body=b"only a body"),
    ],
)
def test_another_header_is_parsed(other: RemotingCommand) -> None:
    assert parses(learned(SENT), frame_of(other))


HEADER = encode_command(SENT)[8:]


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADER.replace(b'"opaque":7', b'"opaque":07')),
        frame(HEADER.replace(b'"opaque":7', b'"opaque":-7')),
        frame(HEADER.replace(b'"queueId":"3"', b'"queueId":3')),
        frame(HEADER.replace(b'"queueId":"3"', b'"queueId":null')),
        frame(HEADER.replace(b'"queueId":"3"', b'"queueId":"3"x"')),
        frame(HEADER.replace(b'"3"', b'"\xff"')),
        frame(HEADER.replace(b'"flag":1', b'"flag": 1')),
        frame(HEADER + b" "),
        frame(b" " + HEADER),
        frame(HEADER[:-1]),
        frame(HEADER)[:-1],
        frame(b""),
        memoryview(b"\0\0\0"),
        memoryview(b"\2\0\0\0"),
        frame(HEADER.replace(b'"3"', b'"' + b"3" * MAX_HEADER + b'"')),
    ],
)
def test_other_bytes_are_parsed(data: memoryview) -> None:
    assert parses(learned(SENT), data)


@given(
    names=st.lists(st.text('aB1_"\\é:,', min_size=1, max_size=6), max_size=4, unique=True),
    remark=st.none() | st.text('ab"\\:0,', max_size=20),
    data=st.data(),
)
def test_any_form_is_read_like_others(
    names: list[str], remark: str | None, data: st.DataObject
) -> None:
    values = st.fixed_dictionaries({name: st.text('ab"\\é:,{}\n', max_size=9) for name in names})
    commands = st.builds(
        RemotingCommand,
        st.integers(0, 1),
        st.integers(0, 2**31 - 1),
        st.just(FLAG_RESPONSE),
        remark=st.just(remark),
        ext_fields=values,
        body=st.binary(max_size=3),
    )
    known = KnownHeaders(parsed=PARSED_MIN)
    for command in data.draw(st.lists(commands, min_size=2, max_size=6)):
        parses(known, frame_of(command))


def test_a_connection_knows_few_forms_and_only_those_of_many_responses() -> None:
    known = KnownHeaders()
    for number in range(PARSED_MIN + 2 * FORMS_MAX):
        command = evolve(SENT, ext_fields={f"name{number}": "v"})
        assert parses(known, frame_of(command))
        assert len(known._forms) == min(FORMS_MAX, max(0, number + 1 - PARSED_MIN))
    assert not parses(known, frame_of(evolve(SENT, ext_fields={f"name{PARSED_MIN}": "other"})))


def test_a_connection_does_not_look_for_forms_forever() -> None:
    other = learned(*[evolve(SENT, remark="no form")] * 2)
    assert other._parsed > PARSED_MIN + ATTEMPTS_MAX
    for _ in range(3):
        assert parses(other, frame_of(SENT))


def test_a_decoder_reads_frames_with_them_however_the_stream_is_split() -> None:
    known = learned(SENT, PULLED)
    stream = (encode_command(SENT) + encode_command(PULLED)) * 3
    for size in (1, 50, len(stream)):
        decoder, commands = FrameDecoder(decode=known.decode_command), []
        for start in range(0, len(stream), size):
            commands += decoder.receive(stream[start : start + size])
        assert commands == [SENT, PULLED] * 3
    assert known._parsed == PARSED_MIN + 2
