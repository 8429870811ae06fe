"""The base of all typed bodies: conversion between JSON and attrs objects by class annotations.

==================  ==========================  ==========================================
annotation          JSON                        also read
==================  ==========================  ==========================================
str                 string                      number, boolean (their text)
int, Int64          number in 32 / 64 bits      decimal string, boolean, whole fraction
bool                true, false                 0, 1, "true", "false"
float               number, Double.toString     decimal string
a Body              object
list[T]             array
tuple[T, ...]       array (on one line in config files)
dict[str, T]        object
dict[int, T]        object with bare keys       quoted keys
dict[aBody, T]      object with object keys     keys that are strings of JSON
``| None``          left out when None
==================  ==========================  ==========================================

Members are written in alphabetical order of their names, maps in the order of the dict. On reading,
unknown members are ignored and null is the same as absent, at every level. An attribute without a
default is mandatory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import (
    Any,
    ClassVar,
    Final,
    Self,
    TypeAlias,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from attrs import NOTHING, AttrsInstance, define, fields

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.fastjson import (
    TOLERANT_REQUEST_MAX,
    FastjsonDecodeError,
    ObjectKey,
    dumps,
    loads,
)
from rmqpy.remoting.java_values import INT32_MAX, INT64_MAX, check_range, parse_decimal
from rmqpy.remoting.lazy_attrs import Int64, Value, wire_name, without_none

Read: TypeAlias = Callable[[Any], Any]
Write: TypeAlias = Callable[[Any], Any]

REQUEST_BYTES_MAX: Final = 512 * 1024
"""The maximum size of the body of a client's request. Decoding takes up to a third of a second per
MiB.
"""


class Body(Value):
    """The base of typed bodies; subclasses are attrs classes named as in Java."""

    __slots__ = ()

    BYTES_MAX: ClassVar[int | None] = None
    """The size limit of a body that any client may send; None means no limit. A larger body is
    refused undecoded, and one longer than ``TOLERANT_REQUEST_MAX`` must be strict JSON.
    """

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Return the body in ``data``. Raises RequestRejectedError with the invalid member."""
        if cls.BYTES_MAX is not None and len(data) > cls.BYTES_MAX:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR,
                f"not a {cls.__name__}: {len(data)} bytes, more than {cls.BYTES_MAX}",
            )
        try:
            tolerant_max = None if cls.BYTES_MAX is None else TOLERANT_REQUEST_MAX
            return cls.from_json(loads(data, tolerant_max))
        except (FastjsonDecodeError, BodyDecodeError) as fault:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"not a {cls.__name__}: {str(fault)[:300]}"
            ) from None

    def encode(self, *, pretty: bool = False, strict: bool = False) -> bytes:
        """Return this body as JSON: compact, ``pretty`` as in config files, or ``strict``."""
        return dumps(self.to_json(), pretty=pretty, strict=strict)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the body in a decoded JSON value; raise BodyDecodeError if it does not fit."""
        if not isinstance(value, dict):
            raise BodyDecodeError(f"expected an object, found {_shown(value)}")
        arguments: dict[str, object] = {}
        for member in _members(cast(Hashable, cls)):
            found = value.get(member.wire_name)
            if found is None:
                if member.mandatory:
                    raise BodyDecodeError(f"the member {member.wire_name} is missing")
                continue
            try:
                arguments[member.argument] = member.read(found)
            except BodyDecodeError as fault:
                raise BodyDecodeError(f"{member.wire_name}: {fault}") from None
        return cls(**arguments)

    def to_json(self) -> dict[Any, object]:
        """Return the plain values that ``encode`` writes."""
        encoded: dict[Any, object] = {}
        for member in _members(cast(Hashable, type(self))):
            value = getattr(self, member.attribute)
            if value is not None:
                encoded[member.wire_name] = member.write(value)
        return encoded


class BodyDecodeError(ValueError):
    """A JSON value does not fit its annotation. The message contains its path and the problem."""


@define(slots=True, frozen=True, eq=False, repr=False)
class _BodyMember:
    attribute: str
    argument: str
    wire_name: str
    mandatory: bool
    read: Read
    write: Write


@cache
def _members(body: Hashable) -> tuple[_BodyMember, ...]:
    of = cast(type[AttrsInstance], body)
    hints = get_type_hints(of, include_extras=True)
    table = []
    for attribute in fields(of):
        read, write = _kind(without_none(hints[attribute.name]))
        table.append(
            _BodyMember(
                attribute=attribute.name,
                argument=str(attribute.alias),
                wire_name=wire_name(attribute),
                mandatory=attribute.default is NOTHING,
                read=read,
                write=write,
            )
        )
    return tuple(sorted(table, key=lambda member: member.wire_name))


def _kind(hint: Any) -> tuple[Read, Write]:
    if hint in _SCALARS:
        return _SCALARS[hint], _identity
    if get_origin(hint) is list:
        return _list_kind(get_args(hint)[0], list)
    if get_origin(hint) is tuple:
        return _list_kind(get_args(hint)[0], tuple)
    if get_origin(hint) is dict:
        return _map_kind(*get_args(hint))
    assert isinstance(hint, type) and issubclass(hint, Body), hint
    return hint.from_json, hint.to_json


def _list_kind(item: Any, form: type[list[Any]] | type[tuple[Any, ...]]) -> tuple[Read, Write]:
    read_item, write_item = _kind(item)

    def read(value: object) -> Sequence[object]:
        if not isinstance(value, list | tuple):
            raise BodyDecodeError(f"expected an array, found {_shown(value)}")
        return form(read_item(found) for found in value if found is not None)

    def write(value: Sequence[object]) -> Sequence[object]:
        return form(write_item(found) for found in value)

    return read, write


def _map_kind(key: Any, item: Any) -> tuple[Read, Write]:
    read_key, write_key = _key_kind(key)
    read_item, write_item = _kind(item)

    def read(value: object) -> dict[object, object]:
        if not isinstance(value, dict):
            raise BodyDecodeError(f"expected an object, found {_shown(value)}")
        table: dict[object, object] = {}
        for name, found in value.items():
            if found is None:
                continue
            try:
                table[read_key(name)] = read_item(found)
            except BodyDecodeError as fault:
                raise BodyDecodeError(f"{_shown(name)}: {fault}") from None
        return table

    def write(value: Mapping[object, object]) -> dict[object, object]:
        return {write_key(name): write_item(found) for name, found in value.items()}

    return read, write


def _key_kind(key: Any) -> tuple[Read, Write]:
    if key in (str, int, Int64):
        return _SCALARS[key], _identity
    assert isinstance(key, type) and issubclass(key, Body), key
    of: type[Body] = key

    def read(name: object) -> Body:
        if isinstance(name, ObjectKey):
            return of.from_json(name.as_dict())
        try:
            return of.from_json(loads(str(name)))
        except FastjsonDecodeError as fault:
            raise BodyDecodeError(str(fault)) from None

    def write(name: Body) -> ObjectKey:
        return ObjectKey.of(name.to_json())

    return read, write


def _identity(value: Any) -> Any:
    return value


def _read_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise BodyDecodeError(f"expected a string, found {_shown(value)}")


def _read_number(value: object, maximum: int) -> int:
    try:
        if isinstance(value, int):
            return check_range(int(value), maximum)
        if isinstance(value, float) and value.is_integer():
            return check_range(int(value), maximum)
        if isinstance(value, str):
            return parse_decimal(value, maximum)
    except ValueError:
        pass
    raise BodyDecodeError(f"expected an integer up to {maximum}, found {_shown(value)}")


def _read_int32(value: object) -> int:
    return _read_number(value, INT32_MAX)


def _read_int64(value: object) -> int:
    return _read_number(value, INT64_MAX)


def _read_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise BodyDecodeError(f"expected true or false, found {_shown(value)}")


def _read_float(value: object) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise BodyDecodeError(f"expected a number, found {_shown(value)}")


def _shown(value: object) -> str:
    return type(value).__name__ if isinstance(value, dict | list) else repr(value)[:64]


_SCALARS: Final[dict[Any, Read]] = {
    str: _read_text,
    int: _read_int32,
    Int64: _read_int64,
    bool: _read_bool,
    float: _read_float,
}
