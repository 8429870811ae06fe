"""Rows of a table: the columns of messages, masked, and the fields of their bodies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from rmqpy.codec.properties import (
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
)
from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.lake.body_schema import FIELDS, BodySchema, NotOfSchemaError
from rmqpy.pipeline.lake.masking import REMOVED, WHOLE_BODY, Masking, MaskingRule

if TYPE_CHECKING:
    import pyarrow

__all__ = ["TableRows"]

ORIGINS: Final = (PROPERTY_REAL_TOPIC, PROPERTY_RETRY_TOPIC, "DLQ_ORIGIN_TOPIC")
"""The properties of a copy (a retry, a dead letter) that name the topic of the message."""


@define(slots=True, frozen=True)
class TableRows:
    """Makes rows of a table from batches of messages with all columns.

    Raise ConfigError if a rule would change the type of a field.
    """

    schema: BodySchema | None = None
    masking: Masking = field(factory=Masking)

    def __attrs_post_init__(self) -> None:
        if self.schema is None:
            return
        for rule in self.masking.rules:
            if rule.what == "body" and rule.name != WHOLE_BODY and rule.kind != "remove":
                _check_text(self.schema.type, rule)

    def batch(self, messages: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, int]:
        """Return (rows, number of bodies that could not be read)."""
        import pyarrow as pa

        if self.schema is None and not self.masking.rules:
            return messages, 0
        columns = {name: messages[name] for name in messages.schema.names}
        masked = _MaskedColumns(columns)
        parsed: list[Any] = []
        unreadable = 0
        for row, rules in enumerate(self._rules(columns)):
            masked.mask_row(row, rules, self.masking)
            fields, is_read = self._take_body(masked, row, [r for r in rules if r.what == "body"])
            parsed.append(fields)
            unreadable += not is_read
        arrays = masked.arrays()
        schema = messages.schema
        if self.schema is not None:
            arrays[FIELDS] = pa.array(parsed, self.schema.type)
            schema = schema.append(pa.field(FIELDS, self.schema.type))
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema), unreadable

    def _rules(self, columns: dict[str, pyarrow.Array]) -> list[tuple[MaskingRule, ...]]:
        """Return the rules of each row, those of the topic that a copy came from, too."""
        if not self.masking.rules:
            return [()] * len(columns["topic"])
        known: dict[frozenset[str], tuple[MaskingRule, ...]] = {}
        found = []
        properties = columns["properties"].to_pylist()
        for topic, pairs in zip(columns["topic"].to_pylist(), properties, strict=True):
            topics = frozenset({topic, *(value for name, value in pairs if name in ORIGINS)})
            if topics not in known:
                known[topics] = tuple(
                    rule for rule in self.masking.rules if any(map(rule.is_for, topics))
                )
            found.append(known[topics])
        return found

    def _take_body(
        self, masked: _MaskedColumns, row: int, rules: Sequence[MaskingRule]
    ) -> tuple[Any, bool]:
        """Return (fields, whether the body was read), and mask the body."""
        paths = [rule for rule in rules if rule.name != WHOLE_BODY]
        if self.schema is None and not rules:
            return None, True
        body = masked.value("body", row)
        fields, is_read = None, True
        if self.schema is not None:
            try:
                fields = self.schema.fields(body)
            except NotOfSchemaError:
                is_read = False
            else:
                fields = self.masking.document(paths, fields)
        if rules:
            new, is_masked = self._masked_body(body, rules, paths)
            masked.set("body", row, new)
            masked.set("bodyCrc", row, None)
            is_read = is_read and is_masked
        return fields, is_read

    def _masked_body(
        self, body: bytes, rules: Sequence[MaskingRule], paths: Sequence[MaskingRule]
    ) -> tuple[bytes | None, bool]:
        if whole := [rule for rule in rules if rule.name == WHOLE_BODY]:
            value = self.masking.value(whole[0].kind, body)
            return None if value is REMOVED else value.encode(), True
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return None, False
        text = json.dumps(self.masking.document(paths, document), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass"), True


class _MaskedColumns:
    """Columns of a batch; those that a rule changes become lists."""

    def __init__(self, columns: dict[str, pyarrow.Array]) -> None:
        self._columns = columns
        self._changed: dict[str, list[Any]] = {}

    def value(self, name: str, row: int) -> Any:
        if name in self._changed:
            return self._changed[name][row]
        return self._columns[name][row].as_py()

    def set(self, name: str, row: int, value: Any) -> None:
        if name not in self._changed:
            self._changed[name] = self._columns[name].to_pylist()
        self._changed[name][row] = value

    def mask_row(self, row: int, rules: Sequence[MaskingRule], masking: Masking) -> None:
        for rule in rules:
            if rule.what == "column":
                self._mask(rule.name, row, rule, masking)
            elif rule.what == "property":
                self._mask_property(row, rule, masking)

    def arrays(self) -> dict[str, pyarrow.Array]:
        import pyarrow as pa

        return {
            name: pa.array(self._changed[name], array.type) if name in self._changed else array
            for name, array in self._columns.items()
        }

    def _mask(self, name: str, row: int, rule: MaskingRule, masking: Masking) -> None:
        value = masking.value(rule.kind, self.value(name, row))
        self.set(name, row, None if value is REMOVED else value)

    def _mask_property(self, row: int, rule: MaskingRule, masking: Masking) -> None:
        pairs = []
        for name, value in self.value("properties", row):
            masked = masking.value(rule.kind, value) if name == rule.name else value
            if masked is not REMOVED:
                pairs.append((name, masked))
        self.set("properties", row, pairs)
        if rule.name == PROPERTY_KEYS:
            self._mask("keys", row, rule, masking)
        elif rule.name == PROPERTY_TAGS:
            self._mask("tags", row, rule, masking)
            self.set("tagsCode", row, None)


def _check_text(kind: pyarrow.DataType, rule: MaskingRule) -> None:
    import pyarrow as pa

    for name in rule.path:
        while pa.types.is_list(kind):
            kind = kind.value_type
        if pa.types.is_map(kind):
            kind = kind.item_type
        elif pa.types.is_struct(kind) and kind.get_field_index(name) >= 0:
            kind = kind.field(name).type
        else:
            return  # a path that the schema does not name has no column
    while pa.types.is_list(kind):
        kind = kind.value_type
    if not pa.types.is_string(kind):
        raise ConfigError(
            f"the masking rule of body = {rule.name!r}: found with = {rule.kind!r} for a field of"
            f' the type {kind}, expected "remove", or text in the schema'
        )
