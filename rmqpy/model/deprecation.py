"""Deprecated names: old names of public objects, which work for one more version with a warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping


def deprecated_names(module: str, new_names: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for ``module`` that serves old names with a DeprecationWarning.

    ``new_names`` maps each old name to the name of the same object in ``module``.
    """

    def get(name: str) -> object:
        if name not in new_names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = new_names[name]
        warnings.warn(
            f"{module}.{name} is deprecated: use {module}.{new}", DeprecationWarning, stacklevel=2
        )
        found: object = getattr(sys.modules[module], new)
        return found

    return get
