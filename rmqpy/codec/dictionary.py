"""Dictionary encoding of repeating texts such as topics and hosts: each text once, then numbers.

``dictionary_encode`` exists in C too: take it from :mod:`rmqpy.codec.backend`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from attrs import define

__all__ = ["DictionaryColumn", "NumberParts", "dictionary_encode"]


@define(slots=True, frozen=True)
class DictionaryColumn:
    """A column whose ``numbers`` are indexes into ``texts``, in the order of first appearance."""

    numbers: array[int]
    texts: list[bytes]

    def to_list(self) -> list[bytes]:
        """Return the text of every row; equal texts are the same object."""
        texts = self.texts
        return [texts[number] for number in self.numbers]


NumberParts = Callable[[memoryview, Sequence[int], Sequence[int]], DictionaryColumn]


def dictionary_encode(
    view: memoryview, positions: Sequence[int], lengths: Sequence[int]
) -> DictionaryColumn:
    """Encode parts of the view, so that equal parts have equal numbers."""
    known: dict[bytes, int] = {}
    numbers = array("i")
    for start, length in zip(positions, lengths, strict=True):
        numbers.append(known.setdefault(bytes(view[start : start + length]), len(known)))
    return DictionaryColumn(numbers, list(known))
