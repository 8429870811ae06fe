"""What the schemas of bodies have in common: an Arrow type, and a conversion to its values.

A body that is not of its schema has no fields (null) and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "FIELDS",
    "BodySchema",
    "Convert",
    "NotOfSchemaError",
    "list_of",
    "mapping_of",
    "or_null",
    "unchanged",
]

FIELDS: Final = "fields"
"""The column of the fields."""

Convert = Callable[[Any], Any]
"""Returns the value for Arrow. Raises NotOfSchemaError if the value is not of the type."""


class NotOfSchemaError(ValueError):
    """A body, or a part of it, is not what the schema says."""


class BodySchema(Protocol):
    """A schema of bodies; ``type`` is the type of the column."""

    @property
    def type(self) -> pyarrow.StructType: ...

    def fields(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body. Raise NotOfSchemaError if it is not of the schema."""
        ...


def unchanged(value: Any) -> Any:
    return value


def or_null(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def list_of(convert: Convert) -> Convert:
    def of(value: Any) -> Any:
        if not isinstance(value, list):
            raise NotOfSchemaError
        return list(map(convert, value))

    return of


def mapping_of(convert: Convert) -> Convert:
    def of(value: Any) -> Any:
        if not isinstance(value, dict):
            raise NotOfSchemaError
        return [(name, convert(each)) for name, each in value.items()]

    return of
