"""How the annotations of attrs classes name and type the fields of headers and bodies."""

from __future__ import annotations

import types
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

from attrs import Attribute

Int64: TypeAlias = Annotated[int, "int64"]
"""A Java long; plain ``int`` is a Java int."""

_NAME: Final = "wire_name"


def named(name: str) -> dict[str, str]:
    """Metadata of an attrs field whose name on the wire is not its camelCase form."""
    return {_NAME: name}


def wire_name(attribute: Attribute[Any]) -> str:
    """``consumer_group`` as Java writes it, ``consumerGroup``, or as :func:`named` says."""
    given = attribute.metadata.get(_NAME)
    if given is not None:
        return str(given)
    first, *others = attribute.name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def without_none(hint: Any) -> Any:
    """``hint`` without ``| None``."""
    if get_origin(hint) not in (types.UnionType, Union):
        return hint
    rest = [part for part in get_args(hint) if part is not type(None)]
    assert len(rest) == 1, hint
    return rest[0]
