"""Which connections at the peers' port speak for members of the group.

The protocol names the sender in each request and proves nothing, so the connection decides:

=====================  ===========================================================================
setting                a connection speaks for a member if
=====================  ===========================================================================
no secret              it comes from the address of a member (``knows``), or it has introduced
                       itself and the member confirms that at its own address. The latter is for
                       members behind NAT; a Java member cannot introduce itself
a secret               it has proven the secret: the introduction contains the HMAC of a random
                       number that this member has chosen for this connection
=====================  ===========================================================================

Invariants: a random number is answered once; the secret is in no text form of these objects.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from attrs import define, evolve, field

from rmqpy.dledger.handshake import PeerHello, proof_of, proves
from rmqpy.remoting.channel import Channel

NONCE_BYTES: Final = 16


def new_nonce() -> str:
    """Return a random number that nobody can guess, as text."""
    return secrets.token_hex(NONCE_BYTES)


def _knows_all(_address: str) -> bool:
    return True


@define(slots=True, eq=False, repr=False)
class PeerAdmission:
    """The connections that speak for members. ``knows`` returns whether an address is that of a
    member; the default knows every address.
    """

    knows: Callable[[str], bool] = _knows_all
    secret: bytes | None = None
    turned_away: int = 0
    last_turned_away: str = ""
    _members: set[Channel] = field(factory=set)
    _challenges: dict[Channel, tuple[str, str]] = field(factory=dict)
    """The nonces of the other side and of this one, of handshakes that wait for their proof."""

    def admits(self, channel: Channel) -> bool:
        """Return whether requests on ``channel`` are those of a member."""
        if channel in self._members:
            return True
        if self.secret is None and self.knows(channel.peer[0]):
            self._members.add(channel)
            return True
        return False

    def admit(self, channel: Channel) -> None:
        """Let ``channel`` speak for a member, which has confirmed it or proven the secret."""
        if not channel.closed:
            self._members.add(channel)

    def refused(self, reason: str) -> None:
        """Count a request that was turned away."""
        self.turned_away += 1
        self.last_turned_away = reason

    def closed(self, channel: Channel) -> None:
        self._members.discard(channel)
        self._challenges.pop(channel, None)

    def runtime_info(self) -> dict[str, str]:
        info = {"dledgerRequestsTurnedAway": str(self.turned_away)}
        if self.turned_away:
            info["dledgerLastTurnedAway"] = self.last_turned_away
        return info

    # The member that is dialled

    def challenge(self, channel: Channel, own: PeerHello, other: PeerHello) -> PeerHello:
        """Return this member's introduction with its own proof and a new random number for the
        sender of ``other`` to prove. An introduction that is repeated gets the same number, so that
        an answer to the first one proves something, too.
        """
        assert self.secret is not None
        theirs, mine = self._challenges.get(channel, ("", ""))
        nonce = mine if theirs == other.nonce else new_nonce()
        hello = evolve(own, nonce=nonce, challenge=other.nonce)
        self._challenges[channel] = (other.nonce, hello.nonce)
        proof = proof_of(self.secret, hello, other.member, answers=True)
        return evolve(hello, proof=proof)

    def accepts_proof(self, channel: Channel, own_name: str, other: PeerHello) -> bool:
        """Return whether ``other`` proves the secret for the random numbers of this connection, and
        admit the connection if so.
        """
        asked = self._challenges.pop(channel, None)
        if self.secret is None or asked != (other.nonce, other.challenge):
            return False
        if not proves(self.secret, other, own_name, answers=False):
            return False
        self.admit(channel)
        return True

    # The member that dials

    def answer_to(self, own: PeerHello, nonce: str, other: PeerHello) -> PeerHello | None:
        """Return the introduction that proves the secret to ``other``, which has answered the
        handshake with ``nonce``; None if ``other`` has not proven it.
        """
        if self.secret is None or not other.nonce or other.challenge != nonce:
            return None
        if not proves(self.secret, other, own.member, answers=True):
            return None
        hello = evolve(own, nonce=nonce, challenge=other.nonce)
        return evolve(hello, proof=proof_of(self.secret, hello, other.member, answers=False))
