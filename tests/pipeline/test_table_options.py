"""The options of a table, which travel in the metadata of its schema, as Spark passes them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; pip install 'rmqpy[spark]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install 'rmqpy[spark]'")

pytestmark = pytest.mark.spark

GIVEN = {
    "nameServer": "127.0.0.1:1",
    "topic": "orders",
    "columns": "message",
    "secretKey": "hidden",
    "accessKey": "hidden",
}
"""Options of CREATE TABLE. Spark 4.3 adds the rest, as seen in its call."""
SEEN = GIVEN | {f"option.{name}": value for name, value in GIVEN.items()}
SEEN |= {"owner": "root", "provider": "rocketmq", "location": "file:/warehouse/t"}


def test_a_schema_carries_the_options_without_secrets() -> None:
    from pyspark.sql.types import StructType

    from rmqpy.pipeline.datasource.schema import table_options
    from rmqpy.pipeline.datasource.source import RocketMqSource

    text = RocketMqSource(SEEN).schema().json()
    assert "hidden" not in text
    schema = StructType.fromJson(json.loads(text))
    assert schema.names == ["topic", "keys", "tags", "body", "properties"]
    kept = {name: GIVEN[name] for name in ("nameServer", "topic", "columns")}
    assert table_options({}, schema) == kept
    assert table_options({"topic": "other"}, schema) == {**kept, "topic": "other"}


def test_options_that_name_a_source_stand_alone() -> None:
    from rmqpy.pipeline.datasource.schema import table_options
    from rmqpy.pipeline.datasource.source import RocketMqSource

    schema = RocketMqSource(SEEN).schema()
    for given in ({"path": "/data"}, {"paths": "[]"}, {"NAMESERVER": "127.0.0.1:2"}):
        assert table_options(given, schema) == given
