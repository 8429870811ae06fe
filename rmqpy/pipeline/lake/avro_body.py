"""An Avro schema as the type of a column.

Records, maps, arrays, enums, fixed, unions with null, and the logical types date, timestamp-millis,
timestamp-micros, decimal and uuid have columns; a schema with anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from attrs import define

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.lake.body_schema import (
    Convert,
    NotOfSchemaError,
    list_of,
    mapping_of,
    or_null,
    unchanged,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = ["AvroBody"]


@define(slots=True, frozen=True)
class AvroBody:
    """Bodies that are one Avro datum each, without a header."""

    type: pyarrow.StructType
    _schema: Any
    _convert: Convert

    @classmethod
    def of(cls, schema: Any) -> AvroBody:
        """Raise ConfigError if the schema is not one of a record, or has unsupported parts."""
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            parsed = parse_schema(schema)
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the schema is not valid Avro: {error}; correct it") from None
        import pyarrow as pa

        kind, convert = _AvroTypes().of(schema, "the schema")
        if not pa.types.is_struct(kind):
            raise ConfigError(
                "the schema: found one that is not of a record, expected a record; correct it"
            )
        return cls(kind, parsed, convert)

    def fields(self, body: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        stream = BytesIO(body)
        try:
            parsed = schemaless_reader(stream, self._schema, None)
        except (ArithmeticError, EOFError, LookupError, MemoryError, TypeError, ValueError):
            # fastavro raises what the bytes lead to.
            raise NotOfSchemaError from None
        if stream.tell() != len(body):
            raise NotOfSchemaError
        found: dict[str, Any] = self._convert(parsed)
        return found


class _AvroTypes:
    """Arrow types of Avro schemas; ``_named`` has the named types by their full names."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[pyarrow.DataType, Convert] | None] = {}
        self._space = ""

    def of(self, schema: Any, where: str) -> tuple[pyarrow.DataType, Convert]:
        if isinstance(schema, list):
            return self._union(schema, where)
        if isinstance(schema, str):
            return self._primitive(schema, where)
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind, where)
        if (logical := schema.get("logicalType")) is not None:
            return self._logical(schema, logical, where)
        match kind:
            case "record" | "error":
                return self._record(schema, where)
            case "enum" | "fixed":
                import pyarrow as pa

                # A body is decoded by fastavro, which has checked the value.
                found: tuple[pyarrow.DataType, Convert] = (
                    pa.string() if kind == "enum" else pa.binary(),
                    unchanged,
                )
                self._named[self._full_name(schema)] = found
                return found
            case "array":
                import pyarrow as pa

                item, of_item = self.of(schema["items"], f"{where}[]")
                return pa.list_(item), list_of(of_item)
            case "map":
                import pyarrow as pa

                value, of_value = self.of(schema["values"], f"{where}.*")
                return pa.map_(pa.string(), value), mapping_of(of_value)
        return self._primitive(kind, where)

    def _union(self, schemas: list[Any], where: str) -> tuple[pyarrow.DataType, Convert]:
        others = [each for each in schemas if each != "null"]
        if len(others) != 1:
            raise ConfigError(
                f"{where}: found a union of {len(others)} types, expected one type and null;"
                " such a field has no column"
            )
        kind, convert = self.of(others[0], where)
        return kind, or_null(convert)

    def _primitive(self, name: str, where: str) -> tuple[pyarrow.DataType, Convert]:
        import pyarrow as pa

        types = {
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "bytes": pa.binary(),
            "string": pa.string(),
        }
        if name in types:
            return types[name], unchanged
        known = self._named.get(name if "." in name else self._qualified(name))
        if known is None:
            raise ConfigError(
                f"{where}: found the type {name}, expected one with a column (a recursive type and"
                " null alone have none)"
            )
        return known

    def _logical(
        self, schema: Mapping[str, Any], logical: str, where: str
    ) -> tuple[pyarrow.DataType, Convert]:
        import pyarrow as pa

        match logical:
            case "timestamp-millis" | "timestamp-micros":
                return pa.timestamp("us", tz="UTC"), unchanged
            case "date":
                return pa.date32(), unchanged
            case "decimal":
                return pa.decimal128(schema["precision"], schema.get("scale", 0)), unchanged
            case "uuid":
                return pa.string(), str
        raise ConfigError(
            f"{where}: found the logical type {logical}, expected date, timestamp-millis,"
            " timestamp-micros, decimal or uuid; such a field has no column"
        )

    def _record(self, schema: Mapping[str, Any], where: str) -> tuple[pyarrow.DataType, Convert]:
        import pyarrow as pa

        name, outer = self._full_name(schema), self._space
        self._named[name] = None
        self._space = name.rpartition(".")[0]
        members = {
            each["name"]: self.of(each["type"], f"{where}.{each['name']}")
            for each in schema["fields"]
        }
        self._space = outer
        if not members:
            raise ConfigError(f"{where}: found a record without fields, expected at least one")
        converts = {each: convert for each, (_, convert) in members.items()}

        def convert(value: Any) -> Any:
            return {each: of(value[each]) for each, of in converts.items()}

        found: tuple[pyarrow.DataType, Convert] = (
            pa.struct([(each, kind) for each, (kind, _) in members.items()]),
            convert,
        )
        self._named[name] = found
        return found

    def _full_name(self, schema: Mapping[str, Any]) -> str:
        name: str = schema["name"]
        if "." in name:
            return name
        space = schema.get("namespace", self._space)
        return f"{space}.{name}" if space else name

    def _qualified(self, name: str) -> str:
        return f"{self._space}.{name}" if self._space else name
