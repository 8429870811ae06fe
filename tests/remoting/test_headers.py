"""Custom headers: names, kinds, defaults, and refusals."""

from __future__ import annotations

import pytest

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.command_header import CommandHeader, header_fields, wire_names
from rmqpy.remoting.headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    GetConsumerRunningInfoRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    RegisterBrokerRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

SEND_V2 = {
    "a": "PG",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "0",
    "g": "1600000000000",
    "h": "0",
}


def test_v2_and_v1_have_the_same_attributes() -> None:
    first = {item.attribute for item in header_fields(SendMessageRequestHeader)}
    second = {item.attribute for item in header_fields(SendMessageRequestHeaderV2)}
    assert second < first
    assert first - second == {"namespace", "namespaced", "oneway"}


def test_the_fields_of_v2_are_letters() -> None:
    assert "".join(wire_names(SendMessageRequestHeaderV2)) == "abcdefghijklmn"


def test_absent_fields_have_defaults() -> None:
    header = SendMessageRequestHeaderV2.decode(SEND_V2)
    assert header.queue_id == -1
    assert header.born_timestamp == 1600000000000
    assert header.properties is None and header.reconsume_times is None
    assert header.unit_mode is False and header.batch is False
    assert header.encode() == {**SEND_V2, "k": "false", "m": "false"}


def test_unknown_fields_are_ignored() -> None:
    assert SendMessageRequestHeaderV2.decode({**SEND_V2, "zz": "1", "lo": "x"}).topic == "T"


def test_a_missing_field_is_refused_by_name() -> None:
    with pytest.raises(RequestRejectedError) as refused:
        SendMessageRequestHeaderV2.decode(_without("b"))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == "the field b of SendMessageRequestHeaderV2 is missing"


def _without(name: str) -> dict[str, str]:
    return {key: value for key, value in SEND_V2.items() if key != name}


@pytest.mark.parametrize(
    "text",
    ["", "x", "1.5", "1 ", " 1", "1_0", "0x1", "2147483648", "-2147483649", "9" * 5000, "--1", "+"],
)
def test_an_invalid_number_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        SendMessageRequestHeaderV2.decode({**SEND_V2, "e": text})
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark.startswith(
        f"the field e of SendMessageRequestHeaderV2 is not a 32-bit integer: {text[:64]!r}"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("2147483647", 2147483647), ("-2147483648", -2147483648), ("+5", 5), ("007", 7)],
)
def test_numbers_are_parsed_as_by_java(text: str, value: int) -> None:
    assert SendMessageRequestHeaderV2.decode({**SEND_V2, "e": text}).queue_id == value


def test_longs_have_64_bits() -> None:
    header = SendMessageRequestHeaderV2.decode({**SEND_V2, "g": "9223372036854775807"})
    assert header.born_timestamp == 9223372036854775807
    with pytest.raises(RequestRejectedError, match="not a 64-bit integer"):
        SendMessageRequestHeaderV2.decode({**SEND_V2, "g": "9223372036854775808"})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("yes", False), ("1", False), ("", False)]
)
def test_booleans_are_parsed_as_by_java(text: str, value: bool) -> None:
    assert SendMessageRequestHeaderV2.decode({**SEND_V2, "m": text}).batch is value


def test_irregular_names_are_those_of_java() -> None:
    header = UnregisterClientRequestHeader(client_id="c", producer_group="P")
    assert header.encode() == {"clientID": "c", "producerGroup": "P"}
    assert wire_names(RegisterBrokerRequestHeader)[:7] == (
        "brokerName",
        "brokerAddr",
        "clusterName",
        "haServerAddr",
        "brokerId",
        "compressed",
        "bodyCrc32",
    )


def test_inherited_fields_come_first_except_in_fast_headers() -> None:
    inherited = ("ns", "nsd", "bname", "oway")
    assert wire_names(UpdateConsumerOffsetRequestHeader)[:4] == inherited
    assert wire_names(PullMessageRequestHeader)[-4:] == inherited


def test_bname_is_kept() -> None:
    values = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "bname": "broker-a"}
    header = QueryConsumerOffsetRequestHeader.decode(values)
    assert header.bname == "broker-a"
    assert header.encode() == values


def test_booleans_are_written_in_lower_case() -> None:
    header = GetConsumerRunningInfoRequestHeader(consumer_group="g", client_id="c")
    assert header.encode()["jstackEnable"] == "false"


SAMPLES = {
    "a string": "x",
    "a 32-bit integer": "-7",
    "a 64-bit integer": "9999999999",
    "true or false": "true",
}


ALL: list[type[CommandHeader]] = sorted(
    {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda item: item.__name__
)


@pytest.mark.parametrize("header_type", ALL)
def test_each_header_is_decoded_and_encoded(header_type: type[CommandHeader]) -> None:
    values = {item.wire_name: SAMPLES[item.kind] for item in header_fields(header_type)}
    header = header_type.decode(values)
    assert header.encode() == values
    assert header_type.decode(header.encode()) == header
    mandatory = [item.wire_name for item in header_fields(header_type) if item.mandatory]
    for name in mandatory:
        with pytest.raises(
            RequestRejectedError, match=f"the field {name} of {header_type.__name__} is missing"
        ):
            header_type.decode({key: value for key, value in values.items() if key != name})
    only_mandatory = {name: values[name] for name in mandatory}
    assert only_mandatory.items() <= header_type.decode(only_mandatory).encode().items()


def test_some_codes_share_a_header() -> None:
    assert REQUEST_HEADERS[RequestCode.SEND_BATCH_MESSAGE] is SendMessageRequestHeaderV2
    assert REQUEST_HEADERS[RequestCode.LITE_PULL_MESSAGE] is PullMessageRequestHeader
    assert RequestCode.HEART_BEAT not in REQUEST_HEADERS
