"""What a member does when a request names a larger term than its own.

Whoever can send a frame can write a larger term and the name of a member into it, and in DLedger
that alone ends the leadership of a healthy leader. A member that has lost its leader believes it,
as Java does. A member that leads or follows asks first: it sends the named member a vote request in
its own term. That changes nothing at a member in a larger term, and each answer, of rmqpy and of
Java, contains the term. Only the answer, which comes from the address of the member, counts::

    request with a larger term ──► no leader known: enter the term
                               └─► else ask the named member ──► its term is larger: enter it
                                                             └─► it is not, or no answer: nothing

The sender is told meanwhile that this member is not ready for the term, and asks again.

The safety of the group does not depend on this, because no rule forces a member to enter a larger
term. A real member with a larger term is confirmed within one round trip; if it can send but cannot
be reached, it is believed as soon as the leader is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from rmqpy.dledger.member import Member
from rmqpy.dledger.protocol.messages import Response, VoteResponse
from rmqpy.model.ids import Term


@define(slots=True, eq=False, repr=False)
class TermCheck:
    """The questions to members in whose name a larger term has been seen. ``entered`` is called
    with a larger term that counts.
    """

    member: Member
    entered: Callable[[Term], None]
    _asked: set[str] = field(factory=set)

    def seen(self, name: str, term: Term) -> None:
        """Handle a request in the name of ``name`` in the larger ``term``."""
        member = self.member
        if member.leader_id is None:
            self.entered(term)
            return
        if name in self._asked or name not in member.membership.others:
            return
        self._asked.add(name)
        member.outbox.send(
            member.vote_request(name),
            VoteResponse,
            member.now_ms,
            lambda answer: self._answered(name, answer),
        )

    def _answered(self, name: str, response: Response | None) -> None:
        self._asked.discard(name)
        if isinstance(response, VoteResponse) and response.term > self.member.term:
            self.entered(response.term)
