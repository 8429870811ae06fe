"""Type checks for attrs classes whose values were decoded from JSON of another program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

_PLAIN = {"int": int, "str": str, "bool": bool, "float": float}


def check_types(kind: type[attrs.AttrsInstance], values: Mapping[str, Any]) -> None:
    """Raise TypeError if a value of a field of a plain type (int, str, bool) has another type.

    Fields of other types, missing fields, and unknown names are not checked.
    """
    for each in attrs.fields(kind):
        expected = _PLAIN.get(str(each.type))
        if expected is None or each.name not in values:
            continue
        found = values[each.name]
        if type(found) is not expected:
            raise TypeError(f"{each.name} is {found!r}, expected {each.type}")
