"""Each recorded frame is decoded to typed objects, which are encoded to the same bytes."""

from __future__ import annotations

import pytest
from harness.recorded import Recorded

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.remoting.bodies import REQUEST_BODIES, RESPONSE_BODIES, body_crc32
from rmqpy.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.frame_decoder import FrameDecoder
from rmqpy.remoting.headers import REQUEST_HEADERS, RESPONSE_HEADERS, RegisterBrokerRequestHeader

# Their bodies are not JSON: stored messages, batches, lines of properties.
UNTYPED_REQUESTS = {25, 39, 310, 318, 320}
UNTYPED_RESPONSES = {11, 12}
STORED_WITH_A_WARNING = {
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
}


def test_typed_objects_are_encoded_to_the_recorded_bytes(recorded: Recorded) -> None:
    (command,) = FrameDecoder().receive(recorded.frame)
    encoded = (
        _response(command, recorded.request_code)
        if command.is_response
        else _request(command, recorded.request_code)
    )
    encoded.flag = command.flag
    assert encode_command(encoded) == recorded.frame


def test_flags_agree_with_the_recorded_type(recorded: Recorded) -> None:
    (command,) = FrameDecoder().receive(recorded.frame)
    assert command.is_response == (recorded.type == "response")
    assert command.is_oneway == (recorded.type == "oneway")
    expected = {"request": 0, "oneway": FLAG_ONEWAY, "response": FLAG_RESPONSE}[recorded.type]
    assert command.flag & 3 == expected
    assert command.version == 407
    assert command.language == 0


def test_the_recordings_cover_the_codes(all_recorded: list[Recorded]) -> None:
    requests = {item.request_code for item in all_recorded if item.type != "response"}
    assert {
        11,
        12,
        14,
        15,
        17,
        26,
        28,
        29,
        30,
        31,
        32,
        34,
        35,
        36,
        37,
        38,
        39,
        40,
        41,
        42,
    } < requests
    assert {43, 45, 103, 104, 105, 106, 200, 201, 202, 206, 310, 315, 317, 320, 321} < requests
    assert len(all_recorded) > 400


def test_registrations_have_the_crc_of_their_body(all_recorded: list[Recorded]) -> None:
    checked = 0
    for item in all_recorded:
        if item.request_code == RequestCode.REGISTER_BROKER and item.type != "response":
            (command,) = FrameDecoder().receive(item.frame)
            header = RegisterBrokerRequestHeader.decode(command.ext_fields)
            assert header.body_crc32 == body_crc32(command.body)
            checked += 1
    assert checked > 5


def test_all_frames_can_be_one_stream(all_recorded: list[Recorded]) -> None:
    stream = b"".join(item.frame for item in all_recorded)
    receiver = FrameDecoder()
    commands = receiver.receive(stream)
    assert len(commands) == len(all_recorded)
    assert receiver.pending_bytes == 0


def _request(command: RemotingCommand, code: int) -> RemotingCommand:
    header_type = REQUEST_HEADERS.get(RequestCode(code))
    header = None
    if header_type is None:
        assert command.ext_fields == {}
    else:
        header = header_type.decode(command.ext_fields)
    body = command.body
    if body and code not in UNTYPED_REQUESTS:
        body = REQUEST_BODIES[RequestCode(code)].decode(body).encode()
    request = RemotingCommand.request(code, header, body)
    request.opaque = command.opaque
    request.serialize_type = command.serialize_type
    return request


def _response(command: RemotingCommand, code: int) -> RemotingCommand:
    request = RemotingCommand(code, command.opaque, serialize_type=command.serialize_type)
    header = None
    header_type = RESPONSE_HEADERS.get(RequestCode(code))
    if command.code == ResponseCode.SUCCESS or command.code in STORED_WITH_A_WARNING:
        if header_type is None:
            assert command.ext_fields == {}
        else:
            header = header_type.decode(command.ext_fields)
    body = command.body
    if body and code not in UNTYPED_RESPONSES:
        decoded = RESPONSE_BODIES[RequestCode(code)].decode(body)
        body = decoded.encode(strict=code == RequestCode.GET_ROUTEINFO_BY_TOPIC)
    response = RemotingCommand.response_to(request, command.code, command.remark, header, body)
    if header is None and header_type is not None:
        # Java created the header and then failed: it is empty, and JSON has "extFields":{}.
        assert command.ext_fields == {}
        response.header_type = command.header_type and header_type
    return response


@pytest.mark.parametrize("code", sorted(REQUEST_HEADERS))
def test_header_tables_have_header_classes(code: RequestCode) -> None:
    header_type = REQUEST_HEADERS[code]
    assert header_type.__name__.endswith(("Header", "HeaderV2"))
