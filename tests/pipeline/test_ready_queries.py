"""``rmqpy pipeline query``: the ready-made queries over a store and over a table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.store import StoreRig

from rmqpy.cli import main
from rmqpy.codec.properties import encode_properties
from rmqpy.pipeline.jobs.ready_queries import ready_queries
from rmqpy.store.files.disk import OsFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Rows = list[dict[str, Any]]
HOUR_MS = 3_600_000
START_MS = 1_764_324_000_000
"""2025-11-28T10:00:00Z"""
TRACES = "RMQ_SYS_TRACE_TOPIC"


def sent(number: int, at_ms: int) -> str:
    parts = ("Pub", at_ms, "Region", "producers", "orders", f"ID{number}", "tag", f"key{number}")
    more = ("127.0.0.1:10911", 12, 3, 0, f"OFFSET{number}", "true", "127.0.0.1")
    return "\x01".join(map(str, (*parts, *more))) + "\x02"


def received(number: int, at_ms: int, group: str = "billing", retry: int = 0) -> str:
    parts = ("SubBefore", at_ms, "Region", group, f"R{number}", f"ID{number}", retry, "null")
    after = ("SubAfter", f"R{number}", f"ID{number}", 4, "true", "null", 0, at_ms + 4, group)
    return "".join("\x01".join(map(str, each)) + "\x02" for each in (parts, after))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return a store with orders, a retry, dead letters, and message traces, over three hours."""
    rig = StoreRig(OsFileSystem(), str(tmp_path / "store"))
    rig.changes["mapped_file_size_commit_log"] = 1 << 20
    rig.clock.jump_wall_clock(START_MS - rig.clock.now_ms())
    copied = {"KEYS": "key0", "UNIQ_KEY": "U0", "RETRY_TOPIC": "orders"}

    def put(number: int, topic: str, **more: Any) -> None:
        rig.write(number, topic=topic.encode(), **more)

    for number in range(4):
        keys = {"KEYS": f"key{number % 2} shared", "UNIQ_KEY": f"U{number}"}
        put(number, "orders", properties=encode_properties(keys))
    put(4, "%RETRY%billing", properties=encode_properties(copied))
    for number in (5, 6):
        put(number, "%DLQ%billing", properties=encode_properties(copied))
    put(7, "orders", born_host=(bytes([10, 0, 0, 7]), 4000), body=b"far " * 100)
    traces = (
        sent(0, START_MS) + sent(1, START_MS + 10),
        received(0, START_MS + 20) + sent(2, START_MS + 30),
        received(0, START_MS + 5_000, retry=1) + received(1, START_MS + HOUR_MS + 10),
        received(2, START_MS + 40, "audit"),
    )
    for number, trace in enumerate(traces, start=8):
        put(number, TRACES, body=trace.encode())
    rig.clock.advance(3 * HOUR_MS)
    put(12, "orders")
    return rig.root


@pytest.fixture
def run(store: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Any:
    def query(name: str, *more: str) -> Rows:
        words = ["pipeline", "query", name, "--on", store, "--format", "json", *more]
        assert main(words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert spark is not None
    return query


def moment(at_ms: int) -> str:
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def test_each_query_answers(run: Any) -> None:
    (letters,) = run("dead-letters")
    assert (letters["consumerGroup"], letters["originalTopic"]) == ("billing", "orders")
    assert letters["messages"] == 2

    keys = {row["key"]: row for row in run("duplicate-keys")}
    assert {key: row["messages"] for key, row in keys.items()} == {
        "shared": 4,
        "key0": 2,
        "key1": 2,
    }
    assert keys["shared"]["sends"] == 4

    hosts = {row["host"]: row for row in run("senders")}
    assert set(hosts) == {"127.0.0.1", "10.0.0.7"} and hosts["10.0.0.7"]["messages"] == 1

    latency = {row["consumerGroup"]: row for row in run("latency")}
    assert latency["billing"] == {
        **{"consumerGroup": "billing", "topic": "orders", "messages": 2},
        **{"p50Ms": HOUR_MS / 2 + 10, "p99Ms": pytest.approx(HOUR_MS * 0.99, rel=0.01)},
        "maxMs": HOUR_MS,
    }
    assert latency["audit"]["maxMs"] == 10

    lag = [row for row in run("lag-history") if row["consumerGroup"] == "billing"]
    assert [(row["start"], row["sent"], row["consumed"], row["lag"]) for row in lag] == [
        (moment(START_MS), 3, 1, 2),
        (moment(START_MS + HOUR_MS), 0, 1, 1),
    ]
    (whole,) = [
        row
        for row in run("lag-history", "--set", "minutes=1440")
        if row["consumerGroup"] == "billing"
    ]
    assert (whole["sent"], whole["consumed"], whole["lag"]) == (3, 2, 1)


@pytest.mark.parametrize(("hours", "gone"), [(1, 5), (3, 5), (4, 0)])
def test_retention(run: Any, hours: int, gone: int) -> None:
    rows = {row["topic"]: row for row in run("retention", "--set", f"hours={hours}")}
    assert rows["orders"]["messages"] == 6 and rows["orders"]["goneMessages"] == gone
    assert (rows["orders"]["goneBytes"] > 0) == (gone > 0)


def test_a_table_of_messages_is_queried_too(
    store: str, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--table", "parquet", "--to", str(tmp_path / "t"), "--broker-name", "b"]
    assert main(["pipeline", "append", store, *words]) == 0
    capsys.readouterr()
    on = ["--on", str(tmp_path / "t"), "--format", "json"]
    assert main(["pipeline", "query", "dead-letters", *on]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 2


def test_queries_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "query"]) == 0
    listed = capsys.readouterr().out
    assert len(ready_queries()) == 6
    for query in ready_queries().values():
        assert query.name in listed and query.description in listed
    assert main(["pipeline", "query", "retention", "--print", "--set", "hours=5"]) == 0
    printed = capsys.readouterr().out
    assert "make_dt_interval(0, 5)" in printed and "$" not in printed


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dead-leters", "--on", "x"], "did you mean dead-letters"),
        (["senders"], "found no --on"),
        (["senders", "--on", "x", "--set", "hours=1"], "expected one of senders: none"),
    ],
)
def test_wrong_calls(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "query", *words]) == 1
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("value", ["hours=1;drop", "hours", "hours=-1", "hours=", "hours=\u0661"])
def test_only_whole_numbers_reach_the_sql(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["pipeline", "query", "retention", "--on", "x", "--set", value])
    assert "with a whole number" in capsys.readouterr().err
