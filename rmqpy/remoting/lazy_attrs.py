"""The base of headers and bodies: attrs classes that are built on first use, and their wire names.

attrs compiles methods for each class, which takes a third of a millisecond. There are 130 of these
small classes, of which a starting broker uses two: building all of them took an eighth of its start
time. For the same reason equality and repr are implemented once, here, from the attributes.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
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
"""The annotation of a Java long; plain ``int`` is a Java int."""

_NAME: Final = "wire_name"


class Value:
    """The base of classes defined by :func:`lazy_define` or with ``eq=False, repr=False``."""

    __slots__ = ()
    if TYPE_CHECKING:
        __attrs_attrs__: ClassVar[tuple[Attribute[Any], ...]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _names(self))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names(self))
        return f"{type(self).__qualname__}({pairs})"


@dataclass_transform(field_specifiers=(field,))
def lazy_define(*, kw_only: bool = False) -> Callable[[V], V]:
    """Return a decorator like ``attrs.define`` that builds the class when the first instance is
    created or ``__attrs_attrs__`` is first read.
    """

    def defer(kind: V) -> V:
        kind.__init__ = _first_init  # type: ignore[assignment, method-assign]
        kind.__attrs_attrs__ = _FirstAttributes()  # type: ignore[assignment]
        _deferred[kind] = kw_only
        return kind

    return defer


def named(name: str) -> dict[str, str]:
    """Return the metadata of a field whose name on the wire is not its camelCase form."""
    return {_NAME: name}


def wire_name(attribute: Attribute[Any]) -> str:
    """Return the wire name of a field: Java's camelCase form, or the name set by :func:`named`."""
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


_deferred: dict[type, bool] = {}
"""The classes that are not built yet. The value is True for keyword-only classes."""

_build_lock = threading.RLock()
"""The lock that makes a second thread wait until the class is complete."""


class _FirstAttributes:
    """The ``__attrs_attrs__`` of a class that is not built yet; subclasses inherit it."""

    def __get__(self, instance: object, owner: type[Value]) -> Any:
        _build(owner)
        return owner.__attrs_attrs__


def _first_init(self: Value, *args: Any, **kwargs: Any) -> None:
    _build(type(self))
    type(self).__init__(self, *args, **kwargs)


def _build(requested: type[Value]) -> None:
    """Build the base classes of ``requested``, then the class itself."""
    with _build_lock:
        for kind in reversed(requested.__mro__):
            kw_only = _deferred.pop(kind, None)
            if kw_only is not None:
                define(slots=False, auto_detect=False, eq=False, repr=False, kw_only=kw_only)(kind)


def _names(value: Any) -> list[str]:
    return [attribute.name for attribute in type(value).__attrs_attrs__]
