"""An acknowledgement is a watermark: a position that only grows (written, flushed, replicated,
committed).

Invariant: ``value`` never decreases. Whoever waits registers a listener; nobody polls.
"""

from __future__ import annotations

from collections.abc import Callable


class Watermark:
    """A growing position with listeners, called once for each growth, in order of registration."""

    __slots__ = ("_listeners", "name", "value")

    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name
        self.value = value
        """Raised by :meth:`advance` alone; a plain attribute, as it is read many times a turn."""
        self._listeners: list[Callable[[int], None]] = []

    def advance(self, value: int) -> None:
        """Raise to ``value``; a smaller one is ignored (acknowledgements overtake each other)."""
        if value <= self.value:
            return
        self.value = value
        for listener in self._listeners:
            listener(value)

    def subscribe(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    def __repr__(self) -> str:
        return f"Watermark({self.name}={self.value})"
