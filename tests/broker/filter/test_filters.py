"""SQL92 filters: results as Java's, registration by heartbeats, pulls that use them."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.broker.filter.sql_evaluator import FilterEvaluationError
from rmqpy.broker.filter.sql_parser import (
    EXPRESSION_LENGTH_MAX,
    NESTING_MAX,
    compile_expression,
)
from rmqpy.broker.filter.tags import FilterSyntaxError
from rmqpy.codec.message import decode_message, encode_messages, record_properties
from rmqpy.codec.properties import encode_properties
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import CheckClientRequestBody, SubscriptionData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.harness import BrokerHarness, BuildBroker

VECTORS = Path(__file__).parent / "data" / "sql_vectors.json.xz"
"""[expression, "ok" or "fault", [[properties, value], …]], as rocketmq-filter 4.9.7 answered."""


def value_of(text: str, properties: dict[str, str]) -> str:
    try:
        value = compile_expression(text).evaluate(properties)
    except FilterEvaluationError:
        return "error"
    return {True: "true", False: "false", None: "null"}[value]


def test_every_result_is_javas() -> None:
    rows = json.loads(lzma.decompress(VECTORS.read_bytes()))
    assert len(rows) > 1_000
    for text, java, results in rows:
        try:
            compile_expression(text)
        except FilterSyntaxError:
            assert java == "fault", text
            continue
        assert java == "ok", text
        for properties, value in results:
            assert value_of(text, properties) == value, (text, properties)


@pytest.mark.parametrize(
    ("text", "properties", "value"),
    [
        ("a = 'x'", {"a": "x"}, "true"),
        ("a = 'x'", {}, "null"),
        ("'x' = a", {}, "false"),
        ("a <> 5", {"a": "5"}, "false"),
        ("a > 3 OR b = 1", {"a": "many", "b": "1"}, "error"),
        ("b = 1 OR a > 3", {"a": "many", "b": "1"}, "true"),
        ("a BETWEEN 1 AND 3", {"a": "2"}, "true"),
        ("a NOT IN ('x')", {}, "null"),
        ("a IS NOT NULL AND NOT b", {"a": "1"}, "null"),
        ("a = TRUE", {"a": "TRUE"}, "true"),
    ],
)
def test_three_valued_logic(text: str, properties: dict[str, str], value: str) -> None:
    assert value_of(text, properties) == value
    assert compile_expression(text).matches(properties) is (value == "true")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "a >",
        "a BETWEEN 3 AND 1",
        "a > 'x'",
        "a = NULL",
        "(a = 1",
        "a ~ 1",
        "a LIKE",
        "a IN (1)",
        "a IN ()",
        "'a' IN ('a')",
        "x" * (EXPRESSION_LENGTH_MAX + 1),
        "(" * (NESTING_MAX + 1) + "a = 1" + ")" * (NESTING_MAX + 1),
        "NOT " * 5_000 + "a",
        "a = 1" + " = b" * 4_000,
    ],
)
def test_what_is_no_expression(text: str) -> None:
    if text == "a LIKE":  # Java ignores what follows a complete expression
        compile_expression(text)
        return
    with pytest.raises(FilterSyntaxError):
        compile_expression(text)


def test_long_chains_are_no_deep_nests() -> None:
    text = " OR ".join(f"a = {number}" for number in range(1_000))
    assert compile_expression(text).matches({"a": "999"})


@given(st.text(max_size=40), st.dictionaries(st.sampled_from("ab"), st.text(max_size=6)))
def test_no_text_makes_it_fail_otherwise(text: str, properties: dict[str, str]) -> None:
    with suppress(FilterSyntaxError):
        compile_expression(text).matches(properties)


@pytest.mark.parametrize("hosts", [(4, 0), (16, 0x30)])
def test_properties_of_a_record_without_decoding_it(hosts: tuple[int, int]) -> None:
    length, sys_flag = hosts
    properties = {"a": "1", "b": "ü"}
    host = (bytes(length), 1)
    draft = OutgoingMessage(
        topic=b"T", queue_id=0, body=b"x" * 9, properties=encode_properties(properties),
        sys_flag=sys_flag, born_timestamp_ms=0, born_host=host, store_host=host,
    )  # fmt: skip
    (record,) = encode_messages([draft])
    assert record_properties(record) == properties == decode_message(record).properties


# the broker


def subscription(text: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=text, sub_version=version, expression_type="SQL92"
    )


def fill(kit: BrokerHarness) -> None:
    for number in range(6):
        kit.send(b"%d" % number, properties=f"n\x01{number}\x02TAGS\x01t")


def bodies(answer: RemotingCommand) -> list[bytes]:
    found, position = [], 0
    while position < len(answer.body):
        message = decode_message(answer.body, position)
        found.append(message.body)
        position += message.size
    return found


def test_a_pull_gets_what_the_registered_filter_wants(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True)
    fill(kit)
    kit.heartbeat(subscriptions=(subscription("n > 3 OR n = 0"),))
    answer = kit.pull(sys_flag=0, sub_version=1)
    assert bodies(answer) == [b"0", b"4", b"5"]
    assert answer.ext_fields["nextBeginOffset"] == "6"


def test_nothing_matched_is_told_with_where_to_go_on(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True)
    fill(kit)
    kit.heartbeat(subscriptions=(subscription("n > 30"),))
    answer = kit.pull(sys_flag=0, sub_version=1)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "6")


def test_an_expression_in_the_request(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True)
    fill(kit)
    answer = kit.pull(sys_flag=4, subscription="n = 2", expression_type="SQL92")
    assert bodies(answer) == [b"2"]
    assert kit.pull(sys_flag=4, subscription="n =", expression_type="SQL92").code == 23
    assert kit.pull(sys_flag=4, subscription="n = 2", expression_type="ABC").code == 23


def test_a_waiting_pull_is_woken_by_what_it_wants_only(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True)
    fill(kit)
    kit.heartbeat(subscriptions=(subscription("n = 7"),))
    kit.deliver(kit.pull_command(sys_flag=2, sub_version=1, queue_offset=6))
    kit.send_command()
    kit.deliver(kit.send_command(b"no", properties="n\x016"))
    assert [a.code for a in kit.channel.take() if "msgId" not in a.ext_fields] == []
    kit.deliver(kit.send_command(b"yes", properties="n\x017"))
    (answer,) = [a for a in kit.channel.take() if "msgId" not in a.ext_fields]
    assert bodies(answer) == [b"yes"]


@pytest.mark.parametrize(
    ("enabled", "text", "version", "code"),
    [
        (False, "n > 3", 1, 1),
        (True, "n >", 1, 27),
        (True, "n > 3", 2, 25),
    ],
)
def test_refusals(build: BuildBroker, enabled: bool, text: str, version: int, code: int) -> None:
    kit = build(enable_property_filter=enabled)
    fill(kit)
    kit.heartbeat(subscriptions=(subscription(text),))
    assert kit.pull(sys_flag=0, sub_version=version).code == code


def test_a_newer_expression_replaces_an_older_one(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True)
    fill(kit)
    for text, version, expected in (
        ("n = 1", 5, [b"1"]),
        ("n = 2", 4, [b"1"]),
        ("n = 3", 6, [b"3"]),
    ):
        kit.heartbeat(subscriptions=(subscription(text, version),))
        assert bodies(kit.pull(sys_flag=0, sub_version=version)) == expected
    kit.heartbeat(subscriptions=(subscription("n >", 7),))
    assert kit.pull(sys_flag=0, sub_version=7).code == 27


@pytest.mark.parametrize(
    ("enabled", "expression_type", "text", "code"),
    [
        (True, "TAG", "a || b", 0),
        (False, "SQL92", "n > 3", 1),
        (True, "SQL92", "n > 3", 0),
        (True, "SQL92", "n BETWEEN 3 AND 1", 23),
        (True, "ABC", "n", 23),
    ],
)
def test_a_client_may_ask_first(
    build: BuildBroker, enabled: bool, expression_type: str, text: str, code: int
) -> None:
    kit = build(enable_property_filter=enabled)
    data = SubscriptionData(topic="T", sub_string=text, expression_type=expression_type)
    body = CheckClientRequestBody(client_id="c", group="CG", subscription_data=data)
    assert kit.call(46, body=body.encode()).code == code


def test_filters_are_kept_over_a_restart_and_forgotten_later(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True, filter_data_clean_time_span=100_000)
    kit.heartbeat(subscriptions=(subscription("n = 1", 5),))
    kit.scheduler.advance(11_000)
    assert b'"expression":"n = 1"' in kit.files.read_bytes("/store/config/consumerFilter.json")
    kit.store.shutdown()
    again = build(files=kit.files, scheduler=kit.scheduler, enable_property_filter=True,
                  filter_data_clean_time_span=100_000)  # fmt: skip
    found = again.broker.filters.get("CG", "T")
    assert found.expression.matches({"n": "1"}) and found.dead_ms > 0
    again.scheduler.advance(90_000)
    again.heartbeat(subscriptions=(subscription("n = 1", 5),))
    assert again.broker.filters.get("CG", "T").dead_ms == 0
    again.heartbeat(subscriptions=(SubscriptionData(topic="Other"),))
    again.scheduler.advance(111_000)
    assert again.broker.filters.get("CG", "T") is None


def test_retries_may_be_filtered_by_the_topic_they_came_from(build: BuildBroker) -> None:
    kit = build(enable_property_filter=True, filter_support_retry=True)
    kit.heartbeat(
        subscriptions=(
            subscription("n = 1"),
            SubscriptionData(topic="%RETRY%CG", sub_string="*", sub_version=1),
        )
    )
    for number in range(3):
        kit.send(b"%d" % number, topic="%RETRY%CG", properties=f"n\x01{number}\x02RETRY_TOPIC\x01T")
    kit.send(b"free", topic="%RETRY%CG", properties="RETRY_TOPIC\x01Other")
    answer = kit.pull(topic="%RETRY%CG", sys_flag=0, sub_version=1)
    assert bodies(answer) == [b"1", b"free"]


@pytest.mark.parametrize("code", [301, 302])
def test_classes_that_filter_are_no_requests(kit: BrokerHarness, code: int) -> None:
    """Java has forgotten them too: who subscribes with a class gets every message."""
    answer = kit.call(code)
    assert answer.code == 3 and answer.remark == f" request type {code} not supported"


def test_who_subscribes_with_a_class_gets_every_message(kit: BrokerHarness) -> None:
    by_class = SubscriptionData("T", "org.example.Filter", sub_version=1, class_filter_mode=True)
    kit.heartbeat(group="CG", subscriptions=(by_class,))
    kit.send(b"one", properties="TAGS\x01TagA")
    kit.send(b"two")
    answer = kit.pull(sys_flag=8, sub_version=1)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "2")
