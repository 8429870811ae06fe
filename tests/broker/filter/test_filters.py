"""SQL92 filters: their results match Java's, heartbeats register them, and pulls use them."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from harness.broker import response_bodies
from hypothesis import given
from hypothesis import strategies as st

from rmqpy.broker.filter.sql_evaluator import FilterEvaluationError
from rmqpy.broker.filter.sql_parser import (
    EXPRESSION_LENGTH_MAX,
    NESTING_MAX,
    compile_expression,
)
from rmqpy.broker.filter.tags import FilterSyntaxError
from rmqpy.codec.message import decode_message, encode_message, record_properties
from rmqpy.codec.properties import encode_properties
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import CheckClientRequestBody, SubscriptionData
from rmqpy.testing.harness import BrokerHarness, BuildBroker

VECTORS = Path(__file__).parent / "data" / "sql_vectors.json.xz"
"""Rows of [expression, "ok" or "fault", [[properties, value], …]] from rocketmq-filter 4.9.7."""


def value_of(text: str, properties: dict[str, str]) -> str:
    try:
        value = compile_expression(text).evaluate(properties)
    except FilterEvaluationError:
        return "error"
    if value is None:
        return "null"
    assert isinstance(value, bool)
    return "true" if value else "false"


def test_every_result_matches_javas() -> None:
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
def test_invalid_expressions_are_refused(text: str) -> None:
    if text == "a LIKE":  # Java ignores the text after a complete expression.
        compile_expression(text)
        return
    with pytest.raises(FilterSyntaxError):
        compile_expression(text)


def test_long_chains_are_not_nested_too_deep() -> None:
    text = " OR ".join(f"a = {number}" for number in range(1_000))
    assert compile_expression(text).matches({"a": "999"})


class CountingProperties(dict[str, str]):
    reads = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(name, default)


def test_nested_ranges_evaluate_each_value_once() -> None:
    """Java evaluates the value of BETWEEN twice, so that its time doubles with each level."""
    text = "a"
    for _ in range(30):
        text = f"-({text} BETWEEN 1 AND 2)"
    properties = CountingProperties(a="1")
    assert compile_expression(f"{text} = 1").evaluate(properties) is None
    assert properties.reads == 1


@given(st.text(max_size=40), st.dictionaries(st.sampled_from("ab"), st.text(max_size=6)))
def test_no_text_raises_another_error(text: str, properties: dict[str, str]) -> None:
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
    record = encode_message(draft)
    assert record_properties(record) == properties == decode_message(record).properties


# Filters of the broker


def subscription(text: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=text, sub_version=version, expression_type="SQL92"
    )


def fill(harness: BrokerHarness) -> None:
    for number in range(6):
        harness.send(b"%d" % number, properties=f"n\x01{number}\x02TAGS\x01t")


def test_a_pull_returns_the_messages_that_match_the_registered_filter(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True)
    fill(harness)
    harness.heartbeat(subscriptions=(subscription("n > 3 OR n = 0"),))
    answer = harness.pull(sys_flag=0, sub_version=1)
    assert response_bodies(answer) == [b"0", b"4", b"5"]
    assert answer.ext_fields["nextBeginOffset"] == "6"


def test_a_pull_without_matches_returns_the_next_offset(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True)
    fill(harness)
    harness.heartbeat(subscriptions=(subscription("n > 30"),))
    answer = harness.pull(sys_flag=0, sub_version=1)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "6")


def test_an_expression_in_the_request(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True)
    fill(harness)
    answer = harness.pull(sys_flag=4, subscription="n = 2", expression_type="SQL92")
    assert response_bodies(answer) == [b"2"]
    assert harness.pull(sys_flag=4, subscription="n =", expression_type="SQL92").code == 23
    assert harness.pull(sys_flag=4, subscription="n = 2", expression_type="ABC").code == 23


def test_a_held_pull_is_resumed_only_by_a_matching_message(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True)
    fill(harness)
    harness.heartbeat(subscriptions=(subscription("n = 7"),))
    harness.deliver(harness.pull_command(sys_flag=2, sub_version=1, queue_offset=6))
    harness.send_command()
    harness.deliver(harness.send_command(b"no", properties="n\x016"))
    assert [a.code for a in harness.channel.take() if "msgId" not in a.ext_fields] == []
    harness.deliver(harness.send_command(b"yes", properties="n\x017"))
    (answer,) = [a for a in harness.channel.take() if "msgId" not in a.ext_fields]
    assert response_bodies(answer) == [b"yes"]


@pytest.mark.parametrize(
    ("enabled", "text", "version", "code"),
    [
        (False, "n > 3", 1, 1),
        (True, "n >", 1, 27),
        (True, "n > 3", 2, 25),
    ],
)
def test_invalid_requests_are_refused(
    build: BuildBroker, enabled: bool, text: str, version: int, code: int
) -> None:
    harness = build(enable_property_filter=enabled)
    fill(harness)
    harness.heartbeat(subscriptions=(subscription(text),))
    assert harness.pull(sys_flag=0, sub_version=version).code == code


def test_a_newer_expression_replaces_an_older_one(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True)
    fill(harness)
    for text, version, expected in (
        ("n = 1", 5, [b"1"]),
        ("n = 2", 4, [b"1"]),
        ("n = 3", 6, [b"3"]),
    ):
        harness.heartbeat(subscriptions=(subscription(text, version),))
        assert response_bodies(harness.pull(sys_flag=0, sub_version=version)) == expected
    harness.heartbeat(subscriptions=(subscription("n >", 7),))
    assert harness.pull(sys_flag=0, sub_version=7).code == 27


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
def test_a_client_can_check_an_sql_expression_in_advance(
    build: BuildBroker, enabled: bool, expression_type: str, text: str, code: int
) -> None:
    harness = build(enable_property_filter=enabled)
    data = SubscriptionData(topic="T", sub_string=text, expression_type=expression_type)
    body = CheckClientRequestBody(client_id="c", group="CG", subscription_data=data)
    assert harness.call(46, body=body.encode()).code == code


def test_filters_survive_a_restart_and_expire_later(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True, filter_data_clean_time_span=100_000)
    harness.heartbeat(subscriptions=(subscription("n = 1", 5),))
    harness.scheduler.advance(11_000)
    assert b'"expression":"n = 1"' in harness.files.read_bytes("/store/config/consumerFilter.json")
    harness.store.shutdown()
    again = build(files=harness.files, scheduler=harness.scheduler, enable_property_filter=True,
                  filter_data_clean_time_span=100_000)  # fmt: skip
    found = again.broker.filters.get("CG", "T")
    assert found is not None and found.expression is not None
    assert found.expression.matches({"n": "1"}) and found.dead_ms > 0
    again.scheduler.advance(90_000)
    again.heartbeat(subscriptions=(subscription("n = 1", 5),))
    found = again.broker.filters.get("CG", "T")
    assert found is not None and found.dead_ms == 0
    again.heartbeat(subscriptions=(SubscriptionData(topic="Other"),))
    again.scheduler.advance(111_000)
    assert again.broker.filters.get("CG", "T") is None


def test_retries_can_be_filtered_by_their_original_topic(build: BuildBroker) -> None:
    harness = build(enable_property_filter=True, filter_support_retry=True)
    harness.heartbeat(
        subscriptions=(
            subscription("n = 1"),
            SubscriptionData(topic="%RETRY%CG", sub_string="*", sub_version=1),
        )
    )
    for number in range(3):
        harness.send(
            b"%d" % number, topic="%RETRY%CG", properties=f"n\x01{number}\x02RETRY_TOPIC\x01T"
        )
    harness.send(b"free", topic="%RETRY%CG", properties="RETRY_TOPIC\x01Other")
    answer = harness.pull(topic="%RETRY%CG", sys_flag=0, sub_version=1)
    assert response_bodies(answer) == [b"1", b"free"]


@pytest.mark.parametrize("code", [301, 302])
def test_requests_for_filter_classes_are_not_supported(harness: BrokerHarness, code: int) -> None:
    """Java has dropped them, too; a subscription with a class receives every message."""
    answer = harness.call(code)
    assert answer.code == 3 and answer.remark == f" request type {code} not supported"


def test_a_subscription_with_a_filter_class_receives_every_message(harness: BrokerHarness) -> None:
    by_class = SubscriptionData("T", "org.example.Filter", sub_version=1, class_filter_mode=True)
    harness.heartbeat(group="CG", subscriptions=(by_class,))
    harness.send(b"one", properties="TAGS\x01TagA")
    harness.send(b"two")
    answer = harness.pull(sys_flag=8, sub_version=1)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "2")
