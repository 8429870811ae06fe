"""The fast path: the C ``feed``, its memory, and the rules by which Python and C share that
memory.

C answers the frames of a receive buffer that are plain sends, pulls, and requests for offsets or
for copies of stored messages (ends of transactions, messages sent back), and hands back all others
(docs/explanation/fast-path.md). The state stays in Python: records that C appends are in the log's
own staging, queue offsets come from the store's own table, and units go into the consume queues'
own files. C keeps nothing between two calls.

A turn::

    refresh ────► receive* ──► commit (one write) ──► flush_replies ──► dispatch ──► held pulls
                  │    ▲   └─► nothing to write: flush_replies_early, and receive again for a moment
                  ▼    │ refresh
                 Python: other frames, a full file, a full buffer

Invariants: no reply is sent before the watermarks of its mode have passed the offset that it needs;
the number of a connection is not reused in the turn in which the connection ended; DLedger entries
are proposed before anything else happens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from rmqpy.broker.base.context import born_host
from rmqpy.broker.fastpath.accounts import FastPathAccounts
from rmqpy.broker.fastpath.dispatch import FastPathDispatcher
from rmqpy.broker.fastpath.eligibility import (
    SENDS,
    FastPathDependencies,
    FastPathEligibility,
    FastPathInputs,
)
from rmqpy.broker.fastpath.hold import FastPathHold
from rmqpy.broker.fastpath.poller import CAN_WATCH, EpollSet
from rmqpy.broker.fastpath.reply_templates import set_reply_templates
from rmqpy.broker.fastpath.tables import WAITING_TOPICS, Cdata, FastPathTables, c_array
from rmqpy.broker.filter.sql_program import WORK_OF_TURN
from rmqpy.broker.processors.query import FOUND_LIMIT
from rmqpy.broker.state.consumer_filters import SQL92
from rmqpy.codec.native.binding import ffi, lib, memory_of
from rmqpy.codec.scan import Scan
from rmqpy.model import names
from rmqpy.model.codes import PutMessageStatus, RequestCode, ResponseCode
from rmqpy.model.message import OutgoingMessage
from rmqpy.net.pending_replies import PendingReply
from rmqpy.net.server.feed_api import FEED_BYTES, FeedChannel, FeedStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, decode_command, encode_command
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.commitlog.interface import ScanRange
from rmqpy.store.dispatcher import ArrivalListener
from rmqpy.store.files.staging import END, INDEX, STAGED
from rmqpy.store.health import Writer

if TYPE_CHECKING:
    from rmqpy.store.commitlog.dledger import Proposer

OUT_BYTES: Final = 4 * 1024 * 1024
OUTGOING_MAX: Final = 4096
"""The limits on the replies of a turn, in bytes and in pieces; a turn that would exceed them ends
early.
"""
FALLBACK_MAX: Final = 32
SCRATCH_BYTES: Final = 64 * 1024
PEERS_FIRST: Final = 256
COMMITS_MAX: Final = 1024
RETURNED_MAX: Final = 256

_OFFSETS: Final = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
    }
)

assert lib.RMQ_FOUND_MAX == FOUND_LIMIT
for _status in FeedStatus:
    assert getattr(lib, f"RMQ_{_status.name}") == _status, _status


class _ExtensibleLog(Protocol):
    def make_room(self, length: int) -> None: ...


class FastPath:
    """The fast path of a broker: the ``Feed`` of its server and the ``Accelerator`` of its
    dispatcher.
    """

    def __init__(self, sources: FastPathInputs, deps: FastPathDependencies) -> None:
        self._sources = sources
        self._deps = deps
        self._store = sources.store
        self.needs_refresh = True
        """True if Python has handled other frames since the last refresh."""
        self._alive: dict[str, Cdata] = {}
        self.core: Cdata = ffi.new("rmq_core *")
        self._channels: list[FeedChannel | None] = []
        self._free: list[int] = []
        self._ended: list[int] = []
        self._make_buffers()
        self._eligibility = FastPathEligibility(sources, deps)
        self._tables = FastPathTables(self.core, sources)
        self._accounts = FastPathAccounts(self.core, sources.access)
        self._hold = FastPathHold(self.core, deps.hold, deps.clock, self, sources.store.reader)
        deps.hold.install_accelerator(self._hold)
        self._proposer: Proposer | None = None
        self.ready = EpollSet(self.core, self.flush_replies_early) if CAN_WATCH else None
        self._cells: array[int] | None = None
        self._take_log()
        self._dispatch = FastPathDispatcher(self.core, self._tables, sources.store)
        self.refresh()

    def use_log(self) -> None:
        """Append to, and read from, the log that the store has now. Nothing may be staged."""
        self.flush_replies()
        self._take_log()
        self._tables.use_log()
        self.needs_refresh = True

    def _take_log(self) -> None:
        log = self._store.log
        dledger = self._store.opened.dledger
        self._dledger = dledger
        self._grants = -1
        """The number of the grant under which C may append entries, given by
        ``_proposer``.
        """
        self._log = log
        if dledger is not None:
            self._staging = dledger.entries.staging
            self._extensible_log: _ExtensibleLog = dledger.entries
            self.receive: Callable[[Cdata, int, int], int] = self._receive_entries
            receive_ready: Callable[[Cdata, bool], int] = self._receive_ready_entries
            self._feed: Callable[[Cdata, int], int] = self._feed_entries
            self.core.file_size = dledger.entries.data.file_size
        else:
            assert isinstance(log, ClassicCommitLog)
            self._staging = log.staging
            self._extensible_log = log
            self.receive = lib.rmq_receive
            receive_ready = lib.rmq_receive_ready
            self._feed = lib.rmq_feed
            self.core.file_size = log.segments.file_size
        if self.ready is not None:
            self.ready.receive = receive_ready
        self.core.dledger = dledger is not None
        self._staging_generation = -1

    # Turns

    def request_refresh(self) -> None:
        """Refresh before the next frame, because frames were handled in Python."""
        self.needs_refresh = True

    def refresh(self) -> None:
        """Update the data that C reads, before the first frame of a turn and after Python may have
        changed it.
        """
        core = self.core
        self._check_tables()
        self._tables.renew_files()
        self._share_log()
        now_ms = self._deps.clock.now_ms()
        core.now_ms = now_ms
        core.log_min = self._log.min_offset
        core.confirm_offset = self._log.confirm_offset
        core.queues_complete = not self._store.dispatcher.is_rebuilding_queues
        core.send_enabled = self._has_templates and self._eligibility.may_handle_sends(now_ms)
        core.copy_enabled = self._has_templates and self._eligibility.may_copy_for_clients
        core.offsets_enabled = (
            self._has_templates and bool(core.queues_complete) and not self._eligibility.paused
        )
        core.pull_enabled = (
            self._pulls and self._sources.identity.is_readable and not self._eligibility.paused
        )
        self._hold.refresh()
        self.needs_refresh = False

    def pause(self, held: bool) -> None:
        """Set whether C hands back every frame."""
        self._eligibility.pause(held)
        if self.core is not None:
            self.refresh()

    def hand_back_all(self) -> None:
        """Let C hand back every frame from now on."""
        self._eligibility.retire()
        self.pause(True)

    def flush_replies(self) -> None:
        """Send the replies that may leave after the commit; the gate keeps the rest."""
        core = self.core
        if core is None:
            return
        self._collect_counters()
        if core.outgoing_count:
            self._send()
        core.out_used = core.scan_work = 0
        if self._ended:
            self._free += self._ended
            self._ended.clear()

    def renew_share(self) -> bool:
        """Let the filters of this turn use their share again. Return False if they have not used
        it, if messages wait for a commit, or if the replies are a connection's share already.
        """
        core = self.core
        is_used = core.scan_work >= core.scan_work_max
        if not is_used or self._staging.state[STAGED] or core.out_used >= core.out_share:
            return False
        core.scan_work = 0
        return True

    def flush_replies_early(self) -> bool:
        """Send the replies and return True if nothing must be committed before, so that the turn
        can continue; otherwise send nothing and return False.
        """
        if self._staging.state[STAGED] or not self.core.outgoing_count:
            return False
        self._send()
        self.core.out_used = self.core.scan_work = 0
        return True

    def close(self) -> None:
        """Release all memory that belongs to other parts. Nothing may be fed afterwards.
        Idempotent.
        """
        if self.core is None:
            return
        self._store.dispatcher.install_accelerator(None)
        self._deps.hold.install_accelerator(None)
        self._own_in.release()
        self._out.release()
        self._tables.close()
        self._dispatch.close()
        self._alive.clear()
        self._channels.clear()
        if self.ready is not None:
            self.ready.close()
        self.core = None

    # Connections

    def attach(self, channel: FeedChannel, fd: int) -> int:
        """Return the number of a new connection."""
        if not self._free:
            self._more_peers()
        number = self._free.pop()
        ip, port = born_host(channel.peer)
        peer = self._alive["peers"][number]
        peer.fd = fd
        peer.port = port
        peer.ip_length = len(ip)
        peer.queued = peer.excluded = peer.filters = peer.passed_over = 0
        ffi.memmove(peer.ip, ip, len(ip))
        self._channels[number] = channel
        return number

    def detach(self, number: int) -> None:
        """Release the number of a connection that has ended; nothing more is sent to it."""
        if self.core is None:
            return
        peer = self._alive["peers"][number]
        peer.fd = -1
        peer.generation += 1
        self._channels[number] = None
        self._ended.append(number)
        if not self.core.outgoing_count:
            self._free += self._ended
            self._ended.clear()

    def set_write_pending(self, number: int, queued: bool) -> None:
        """Set whether bytes are queued for this connection. While they are, C sends nothing to it,
        so that no reply overtakes them, and hands everything to ``unsent``.
        """
        if self.core is not None:
            self._alive["peers"][number].queued = queued

    def flush_now(self, number: int) -> None:
        """Send the replies that wait for no watermark, because the connection is about to close."""
        core, channel = self.core, self._channels[number]
        for i in range(core.outgoing_count):
            entry = core.outgoing[i]
            if entry.peer == number and not entry.log_end and entry.length and channel is not None:
                channel.unsent(bytes(self._out[entry.start : entry.start + entry.length]))
                entry.length = 0

    # Frames

    def feed(self, data: bytes | memoryview, have: int = 0) -> None:
        """Store data as if ``receive`` had read it from a socket; ``resume`` feeds it."""
        self._in[have : have + len(data)] = data
        self.core.in_position = 0
        self.core.in_length = have + len(data)

    def lend(self, frame: memoryview | None) -> None:
        """Replace the buffer by a complete frame until called with None."""
        core = self.core
        if core is None:  # closed by a request of the frame
            return
        self._in = self._own_in if frame is None else frame
        setattr(
            core, "in", self._alive["in"] if frame is None else ffi.from_buffer("uint8_t[]", frame)
        )
        core.in_position = 0
        core.in_length = 0 if frame is None else len(frame)

    def resume(self, number: int) -> int:
        """Feed the rest of the buffer."""
        return self._feed(self.core, number)

    def unhandled_frames(self) -> list[memoryview]:
        """Return the frames that C handed back, without length words; valid
        until the next receive.
        """
        core, view = self.core, self._in
        spans = [(span.start, span.length) for span in core.fallback[0 : core.fallback_count]]
        return [view[start : start + length] for start, length in spans]

    def before_fallback(self) -> None:
        """Collect the counters of C, because Python is about to handle frames."""
        self._staging.forget_recent()
        self._collect_counters()

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None:
        """Refresh, and learn from the requests that Python has handled."""
        self.refresh()
        for command in commands:
            if command.code in SENDS:
                self._learn_send(command)
            elif command.code == RequestCode.PULL_MESSAGE:
                self._learn_pull(command)
            elif command.code == RequestCode.END_TRANSACTION:
                self._learn_log(command.ext_fields.get("commitLogOffset", ""))
            elif command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
                self._learn_log(command.ext_fields.get("offset", ""))
                self._tables.learn_send_back(command.ext_fields.get("group", ""))
            elif command.code == RequestCode.VIEW_MESSAGE_BY_ID:
                self._learn_log(command.ext_fields.get("offset", ""))
            elif command.code == RequestCode.QUERY_MESSAGE:
                self._learn_query(command)
            elif command.code in _OFFSETS:
                self._learn_offset(command)
        self._share_cells()

    def make_room(self, status: int) -> None:
        """Roll to the next file of the log, or empty the staging buffer, if C could not append the
        next message (``status``).
        """
        try:
            if status == FeedStatus.ROLL:
                self._extensible_log.make_room(self.core.status_detail)
            else:
                self._store.appender.commit()
        except OSError as error:
            self._store.health.write_failed(Writer.LOG, error)
        self.refresh()
        if self._dledger is not None and not self.core.send_enabled:
            # The message that needed the new file will not arrive.
            self._dledger.entries.rewind()

    @property
    def advanced(self) -> bool:
        """True if the buffer held a complete frame."""
        return bool(self.core.in_position)

    @property
    def full(self) -> bool:
        """True if the last receive filled the buffer."""
        return bool(self.core.in_length == FEED_BYTES)

    def rest(self) -> bytes:
        """Return the start of an unfinished frame."""
        return bytes(self._in[self.core.in_position : self.core.in_length])

    def unread(self, data: bytes) -> bool:
        """Put back the start of a frame, which the next receive continues. Return False if it is
        too large.
        """
        length = (
            int.from_bytes(data[:LENGTH_BYTES]) + LENGTH_BYTES if len(data) >= LENGTH_BYTES else 0
        )
        if max(length, len(data)) >= FEED_BYTES:
            return False
        self._in[: len(data)] = data
        return True

    # Held pulls

    def channel(self, number: int) -> FeedChannel | None:
        return self._channels[number]

    # Accelerator of the delivery of delayed messages

    def deliver(self, messages: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Stage copies of ``messages``, each an offset and a size. Return how many, from the first
        one on, and the offset at which the last of them ends.
        """
        if self.core is None or not self._eligibility.may_copy:
            return 0, 0
        self.refresh()
        self._tables.learn_log(messages[0][0])
        places = ffi.new("int64_t[]", [number for message in messages for number in message])
        if self._dledger is None:
            count: int = lib.rmq_deliver(self.core, places, len(messages))
        else:
            before = self._take_grant()
            count = lib.rmq_deliver(self.core, places, len(messages))
            self._propose(before)
        self.before_fallback()
        self.needs_refresh = True
        return count, self._staging.state[END]

    def learn_copies(self, message: OutgoingMessage) -> None:
        """Learn the queue in which Python has stored a message of the broker itself."""
        if self.core is not None and message.topic.isascii():
            self._tables.learn_copies(message.topic.decode(), message.queue_id)
            self._share_cells()

    # Accelerator of the dispatcher

    def take(self, piece: ScanRange, listener: ArrivalListener | None) -> tuple[int, int] | None:
        self._check_tables()
        return self._dispatch.take(piece, listener)

    def register_queues(self, scan: Scan) -> None:
        for topic, queue_id in set(zip(scan.topic, scan.queue_id, strict=True)):
            if topic.isascii():
                self._tables.learn_queue(topic.decode(), queue_id, maps=False)

    def watch(self, topic: str, queue_id: int, wanted: bool) -> None:
        self._tables.watch(topic, queue_id, wanted)

    # Inside

    def _receive_entries(self, core: Cdata, number: int, have: int) -> int:
        before = self._take_grant()
        status: int = lib.rmq_receive(core, number, have)
        self._propose(before)
        return status

    def _receive_ready_entries(self, core: Cdata, begin: bool) -> int:
        before = self._take_grant()
        status: int = lib.rmq_receive_ready(core, begin)
        self._propose(before)
        return status

    def _feed_entries(self, core: Cdata, number: int) -> int:
        before = self._take_grant()
        status: int = lib.rmq_feed(core, number)
        self._propose(before)
        return status

    def _take_grant(self) -> int:
        """Set the number of entries that C may append now, and their term. Return the index of the
        next entry.
        """
        assert self._dledger is not None
        proposer = self._dledger.proposer
        if proposer is not self._proposer or proposer.grants != self._grants:
            # The member may work first, become the leader, and append an entry of its own.
            proposal, granted = proposer.grant()
            self._proposer, self._grants = proposer, proposer.grants
            index = self._staging.state[INDEX]
            self.core.entries_left = granted if proposal.first_index == index else 0
            self.core.term = proposal.term
        return self._staging.state[INDEX]

    def _propose(self, before: int) -> None:
        """Propose the entries that C has appended from the grant."""
        count = self._staging.state[INDEX] - before
        if count:
            assert self._proposer is not None
            self._proposer.consume_grant(count)

    def _collect_counters(self) -> None:
        """Add the counts and offsets that C has recorded since the last time to the tables."""
        core, statistics = self.core, self._deps.statistics
        if core.put_messages:
            statistics.messages_put(core.put_messages, core.put_bytes, 0)
            core.put_messages = core.put_bytes = 0
        if core.answered:
            self._accounts.answered(core.answered)
            core.answered = 0
        for i in range(core.touched_count):
            number = core.touched[i]
            reader = core.readers[number]
            name = self._tables.reader_name(number)
            statistics.reads_found(name, reader.found, reader.messages)
            reader.found = reader.messages = 0
        core.touched_count = 0
        if core.misses:
            statistics.reads_missed(core.misses)
            core.misses = 0
        for i in range(core.commit_count):
            commit = core.commits[i]
            group, topic = self._tables.reader_name(commit.reader)
            self._deps.offsets.commit(group, topic, commit.queue_id, commit.offset)
        core.commit_count = 0
        if core.returned_count:
            self._count_returned()

    def _count_returned(self) -> None:
        """Count the messages that were sent back, as soon as they are stored."""
        core, tables = self.core, self._tables
        counts = [
            (
                names.group_of_retry_topic(tables.topic_name(item.retry_topic)),
                tables.topic_name(item.topic),
                item.count,
            )
            for item in core.returned[0 : core.returned_count]
        ]
        core.returned_count = 0

        def done(status: PutMessageStatus) -> None:
            if status is PutMessageStatus.PUT_OK:
                for group, topic, count in counts:
                    self._deps.statistics.sent_back(group, topic, count)

        end, messages = self._staging.state[END], self._deps.messages
        if end <= messages.stored_offset:
            done(PutMessageStatus.PUT_OK)
        else:
            messages.wait(end, done)

    def _check_tables(self) -> None:
        core = self.core
        if core.touched_count or core.commit_count or core.returned_count:
            self._collect_counters()
        changes = self._eligibility.take_changes()
        if changes is None:
            self._tables.clear()
            self._accounts.clear()
            self._set_constants()
            return
        self._tables.free_some()
        for topic in changes.topics:
            self._tables.discard_topic(topic)
        for group in changes.groups:
            self._tables.discard_group(group)
        for topic in changes.shortened:
            self._tables.renew_topic(topic)
        if not WAITING_TOPICS.isdisjoint((*changes.topics, *changes.shortened)):
            self._tables.find_waiting_topics()

    def _share_log(self) -> None:
        """Share the addresses of buffers that may have been reallocated."""
        core, staging = self.core, self._staging
        staging.forget_recent()
        self._share_cells()
        if self._staging_generation != staging.generation:
            self._staging_generation = staging.generation
            core.staging = self._keep("staging", memory_of(staging.buffer))
            core.staging_capacity = len(staging.buffer)
            core.log = self._keep("log", ffi.from_buffer("int64_t[]", staging.state))
            core.units = self._keep("units", memory_of(staging.units))
            core.units_capacity = len(staging.units) // 32

    def _share_cells(self) -> None:
        tails = self._store.appender.tails
        if self._cells is not tails.cells:
            self._cells = tails.cells
            self.core.tails = self._keep("tails", ffi.from_buffer("int64_t[]", tails.cells))

    def _send(self) -> None:
        core = self.core
        self._hold_unacknowledged()
        if lib.rmq_send(core):
            self._requeue_unsent()
        core.outgoing_count = 0

    def _hold_unacknowledged(self) -> None:
        core, passed = self.core, self._eligibility.acknowledged_offset
        if passed >= self._staging.state[END]:
            return
        messages = self._deps.messages
        copied = messages.stored_offset
        held: list[PendingReply[RemotingCommand | bytes]] = []
        for i in range(core.outgoing_count):
            entry = core.outgoing[i]
            if entry.log_end > (copied if entry.is_copy else passed):
                data = bytes(self._out[entry.start : entry.start + entry.length])
                channel = self._channels[entry.peer]
                if channel is not None and entry.is_copy:
                    messages.wait(entry.log_end, partial(_answer_copies, channel, data))
                elif channel is not None:
                    held.append(
                        PendingReply(channel, entry.log_end, data, data, count=entry.replies)
                    )
                entry.length = 0
        if held:
            self._deps.gate.hold(self._eligibility.marks, held)

    def _requeue_unsent(self) -> None:
        core = self.core
        for i in range(core.outgoing_count):
            entry = core.outgoing[i]
            channel = self._channels[entry.peer]
            if entry.sent == entry.length or channel is None:
                continue
            if entry.sent < 0:
                channel.send_failed(-entry.sent)
            else:
                start = entry.start + entry.sent
                channel.unsent(bytes(self._out[start : entry.start + entry.length]))

    def _learn_offset(self, command: RemotingCommand) -> None:
        fields = command.ext_fields
        queue_id, topic = fields.get("queueId", ""), fields.get("topic", "")
        if not queue_id.isdecimal() or len(queue_id) > 5:
            return
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            group = fields.get("consumerGroup", "")
            if self._deps.offsets.queues(group, topic):
                self._tables.learn_commit(group, topic)
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            group, offsets = fields.get("consumerGroup", ""), self._deps.offsets
            if offsets.queues(group, topic):
                self._tables.learn_committed(group, topic, offsets)
        else:
            timestamp = fields.get("timestamp", "")
            known = timestamp.isdecimal() and len(timestamp) < 19
            self._tables.learn_offsets(topic, int(queue_id), int(timestamp) if known else None)

    def _learn_query(self, command: RemotingCommand) -> None:
        """Learn the index, and the files of the log with the messages that a query has found."""
        index, fields = self._store.index, command.ext_fields
        begin, end = fields.get("beginTimestamp", ""), fields.get("endTimestamp", "")
        if index is None or not (begin.isdecimal() and end.isdecimal()):
            return
        self._tables.learn_index()
        topic, key = fields.get("topic", ""), fields.get("key", "")
        for offset in index.find(topic, key, lib.RMQ_FOUND_MAX, int(begin), int(end)):
            self._tables.learn_log(offset)

    def _learn_log(self, offset: str) -> None:
        if offset.isdecimal() and len(offset) < 19:
            self._tables.learn_log(int(offset))

    def _learn_send(self, command: RemotingCommand) -> None:
        names = ("topic", "queueId") if command.code == RequestCode.SEND_MESSAGE else ("b", "e")
        topic, queue_id = (command.ext_fields.get(name, "") for name in names)
        if queue_id.isdecimal() and len(queue_id) < 6:
            self._tables.learn_send(topic, int(queue_id), self._accounts.bit(command))

    def _learn_pull(self, command: RemotingCommand) -> None:
        fields = command.ext_fields
        queue_id, offset = fields.get("queueId", ""), fields.get("queueOffset", "")
        if queue_id.isdecimal() and offset.isdecimal() and len(queue_id) < 6 and len(offset) < 16:
            group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
            accounts = self._accounts.bit(command)
            self._tables.learn_pull((group, topic), int(queue_id), int(offset), accounts)
            if fields.get("expressionType") == SQL92:
                self._tables.learn_expression((group, topic), fields.get("subscription", ""))

    def _set_constants(self) -> None:
        """Set the fields of the core that follow from settings and identity."""
        core, identity, settings = self.core, self._sources.identity, self._sources.identity.store
        cluster = identity.cluster.encode()
        core.cluster = self._keep("cluster", ffi.from_buffer("uint8_t[]", cluster))
        core.cluster_length = len(cluster)
        ip, port = identity.store_host
        ffi.memmove(core.store_ip, ip, len(ip))
        core.store_ip_length, core.store_port = len(ip), port
        core.message_max = settings.max_message_size
        core.near_bytes = settings.max_transfer_bytes_on_message_in_memory
        core.near_count = settings.max_transfer_count_on_message_in_memory
        core.far_bytes = settings.max_transfer_bytes_on_message_in_disk
        core.far_count = settings.max_transfer_count_on_message_in_disk
        core.memory_distance = self._store.reader.memory_distance
        core.scan_work_max = WORK_OF_TURN
        core.index.found_max = min(FOUND_LIMIT, settings.max_msgs_num_batch)
        core.index.unique_found_max = min(core.index.found_max, settings.default_query_max_num)
        self._hold.set_time(identity.broker_settings)
        core.allows_wait_false = self._eligibility.allows_wait_false
        self._alive["replies"] = templates = set_reply_templates(core, identity)
        self._has_templates = templates is not None
        self._pulls = (
            self._has_templates
            and not identity.is_slave
            and not identity.broker_settings.slave_read_enable
            and not identity.broker_settings.disable_consume_if_consumer_read_slowly
        )

    def _make_buffers(self) -> None:
        core = self.core
        self._in = self._own_in = self._buffer("in", FEED_BYTES)
        self._out = self._buffer("out", OUT_BYTES)
        core.out_share = OUT_BYTES
        self._buffer("scratch", SCRATCH_BYTES)
        for name, kind, count in (
            ("fallback", "rmq_span", FALLBACK_MAX),
            ("outgoing", "rmq_outgoing", OUTGOING_MAX),
            ("commits", "rmq_offset_commit", COMMITS_MAX),
            ("returned", "rmq_returned", RETURNED_MAX),
        ):
            setattr(core, name, self._keep(name, c_array(kind, count)))
        core.fallback_capacity = FALLBACK_MAX
        core.outgoing_capacity = OUTGOING_MAX
        core.commit_capacity = COMMITS_MAX
        core.returned_capacity = RETURNED_MAX

    def _buffer(self, name: str, length: int) -> memoryview:
        value = self._keep(name, c_array("uint8_t", length))
        setattr(self.core, name, value)
        setattr(self.core, f"{name}_capacity", length)
        return memoryview(ffi.buffer(value))

    def _more_peers(self) -> None:
        count = len(self._channels)
        larger = ffi.new("rmq_peer[]", max(PEERS_FIRST, 2 * count))
        if count:
            ffi.memmove(larger, self._alive["peers"], count * ffi.sizeof("rmq_peer"))
        self.core.peers = self._keep("peers", larger)
        self._free += range(len(larger) - 1, count - 1, -1)
        self._channels += [None] * (len(larger) - count)

    def _keep(self, name: str, value: Cdata) -> Cdata:
        self._alive[name] = value
        return value


def _answer_copies(channel: FeedChannel, replies: bytes, status: PutMessageStatus) -> None:
    """Send ``replies`` to requests for copies, or refusals if the copies are not stored."""
    if status is not PutMessageStatus.PUT_OK:
        refusals = []
        position = 0
        while position < len(replies):
            start = position + LENGTH_BYTES
            position = start + int.from_bytes(replies[position:start])
            response = decode_command(memoryview(replies)[start:position])
            response.code, response.remark = ResponseCode.SYSTEM_ERROR, status.value
            refusals.append(encode_command(response))
        replies = b"".join(refusals)
    channel.write(replies)
