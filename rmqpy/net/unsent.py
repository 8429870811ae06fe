"""The bytes that wait for peers that do not read, counted over all connections of a server.

Back-pressure comes first: a connection above ``ConnectionLimits.high_water`` is neither read nor
answered, so that its further requests stay in the kernel. The two limits here hold whatever has
been answered before: a peer for which more than ``peer_max`` bytes are waiting is disconnected, and
if more than ``all_max`` are waiting for all peers, those with the most are, until three quarters of
it are left. A client that reads slowly therefore keeps its connection while others do not read at
all.

Transports report that bytes are waiting, but not each time that some have left. The sum is
therefore never too low, and it is corrected before anybody is disconnected because of it.
"""

from __future__ import annotations

from typing import Protocol

from attrs import define, field


class UnsentPeer(Protocol):
    """A connection to which bytes are sent."""

    def transport_bytes(self) -> int:
        """Return the number of bytes that the transport has not passed to the kernel."""
        ...

    def disconnect_unread(self, waiting: int, waiting_for_all: int) -> None:
        """Close the connection immediately and drop its bytes."""


@define(slots=True, eq=False, repr=False)
class UnsentBytes:
    """The counts of all connections that share the turns of a loop."""

    total: int = 0
    pauses: int = 0
    """How often reading from a connection was stopped because its peer did not read."""
    disconnected: int = 0
    """How many connections were closed because of a limit."""
    waiting: dict[UnsentPeer, int] = field(factory=dict, init=False)
    """The peers for which bytes were waiting when they were last counted."""

    def update(self, peer: UnsentPeer, peer_max: int, all_max: int) -> None:
        """Count the bytes of ``peer``, and disconnect peers above a limit."""
        waiting = peer.transport_bytes()
        if waiting or peer in self.waiting:
            self._set(peer, waiting)
            if waiting > peer_max:
                self._disconnect(peer)
            elif self.total > all_max:
                self._relieve(all_max)

    def forget(self, peer: UnsentPeer) -> None:
        """Stop counting a connection that has ended. Safe to call twice."""
        self.total -= self.waiting.pop(peer, 0)

    def _set(self, peer: UnsentPeer, waiting: int) -> None:
        self.forget(peer)
        if waiting:
            self.waiting[peer] = waiting
            self.total += waiting

    def _relieve(self, all_max: int) -> None:
        for peer in list(self.waiting):
            self._set(peer, peer.transport_bytes())
        if self.total <= all_max:
            return
        for peer in sorted(self.waiting, key=self.waiting.__getitem__, reverse=True):
            if self.total <= all_max * 3 // 4:
                break
            self._disconnect(peer)

    def _disconnect(self, peer: UnsentPeer) -> None:
        waiting, all_waiting = self.waiting[peer], self.total
        self.forget(peer)
        self.disconnected += 1
        peer.disconnect_unread(waiting, all_waiting)
