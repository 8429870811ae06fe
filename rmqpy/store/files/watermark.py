"""Watermark: an acknowledgement is a position that only grows (written, flushed, replicated,
committed).

Invariant: ``value`` never decreases. Waiting code registers a listener instead of polling.
"""

from __future__ import annotations

from collections.abc import Callable


class Watermark:
    """A growing position and its listeners, called at each growth in order of registration."""

    __slots__ = ("_listeners", "name", "value")

    def __init__(self, name: str, value: int = 0) -> None:
        self.name = name
        self.value = value
        """The position. Only :meth:`advance` raises it; it is a plain attribute because it is read
        many times per turn.
        """
        self._listeners: list[Callable[[int], None]] = []

    def advance(self, value: int) -> None:
        """Raise the position to ``value`` and call the listeners. A smaller value is ignored,
        because acknowledgements overtake each other.
        """
        if value <= self.value:
            return
        self.value = value
        for listener in self._listeners:
            listener(value)

    def subscribe(self, listener: Callable[[int], None]) -> None:
        """Call ``listener`` with the new value after each growth."""
        self._listeners.append(listener)

    def __repr__(self) -> str:
        return f"Watermark({self.name}={self.value})"
