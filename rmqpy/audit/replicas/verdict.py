"""The verdict of every comparison of stores.

================  ================================================================================
EQUAL             the stores contain the same messages, and everything else that was compared is the
                  same
CONTAINED         one store has all messages of the other and more: messages that the other does not
                  have yet, or that have expired there; or the same messages, and newer tables
DIFFERENT         a message, a table, or what leads to a message differs, is damaged, or could not
                  be decided, or each store has messages that the other lacks
NOTHING COMPARED  no difference, but no message in common either: one of the stores is empty
================  ================================================================================

The order in which stores are given changes nothing. A verdict says which store is contained in
which; whether that is the answer that a command asked for is the command's matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Final

from attrs import define

from rmqpy.model.text import count_text

__all__ = ["DIFFERENT", "EQUAL", "NOTHING_COMPARED", "Containment", "Verdict", "Word"]

NEWER_TABLES: Final = " newer entries in its tables"
UNKNOWN_NUMBER: Final = " a longer log, with an unknown number of messages more"


class Word(Enum):
    """The word of a verdict, from the best to the worst."""

    EQUAL = "EQUAL"
    CONTAINED = "CONTAINED"
    NOTHING_COMPARED = "NOTHING COMPARED"
    DIFFERENT = "DIFFERENT"


@define(slots=True, frozen=True)
class Containment:
    """One store is contained in another, which has ``more`` messages more; None if it has more, and
    their number is not known.

    With 0, both have the same messages, and the outer one has newer entries in its tables: those of
    a later state, or those that the inner one has not copied yet.
    """

    inner: str
    outer: str
    more: int | None


@define(slots=True, frozen=True)
class Verdict:
    """The verdict on two or more stores; ``contained`` is empty unless the word is CONTAINED."""

    word: Word
    contained: tuple[Containment, ...] = ()

    @classmethod
    def on_contents(cls, one: str, two: str, only_one: int | None, only_two: int | None) -> Verdict:
        """Return the verdict on two stores that agree in the messages that both have.

        ``only_one`` and ``only_two`` count the messages that only one of them has; None for some
        of which the number is not known.
        """
        if only_one != 0 and only_two != 0:
            return DIFFERENT
        if only_one != 0:
            return cls(Word.CONTAINED, (Containment(two, one, only_one),))
        return cls(Word.CONTAINED, (Containment(one, two, only_two),)) if only_two != 0 else EQUAL

    @classmethod
    def overall(cls, verdicts: Iterable[Verdict]) -> Verdict:
        """Return the worst verdict, with all containments. Without any, nothing was compared."""
        found = list(verdicts)
        order = list(Word)
        word = max((each.word for each in found), key=order.index, default=Word.NOTHING_COMPARED)
        if word is not Word.CONTAINED:
            return cls(word)
        return cls(word, tuple(pair for each in found for pair in each.contained))

    @property
    def is_equal(self) -> bool:
        return self.word is Word.EQUAL

    def as_json(self) -> dict[str, Any]:
        contained = [
            {"inner": each.inner, "outer": each.outer, "more": each.more} for each in self.contained
        ]
        return {"verdict": self.word.value, "contained": contained}

    def __str__(self) -> str:
        word = str(self.word.value)
        if self.word is not Word.CONTAINED:
            return word
        groups: dict[tuple[str, int | None], list[str]] = {}
        for each in self.contained:
            groups.setdefault((each.inner, each.more), []).append(each.outer)
        parts = []
        for (inner, more), outers in groups.items():
            text = f"{inner} in {', '.join(outers)}, which {'have' if outers[1:] else 'has'}"
            if more is None:
                text += UNKNOWN_NUMBER
            else:
                text += f" {count_text(more, 'message')} more" if more else NEWER_TABLES
            parts.append(text)
        return f"{word}: {'; '.join(parts)}"


EQUAL = Verdict(Word.EQUAL)
DIFFERENT = Verdict(Word.DIFFERENT)
NOTHING_COMPARED = Verdict(Word.NOTHING_COMPARED)
