"""``define`` as attrs has it, for classes of modules that most commands load.

attrs compiles ``__eq__``, ``__hash__`` and ``__repr__`` for each class, which takes a quarter of a
millisecond: with 80 such classes that is a sixth of the time of a short command. They are the same
for all classes here, and read the attributes when they are called. A comparison takes twice as
long; a class whose instances are compared by the million takes ``attrs.define``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import attrs

__all__ = ["define"]

_compared: Final[dict[type, Any]] = {}
"""What returns the attributes that are compared, by class."""


def _values(value: Any) -> Any:
    kind = value.__class__
    found = _compared.get(kind)
    if found is None:
        names = [each.name for each in kind.__attrs_attrs__ if each.eq]
        assert all(each.eq_key is None for each in kind.__attrs_attrs__), "compared as it is"
        found = _compared[kind] = attrgetter(*names) if names else _nothing
    return found(value)


def _nothing(_value: object) -> tuple[()]:
    return ()


def _is_equal(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, _values(self)))


def _text(self: Any) -> str:
    kind = self.__class__
    pairs = ", ".join(
        f"{each.name}={getattr(self, each.name, attrs.NOTHING)!r}"
        for each in kind.__attrs_attrs__
        if each.repr
    )
    return f"{kind.__qualname__.rpartition('>.')[2]}({pairs})"


if TYPE_CHECKING:
    from attrs import define
else:

    def define(kind=None, **given):
        """Define a class as ``attrs.define`` does; other options than these four are left to it."""
        if kind is None:
            return lambda decorated: define(decorated, **given)
        known = {"slots", "frozen", "kw_only", "repr"}
        if issubclass(kind, BaseException) or not known.issuperset(given):
            return attrs.define(kind, **given)
        own = vars(kind)
        has_text = given.pop("repr", True)
        if "__eq__" not in own:
            kind.__eq__ = _is_equal
            if "__hash__" not in own:
                kind.__hash__ = _hash if given.get("frozen") else None
        if has_text and "__repr__" not in own:
            kind.__repr__ = _text
        return attrs.define(kind, eq=False, repr=False, **given)
