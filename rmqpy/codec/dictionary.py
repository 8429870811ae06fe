"""Texts that repeat, as topics and hosts do: each is dealt with once, the rest are numbers.

``dictionary_encode`` exists in C too: take it from :mod:`rmqpy.codec.backend`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from attrs import define

__all__ = ["DictionaryColumn", "NumberParts", "dictionary_encode"]


@define(slots=True, frozen=True)
class DictionaryColumn:
    """``numbers``: of every row the place in ``texts``, which are in the order of appearance."""

    numbers: array[int]
    texts: list[bytes]

    def to_list(self) -> list[bytes]:
        """Return the text of every row; equal ones are one object."""
        texts = self.texts
        return [texts[number] for number in self.numbers]


NumberParts = Callable[[memoryview, Sequence[int], Sequence[int]], DictionaryColumn]


def dictionary_encode(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> DictionaryColumn:
    """Equal parts of the view get equal numbers."""
    known: dict[bytes, int] = {}
    numbers = array("i")
    for start, length in zip(positions, lengths, strict=True):
        numbers.append(known.setdefault(bytes(view[start : start + length]), len(known)))
    return DictionaryColumn(numbers, list(known))
