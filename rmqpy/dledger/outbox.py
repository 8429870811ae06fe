"""What a node wants done: collected during ``step`` and ``tick``, handed out as one :class:`Ready`.

Requests to other members carry a ticket; whoever carries them hands the answer back by
``Answered(ticket, response)``, with None where there was none. The outbox remembers what each
answer is for. Requests that come in carry a ticket of the caller's, given back in a :class:`Reply`.

Invariant: each ticket is answered once: by its answer or, after ``rpc_timeout_ms``, by None.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.dledger.entries import Part
from rmqpy.dledger.member import HardState, Role
from rmqpy.dledger.messages import DLedgerResponseCode, Request, Response
from rmqpy.dledger.proposals import Proposal
from rmqpy.model.ids import LedgerIndex


@define(slots=True, frozen=True)
class Send:
    """A request to a member."""

    to: str
    ticket: int
    request: Request


@define(slots=True, frozen=True)
class Reply:
    """The answer to a request that came in; None: it gets none, forget the ticket."""

    ticket: int
    response: Response | None


@define(slots=True, frozen=True)
class ClientAppend:
    """A client of DLedger's own protocol wants ``bodies`` appended, in their order. Whoever keeps
    the log checks them, proposes, stores, waits for the quorum and answers the ticket.
    """

    ticket: int
    bodies: tuple[bytes, ...]


@define(slots=True, frozen=True)
class Acknowledged:
    """A waiter's answer: SUCCESS, TERM_CHANGED or WAIT_QUORUM_ACK_TIMEOUT."""

    token: int
    index: LedgerIndex
    code: DLedgerResponseCode


@define(slots=True, frozen=True)
class Ready:
    """What the caller must do, in the order of the fields; all of it before the next call into
    the node. None or empty: nothing of the kind.
    """

    hard_state: HardState | None = None
    """Make durable."""

    truncate_from: LedgerIndex | None = None
    """Drop the entries from this index on."""

    begin_again: bool = False
    """Drop all entries; the first of ``entries`` is at the start of a data file."""

    entries: tuple[Part, ...] = ()
    """Single entries and runs. Write after the end, byte for byte, each at its position."""

    messages: tuple[Send | Reply, ...] = ()
    """Send, in this order for each peer."""

    committed_index: LedgerIndex | None = None
    """Readers may see everything up to it."""

    role: Role | None = None
    """Tell the broker."""

    marker: Proposal | None = None
    """Append one marker entry: the indexes are taken."""

    appends: tuple[ClientAppend, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    notices: tuple[str, ...] = ()
    """Sentences for the log of the operator."""

    @property
    def tells_only(self) -> bool:
        """Whether there is nothing but messages and a committed index. The role and the term are
        then what they were before.
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
    """See the module."""

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
        """Send ``request`` to its ``remote_id``; the answer, of that ``kind``, goes to
        ``on_answer``.
        """
        assert request.remote_id is not None
        self._ticket += 1
        deadline_ms = now_ms + self.rpc_timeout_ms
        self._waiting[self._ticket] = _WaitingPush(deadline_ms, kind, on_answer)
        self.messages.append(Send(request.remote_id, self._ticket, request))

    def reply(self, ticket: int, response: Response | None) -> None:
        self.messages.append(Reply(ticket, response))

    def answered(self, ticket: int, response: Response | None) -> None:
        """An answer has come, or never will; one that is late or of the wrong kind is none."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            waiting.on_answer(response if isinstance(response, waiting.kind) else None)

    def expire(self, now_ms: int) -> None:
        """Give up on what has waited too long."""
        while self._waiting:
            ticket = next(iter(self._waiting))
            if self._waiting[ticket].deadline_ms > now_ms:
                return
            self.answered(ticket, None)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do, the log apart."""
        return self.committed_index is None and self.has_at_most_committed

    @property
    def has_at_most_committed(self) -> bool:
        """Whether there is nothing to do but to show readers what is committed."""
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
        """Return all there is, with what the log asks for."""
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
