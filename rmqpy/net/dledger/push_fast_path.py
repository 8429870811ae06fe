"""The fast path of batch pushes that the core has granted: from a frame to the log in one C call.

It is a shortcut for a follower's usual traffic and changes no result: ``dledger.follower`` would
append the same bytes and answer SUCCESS. Pushes that are not granted or not in the usual text take
the normal path, and so do all pushes without the C core::

    frame ──► granted? ──► staged by C ──► node.on_appended ──► receipt
                 │ no
                 ▼
              peers.receive, node.step, Ready

A *receipt* is an answer that may be sent once the staged entries are written
(``ready_processor``).

Invariants: pushes and other frames are handled in order, because receipts are handled before the
core is stepped; a push of a member whose files may not match, or on a connection that does not
speak for a member, takes the normal path.
"""

from __future__ import annotations

from typing import Final

from rmqpy.codec.backend import PushDecoder, push_taker
from rmqpy.dledger.node import Node
from rmqpy.dledger.protocol import push_binary
from rmqpy.dledger.protocol.json_bodies import RESPONSE_FRAME_CODE
from rmqpy.dledger.protocol.push_text import granted_texts, taken_answer
from rmqpy.dledger.state import PushGrant
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.net.dledger.handshakes import PeerLink, PeerStatus
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import SERIALIZE_JSON, RemotingCommand
from rmqpy.remoting.frame import answer_frame
from rmqpy.store.ledger.entry_store import EntryStore

_PUSH: Final = int(RequestCode.PUSH)
_PUSH_RUN: Final = int(RequestCode.RMQPY_PUSH_RUN)


class PushFastPath:
    """The fast path of pushes. ``receipts`` contains channels and the frames for them, in order."""

    def __init__(self, node: Node, entries: EntryStore, peers: PeerTransport) -> None:
        self.receipts: list[tuple[Channel, bytes]] = []
        self._node = node
        self._entries = entries
        self._staging = entries.staging
        self._links = peers.handshakes.links
        self._admits = peers.admission.admits
        self._taker: PushDecoder | None = None
        if push_taker is not None:
            self._taker = push_taker(entries.file_size)
        self._grant: PushGrant | None = None
        self._leader: PeerLink | None = None
        """The link to the leader; None if no push is granted."""
        self._term = Term(-1)
        self._answer = b""
        self._changes = self._generation = -1

    def take(self, channel: Channel, command: RemotingCommand) -> bool:
        """Stage a granted push. Return False, without any effect, for every other frame."""
        binary = command.code == _PUSH_RUN
        if not (binary or command.code == _PUSH):
            return False
        if command.flag or command.serialize_type != SERIALIZE_JSON:
            return False
        node, taker = self._node, self._taker
        if taker is None:
            return False
        if self._changes != node.changes or self._generation != self._staging.generation:
            self._renew(taker)
        leader = self._leader
        if leader is None or not leader.judged or leader.standing is PeerStatus.REFUSED:
            return False
        if not self._admits(channel):
            return False
        self._staging.forget_recent()
        taken = taker.take_run(command.body) if binary else taker.take(command.body)
        if taken is None:
            return False
        first, count, commit_index = taken
        last = first + count - 1
        node.on_appended(LedgerIndex(last), commit_index)
        begin = self._entries.begin_index
        if binary:
            body = push_binary.taken_answer(self._term, first, begin, last, count)
        else:
            body = self._answer % (begin, count, last, first)
        self.receipts.append((channel, answer_frame(RESPONSE_FRAME_CODE, command.opaque, body)))
        return True

    def _renew(self, taker: PushDecoder) -> None:
        """Fetch the current grant after a change of the member's state."""
        self._changes = self._node.changes
        staging = self._staging
        if self._generation != staging.generation:
            self._generation = staging.generation
            taker.share(staging.buffer, staging.units, staging.state)
        grant = self._node.grant_pushes()
        self._leader = None if grant is None else self._links[grant.leader_id]
        if grant is not None and grant != self._grant:
            self._grant = grant
            taker.allow(*granted_texts(grant), push_binary.granted_names(grant), grant.term)
            self._term = grant.term
            self._answer = taken_answer(grant.group, grant.term)
