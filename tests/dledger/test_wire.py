"""Tests of the bodies of DLedger frames: recorded ones are decoded and encoded, invalid ones are
refused with the name of the field.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

import pytest
from attrs import evolve
from harness.recorded import RecordedDLedger, recorded_dledger
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.codec.backend import read_run
from rmqpy.codec.message import encode_message
from rmqpy.dledger.entries import EntryRun
from rmqpy.dledger.protocol.json_bodies import (
    decode_request,
    decode_response,
    encode,
    encode_in_pieces,
)
from rmqpy.dledger.protocol.messages import (
    REQUESTS,
    RESPONSES,
    AppendEntryRequest,
    DLedgerMessage,
    DLedgerResponseCode,
    Entry,
    GetEntriesRequest,
    GetEntriesResponse,
    HeartBeatResponse,
    LeadershipTransferRequest,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.ids import Term
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.fastjson import TOLERANT_REQUEST_MAX
from rmqpy.remoting.frame import encode_command

DRAFT = OutgoingMessage(
    topic=b"T",
    queue_id=0,
    body=b"hello",
    properties=b"",
    sys_flag=0,
    born_timestamp_ms=1,
    born_host=(b"\x7f\0\0\1", 1),
    store_host=(b"\x7f\0\0\1", 1),
)


def decode(frame: RecordedDLedger, body: bytes) -> DLedgerMessage:
    """Decode ``body`` as that of a recorded frame."""
    if frame.type == "request":
        return decode_request(frame.code, body)
    return decode_response(REQUESTS[frame.code], body)


class Ids(TypedDict):
    """The fields of every message that name a group or a member."""

    group: str | None
    remote_id: str | None
    local_id: str | None
    leader_id: str | None


FRAMES = recorded_dledger()
BY_JAVA = [frame for frame in FRAMES if frame.command.version == 407]
"""All frames except METADATA and GET requests, which a script sent to Java members."""


def found(code: int, kind: str) -> list[DLedgerMessage]:
    return [
        decode(frame, frame.command.body)
        for frame in FRAMES
        if (frame.code, frame.type) == (code, kind)
    ]


def test_the_recording_contains_every_message_of_members() -> None:
    kinds = {(frame.code, frame.type) for frame in FRAMES}
    assert kinds == {
        (code, kind)
        for code in (50000, 50002, 51001, 51002, 51004, 51005)
        for kind in ("request", "response")
    }
    pushes = [push for push in found(51004, "request") if isinstance(push, PushEntryRequest)]
    assert {push.type for push in pushes} == set(PushType)
    assert len(BY_JAVA) >= 50


@pytest.mark.parametrize("number", range(len(BY_JAVA)))
def test_a_recorded_frame_is_decoded_and_encoded_to_the_same_bytes(number: int) -> None:
    frame = BY_JAVA[number]
    command = frame.command
    command.body = encode(decode(frame, command.body))
    assert encode_command(command) == frame.frame


def test_recorded_bodies_have_the_expected_values() -> None:
    vote = found(51001, "request")[0]
    assert vote == VoteRequest(
        group="wire", remote_id="n0", local_id="n1", leader_id="n1", term=Term(0)
    )
    assert found(51001, "response")[0] == VoteResponse(
        group="wire",
        remote_id="n0",
        local_id="n1",
        leader_id="n1",
        term=Term(0),
        result=VoteResult.REJECT_ALREADY_VOTED,
    )
    codes = {answer.code for answer in found(51002, "response")}
    assert codes == {DLedgerResponseCode.SUCCESS, DLedgerResponseCode.TERM_NOT_READY}
    truncate = next(
        push
        for push in found(51004, "request")
        if isinstance(push, PushEntryRequest) and push.type is PushType.TRUNCATE
    )
    assert (truncate.first_index, truncate.commit_index, truncate.term) == (0, -1, 2)
    entry = truncate.entries[0]
    assert (entry.size, entry.position, len(entry.body)) == (331, 0, 283)
    assert bytes(entry.body[4:8]) == bytes.fromhex("daa320a7"), "a V1 record"
    assert entry.encode_header() == entry.header.encode()
    assert found(51004, "response")[0] == PushEntryResponse(
        group="wire", code=405, term=Term(3), index=17, count=1, begin_index=0, end_index=17
    )
    transfer = found(51005, "request")[0]
    assert isinstance(transfer, LeadershipTransferRequest)
    assert (transfer.transfer_id, transfer.transferee_id) == ("n1", "n0")
    metadata = found(50000, "response")[0]
    assert isinstance(metadata, MetadataResponse) and metadata.peers is not None
    assert list(metadata.peers) == ["n0", "n1", "n2"]
    got = [get for get in found(50002, "response") if isinstance(get, GetEntriesResponse)]
    assert sorted(len(get.entries) for get in got) == [0, 0, 1]


def test_requests_without_optional_fields_are_decoded() -> None:
    assert found(50000, "request")[0] == MetadataRequest(group="wire", remote_id="n0")
    assert found(50002, "request")[0] == GetEntriesRequest(
        group="wire", remote_id="n0", begin_index=0, max_size=1
    )
    assert decode_response(PushEntryRequest, b"{}") == PushEntryResponse()
    assert decode_response(VoteRequest, b'{"voteResult":"LATER"}') == VoteResponse()


def test_a_batch_is_encoded_as_in_java() -> None:
    entries = (Entry.of(7, 3, 100, b"hi"), Entry.of(8, 3, 150, b""))
    push = PushEntryRequest(
        group="g", remote_id="n1", leader_id="n0", term=Term(3), entries=entries, batch=True
    )
    assert encode(push) == (
        b'{"batch":true,"batchEntry":[{"body":"aGk=","bodyCrc":0,"chainCrc":0,"channel":0,'
        b'"index":7,"magic":1,"pos":100,"size":50,"term":3},{"body":"","bodyCrc":0,"chainCrc":0,'
        b'"channel":0,"index":8,"magic":1,"pos":150,"size":48,"term":3}],"code":200,'
        b'"commitIndex":-1,"count":2,"firstEntryIndex":7,"group":"g","lastEntryIndex":8,'
        b'"leaderId":"n0","remoteId":"n1","term":3,"totalSize":98,"type":"APPEND"}'
    )
    assert decode_request(51004, encode(push)) == push


@pytest.mark.parametrize("name", ["g", 'g%d"', "größe", None])
def test_the_pieces_of_a_run_are_the_push_encoded_at_once(name: str | None) -> None:
    body = encode_message(DRAFT)
    entries = (Entry.of(7, 3, 100, body), Entry.of(8, 3, 148 + len(body), body))
    push = PushEntryRequest(
        group=name, remote_id="n1", local_id="n0", term=Term(3), entries=entries, batch=True
    )
    decoded = decode_request(51004, encode(push))
    assert isinstance(decoded, PushEntryRequest)
    data = b"".join(entry.encode_header() + entry.body for entry in entries)
    found = read_run(memoryview(data), 7, 100, count_max=2, size_max=1 << 20)
    assert found is not None
    run = EntryRun(*found)
    pieces = encode_in_pieces(evolve(push, entries=run))
    assert len(pieces) == 3
    assert b"".join(pieces) == encode(push) == encode(decoded)


PUSH: dict[str, Any] = {
    "group": "g",
    "type": "APPEND",
    "term": 3,
    "entry": {"body": "aGk=", "index": 2, "magic": 1, "pos": 100, "size": 50, "term": 3},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"term": "x"}, "term: expected a 64-bit integer"),
        ({"term": True}, "term: expected a 64-bit integer"),
        ({"term": 1 << 63}, "term: expected a 64-bit integer"),
        ({"code": 1 << 31}, "code: expected a 32-bit integer"),
        ({"commitIndex": 1.5}, "commitIndex: expected a 64-bit integer"),
        ({"group": 5}, "group: expected a string"),
        ({"type": "STEAL"}, "type: unknown push type"),
        ({"type": 7}, "type: expected a string"),
        ({"entry": None}, "entry: absent from a push of type APPEND"),
        ({"entry": []}, "entry: expected an entry"),
        ({"entry": {"body": "aGk"}}, "entry: body: invalid Base64"),
        ({"entry": {"body": "a*k="}}, "entry: body: invalid Base64"),
        ({"entry": {"body": 5}}, "entry: body: expected a string"),
        ({"entry": {"size": 51}}, "entry: size: 51, expected 50"),
        ({"entry": {"size": None}}, "entry: size: None, expected 50"),
        ({"entry": {"magic": 2}}, "entry: magic: 2, expected 1"),
        ({"entry": {"index": -1}}, "entry: index: -1"),
        ({"entry": {"pos": -5}}, "entry: pos: -5"),
        ({"entry": {"term": None}}, "entry: term: None"),
        ({"entry": {"pos": "far"}}, "entry: pos: expected a 64-bit integer"),
        ({"batchEntry": 5}, "batchEntry: expected a list"),
        ({"batchEntry": [5]}, "batchEntry: [0]: expected an entry"),
        ({"batchEntry": [PUSH["entry"], PUSH["entry"]]}, "batchEntry: index 2 follows 2"),
        ({"type": "COMPARE", "batchEntry": [PUSH["entry"]]}, "batchEntry: not empty in a push"),
    ],
)
def test_an_invalid_field_is_named(change: dict[str, Any], reason: str) -> None:
    invalid = dict(PUSH)
    for key, value in change.items():
        invalid[key] = {**PUSH["entry"], **value} if isinstance(value, dict) else value
    with pytest.raises(RemoteProtocolError) as caught:
        decode_request(51004, json.dumps(invalid).encode())
    assert f"a PushEntryRequest: {reason}" in str(caught.value)


def test_an_entry_too_large_for_java_is_refused() -> None:
    entry = Entry.of(0, 0, 0, b"x" * (4 * 1024 * 1024 - 48 + 1))
    push = encode(PushEntryRequest(entries=(entry,)))
    with pytest.raises(RemoteProtocolError, match=r"body: 4194257 bytes, more than 4194256"):
        decode_request(51004, push)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"5", b"\xff\xff", b"[" * 5000])
@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_a_body_that_is_no_json_object_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(code, body)
    with pytest.raises(RemoteProtocolError):
        decode_response(REQUESTS[code], body)


def test_an_unknown_request_code_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="code 51003 is not a request"):
        decode_request(51003, b"{}")


@pytest.mark.parametrize("number", range(0, len(FRAMES), 4))
def test_a_truncated_body_is_refused(number: int) -> None:
    frame = FRAMES[number]
    body = frame.command.body
    for end in range(0, len(body), 7):
        with pytest.raises(RemoteProtocolError):
            decode(frame, body[:end])


@given(st.data())
def test_random_bytes_give_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    frame = data.draw(st.sampled_from(FRAMES))
    body = bytearray(frame.command.body)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(frame, bytes(body))
    except RemoteProtocolError:
        return
    assert decode(frame, encode(message)) == message


ids = st.none() | st.text(max_size=5)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
entries = st.builds(
    Entry.of,
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.binary(max_size=40),
)


@given(st.sampled_from(sorted({*REQUESTS} - {RequestCode.RMQPY_PUSH_RUN})), st.data())
def test_every_message_is_decoded_as_it_was_encoded(code: int, data: st.DataObject) -> None:
    for kind in (REQUESTS[code], RESPONSES[REQUESTS[code]]):
        base: Ids = {
            "group": data.draw(ids),
            "remote_id": data.draw(ids),
            "local_id": data.draw(ids),
            "leader_id": data.draw(ids),
        }
        message = kind(**base, term=Term(data.draw(longs)), code=data.draw(st.integers(-9, 600)))
        if isinstance(message, AppendEntryRequest):
            message = evolve(message, body=data.draw(st.none() | st.binary(max_size=30)))
        elif isinstance(message, PushEntryRequest):
            message = evolve(message, entries=(data.draw(entries),), commit_index=data.draw(longs))
        elif isinstance(message, GetEntriesResponse):
            message = evolve(message, entries=tuple(data.draw(st.lists(entries, max_size=3))))
        elif isinstance(message, GetEntriesRequest):
            message = evolve(message, index_list=(1, 2), begin_index=data.draw(st.none() | longs))
        elif isinstance(message, VoteResponse):
            message = evolve(message, result=data.draw(st.sampled_from(VoteResult)))
        elif isinstance(message, MetadataResponse):
            message = evolve(message, peers={"n0": "host:1"})
        body = encode(message)
        if kind is REQUESTS[code]:
            assert decode_request(code, body) == message
        else:
            assert decode_response(REQUESTS[code], body) == message


def test_ids_and_counts_that_old_members_omit_have_defaults() -> None:
    body = b'{"beginIndex":0,"code":200,"endIndex":4,"group":"g","index":4,"term":1}'
    answer = decode_response(PushEntryRequest, body)
    assert isinstance(answer, PushEntryResponse)
    assert (answer.index, answer.count, answer.local_id) == (4, 0, None)
    assert decode_response(REQUESTS[51002], b'{"code":416,"term":-1}') == HeartBeatResponse(
        code=DLedgerResponseCode.TERM_NOT_READY
    )


@pytest.mark.parametrize("code", [50000, 50002, 51001, 51002, 51005])
def test_a_long_body_without_entries_is_refused_unread(code: int) -> None:
    body = b'{"group":"' + b"g" * TOLERANT_REQUEST_MAX + b'"}'
    with pytest.raises(RemoteProtocolError, match="bytes, expected at most 65536"):
        decode_request(code, body)


@pytest.mark.parametrize("code", [50001, 51004])
def test_a_long_body_with_entries_must_be_strict_json(code: int) -> None:
    body = b'{"group":"' + b"g" * TOLERANT_REQUEST_MAX + b"\",'term':1}"
    with pytest.raises(RemoteProtocolError, match="not strict JSON"):
        decode_request(code, body)
