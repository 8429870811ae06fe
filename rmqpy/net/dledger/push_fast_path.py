"""PushLane: batch pushes that the core has granted, from a frame to the end of the log in one C
call.

It is a short way for what a follower nearly always gets, not another rule: what is taken here would
have been appended and answered with SUCCESS by ``dledger.follower``, byte for byte the same. What
is not granted, or not in its usual text, goes the ordinary way, and all of it does where there is
no C core::

    frame ──► granted? ──► staged by C ──► node.took ──► receipt
                 │ no
                 ▼
              peers.receive, node.step, Ready

A *receipt* is the answer that may leave when what is staged is written; the carrier sees to that.

Invariants: pushes and other frames keep their order (who steps the core has the receipts carried
out first); a push of a member whose files may not fit is not taken.
"""

from __future__ import annotations

from typing import Final

from rmqpy.codec.backend import PushDecoder, push_taker
from rmqpy.dledger.follower import PushGrant
from rmqpy.dledger.node import Node
from rmqpy.dledger.push_text import granted_texts, taken_answer
from rmqpy.dledger.wire import RESPONSE_FRAME_CODE
from rmqpy.model.codes import RequestCode
from rmqpy.model.ids import LedgerIndex
from rmqpy.net.dledger.peers import PeerLink, PeerStatus, PeerTransport
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import SERIALIZE_JSON, RemotingCommand
from rmqpy.remoting.frame import answer_frame
from rmqpy.store.ledger.entry_store import EntryStore

_PUSH: Final = int(RequestCode.PUSH)


class PushFastPath:
    """See the module. ``receipts``: channels and the frames that they get, in order."""

    def __init__(self, node: Node, entries: EntryStore, peers: PeerTransport) -> None:
        self.receipts: list[tuple[Channel, bytes]] = []
        self._node = node
        self._entries = entries
        self._staging = entries.staging
        self._peers = peers
        self._taker: PushDecoder | None = None
        if push_taker is not None:
            self._taker = push_taker(entries.file_size)
        self._grant: PushGrant | None = None
        self._way: PeerLink | None = None
        """The leader's; None: nothing is granted."""
        self._answer = b""
        self._changes = self._generation = -1

    def take(self, channel: Channel, command: RemotingCommand) -> bool:
        """Return whether the frame was a push that is staged now; else nothing has happened."""
        if command.code != _PUSH or command.flag or command.serialize_type != SERIALIZE_JSON:
            return False
        node, taker = self._node, self._taker
        if taker is None:
            return False
        if self._changes != node.changes or self._generation != self._staging.generation:
            self._renew(taker)
        way = self._way
        if way is None or not way.judged or way.standing is PeerStatus.REFUSED:
            return False
        self._staging.kept = 0
        taken = taker.take(command.body)
        if taken is None:
            return False
        first, count, commit_index = taken
        last = first + count - 1
        node.on_appended(LedgerIndex(last), commit_index)
        body = self._answer % (self._entries.begin_index, count, last, first)
        self.receipts.append((channel, answer_frame(RESPONSE_FRAME_CODE, command.opaque, body)))
        return True

    def _renew(self, taker: PushDecoder) -> None:
        """Something has happened to the member: ask again what is granted."""
        self._changes = self._node.changes
        staging = self._staging
        if self._generation != staging.generation:
            self._generation = staging.generation
            taker.share(staging.buffer, staging.units, staging.state)
        grant = self._node.grant_pushes()
        self._way = None if grant is None else self._peers.ways[grant.leader_id]
        if grant is not None and grant != self._grant:
            self._grant = grant
            taker.allow(*granted_texts(grant), grant.term)
            self._answer = taken_answer(grant.group, grant.term)
