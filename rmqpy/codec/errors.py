"""The error for bytes that do not match the format."""

from __future__ import annotations

from rmqpy.model.errors import RmqError


class InvalidRecordError(RmqError, ValueError):
    """Bytes are not a valid record, entry or unit. ``offset`` is the offset at which they begin,
    ``field`` the Java name of the invalid field.
    """

    def __init__(self, offset: int, field: str, found: object, expected: object) -> None:
        super().__init__(f"at offset {offset}: {field} is {found}, expected {expected}")
        self.offset = offset
        self.field = field
