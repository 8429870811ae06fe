"""The actions of a node, collected during ``step`` and ``tick`` and returned as one :class:`Ready`.

Each request to another member has a ticket. The caller steps the answer as
``Answered(ticket, response)``, with None if there was none, and the outbox passes it to the
callback of the request. An incoming request has a ticket of the caller, which the :class:`Reply`
returns.

Invariant: each ticket is answered exactly once, with the answer or, after ``rpc_timeout_ms``, None.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.dledger.entries import Part
from rmqpy.dledger.proposals import Proposal
from rmqpy.dledger.protocol.messages import DLedgerResponseCode, Request, Response
from rmqpy.dledger.state import HardState, Role
from rmqpy.model.ids import LedgerIndex


@define(slots=True, frozen=True)
class Send:
    """A request to another member."""

    to: str
    ticket: int
    request: Request


@define(slots=True, frozen=True)
class Reply:
    """The answer to an incoming request; with None, the ticket is dropped unanswered."""

    ticket: int
    response: Response | None


@define(slots=True, frozen=True)
class ClientAppend:
    """A request of DLedger's own protocol to append ``bodies``, in their order.

    The owner of the log checks, proposes and stores them, waits for the quorum, and answers the
    ticket.
    """

    ticket: int
    bodies: tuple[bytes, ...]


@define(slots=True, frozen=True)
class Acknowledged:
    """The answer to a waiter: SUCCESS, TERM_CHANGED or WAIT_QUORUM_ACK_TIMEOUT."""

    token: int
    index: LedgerIndex
    code: DLedgerResponseCode


@define(slots=True, frozen=True)
class Ready:
    """The actions for the caller, which carries them out in the order of the fields before the next
    call into the node. None or empty means that there is no such action.
    """

    hard_state: HardState | None = None
    """Make this state durable."""

    truncate_from: LedgerIndex | None = None
    """Drop the entries from this index on."""

    begin_again: bool = False
    """Drop all entries. The first of ``entries`` is at the start of a data file."""

    entries: tuple[Part, ...] = ()
    """Write these entries and runs unchanged after the end of the log, each at its position."""

    messages: tuple[Send | Reply, ...] = ()
    """Send these messages, in this order for each peer."""

    committed_index: LedgerIndex | None = None
    """Allow readers to see all entries up to this index."""

    role: Role | None = None
    """Report the role to the broker."""

    marker: Proposal | None = None
    """Append one marker entry with the reserved index."""

    appends: tuple[ClientAppend, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    notices: tuple[str, ...] = ()
    """Sentences for the operator's log."""

    @property
    def tells_only(self) -> bool:
        """True if the only actions are messages and a committed index, so that role and term are
        unchanged.
        """
        return not (
            self.hard_state is not None
            or self.role is not None
            or self.truncate_from is not None
            or self.begin_again
            or self.entries
            or self.marker is not None
            or self.appends
            or self.acknowledged
            or self.notices
        )


OnAnswer = Callable[[Response | None], None]


@define(slots=True)
class _WaitingPush:
    deadline_ms: int
    kind: type[Response]
    on_answer: OnAnswer


@define(slots=True)
class Outbox:
    """The collector of a node's actions, and the table of its unanswered requests."""

    rpc_timeout_ms: int
    hard_state: HardState | None = None
    committed_index: LedgerIndex | None = None
    role: Role | None = None
    marker: Proposal | None = None
    messages: list[Send | Reply] = field(factory=list)
    appends: list[ClientAppend] = field(factory=list)
    acknowledged: list[Acknowledged] = field(factory=list)
    notices: list[str] = field(factory=list)
    _ticket: int = 0
    _waiting: dict[int, _WaitingPush] = field(factory=dict)

    def send(
        self, request: Request, kind: type[Response], now_ms: int, on_answer: OnAnswer
    ) -> None:
        """Send ``request`` to its ``remote_id``. ``on_answer`` is called with the answer, which
        must be a ``kind``, or with None.
        """
        assert request.remote_id is not None
        self._ticket += 1
        deadline_ms = now_ms + self.rpc_timeout_ms
        self._waiting[self._ticket] = _WaitingPush(deadline_ms, kind, on_answer)
        self.messages.append(Send(request.remote_id, self._ticket, request))

    def reply(self, ticket: int, response: Response | None) -> None:
        self.messages.append(Reply(ticket, response))

    def answered(self, ticket: int, response: Response | None) -> None:
        """Handle an answer, or None if there is none. An answer of the wrong kind counts as None; a
        late one is ignored.
        """
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            waiting.on_answer(response if isinstance(response, waiting.kind) else None)

    def expire(self, now_ms: int) -> None:
        """Fail the requests whose deadline has passed."""
        while self._waiting:
            ticket = next(iter(self._waiting))
            if self._waiting[ticket].deadline_ms > now_ms:
                return
            self.answered(ticket, None)

    @property
    def empty(self) -> bool:
        """True if there are no actions, except for those of the log."""
        return self.committed_index is None and self.has_at_most_committed

    @property
    def has_at_most_committed(self) -> bool:
        """True if there is no action other than reporting the committed index to readers."""
        return not (
            self.messages
            or self.hard_state is not None
            or self.role is not None
            or self.marker is not None
            or self.appends
            or self.acknowledged
            or self.notices
        )

    def take(self, log: tuple[LedgerIndex | None, bool, tuple[Part, ...]]) -> Ready:
        """Return all actions, together with those that the log requests."""
        truncate_from, begin_again, entries = log
        ready = Ready(
            hard_state=self.hard_state,
            truncate_from=truncate_from,
            begin_again=begin_again,
            entries=entries,
            messages=tuple(self.messages),
            committed_index=self.committed_index,
            role=self.role,
            marker=self.marker,
            appends=tuple(self.appends),
            acknowledged=tuple(self.acknowledged),
            notices=tuple(self.notices),
        )
        self.hard_state = self.committed_index = self.role = self.marker = None
        for filled in (self.messages, self.appends, self.acknowledged, self.notices):
            if filled:
                filled.clear()
        return ready
