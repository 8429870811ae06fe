"""The base of all custom headers: a table of fields built from the annotations of an attrs class.

The wire name of an attribute is its camelCase form unless :func:`named` says otherwise. The kind
follows from the annotation:

===========  ==========================  =====================================
annotation   text on the wire            not accepted on read
===========  ==========================  =====================================
str          itself
int          decimal, 32 bits            other texts, out of range
Int64        decimal, 64 bits            other texts, out of range
bool         ``true`` / ``false``        nothing (all texts but "true" are false)
float        Java ``Double.toString``    other texts
``| None``   left out when None
===========  ==========================  =====================================

An attribute without a default is mandatory. Unknown ext fields are ignored, absent optional ones
take the default.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import (
    Any,
    ClassVar,
    Final,
    Self,
    cast,
    get_type_hints,
)

from attrs import NOTHING, AttrsInstance, fields

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.values import define
from rmqpy.remoting.java_values import INT32_MAX, INT64_MAX, java_double, parse_decimal
from rmqpy.remoting.lazy_attrs import Int64, Value, named, wire_name, without_none

__all__ = ["CommandHeader", "HeaderField", "Int64", "header_fields", "named", "wire_names"]

Parse = Callable[[str], object]
Text = Callable[[Any], str]


class CommandHeader(Value):
    """The base of custom headers; subclasses are keyword-only attrs classes named as in Java."""

    __slots__ = ()

    FAST_CODEC: ClassVar[bool] = False
    """True if Java writes the fields of this header in order of declaration into a ROCKETMQ frame.
    """

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """Return the header in ``ext_fields``. Raises RequestRejectedError for a missing or
        unreadable field.
        """
        values: dict[str, object] = {}
        name = ""
        try:
            for name, attribute, mandatory, parse, safe_digits in _parsers(cls):  # type: ignore[arg-type]
                text = ext_fields.get(name)
                if text is not None:
                    if parse is str:
                        values[attribute] = text
                    elif len(text) <= safe_digits and text.isdecimal():
                        values[attribute] = int(text)
                    else:
                        values[attribute] = parse(text)
                elif mandatory:
                    raise RequestRejectedError(
                        ResponseCode.SYSTEM_ERROR,
                        f"the field {name} of {cls.__name__} is missing",
                    )
        except ValueError:
            kind = next(item.kind for item in header_fields(cls) if item.wire_name == name)
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"the field {name} of {cls.__name__} is not {kind}: {ext_fields[name][:64]!r}",
            ) from None
        return cls(**values)

    def encode(self) -> dict[str, str]:
        """Return the ext fields that are not None, in the order of :func:`header_fields`."""
        encoded: dict[str, str] = {}
        for item in header_fields(type(self)):
            value = getattr(self, item.attribute)
            if value is not None:
                encoded[item.wire_name] = item.text(value)
        return encoded


@define(slots=True, frozen=True)
class HeaderField:
    """One field of a header: its names, and how its value is read and written."""

    attribute: str
    wire_name: str
    mandatory: bool
    kind: str
    parse: Parse
    text: Text


def header_fields(header: type[CommandHeader]) -> tuple[HeaderField, ...]:
    """Return the fields of ``header`` in order of declaration.

    Inherited fields are first, as in Java's reflection, except in a fast codec header: there they
    are last, as Java writes them.
    """
    return _table(cast(Hashable, header))


def wire_names(header: type[CommandHeader]) -> tuple[str, ...]:
    """Return the names of the ext fields of ``header``, in the order of :func:`header_fields`."""
    return _wire_names(cast(Hashable, header))


@cache
def _parsers(header: Hashable) -> tuple[tuple[str, str, bool, Parse, int], ...]:
    """Return the part of the fields that :meth:`CommandHeader.decode` needs for every request:
    wire name, attribute, whether it is mandatory, parser, safe digits.
    """
    return tuple(
        (
            item.wire_name,
            item.attribute,
            item.mandatory,
            item.parse,
            _SAFE_DIGITS.get(item.parse, 0),
        )
        for item in _table(header)
    )


@cache
def _wire_names(header: Hashable) -> tuple[str, ...]:
    return tuple(item.wire_name for item in _table(header))


@cache
def _table(header: Hashable) -> tuple[HeaderField, ...]:
    kind_of = cast(type[AttrsInstance], header)
    hints = get_type_hints(kind_of, include_extras=True)
    table = []
    last_inherited = cast(type[CommandHeader], header).FAST_CODEC
    for attribute in sorted(fields(kind_of), key=lambda item: item.inherited == last_inherited):
        kind, parse, text = _KINDS[without_none(hints[attribute.name])]
        table.append(
            HeaderField(
                attribute=attribute.name,
                wire_name=wire_name(attribute),
                mandatory=attribute.default is NOTHING,
                kind=kind,
                parse=parse,
                text=text,
            )
        )
    return tuple(table)


def _int32(text: str) -> int:
    return parse_decimal(text, INT32_MAX)


def _int64(text: str) -> int:
    return parse_decimal(text, INT64_MAX)


def _bool(text: str) -> bool:
    return text.lower() == "true"


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


_SAFE_DIGITS: Final[dict[Parse, int]] = {_int32: 9, _int64: 18}
"""The number of decimal digits, without a sign, that are always within the range of the kind."""

_KINDS: Final[dict[Any, tuple[str, Parse, Text]]] = {
    str: ("a string", str, str),
    int: ("a 32-bit integer", _int32, str),
    Int64: ("a 64-bit integer", _int64, str),
    bool: ("true or false", _bool, _bool_text),
    float: ("a number", float, java_double),
}
