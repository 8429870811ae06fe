"""Steps: long work that is divided into steps, so that its caller decides when it continues."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that yields after each small step and returns its result."""


def finish(steps: Steps[T]) -> T:
    """Run the remaining steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
