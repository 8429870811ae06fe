"""The hot path in Python: what the C core does with plain sends, for brokers without it.

One pass over the receive buffer. A send whose header has a known shape (:mod:`.hot_shapes`) becomes
a record, a reply and a row for dispatch (:mod:`.hot_rows`) here; every other frame is handed back,
and so is what stands behind it in the same buffer. The rules are those of :mod:`.hot`, and the same
conditions hold (:mod:`.hot_conditions`)::

    refresh ────► feed, resume* ──► commit (one write) ──► flush_replies ──► dispatch (take)
                    │    ▲
                    ▼    │ refresh
                   Python: other frames, a full file, a full buffer

Records of one call are joined and staged together. For a classic log; what appends to a DLedger log
goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from attrs import define, field

from rmqpy.broker.base.context import born_host
from rmqpy.broker.fastpath.eligibility import (
    FastPathDependencies,
    FastPathEligibility,
    FastPathInputs,
    may_send,
)
from rmqpy.broker.fastpath.hot_rows import HotRows
from rmqpy.broker.fastpath.hot_shapes import PropertyPlans, SendLine, SendShapes, cut_header
from rmqpy.broker.fastpath.reply_templates import ReplyField, send_template
from rmqpy.broker.processors.send_request import stored_sys_flag
from rmqpy.codec.backend import crc32
from rmqpy.codec.layout import (
    BLANK_SIZE,
    MESSAGE_MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    record_size,
)
from rmqpy.codec.message import HEADS, offset_msg_id
from rmqpy.codec.units import index_key_hasher
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.flags import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_NOT_TYPE,
    transaction_type,
)
from rmqpy.model.message import Host
from rmqpy.net.pending_replies import PendingReply
from rmqpy.net.server.feed_api import FEED_BYTES, FeedStatus, HotChannel, PollSet
from rmqpy.remoting.command import FLAG_ONEWAY, SERIALIZE_JSON, RemotingCommand
from rmqpy.remoting.frame import LENGTH_BYTES, WORD_BYTES
from rmqpy.remoting.headers import SendMessageRequestHeaderV2
from rmqpy.store.commitlog.classic import ClassicCommitLog
from rmqpy.store.files.staging import END, FILE_END, STAGED
from rmqpy.store.health import Writer

OUT_BYTES: Final = 4 * 1024 * 1024
"""Replies of a turn; a turn that would have more ends early."""
COLD_MAX: Final = 32
OFFSET_HEX: Final = 16

_WORD: Final = Struct(">I")
_PREFIX: Final = Struct(">II")
_SHORT: Final = Struct(">H")
_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_REPLY_FIELDS: Final = [ReplyField.MSG_ID, ReplyField.QUEUE_START, ReplyField.OPAQUE]
"""In the order in which a reply has them."""


@define(slots=True, eq=False, repr=False)
class _Peer:
    """One connection."""

    channel: HotChannel
    host: Host
    shapes: SendShapes
    replies: list[bytes] = field(factory=list)
    log_end: int = 0
    """The replies need the log up to here."""
    requests: int = 0


class HotPython:
    """See the module's text. A ``net.feed.Feed``."""

    receive: Callable[[Any, int, int], int] | None = None
    """The driver reads the sockets."""
    ready: PollSet | None = None
    full = False
    """Which it knows, then."""

    def __init__(self, sources: FastPathInputs, deps: FastPathDependencies) -> None:
        assert isinstance(sources.store.log, ClassicCommitLog)
        self._sources = sources
        self._deps = deps
        self._store = sources.store
        self._log = sources.store.log
        self._staging = self._log.staging
        self._conditions = FastPathEligibility(sources, deps)
        self.rows = HotRows(sources.store.queues, sources.store.index)
        """What dispatch takes."""
        self.core = self
        self.frame_max = FEED_BYTES
        self.cold_capacity = COLD_MAX
        self.wanted = 0
        self.needs_refresh = True
        self._peers: list[_Peer | None] = []
        self._free: list[int] = []
        self._owing: list[_Peer] = []
        self._out_bytes = 0
        self._data = b""
        self._front = b""
        self._position = 0
        self._cold: list[tuple[int, int]] = []
        self._pieces: list[bytes] = []
        self._end = 0
        self._limit = 0
        self._staged_max = 0
        self._put_messages = self._put_bytes = 0
        self._shapes = {4: SendShapes(), 16: SendShapes()}
        """By the length of the peers' addresses."""
        self.refresh()

    # Turns

    def pause(self, held: bool) -> None:
        """Whether every frame is handed back."""
        self._conditions.paused = held
        self.refresh()

    def request_refresh(self) -> None:
        """Frames were handled in Python: refresh before the next frame."""
        self.needs_refresh = True

    def refresh(self) -> None:
        """Before the first frame of a turn, and when others may have changed something."""
        if self._conditions.changed():
            self._forget()
        self._now_ms = self._deps.clock.now_ms()
        self._takes_sends = self._conditions.may_handle_sends(self._now_ms)
        self.needs_refresh = False

    def flush_replies(self) -> None:
        """After the commit: send what may leave; the gate keeps the rest."""
        self._collect_counters()
        owing, self._owing = self._owing, []
        passed = self._conditions.acknowledged_offset
        held: list[PendingReply[RemotingCommand | bytes]] = []
        for peer in owing:
            frames = b"".join(peer.replies)
            if peer.log_end <= passed:
                peer.channel.write(frames)
            else:
                held.append(
                    PendingReply(peer.channel, peer.log_end, frames, frames, count=peer.requests)
                )
            peer.replies.clear()
            peer.requests = 0
        self._out_bytes = 0
        if held:
            self._deps.gate.hold(self._conditions.marks, held)
        self.rows.drop_if_many()

    def close(self) -> None:
        """Nothing is fed any more. Harmless twice."""
        self._store.dispatcher.install_accelerator(None)
        self._peers.clear()

    # Connections

    def attach(self, channel: HotChannel, fd: int) -> int:
        """The number of a new connection."""
        host = born_host(channel.peer)
        peer = _Peer(channel, host, self._shapes[len(host[0])])
        if self._free:
            number = self._free.pop()
            self._peers[number] = peer
        else:
            number = len(self._peers)
            self._peers.append(peer)
        return number

    def detach(self, number: int) -> None:
        """The connection has ended."""
        if self._peers:
            self._peers[number] = None
            self._free.append(number)

    def set_write_pending(self, number: int, queued: bool) -> None:
        """Nothing: replies leave by the channel, behind what waits there."""

    def flush_now(self, number: int) -> None:
        """Nothing: all replies wait for the commit."""

    # Frames

    def unread(self, data: bytes) -> bool:
        """Let the next receive go on behind the begin of a frame; False: it is too large."""
        if len(data) >= LENGTH_BYTES:
            length = int.from_bytes(data[:LENGTH_BYTES]) + LENGTH_BYTES
            if length >= FEED_BYTES:
                return False
        self._front = data
        return True

    def feed(self, data: bytes | memoryview, have: int = 0) -> None:
        """What was received, behind ``have`` bytes of ``unread``: ``resume`` feeds it."""
        self._data = self._front + data if have else bytes(data)
        self._front = b""
        self._position = 0

    def resume(self, number: int) -> int:
        """Feed what is left of the buffer."""
        peer = self._peers[number]
        assert peer is not None
        staging = self._staging
        state = staging.state
        self._cold.clear()
        self._end = state[END]
        self._limit = state[FILE_END] - BLANK_SIZE
        self._staged_max = self._end + len(staging.buffer) - state[STAGED]
        status = self._walk(peer)
        if self._pieces:
            staging.put(b"".join(self._pieces))
            self._pieces.clear()
        return status

    def unhandled_frames(self) -> list[memoryview]:
        """The frames that are handed back, without length words."""
        view = memoryview(self._data)
        return [view[start:end] for start, end in self._cold]

    def before_fallback(self) -> None:
        """The processors are about to handle frames: they have to know what was done here."""
        self._collect_counters()

    def after_fallback(self, commands: Sequence[RemotingCommand]) -> None:
        """The processors have handled these: what can be learned is."""
        self.refresh()
        for (start, _), command in zip(self._cold, commands, strict=False):
            if command.code == RequestCode.SEND_MESSAGE_V2:
                self._learn(start, command)
        if self._tails is not self._store.appender.tails.cells:
            self.refresh()

    def make_room(self, status: int) -> None:
        """The log's file or the staging could not take the next message."""
        try:
            if status == FeedStatus.ROLL:
                self._log.make_room(self.wanted)
            else:
                self._store.appender.commit()
        except OSError as error:
            self._store.health.write_failed(Writer.LOG, error)
        self.refresh()

    @property
    def advanced(self) -> bool:
        """Whether a whole frame was there."""
        return self._position > 0

    def rest(self) -> bytes:
        """The begin of an unfinished frame."""
        return self._data[self._position :]

    # Inside

    def _walk(self, peer: _Peer) -> FeedStatus:
        data, cold = self._data, self._cold
        position, end = self._position, len(data)
        status = FeedStatus.DONE
        while end - position >= LENGTH_BYTES:
            (length,) = _WORD.unpack_from(data, position)
            if not WORD_BYTES <= length <= self.frame_max:
                status = FeedStatus.BAD_FRAME
                break
            start = position + LENGTH_BYTES
            stop = start + length
            if stop > end:
                break
            if not cold and self._takes_sends:
                status = self._send(peer, data, start, stop)
                if status > FeedStatus.COLD:
                    break
            if cold or not self._takes_sends or status == FeedStatus.COLD:
                cold.append((start, stop))
            position = stop
            if len(cold) == self.cold_capacity:
                break
        self._position = position
        if cold:
            return FeedStatus.COLD
        if status > FeedStatus.COLD or position == end:
            return status
        return FeedStatus.PARTIAL

    def _send(self, peer: _Peer, data: bytes, start: int, stop: int) -> FeedStatus:
        """DONE: it is stored and answered. COLD: it is for the ordinary way."""
        (word,) = _WORD.unpack_from(data, start)  # of a ROCKETMQ header larger than any frame
        body_at = start + WORD_BYTES + word
        if body_at > stop:
            return FeedStatus.COLD
        send = peer.shapes.read(data, start + WORD_BYTES, body_at)
        if send is None:
            return FeedStatus.COLD
        line, born_ms, text, opaque = send
        properties = self._plans.read(text)
        if properties is None:
            return FeedStatus.COLD
        stored, tags_code, unique_key, keys = properties
        size = line.fixed_size + stop - body_at + len(stored)
        if size > self._size_max or len(stored) > PROPERTIES_BYTES_MAX:
            return FeedStatus.COLD
        offset = self._end
        if offset + size > self._staged_max or offset + size > self._limit:
            return self._no_room(size)
        if self._out_bytes > OUT_BYTES:
            return FeedStatus.OUT_FULL
        body = data[body_at:stop]
        queue_offset = self._tails[line.cell]
        head = line.head(
            size,
            MESSAGE_MAGIC_V1,
            crc32(body),
            line.queue_id,
            line.flag,
            queue_offset,
            offset,
            line.sys_flag,
            born_ms,
            *peer.host,
            self._now_ms,
            *self._store_host,
            line.reconsume_times,
            0,
            len(body),
        )
        self._pieces += (head, body, line.topic_part, _SHORT.pack(len(stored)), stored)
        self._tails[line.cell] = queue_offset + 1
        self._end = offset + size
        self.rows.waiting.append(
            (offset, size, line, queue_offset, tags_code, unique_key, keys, self._now_ms)
        )
        self._put_messages += 1
        self._put_bytes += size
        if not line.oneway:
            self._answer(peer, line.reply % (offset, queue_offset, opaque))
        return FeedStatus.DONE

    def _answer(self, peer: _Peer, header: bytes) -> None:
        length = len(header)
        frame = _PREFIX.pack(WORD_BYTES + length, length) + header
        if not peer.requests:
            self._owing.append(peer)
        peer.replies.append(frame)
        peer.requests += 1
        peer.log_end = self._end
        self._out_bytes += len(frame)

    def _no_room(self, size: int) -> FeedStatus:
        """For a record of so many bytes, in staging or in the file."""
        if size + BLANK_SIZE > self._log.segments.file_size or size > len(self._staging.buffer):
            return FeedStatus.COLD
        if self._end + size > self._staged_max:
            return FeedStatus.COMMIT
        self.wanted = size
        return FeedStatus.ROLL

    def _collect_counters(self) -> None:
        """What was counted since the last time."""
        if self._put_messages:
            self._deps.statistics.messages_put(self._put_messages, self._put_bytes, 0)
            self._put_messages = self._put_bytes = 0

    # What is known

    def _forget(self) -> None:
        """What was learned may be wrong; settings and identity may be others."""
        identity = self._sources.identity
        for shapes in self._shapes.values():
            shapes.clear()
        self._plans = PropertyPlans(identity.cluster, self._conditions.wait_false_is_hot)
        self._tails = self._store.appender.tails.cells
        self._store_host = identity.store_host
        self._size_max = identity.store.max_message_size
        self._reply = send_template(identity, SERIALIZE_JSON)
        self._key_hashes: dict[str, Callable[[bytes], int]] = {}

    def _learn(self, start: int, command: RemotingCommand) -> None:
        """``command`` begins at ``start`` of the buffer."""
        (word,) = _WORD.unpack_from(self._data, start)  # of a ROCKETMQ header beyond the buffer
        parts = cut_header(self._data[start + WORD_BYTES : start + WORD_BYTES + word])
        if parts is None or command.serialize_type != SERIALIZE_JSON:
            return
        new = [length for length, shapes in self._shapes.items() if not shapes.knows(parts)]
        header = self._plain_header(command) if new else None
        if header is None:
            return
        for length in new:
            line = self._line(header, (bytes(length), 0), bool(command.flag))
            if line is not None:
                self._shapes[length].learn(parts, command, line)

    def _plain_header(self, command: RemotingCommand) -> SendMessageRequestHeaderV2 | None:
        """None: nothing that would be answered here."""
        try:
            header = SendMessageRequestHeaderV2.decode(command.ext_fields)
        except RequestRejectedError:
            return None
        plain = not header.batch and transaction_type(header.sys_flag) == TRANSACTION_NOT_TYPE
        if not plain or command.flag & ~FLAG_ONEWAY or not may_send(header.topic):
            return None
        return header

    def _line(
        self, header: SendMessageRequestHeaderV2, born: Host, oneway: bool
    ) -> SendLine | None:
        """What sends with this header have in common, from a peer with an address such as
        ``born``'s.
        """
        name = header.topic.encode()
        config = self._sources.topics.get(header.topic)
        if config is None or not name.isascii() or len(name) > TOPIC_BYTES_MAX:
            return None
        if not 0 <= header.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return None
        sys_flag = stored_sys_flag(header.sys_flag, config, born, self._store_host)
        return SendLine(
            queue_id=header.queue_id,
            cell=self._store.appender.tails.index_of((name, header.queue_id)),
            sys_flag=sys_flag,
            flag=header.flag,
            reconsume_times=header.reconsume_times or 0,
            oneway=oneway,
            head=HEADS[sys_flag & _V6].pack,
            topic_part=bytes((len(name),)) + name,
            fixed_size=record_size(sys_flag, 0, len(name), 0),
            reply=self._reply_format(header.queue_id),
            key_hash=self._key_hash(header.topic),
            queue_name=(header.topic, header.queue_id),
        )

    def _key_hash(self, topic: str) -> Callable[[bytes], int]:
        found = self._key_hashes.get(topic)
        if found is None:
            found = self._key_hashes[topic] = index_key_hasher(topic)
        return found

    def _reply_format(self, queue_id: int) -> bytes:
        """The header of the reply as a format of physical offset, queue offset and opaque."""
        msg_id = offset_msg_id(self._store_host, 0)[:-OFFSET_HEX].encode() + b"%016X"
        forms = {
            ReplyField.QUEUE_NUMBER: b"%d" % queue_id,
            ReplyField.MSG_ID: msg_id,
            ReplyField.QUEUE_START: b"%d",
            ReplyField.OPAQUE: b"%b",
        }
        fields = [each for each in self._reply.fields if each is not ReplyField.QUEUE_NUMBER]
        assert fields == _REPLY_FIELDS, fields
        text = self._reply.literals[0].replace(b"%", b"%%")
        for each, literal in zip(self._reply.fields, self._reply.literals[1:], strict=True):
            text += forms[each] + literal.replace(b"%", b"%%")
        return text
