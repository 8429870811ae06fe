"""The nearest known name to a misspelled one, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the known name that is nearest to ``name`` or the only one
    that begins with it, or nothing.
    """
    import difflib  # here because it is rarely needed: only for an unknown name

    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    begun = [each for each in by_lower if name and each.startswith(name.lower())]
    if not near and len(begun) == 1:
        near = begun
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
