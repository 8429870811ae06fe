"""The columns of ``format("rocketmq")`` as Spark types, and batches cast to a schema of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.arrow.rows import COLUMNS, json_texts

if TYPE_CHECKING:
    import pyarrow

__all__ = ["TYPES", "checked_columns", "project_columns", "properties_type"]

TYPES: Final[Mapping[str, DataType]] = {
    **dict.fromkeys(COLUMNS, LongType()),
    **dict.fromkeys(["topic", "tags", "keys", "bornHost", "storeHost"], StringType()),
    **dict.fromkeys(["queueId", "size", "flag", "sysFlag", "reconsumeTimes"], IntegerType()),
    **dict.fromkeys(["bornTimestamp", "storeTimestamp"], TimestampType()),
    "bodyCrc": IntegerType(),
    "crcOk": BooleanType(),
    "body": BinaryType(),
    "properties": MapType(StringType(), StringType()),
    "brokerName": StringType(),
}
PROPERTIES_TYPES: Final[Mapping[str, DataType]] = {
    "map": TYPES["properties"],
    "string": StringType(),
}
"""The types of the column properties, by the option propertiesFormat.

A string is one JSON object, as in the old connector.
"""


def properties_type(options: Mapping[str, str]) -> DataType:
    """Return the type of the column properties that the option propertiesFormat selects.

    Raise ConfigError if the option is invalid.
    """
    value = {name.lower(): value for name, value in options.items()}.get("propertiesformat", "map")
    kind = PROPERTIES_TYPES.get(value.lower())
    if kind is None:
        raise ConfigError(f"the option propertiesFormat is {value!r}, expected map or string")
    return kind


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns. Raise ConfigError for an unknown column or a wrong type."""
    for column in schema.fields:
        kind = TYPES.get(column.name)
        if kind is None:
            raise ConfigError(f"no column {column.name!r}; the columns are: {', '.join(COLUMNS)}")
        allowed = PROPERTIES_TYPES.values() if column.name == "properties" else [kind]
        if column.dataType not in allowed:
            raise ConfigError(
                f"the column {column.name} is {kind.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
    return tuple(column.name for column in schema.fields)


def project_columns(batches: Iterable[pyarrow.RecordBatch], schema: StructType) -> Iterator[Any]:
    """Yield the batches with their columns cast to exactly the types of ``schema``."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        pairs = zip(batch.columns, arrow_schema, strict=True)
        columns = [
            json_texts(column)
            if pyarrow.types.is_map(column.type) and not pyarrow.types.is_map(field.type)
            else column.cast(field.type)
            for column, field in pairs
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=arrow_schema)
