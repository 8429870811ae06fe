"""What a member has seen of elections: the votes it asked for, gave, refused, and received, and the
changes of role between them with their reasons.

The record only watches what the driver carries out; the core does not know of it. It is in memory
and ends with the process.

==========  =====================================================================================
kind        event
==========  =====================================================================================
notice      a change of role, or what led to it, as a sentence of the core
asked       this member asked ``peer`` for its vote in ``term``
received    ``peer`` answered that request with ``result`` ("" if no answer came)
answered    this member answered the candidate ``peer``, whose log ends at ``end``, with ``result``
==========  =====================================================================================

Invariants: at most ``RECORD_MAX`` events; an event that repeats one of the latest ``RECENT``, as
the rounds of a member do that is cut off, is counted there instead of displacing older ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import Any, Final

from attrs import define, field

from rmqpy.dledger.node import Answered, Received
from rmqpy.dledger.outbox import Reply, Send
from rmqpy.dledger.protocol.messages import VoteRequest, VoteResponse
from rmqpy.model.clock import Clock

__all__ = ["ElectionEvent", "ElectionEventKind", "ElectionRecord"]

RECORD_MAX: Final = 512
RECENT: Final = 12
"""More than the events of one round in a group of five."""
PENDING_MAX: Final = 64
NO_END: Final = (-1, -1)


class ElectionEventKind(Enum):
    """The kind of an event; the value is its name on the wire."""

    NOTICE = "notice"
    ASKED = "asked"
    RECEIVED = "received"
    ANSWERED = "answered"


@define(slots=True, eq=False)
class ElectionEvent:
    """One event. ``end`` is index and term of the last entry of a candidate; ``count`` events with
    this content happened from ``time_ms`` to ``last_ms``.
    """

    time_ms: int
    kind: ElectionEventKind
    term: int
    peer: str = ""
    result: str = ""
    end: tuple[int, int] = NO_END
    text: str = ""
    last_ms: int = field(init=False)
    count: int = field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        self.last_ms = self.time_ms

    def repeats(self, other: ElectionEvent) -> bool:
        """Return whether the content is the same as that of ``other``."""
        return _content(self) == _content(other)

    def as_json(self) -> dict[str, Any]:
        return {
            "time_ms": self.time_ms,
            "last_ms": self.last_ms,
            "count": self.count,
            "kind": self.kind.value,
            "term": self.term,
            "peer": self.peer,
            "result": self.result,
            "end_index": self.end[0],
            "end_term": self.end[1],
            "text": self.text,
        }


@define(slots=True, eq=False)
class ElectionRecord:
    """The latest events, oldest first."""

    clock: Clock
    _events: deque[ElectionEvent] = field(factory=lambda: deque(maxlen=RECORD_MAX))
    _asked: OrderedDict[int, tuple[str, int]] = field(factory=OrderedDict)
    """Peer and term of the requests that are not answered yet, by ticket."""
    _candidates: OrderedDict[int, VoteRequest] = field(factory=OrderedDict)
    """The requests of others that this member has not answered yet, by ticket."""

    def events(self) -> Iterable[ElectionEvent]:
        return iter(self._events)

    def note(self, term: int, text: str) -> None:
        """Record a notice of the core."""
        self._add(ElectionEventKind.NOTICE, term, text=text)

    def asked(self, send: Send) -> None:
        """Record a request of this member, if it asks for a vote."""
        if isinstance(send.request, VoteRequest):
            term = send.request.term
            self._asked[send.ticket] = send.to, term
            _trim(self._asked)
            self._add(ElectionEventKind.ASKED, term, peer=send.to)

    def answer_came(self, answer: Answered) -> None:
        """Record the answer to a request of this member, if that asked for a vote."""
        asked = self._asked.pop(answer.ticket, None) if self._asked else None
        if asked is not None:
            response = answer.response
            result = response.result.value if isinstance(response, VoteResponse) else ""
            self._add(ElectionEventKind.RECEIVED, asked[1], peer=asked[0], result=result)

    def request_came(self, received: Received) -> None:
        """Remember a request of another member until it is answered, if it asks for a vote."""
        if isinstance(received.request, VoteRequest):
            self._candidates[received.ticket] = received.request
            _trim(self._candidates)

    def answered(self, reply: Reply) -> None:
        """Record an answer of this member, if it is to a request for its vote."""
        request = self._candidates.pop(reply.ticket, None) if self._candidates else None
        if request is not None and isinstance(reply.response, VoteResponse):
            self._add(
                ElectionEventKind.ANSWERED,
                request.term,
                peer=request.leader_id or "",
                result=reply.response.result.value,
                end=(request.ledger_end_index, request.ledger_end_term),
            )

    def _add(
        self,
        kind: ElectionEventKind,
        term: int,
        *,
        peer: str = "",
        result: str = "",
        end: tuple[int, int] = NO_END,
        text: str = "",
    ) -> None:
        event = ElectionEvent(self.clock.now_ms(), kind, term, peer, result, end, text)
        for recent in islice(reversed(self._events), RECENT):
            if recent.repeats(event):
                recent.last_ms = event.time_ms
                recent.count += 1
                return
        self._events.append(event)


def _content(event: ElectionEvent) -> tuple[object, ...]:
    return event.kind, event.term, event.peer, event.result, event.end, event.text


def _trim(waiting: OrderedDict[int, Any]) -> None:
    if len(waiting) > PENDING_MAX:
        waiting.popitem(last=False)
