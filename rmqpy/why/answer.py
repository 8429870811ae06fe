"""The answer to a question: its causes in order, the evidence for each, and the next command.

A cause is *proven* if the facts leave no other explanation of what it says, and *possible* if a
fact that would decide it is not known. What was ruled out and what was not examined is part of the
answer, so that silence is never taken for a check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

from attrs import define

__all__ = [
    "Answer",
    "Cause",
    "Certainty",
    "duration_text",
    "possible",
    "proven",
    "ranked",
]


class Certainty(Enum):
    PROVEN = "proven"
    POSSIBLE = "possible"


@define(slots=True, frozen=True)
class Cause:
    """One cause. ``evidence`` names files, offsets, settings; ``next`` has commands or steps."""

    certainty: Certainty
    text: str
    evidence: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "certainty": self.certainty.value,
            "text": self.text,
            "evidence": list(self.evidence),
            "next": list(self.next),
        }


def proven(text: str, *evidence: str, next: Iterable[str] = ()) -> Cause:
    return Cause(Certainty.PROVEN, text, evidence, tuple(next))


def possible(text: str, *evidence: str, next: Iterable[str] = ()) -> Cause:
    return Cause(Certainty.POSSIBLE, text, evidence, tuple(next))


def ranked(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return the causes in order: proven ones first, otherwise as given."""
    return tuple(sorted(causes, key=lambda cause: cause.certainty is not Certainty.PROVEN))


@define(slots=True, frozen=True, kw_only=True)
class Answer:
    """The answer to ``question`` about ``subject``.

    ``facts`` are pairs of a name and a value that help to read the answer.
    """

    question: str
    subject: str
    facts: tuple[tuple[str, str], ...] = ()
    causes: tuple[Cause, ...] = ()
    nothing: str = "no cause was found"
    """The sentence for an answer without a cause."""
    ruled_out: tuple[str, ...] = ()
    not_examined: tuple[str, ...] = ()

    @property
    def is_proven(self) -> bool:
        return any(cause.certainty is Certainty.PROVEN for cause in self.causes)

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "subject": self.subject,
            "answer": self.causes[0].text if self.causes else self.nothing,
            "proven": self.is_proven,
            "facts": [{"name": name, "value": value} for name, value in self.facts],
            "causes": [cause.as_json() for cause in self.causes],
            "ruled_out": list(self.ruled_out),
            "not_examined": list(self.not_examined),
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines for a person: causes first, then what was ruled out or not examined."""
        yield f"{self.question}: {self.subject}"
        if not self.causes:
            yield f"  {self.nothing}"
        for number, cause in enumerate(self.causes, 1):
            yield f"{number}. {cause.certainty.value}: {cause.text}"
            yield from (f"     found: {each}" for each in cause.evidence)
            yield from (f"     next:  {each}" for each in cause.next)
        if self.facts:
            width = max(len(name) for name, _ in self.facts)
            yield "facts:"
            yield from (f"  {name:<{width}}  {value}" for name, value in self.facts)
        for title, items in (("ruled out", self.ruled_out), ("not examined", self.not_examined)):
            if items:
                yield f"{title}:"
                yield from (f"  {item}" for item in items)


def duration_text(duration_ms: int) -> str:
    """Return a duration in its two largest units, such as "3 d 4 h" or "12 s"."""
    seconds = abs(duration_ms) // 1000
    if seconds < 1:
        return f"{abs(duration_ms)} ms"
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
