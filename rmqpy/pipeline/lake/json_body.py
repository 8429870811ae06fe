"""A JSON Schema as the type of a column.

``type``, ``properties``, ``required``, ``items``, ``additionalProperties`` and the format
``date-time`` define columns. Keywords that only limit values are not checked. A schema with any
other keyword is refused, because it could change a column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.lake.body_schema import (
    Convert,
    NotOfSchemaError,
    list_of,
    mapping_of,
    or_null,
)

if TYPE_CHECKING:
    import pyarrow

__all__ = ["JsonBody"]

ANNOTATIONS: Final = frozenset(
    ("$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated")
)
CONSTRAINTS: Final = frozenset(
    (
        *("enum", "const", "pattern", "readOnly", "writeOnly", "uniqueItems", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    )
)
"""Keywords that limit values without changing a column; they are not checked."""
STRUCTURE: Final = frozenset(
    ("type", "properties", "required", "items", "additionalProperties", "format")
)


@define(slots=True, frozen=True)
class JsonBody:
    """Bodies that are JSON objects. Members that the schema does not name are ignored."""

    type: pyarrow.StructType
    _convert: Convert

    @classmethod
    def of(cls, schema: Any) -> JsonBody:
        """Raise ConfigError if the schema is not one of an object, or has unsupported parts."""
        kind, convert = _json_type(schema, "the schema")
        import pyarrow as pa

        if not pa.types.is_struct(kind):
            raise ConfigError(
                "the schema: found one that is not of an object with properties, expected"
                ' {"type": "object", "properties": {...}}; correct it'
            )
        return cls(kind, convert)

    def fields(self, body: bytes) -> dict[str, Any]:
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise NotOfSchemaError from None
        found: dict[str, Any] = self._convert(parsed)
        return found


def _json_type(schema: Any, where: str) -> tuple[pyarrow.DataType, Convert]:
    import pyarrow as pa

    if not isinstance(schema, Mapping):
        raise ConfigError(f"{where}: found {schema!r}, expected an object; correct it")
    if unknown := sorted(set(schema) - ANNOTATIONS - CONSTRAINTS - STRUCTURE):
        raise ConfigError(
            f"{where}: found the keyword {unknown[0]}, which rmqpy does not translate to columns,"
            " expected type, properties, required, items, additionalProperties or format"
        )
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or [])
    is_nullable = "null" in kinds
    kinds = [kind for kind in kinds if kind != "null"]
    if len(kinds) != 1:
        raise ConfigError(
            f"{where}: found the type {schema.get('type')!r}, expected one type, or one and null"
        )
    match kinds[0]:
        case "object" if isinstance(schema.get("properties"), Mapping):
            kind, convert = _json_struct(schema, where)
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            value, of_value = _json_type(schema["additionalProperties"], f"{where}.*")
            kind, convert = pa.map_(pa.string(), value), mapping_of(of_value)
        case "array" if isinstance(schema.get("items"), Mapping):
            item, of_item = _json_type(schema["items"], f"{where}[]")
            kind, convert = pa.list_(item), list_of(of_item)
        case "string" if schema.get("format") == "date-time":
            kind, convert = pa.timestamp("us", tz="UTC"), _moment
        case "string":
            kind, convert = pa.string(), _text
        case "integer":
            kind, convert = pa.int64(), _integer
        case "number":
            kind, convert = pa.float64(), _number
        case "boolean":
            kind, convert = pa.bool_(), _only(bool)
        case other:
            raise ConfigError(
                f"{where}: found {other} without what it contains, expected properties of an"
                " object, items of an array, or a type of JSON; complete it"
            )
    return kind, or_null(convert) if is_nullable else convert


def _json_struct(schema: Mapping[str, Any], where: str) -> tuple[pyarrow.DataType, Convert]:
    import pyarrow as pa

    members = {
        name: _json_type(each, f"{where}.{name}") for name, each in schema["properties"].items()
    }
    if not members:
        raise ConfigError(f"{where}: found no properties, expected at least one; name them")
    required = frozenset(schema.get("required", ()))
    converts = {name: convert for name, (_, convert) in members.items()}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict) or not required <= value.keys():
            raise NotOfSchemaError
        return {name: of(value[name]) for name, of in converts.items() if name in value}

    return pa.struct([(name, kind) for name, (kind, _) in members.items()]), convert


def _only(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise NotOfSchemaError
        return value

    return convert


def _integer(value: Any) -> Any:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise NotOfSchemaError
    return value


def _number(value: Any) -> Any:
    if type(value) not in (int, float):
        raise NotOfSchemaError
    try:
        return float(value)
    except OverflowError:
        raise NotOfSchemaError from None


def _moment(value: Any) -> Any:
    if type(value) is not str:
        raise NotOfSchemaError
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise NotOfSchemaError from None
    if moment.tzinfo is None:
        raise NotOfSchemaError
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise NotOfSchemaError from None


def _text(value: Any) -> Any:
    if type(value) is not str or not _is_utf8(value):
        raise NotOfSchemaError
    return value


def _is_utf8(text: str) -> bool:
    """Return False for text with half of a surrogate pair, which JSON can escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
