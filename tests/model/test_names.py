"""Rules for the names of topics and groups, with Java's remarks."""

from __future__ import annotations

import pytest

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.names import (
    INITIAL_GROUPS,
    NOT_ALLOWED_SEND_TOPICS,
    SYSTEM_TOPICS,
    check_group,
    check_send_topic,
    check_topic,
    dlq_topic,
    group_of_retry_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
    is_system_topic,
    reply_topic,
    retry_topic,
)


@pytest.mark.parametrize("name", ["T", "%RETRY%CG", "a|b", "A-Z_09", "x" * 127])
def test_valid_topics_are_accepted(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified topic is blank."),
        (" \t", "The specified topic is blank."),
        (
            "a b",
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "T\n",
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "é" * 200,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        ("x" * 128, "The specified topic is longer than topic max length."),
    ],
)
def test_invalid_topics_are_refused(name: str, remark: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        check_topic(name)
    assert (refused.value.code, refused.value.remark) == (ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.parametrize("name", ["CG", "%x|y", "g" * 255])
def test_valid_groups_are_accepted(name: str) -> None:
    check_group(name)


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "the specified group is blank"),
        ("g" * 256, "the specified group is longer than group max length 255."),
        (
            "a.b",
            "the specified group[a.b] contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
    ],
)
def test_invalid_groups_are_refused(name: str, remark: str) -> None:
    with pytest.raises(RequestRejectedError) as refused:
        check_group(name)
    assert refused.value.remark == remark


def test_system_topics_are_those_of_java() -> None:
    assert is_system_topic("TBW102") and is_system_topic("rmq_sys_x")
    assert not is_system_topic("RMQ_sys_x") and not is_system_topic("T")
    assert len(SYSTEM_TOPICS) == 9


def test_some_topics_accept_no_messages() -> None:
    assert len(NOT_ALLOWED_SEND_TOPICS) == 6
    check_send_topic("BenchmarkTest")
    with pytest.raises(RequestRejectedError) as refused:
        check_send_topic("SCHEDULE_TOPIC_XXXX")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert refused.value.remark == "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."


def test_names_are_derived_from_groups_and_clients() -> None:
    assert retry_topic("CG") == "%RETRY%CG" and is_retry_topic("%RETRY%CG")
    assert dlq_topic("CG") == "%DLQ%CG" and is_dlq_topic("%DLQ%CG")
    assert group_of_retry_topic("%RETRY%CG") == "CG"
    assert reply_topic("C") == "C_REPLY_TOPIC"
    assert is_system_group("CID_RMQ_SYS_TRANS") and not is_system_group("CID")
    assert len(INITIAL_GROUPS) == 7
