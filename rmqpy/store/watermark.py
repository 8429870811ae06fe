"""An acknowledgement is a watermark: a position that only grows (written, flushed, replicated,
committed).

Invariant: ``value`` never decreases. Whoever waits registers a listener; nobody polls.
"""

from __future__ import annotations

from collections.abc import Callable


class Watermark:
    """A growing position with listeners, called once for each growth, in order of registration."""

    __slots__ = ("_listeners", "_value", "name")

    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name
        self._value = value
        self._listeners: list[Callable[[int], None]] = []

    @property
    def value(self) -> int:
        return self._value

    def advance(self, value: int) -> None:
        """Raise to ``value``; a smaller one is ignored (acknowledgements overtake each other)."""
        if value <= self._value:
            return
        self._value = value
        for listener in self._listeners:
            listener(value)

    def subscribe(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    def __repr__(self) -> str:
        return f"Watermark({self.name}={self._value})"
