"""Frames: vectors of the 4.9.7 classes, leniency, and errors."""

from __future__ import annotations

import json
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.model.errors import RemoteProtocolError, RequestRejectedError
from rmqpy.remoting.command import (
    LANGUAGE_CODES,
    LANGUAGE_UNKNOWN,
    LANGUAGES,
    SERIALIZE_JSON,
    SERIALIZE_ROCKETMQ,
    RemotingCommand,
    language_name,
)
from rmqpy.remoting.frame import MAX_FRAME, MAX_HEADER, decode_command, encode_command
from rmqpy.remoting.headers import (
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageResponseHeader,
)

ROUTE_JSON = bytes.fromhex(
    "0000007f0000007b7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a2254227d2c22"
    "666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c697a65"
    "5479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3430377d"
)
ROUTE_BINARY = bytes.fromhex(
    "000000250100002100690001970000000700000000000000000000000c0005746f7069630000000154"
)


def decode(frame: bytes) -> RemotingCommand:
    return decode_command(memoryview(frame)[4:])


def json_frame(header: bytes | str, body: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


@pytest.mark.parametrize("number", [0, 9, 407, 10**9 - 1, 10**9, 2**31 - 1])
@pytest.mark.parametrize("member", ["code", "flag", "opaque", "version"])
def test_a_regular_header_is_decoded_like_any_other(member: str, number: int) -> None:
    text = json.dumps(
        {
            "code": 51004,
            "flag": 1,
            "language": "JAVA",
            "opaque": 7,
            "serializeTypeCurrentRPC": "JSON",
            "version": 407,
        }
        | {member: number},
        separators=(",", ":"),
    )
    regular, spaced = decode(json_frame(text, b"hi")), decode(json_frame(f" {text}", b"hi"))
    assert regular == spaced
    assert getattr(regular, member) == number
    assert encode_command(regular) == json_frame(text, b"hi")


@pytest.mark.parametrize("number", ["2147483648", "3000000000", "01", "-1"])
def test_an_irregular_number_is_left_to_the_json_decoder(number: str) -> None:
    header = (
        f'{{"code":{number},"flag":0,"language":"JAVA","opaque":7,'
        '"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    outcomes: list[int | str] = []
    for each in (header, " " + header):
        try:
            outcomes.append(decode(json_frame(each)).code)
        except RemoteProtocolError as fault:
            outcomes.append(str(fault))
    assert outcomes[0] == outcomes[1]


short_texts = st.text(max_size=4) | st.text(alphabet=',:"a', max_size=3)


@given(
    st.lists(st.tuples(short_texts, short_texts), max_size=5),
    st.sampled_from(["JAVA", "PYTHON", "NODE_JS", "X"]),
    st.sampled_from([":", ": ", ':null,"x":']),
)
def test_a_header_with_flat_ext_fields_is_decoded_like_any_other(
    fields: list[tuple[str, str]], language: str, colon: str
) -> None:
    inner = ",".join(
        f"{json.dumps(name, ensure_ascii=False)}{colon}{json.dumps(value, ensure_ascii=False)}"
        for name, value in fields
    )
    header = (
        f'{{"code":0,"extFields":{{{inner}}},"flag":1,"language":"{language}","opaque":7,'
        '"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    outcomes: list[RemotingCommand | str] = []
    for each in (header, " " + header):  # Only the JSON decoder reads the second form.
        try:
            outcomes.append(decode(json_frame(each.encode("utf-8", "replace"), b"body")))
        except RemoteProtocolError as fault:
            outcomes.append(str(fault))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("inner", ['"a":1', '"a":"b",', '"a":"b" ,"c":"d"', '"a":"b""c":"d"', "x"])
def test_irregular_ext_fields_are_left_to_the_json_decoder(inner: str) -> None:
    header = (
        f'{{"code":0,"extFields":{{{inner}}},"flag":1,"language":"JAVA","opaque":7,'
        '"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    outcomes: list[RemotingCommand | str] = []
    for each in (header, " " + header):
        try:
            outcomes.append(decode(json_frame(each)))
        except RemoteProtocolError as fault:
            outcomes.append(type(fault).__name__)
    assert outcomes[0] == outcomes[1]


def binary_frame(header: bytes, body: bytes = b"") -> bytes:
    return pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


def binary_header(ext: bytes, size: int | None = None, remark: bytes = b"") -> bytes:
    fixed = pack(">hBhiii", 105, 0, 407, 7, 0, len(remark))
    return fixed + remark + pack(">i", len(ext) if size is None else size) + ext


def entry(key: bytes, value: bytes) -> bytes:
    return pack(">h", len(key)) + key + pack(">i", len(value)) + value


@pytest.mark.parametrize(
    ("serialize_type", "frame"), [(SERIALIZE_JSON, ROUTE_JSON), (SERIALIZE_ROCKETMQ, ROUTE_BINARY)]
)
def test_a_vector_of_java_is_encoded_and_decoded(serialize_type: int, frame: bytes) -> None:
    command = RemotingCommand.request(105, GetRouteInfoRequestHeader(topic="T"))
    command.opaque = 7
    command.serialize_type = serialize_type
    assert encode_command(command) == frame
    assert decode(frame) == command


def test_the_order_of_the_fast_codec_is_used_only_in_binary() -> None:
    header = PullMessageRequestHeader(
        consumer_group="CG",
        topic="T",
        queue_id=1,
        queue_offset=2,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=15000,
        subscription="*",
        sub_version=5,
        expression_type="TAG",
        bname="b",
    )
    command = RemotingCommand.request(11, header)
    command.serialize_type = SERIALIZE_ROCKETMQ
    assert list(decode(encode_command(command)).ext_fields) == [
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
        "commitOffset",
        "suspendTimeoutMillis",
        "subscription",
        "subVersion",
        "expressionType",
        "bname",
    ]
    command.serialize_type = SERIALIZE_JSON
    assert list(decode(encode_command(command)).ext_fields)[:3] == [
        "queueId",
        "maxMsgNums",
        "sysFlag",
    ]


def test_fields_after_a_fast_header_are_in_hash_order() -> None:
    header = SendMessageResponseHeader(msg_id="00", queue_id=1, queue_offset=2)
    command = RemotingCommand.request(0, header)
    command.serialize_type = SERIALIZE_ROCKETMQ
    command.ext_fields["MSG_REGION"] = "DefaultRegion"
    command.ext_fields["TRACE_ON"] = "true"
    assert list(decode(encode_command(command)).ext_fields) == [
        "msgId",
        "queueId",
        "queueOffset",
        "TRACE_ON",
        "MSG_REGION",
    ]


def test_an_answer_has_the_opaque_and_type_of_its_request() -> None:
    request = RemotingCommand(34, 99, serialize_type=SERIALIZE_ROCKETMQ)
    response = RemotingCommand.response_to(request, 17, "no such topic", body=b"x")
    assert (response.opaque, response.serialize_type, response.flag) == (99, SERIALIZE_ROCKETMQ, 1)
    assert (response.code, response.remark, response.version) == (17, "no such topic", 407)
    assert response.body == b"x"
    assert response.is_response and not response.is_oneway


def test_absent_keys_have_defaults() -> None:
    command = decode(json_frame("{}", b"body"))
    assert command == RemotingCommand(0, version=0, body=b"body")


def test_unknown_keys_are_ignored_and_the_last_duplicate_wins() -> None:
    command = decode(json_frame('{"code":1,"x":{"y":[1]},"code":14,"extFields":{"a":"1","a":"2"}}'))
    assert command.code == 14
    assert command.ext_fields == {"a": "2"}


def test_scalars_of_ext_fields_become_text_and_null_is_absent() -> None:
    command = decode(
        json_frame('{"code":1,"extFields":{"a":5,"b":true,"c":false,"d":null,"e":1.50,"f":-7}}')
    )
    assert command.ext_fields == {"a": "5", "b": "true", "c": "false", "e": "1.50", "f": "-7"}


def test_numbers_may_be_text() -> None:
    assert decode(json_frame('{"code":"310","opaque":"-5"}')).code == 310


@pytest.mark.parametrize(
    "header",
    [
        "{'code':105,extFields:{topic:'T',},opaque:7,version:407,flag:0}",
        '{"code":105,/* x */"extFields":{"topic":"T"},"opaque":7L,"version":407}',
    ],
)
def test_a_header_may_use_the_dialect_of_fastjson(header: str) -> None:
    command = decode(json_frame(header))
    assert (command.code, command.opaque, command.ext_fields) == (105, 7, {"topic": "T"})


def test_unknown_languages_are_kept() -> None:
    assert LANGUAGES[9] == "GO" and LANGUAGE_CODES["PYTHON"] == 3 and language_name(99) is None
    assert decode(json_frame('{"code":1,"language":"GO"}')).language == 9
    assert decode(json_frame('{"code":1,"language":"KLINGON"}')).language == LANGUAGE_UNKNOWN
    assert decode(json_frame('{"code":1}')).language == 0
    kept = decode(binary_frame(pack(">hBhiiii", 1, 77, 407, 0, 0, 0, 0)))
    assert kept.language == 77
    assert encode_command(kept)[10] == 77
    kept.serialize_type = SERIALIZE_JSON
    assert b"language" not in encode_command(kept)


def test_text_is_escaped_as_by_fastjson() -> None:
    command = RemotingCommand(1, remark='"\\\b\t\n\f\r\x01\x0b\x7f\x85\u2028é中😀/')
    encoded = encode_command(command)
    assert (
        '"remark":"\\"\\\\\\b\\t\\n\\f\\r\\u0001\\u000B\\u007F\\u0085\\u2028é中😀/"'.encode()
        in encoded
    )
    assert decode(encoded).remark == command.remark


def test_an_empty_header_is_encoded_as_an_empty_object() -> None:
    frame = json_frame(
        '{"code":0,"extFields":{},"flag":1,"language":"JAVA","opaque":3,'
        '"serializeTypeCurrentRPC":"JSON","version":407}'
    )
    assert encode_command(decode(frame)) == frame


def test_a_field_of_length_zero_is_absent() -> None:
    ext = entry(b"a", b"1") + entry(b"", b"2") + entry(b"b", b"") + entry(b"c", b"3")
    assert decode(binary_frame(binary_header(ext))).ext_fields == {"a": "1", "c": "3"}


def test_the_last_duplicate_wins_even_if_absent() -> None:
    ext = entry(b"a", b"1") + entry(b"a", b"2") + entry(b"b", b"1") + entry(b"b", b"")
    assert decode(binary_frame(binary_header(ext))).ext_fields == {"a": "2"}


def test_a_code_of_16_bits_is_signed() -> None:
    command = decode(binary_frame(pack(">HBhiiii", 50001, 0, 407, 0, 0, 0, 0)))
    assert command.code == 50001 - 65536


def test_malformed_utf8_is_replaced() -> None:
    command = decode(binary_frame(binary_header(entry(b"a", b"x\xff"), remark=b"\xc3")))
    assert command.ext_fields == {"a": "x\ufffd"}
    assert command.remark == "\ufffd"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\0\0\0\2\0\0", id="no header word"),
        pytest.param(pack(">II", 4, 1), id="header longer than the frame"),
        pytest.param(pack(">II", 4, 0xFFFFFF), id="largest length"),
        pytest.param(pack(">II", 4, 2 << 24), id="serialize type"),
        pytest.param(pack(">II", 4, 0), id="empty JSON header"),
        pytest.param(json_frame("[]"), id="array"),
        pytest.param(json_frame("5"), id="number"),
        pytest.param(json_frame('{"code":1'), id="cut"),
        pytest.param(json_frame('{"code":1}x'), id="trailing text"),
        pytest.param(json_frame('{"code":"x"}'), id="code is a word"),
        pytest.param(json_frame('{"code":1.5}'), id="code is a fraction"),
        pytest.param(json_frame('{"code":true}'), id="code is a boolean"),
        pytest.param(json_frame('{"code":[1]}'), id="code is an array"),
        pytest.param(json_frame('{"opaque":2147483648}'), id="opaque too large"),
        pytest.param(json_frame('{"opaque":' + "9" * 5000 + "}"), id="opaque of 5000 digits"),
        pytest.param(json_frame('{"extFields":[]}'), id="ext fields are an array"),
        pytest.param(json_frame('{"extFields":{"a":{}}}'), id="nested ext field"),
        pytest.param(json_frame('{"extFields":{"a":[1]}}'), id="array as ext field"),
        pytest.param(json_frame('{"extFields":{{"a":1}:"x"}}'), id="object as ext key"),
        pytest.param(json_frame('{"remark":{}}'), id="remark is an object"),
        pytest.param(json_frame("[" * 100_000), id="deep arrays"),
        pytest.param(json_frame('{"a":' * 100_000), id="deep objects"),
        pytest.param(json_frame("{" * 100_000), id="deep object keys"),
        pytest.param(json_frame(b'{"code":1,"a":"' + b"x" * MAX_HEADER + b'"}'), id="huge header"),
        pytest.param(binary_frame(b""), id="empty binary header"),
        pytest.param(binary_frame(pack(">hBhii", 1, 0, 1, 1, 1)), id="no remark length"),
        pytest.param(binary_frame(pack(">hBhiii", 1, 0, 1, 1, 1, 0)), id="no ext length"),
        pytest.param(binary_frame(pack(">hBhiiii", 1, 0, 1, 1, 1, 5, 0)), id="remark too long"),
        pytest.param(binary_frame(pack(">hBhiiii", 1, 0, 1, 1, 1, -5, 0)), id="negative remark"),
        pytest.param(binary_frame(binary_header(entry(b"a", b"1"), size=99)), id="ext too long"),
        pytest.param(binary_frame(binary_header(pack(">h", 9) + b"abc")), id="key too long"),
        pytest.param(binary_frame(binary_header(pack(">h", -9) + b"abc")), id="negative key"),
        pytest.param(
            binary_frame(binary_header(pack(">h", 1) + b"a" + pack(">i", 0x7FFFFFFF))),
            id="value too long",
        ),
        pytest.param(
            binary_frame(binary_header(pack(">h", 1) + b"a" + pack(">i", -1))), id="negative value"
        ),
        pytest.param(
            binary_frame(binary_header(entry(b"a", b"12"), size=8)), id="value over the ext end"
        ),
    ],
)
def test_an_invalid_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(frame)


def test_a_negative_ext_length_means_no_fields() -> None:
    assert decode(binary_frame(binary_header(b"", size=-1))).ext_fields == {}


def test_a_frame_that_is_too_large_is_not_encoded() -> None:
    with pytest.raises(RequestRejectedError, match="larger than a peer accepts"):
        encode_command(RemotingCommand(11, body=bytes(MAX_FRAME)))
    with pytest.raises(RequestRejectedError, match="larger than a peer accepts"):
        encode_command(RemotingCommand(11, remark="x" * MAX_HEADER))


def test_the_largest_body_fits() -> None:
    header = len(encode_command(RemotingCommand(11)))
    frame = encode_command(RemotingCommand(11, body=bytes(MAX_FRAME - header)))
    assert len(frame) == MAX_FRAME


INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
# A surrogate has no UTF-8 encoding: Java sends "?" for it.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
COMMANDS = st.builds(
    RemotingCommand,
    code=INT16,
    opaque=INT32,
    flag=INT32,
    language=st.integers(0, len(LANGUAGES) - 1),
    version=INT16,
    remark=st.none() | TEXT,
    ext_fields=st.dictionaries(TEXT, TEXT, max_size=30),
    body=st.binary(max_size=50),
    serialize_type=st.sampled_from([SERIALIZE_JSON, SERIALIZE_ROCKETMQ]),
)


@given(COMMANDS)
def test_encoding_and_decoding_round_trip(command: RemotingCommand) -> None:
    frame = encode_command(command)
    assert decode(frame) == command
    assert encode_command(decode(frame)) == frame


@given(COMMANDS.filter(lambda command: command.serialize_type == SERIALIZE_JSON))
def test_json_headers_are_strict_json(command: RemotingCommand) -> None:
    frame = encode_command(command)
    header = json.loads(frame[8 : len(frame) - len(command.body)])
    assert header["code"] == command.code
    assert header.get("extFields", {}) == command.ext_fields


@given(st.binary(max_size=200), st.integers(0, 2))
def test_garbage_is_an_error_or_a_command(garbage: bytes, serialize_type: int) -> None:
    frame = pack(">II", 4 + len(garbage), serialize_type << 24 | len(garbage)) + garbage
    with suppress(RemoteProtocolError):
        decode(frame)


@pytest.mark.slow
@given(COMMANDS, st.data())
def test_damaged_frames_are_errors_or_commands(
    command: RemotingCommand, data: st.DataObject
) -> None:
    frame = bytearray(encode_command(command))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(4, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        decode(bytes(frame))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "extFields"]),
        JUNK,
    )
)
def test_wrong_types_are_errors_or_commands(header: dict[str, object]) -> None:
    try:
        command = decode(json_frame(json.dumps(header)))
    except RemoteProtocolError:
        return
    assert all(type(value) is str for value in command.ext_fields.values())
    encode_command(command)


@pytest.mark.parametrize("remark", ["FOUND", "", "no \u00fc {}", 'a "quoted" one', "tab\t"])
def test_a_remark_beside_ext_fields_is_read(remark: str) -> None:
    command = RemotingCommand.response_to(
        RemotingCommand(11, 5), 0, remark, header=GetRouteInfoRequestHeader(topic="T")
    )
    decoded = decode(encode_command(command))
    assert (decoded.remark, decoded.ext_fields, decoded.opaque) == (remark, {"topic": "T"}, 5)
