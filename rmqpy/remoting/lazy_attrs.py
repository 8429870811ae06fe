"""What headers and bodies have in common: attrs classes that are made when they are first used.

attrs compiles methods for each class, a third of a millisecond. There are 130 of these small ones,
and a broker that starts uses two: making all of them was an eighth of its start. For the same
reason equality and text are written once, here, by the attributes.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Final,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

from attrs import Attribute, define, field

V = TypeVar("V", bound="type[Value]")

Int64: TypeAlias = Annotated[int, "int64"]
"""A Java long; plain ``int`` is a Java int."""

_NAME: Final = "wire_name"


class Value:
    """Base of classes that are :func:`lazy_define`, or made with ``eq=False, repr=False``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(self))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(self))
        return f"{type(self).__qualname__}({pairs})"


@dataclass_transform(field_specifiers=(field,))
def lazy_define(*, kw_only: bool = False) -> Callable[[V], V]:
    """Return ``attrs.define``, carried out with the first instance, or when attrs is asked for the
    attributes.
    """

    def put_off(kind: V) -> V:
        kind.__init__ = _first_init  # type: ignore[assignment, method-assign]
        kind.__attrs_attrs__ = _FirstAttributes()  # type: ignore[attr-defined]
        _unmade[kind] = kw_only
        return kind

    return put_off


def named(name: str) -> dict[str, str]:
    """Metadata of an attrs field whose name on the wire is not its camelCase form."""
    return {_NAME: name}


def wire_name(attribute: Attribute[Any]) -> str:
    """Return ``consumer_group`` as Java writes it, ``consumerGroup``, or as :func:`named` says."""
    given = attribute.metadata.get(_NAME)
    if given is not None:
        return str(given)
    first, *others = attribute.name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def without_none(hint: Any) -> Any:
    """Return ``hint`` without ``| None``."""
    if get_origin(hint) not in (types.UnionType, Union):
        return hint
    rest = [part for part in get_args(hint) if part is not type(None)]
    assert len(rest) == 1, hint
    return rest[0]


_unmade: dict[type, bool] = {}
"""Those that wait, and whether they are keyword-only."""

_making = threading.RLock()
"""Who comes second waits until the class is whole."""


class _FirstAttributes:
    """``__attrs_attrs__`` of a class that waits: subclasses ask for it too."""

    def __get__(self, instance: object, owner: type[Value]) -> Any:
        _make(owner)
        return owner.__attrs_attrs__  # type: ignore[attr-defined]


def _first_init(self: Value, *args: Any, **kwargs: Any) -> None:
    _make(type(self))
    type(self).__init__(self, *args, **kwargs)


def _make(asked: type[Value]) -> None:
    """Make what the class inherits, and the class."""
    with _making:
        for kind in reversed(asked.__mro__):
            kw_only = _unmade.pop(kind, None)
            if kw_only is not None:
                define(slots=False, auto_detect=False, eq=False, repr=False, kw_only=kw_only)(kind)


def _names(value: Any) -> list[str]:
    return [attribute.name for attribute in type(value).__attrs_attrs__]
