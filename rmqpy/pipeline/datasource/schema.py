"""The columns of ``format("rocketmq")`` as Spark types, and batches cast to a schema of them.

A schema may use rmqpy's names, those of Spark's Kafka source, or both:

==============  ===================  =====================================================
Kafka's name    built from           type
==============  ===================  =====================================================
key             keys                 binary
value           body                 binary
partition       queueId              int
offset          queueOffset          long
timestamp       storeTimestamp       timestamp; the time that startingTimestamp refers to
timestampType                        int: 1, the time at which the broker stored the message
headers         properties           array of (key string, value binary)
==============  ===================  =====================================================

Spark passes the options of ``CREATE TABLE`` to the call that returns the schema, which it keeps,
and to no later one. Therefore the schema carries them, without secrets, as metadata of a column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.arrow.rows import COLUMNS, json_texts

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "HEADERS",
    "TYPES",
    "checked_columns",
    "default_schema",
    "project_columns",
    "properties_type",
    "table_options",
]

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
HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
KAFKA_TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": TYPES["topic"],
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
"""The columns of Spark's Kafka source, in its order."""
MESSAGE_COLUMNS: Final = ("topic", "keys", "tags", "body", "properties")
"""The columns that can be read and written."""
METADATA: Final = "rocketmq"
SOURCES: Final = ("path", "paths", "nameserver")
SECRETS: Final = ("accesskey", "secretkey", "securitytoken")
TABLE_PROPERTIES: Final = (
    *("comment", "collation", "external", "is_managed_location", "location", "owner", "provider"),
)
"""The properties of a table that Spark passes like options when it creates the table."""
BUILT_FROM: Final[Mapping[str, str]] = {
    "key": "keys",
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "timestampType": "queueId",
    "headers": "properties",
}
"""The column from which one of another name is built."""
LOG_APPEND_TIME: Final = 1
"""The number of Kafka's timestampType LogAppendTime."""
PROPERTIES_TYPES: Final[Mapping[str, DataType]] = {
    "map": TYPES["properties"],
    "string": StringType(),
}
"""The types of the column properties, by the option propertiesFormat.

A string is one JSON object, as in the old connector.
"""


def _choice(options: Mapping[str, str], name: str, default: str) -> str:
    """Return the option ``name`` in lower case, before the others are checked."""
    return {key.lower(): value for key, value in options.items()}.get(name.lower(), default).lower()


def properties_type(options: Mapping[str, str]) -> DataType:
    """Return the type of the column properties that the option propertiesFormat selects.

    Raise ConfigError if the option is invalid.
    """
    value = _choice(options, "propertiesFormat", "map")
    kind = PROPERTIES_TYPES.get(value)
    if kind is None:
        raise ConfigError(f"the option propertiesFormat is {value!r}, expected map or string")
    return kind


def default_schema(options: Mapping[str, str], columns: Iterable[str]) -> StructType:
    """Return the schema of a read without one: ``columns``, or those of the option columns.

    Raise ConfigError if an option is invalid.
    """
    kinds: Mapping[str, DataType] = {**TYPES, "properties": properties_type(options)}
    match _choice(options, "columns", "rocketmq"):
        case "kafka":
            columns, kinds = KAFKA_TYPES, KAFKA_TYPES
        case "message":
            columns = MESSAGE_COLUMNS
        case "rocketmq":
            pass
        case other:
            raise ConfigError(
                f"the option columns is {other!r}, expected rocketmq, message, or kafka"
            )
    fields = [StructField(name, kinds[name]) for name in columns]
    dropped = (*SECRETS, *TABLE_PROPERTIES)
    # Spark passes the options of a table twice: as they are, and with this prefix.
    plain = {name.removeprefix("option."): value for name, value in options.items()}
    kept = {name: value for name, value in plain.items() if name.lower() not in dropped}
    fields[0].metadata = {METADATA: json.dumps(kept, sort_keys=True)}
    return StructType(fields)


def table_options(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the options of a read or write; those of a table are in its schema.

    The schema counts only if the options name no source, or it could add options of another one.
    """
    if any(name.lower() in SOURCES for name in options):
        return options
    for column in schema.fields:
        if METADATA in (column.metadata or {}):
            return {**json.loads(column.metadata[METADATA]), **options}
    return options


def checked_columns(schema: StructType) -> tuple[str, ...]:
    """Return the names of the columns to build, each once.

    Raise ConfigError for an unknown column or a wrong type.
    """
    for column in schema.fields:
        kind = TYPES.get(column.name) or KAFKA_TYPES.get(column.name)
        if kind is None:
            raise ConfigError(
                f"no column {column.name!r}; the columns are: {', '.join(COLUMNS)}; and those of"
                f" Kafka: {', '.join(BUILT_FROM)}"
            )
        allowed = PROPERTIES_TYPES.values() if column.name == "properties" else [kind]
        if column.dataType not in allowed:
            raise ConfigError(
                f"the column {column.name} is {kind.simpleString()}, "
                f"not {column.dataType.simpleString()}"
            )
    return tuple(dict.fromkeys(BUILT_FROM.get(name, name) for name in schema.names))


def project_columns(batches: Iterable[pyarrow.RecordBatch], schema: StructType) -> Iterator[Any]:
    """Yield the batches with exactly the columns of ``schema``, cast to its types."""
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        columns = [
            _projected(field.name, batch[BUILT_FROM.get(field.name, field.name)], field.type)
            for field in arrow_schema
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=arrow_schema)


def _projected(name: str, column: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow

    if name == "timestampType":
        return pyarrow.repeat(pyarrow.scalar(LOG_APPEND_TIME, kind), len(column))
    if not pyarrow.types.is_map(column.type) or pyarrow.types.is_map(kind):
        return column.cast(kind)
    return _headers(column, kind) if pyarrow.types.is_list(kind) else json_texts(column)


def _headers(maps: pyarrow.Array, kind: pyarrow.ListType) -> pyarrow.Array:
    import pyarrow

    fields = list(kind.value_type)
    pairs = zip((maps.keys, maps.items), fields, strict=True)
    values = [column.cast(field.type) for column, field in pairs]
    structs = pyarrow.StructArray.from_arrays(values, fields=fields)
    return pyarrow.ListArray.from_arrays(maps.offsets, structs, type=kind)
