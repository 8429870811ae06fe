"""Equality and text of the many small classes of headers and bodies, by their attributes.

attrs would compile these methods for each of the 130 classes whenever a process starts; that was a
tenth of a broker's start.
"""

from __future__ import annotations

from typing import Any


class Value:
    """Base of attrs classes made with ``eq=False, repr=False``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(self))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(self))
        return f"{type(self).__qualname__}({pairs})"


def _names(value: Any) -> list[str]:
    return [attribute.name for attribute in type(value).__attrs_attrs__]
