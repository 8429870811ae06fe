"""The elections of a DLedger group, from the records of its members: who asked whom for a vote, who
answered what and why, and who has led each term since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import define

__all__ = ["SeenEvent", "TermView", "events_of", "integer_in", "objects_in", "terms_of"]

EVENTS_MAX: Final = 4096
REASONS: Final = {
    "ACCEPT": "yes",
    "REJECT_UNKNOWN_LEADER": "no: the candidate is not a member of the group",
    "REJECT_UNEXPECTED_LEADER": "no: the candidate has the id of this member",
    "REJECT_EXPIRED_VOTE_TERM": "no: it is in a later term",
    "REJECT_ALREADY_VOTED": "no: it has given its vote of this term to another member",
    "REJECT_ALREADY_HAS_LEADER": "no: it follows a leader",
    "REJECT_TERM_NOT_READY": "not yet: it has to enter the term first",
    "REJECT_TERM_SMALL_THAN_LEDGER": "no: its log ends in a later term",
    "REJECT_EXPIRED_LEDGER_TERM": "no: the log of the candidate ends in an older term than its own",
    "REJECT_SMALL_LEDGER_END_INDEX": "no: the log of the candidate is shorter than its own",
    "REJECT_TAKING_LEADERSHIP": "no: it is taking over the leadership",
    "": "no answer",
}
"""The results of vote requests in words."""


@define(slots=True, frozen=True, kw_only=True)
class SeenEvent:
    """An event as ``member`` has recorded it; it happened ``count`` times until ``last_ms``."""

    member: str
    time_ms: int
    last_ms: int
    count: int
    kind: str
    term: int
    text: str
    is_good: bool | None = None


@define(slots=True, frozen=True, kw_only=True)
class TermView:
    """One term, its events by time. ``leader`` is "" if no member is known to have led it."""

    term: int
    leader: str
    events: Sequence[SeenEvent]


def events_of(body: Any) -> list[SeenEvent]:
    """Return the events in a member's answer; what is malformed is left out."""
    if not isinstance(body, dict):
        return []
    member = str(body.get("self", ""))
    found = (_event(member, each) for each in objects_in(body.get("events"))[:EVENTS_MAX])
    return [each for each in found if each is not None]


def _event(member: str, value: Mapping[str, Any]) -> SeenEvent | None:
    numbers = [integer_in(value, key) for key in ("time_ms", "last_ms", "count", "term")]
    time_ms, last_ms, count, term = numbers
    if time_ms is None or last_ms is None or count is None or term is None:
        return None
    kind, peer = str(value.get("kind", "")), str(value.get("peer", ""))
    result = str(value.get("result", ""))
    words = REASONS.get(result, result)
    good = result == "ACCEPT" if kind in ("received", "answered") else None
    if kind == "asked":
        text = f"asks {peer} for its vote"
    elif kind == "received":
        text = f"hears from {peer}: {words}"
    elif kind == "answered":
        end = f"entry {value.get('end_index')} of term {value.get('end_term')}"
        text = f"answers {peer}, whose log ends with {end}: {words}"
    else:
        text = str(value.get("text", ""))
    return SeenEvent(
        member=member,
        time_ms=time_ms,
        last_ms=last_ms,
        count=count,
        kind=kind,
        term=term,
        text=text,
        is_good=good,
    )


def terms_of(events: Sequence[SeenEvent]) -> list[TermView]:
    """Return the terms, the latest first, each with its events by time."""
    by_term: dict[int, list[SeenEvent]] = {}
    for event in events:
        by_term.setdefault(event.term, []).append(event)
    return [
        TermView(
            term=term,
            leader=_leader(term, found),
            events=sorted(found, key=lambda each: (each.time_ms, each.member)),
        )
        for term, found in sorted(by_term.items(), reverse=True)
    ]


def _leader(term: int, events: Sequence[SeenEvent]) -> str:
    for event in events:
        if event.kind == "notice" and event.text.startswith(f"leads in term {term},"):
            return event.member
    return ""


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; what is no list has none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def integer_in(values: Mapping[str, Any], key: str) -> int | None:
    """Return a value of an object, or None if it is no integer."""
    found = values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None
