"""The processor that carries out the decisions of the DLedger core, one Ready after the other.

===========================  ==================================================================
step, in this order          effect
===========================  ==================================================================
store the vote               write the hard state; report the loss of leadership to the broker
truncate the log             from an entry on, or completely
write the entries
notify the others            send messages, advance readers, report the role to the broker
append the marker            of a new leader
answer clients               of DLedger's own protocol
===========================  ==================================================================

Before a Ready, the pushes of the fast path are written and then answered.

Invariants: a hard state is durable before anything that depends on it is sent. A Ready is carried
out in the order of its fields, except that the loss of leadership is reported first: replies that
wait for a quorum of the old term must not mistake the entries of a new term for their own. If a
step fails because the disk is full, it is repeated later, but not the steps before it. If a Ready
cannot be carried out for any other reason, the member leaves its group until a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmqpy.codec.message import encode_message
from rmqpy.dledger.entries import Part, first_of
from rmqpy.dledger.node import ClientAppend, Node, Ready, Reply
from rmqpy.dledger.protocol.messages import DLedgerResponseCode
from rmqpy.dledger.state import Role
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.errors import StoreError
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.model.message import marker
from rmqpy.net.dledger.context import DriverDependencies
from rmqpy.net.dledger.election_record import ElectionRecord
from rmqpy.net.dledger.peers import PeerTransport
from rmqpy.remoting.channel import Channel
from rmqpy.store.health import NO_ROOM, Writer

logger = logging.getLogger(__name__)


class ReadyProcessor:
    """The processor of Readies.

    ``receipts`` are those of :mod:`rmqpy.net.dledger.push_fast_path`. ``note`` is called with a
    sentence about each event that operators may want to look up later, and ``elections`` with each
    message that may ask for a vote or give one.
    """

    def __init__(
        self,
        deps: DriverDependencies,
        node: Node,
        peers: PeerTransport,
        receipts: list[tuple[Channel, bytes]],
        note: Callable[[str], None],
        elections: ElectionRecord,
    ) -> None:
        self._deps = deps
        self._store = deps.store
        self._entries = deps.log.entries
        self._node = node
        self._peers = peers
        self._receipts = receipts
        self._note = note
        self._elections = elections
        self._current: Ready | LedgerIndex | None = None
        """The unfinished Ready, or a committed index if that is its only action."""
        self._steps_done = 0
        self._steps = (
            self._store_vote,
            self._truncate_log,
            self._write_entries,
            self._notify_others,
            self._append_marker,
            self._answer_clients,
        )
        self._led_term: Term | None = None
        """The term of the leadership that the broker knows of."""
        self.is_cutting = False
        """True while the log is being truncated.

        It remains True if the disk prevents completion, possibly until a restart. Files and their
        description may differ meanwhile, so nothing is reported.
        """
        self.stopped = False
        """True if no more messages are sent."""
        self.dead = False
        """True if the core and the files may no longer agree."""

    def stop(self) -> None:
        """Stop sending."""
        self.stopped = True

    @property
    def is_over(self) -> bool:
        """True if this member no longer takes part in the group."""
        return self.stopped or self.dead

    @property
    def leads(self) -> bool:
        """True if the broker has been notified that it leads."""
        return self._led_term is not None

    def process_all(self) -> None:
        """Finish the current Ready, then carry out all further decisions of the core."""
        while self.finish():
            self._current = self._node.take_next()
            if self._current is None:
                return

    def finish(self) -> bool:
        """Finish the current Ready. Return False if that is impossible, for now or permanently."""
        ready = self._current
        if ready is None and not self._receipts:
            return True
        try:
            if self._receipts:
                self._write_receipts()
            if ready is None:
                return True
            if isinstance(ready, Ready):
                self._carry_out(ready)
            else:
                self._entries.commit_to(ready)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._die(error)
            self._store.health.write_failed(Writer.LOG, error)
            return False
        except Exception as error:  # noqa: BLE001 - logged, and the end of this member
            self._die(error)
            return False
        self._current, self._steps_done = None, 0
        return True

    def _write_receipts(self) -> None:
        """Write the pushes that the fast path has staged, then send their answers."""
        self._entries.commit()
        for channel, frame in self._receipts:
            channel.write(frame)
        self._receipts.clear()

    def _carry_out(self, ready: Ready) -> None:
        steps = self._steps
        if ready.tells_only and not self._steps_done:
            self._notify_others(ready)  # the other steps have nothing to do
            self._steps_done = len(steps)
        while self._steps_done < len(steps):
            steps[self._steps_done](ready)
            self._steps_done += 1
        if self._entries.has_staged:
            self._store.appender.commit()

    def _store_vote(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self._entries.member_files.save_hard_state(ready.hard_state)
        self._report_loss()

    def _truncate_log(self, ready: Ready) -> None:
        self.is_cutting = True
        if ready.begin_again:
            first = ready.entries[0]
            if first_of(first) > 0:
                self._store.queue_ends.request()
            self._drop_old_log(first)
            self._entries.begin_again(first_of(first), first.position)
            self._store.on_log_reset()
        elif ready.truncate_from is not None:
            self._entries.truncate_from(ready.truncate_from)
        self.is_cutting = False

    def _drop_old_log(self, first: Part) -> None:
        """Remove the log before the divide if the leader no longer has any entry before ``first``.

        This happens if a member returns after all its entries have expired on the leader. Raises
        StoreError if the leader's log does not belong to the old log.
        """
        divided = self._store.opened.divided_offset
        if divided is None or first.position == divided:
            return
        if first.position < divided or first_of(first) == 0:
            raise StoreError(
                self._entries.data.first.path,
                f"a leader whose log begins with entry {first_of(first)} at {first.position}, and"
                f" an old commit log that ends at {divided}",
                "entry 0 at the end of the old log",
                "compare this directory with the leader's: rmqpy upgrade check names the one that"
                " is wrong; rmqpy upgrade join copies the data of the other",
            )
        self._store.delete_classic_prefix()
        self._note(
            f"removed the old commit log up to {divided}: it has expired on the other members,"
            f" whose log begins at {first.position}"
        )

    def _write_entries(self, ready: Ready) -> None:
        if ready.entries:
            self._entries.receive(ready.entries)
            self._entries.commit()

    def _notify_others(self, ready: Ready) -> None:
        """Notify the other members, the readers and the broker."""
        for message in ready.messages:
            if isinstance(message, Reply):
                self._elections.answered(message)
                self._peers.replies.reply(message)
            elif not self.stopped:
                self._elections.asked(message)
                self._peers.send(message)
        if ready.committed_index is not None:
            self._entries.commit_to(ready.committed_index)
        self._report_role(ready)

    def _answer_clients(self, ready: Ready) -> None:
        for append in ready.appends:
            self._append_for(append)
        for outcome in ready.acknowledged:
            self._peers.replies.reply_append(outcome)
        for notice in ready.notices:
            group, self_id = self._peers.membership.group, self._peers.membership.self_id
            self._peers.once.warn(notice, "group %s, %s: %s", group, self_id, notice)
            self._note(notice)

    def _report_loss(self) -> None:
        """Report to the broker that it no longer leads."""
        leads = self._node.role is Role.LEADER and self._node.term == self._led_term
        if self._led_term is not None and not leads:
            self._led_term = None
            self._deps.on_role(Role.CANDIDATE)

    def _report_role(self, ready: Ready) -> None:
        if self._node.role is Role.LEADER:
            if self._led_term is None:
                self._led_term = self._node.term
                self._deps.on_role(Role.LEADER)
        elif ready.role is not None:
            if ready.role is Role.FOLLOWER:
                self._note(f"follows {self._node.leader_id} in term {self._node.term}")
            self._deps.on_role(ready.role)

    def _append_marker(self, ready: Ready) -> None:
        """Append the marker of a new leader: a record without a queue unit and an index entry."""
        proposal = ready.marker
        if proposal is None:
            return
        now_ms = self._deps.scheduler.now_ms()
        text = f"term {proposal.term} of {self._peers.membership.self_id}"
        records = [encode_message(marker(text, self._deps.store_host, now_ms))]
        self._entries.append(proposal.term, proposal.first_index, records, now_ms)

    def _append_for(self, append: ClientAppend) -> None:
        """Append the records of a client of DLedger's own protocol. If one is refused, the records
        before it remain in the log, as in Java.
        """
        for body in append.bodies:
            result = self._store.appender.put_record(body)
            if result.status is not PutMessageStatus.PUT_OK:
                break
        else:
            self._peers.replies.appended(append.ticket, result.physical_offsets[0])
            self._node.wait(self._entries.end.index, append.ticket)
            return
        illegal = result.status is PutMessageStatus.MESSAGE_ILLEGAL
        refused = self._node.refusal()
        code = DLedgerResponseCode.INTERNAL_ERROR
        if illegal:
            code = DLedgerResponseCode.UNEXPECTED_ARGUMENT
        elif refused is not None:
            code = DLedgerResponseCode(refused.value)
        self._peers.replies.refuse_append(append.ticket, code)

    def _die(self, error: Exception) -> None:
        """Leave the group, because the core and the files may no longer agree."""
        self.dead = True
        if isinstance(error, (OSError, StoreError)):
            logger.error("this member leaves its group until a restart: %s", error)
        else:
            logger.exception("this member leaves its group until a restart")
        self._store.health.fail(f"the DLedger log cannot be written: {error}")
        self._deps.on_role(Role.CANDIDATE)
