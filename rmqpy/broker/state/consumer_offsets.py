"""Consumer offsets: the progress of each group in each queue, ``config/consumerOffset.json``; codes
14, 15 and 43.

The table is written each ``flushConsumerOffsetInterval`` if it has changed. A crash loses at most
that interval, and consumers read those messages again.

Invariants: offsets are accepted as the consumer reports them, smaller ones too; at most
``OFFSET_KEYS_LIMIT`` pairs of topic and group, all with valid names.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from weakref import WeakValueDictionary

from attrs import define, field

from rmqpy.broker.base.store_api import HandlerTable, MessageReader
from rmqpy.model import names
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.encoded_rows import EncodedRows
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.steps import Steps
from rmqpy.remoting.bodies import ConsumerOffsetSerializeWrapper
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps_with_rows, quote
from rmqpy.remoting.headers import (
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    UpdateConsumerOffsetResponseHeader,
)

KEY_SEPARATOR: Final = "@"
OFFSET_KEYS_LIMIT: Final = 1_000_000
QUEUE_ID_LIMIT: Final = 65_536

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class ConsumerOffsetTable:
    """The committed offsets, by ``topic@group`` and queue."""

    _table: dict[str, dict[int, int]] = field(factory=dict, init=False)
    _rows: EncodedRows = field(init=False)
    _shared: WeakValueDictionary[str, array[int]] = field(factory=WeakValueDictionary, init=False)
    """Copies of queues by key, as long as somebody uses them."""
    _on_change: Callable[[], None] = field(default=lambda: None, init=False)

    def __attrs_post_init__(self) -> None:
        self._rows = EncodedRows(self._row)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change."""
        self._on_change = listener

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset, or -1 if there is none."""
        return self._table.get(f"{topic}{KEY_SEPARATOR}{group}", _NOTHING).get(queue_id, -1)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offsets by queue."""
        return self._table.get(f"{topic}{KEY_SEPARATOR}{group}", _NOTHING)

    def shared(self, group: str, topic: str, count: int) -> array[int]:
        """Return an array of the committed offsets of the first ``count`` queues, -1 if there is
        none. It follows the table; its user may write an offset that it commits later.
        """
        key = f"{topic}{KEY_SEPARATOR}{group}"
        copy = self._shared.get(key)
        if copy is None or len(copy) != count:
            copy = self._shared[key] = array("q", [-1]) * count
            self._copy(key, self._table.get(key, _NOTHING))
        return copy

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset that a consumer reports. Raises RequestRejectedError for
        an invalid name or queue id.
        """
        if not 0 <= queue_id < QUEUE_ID_LIMIT:
            raise RequestRejectedError(ResponseCode.SYSTEM_ERROR, f"queueId {queue_id} is illegal")
        key = f"{topic}{KEY_SEPARATOR}{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._new_key(key, group, topic)
        queues[queue_id] = offset
        self._rows.note(key)
        copy = self._shared.get(key)
        if copy is not None and queue_id < len(copy):
            copy[queue_id] = offset
        self._on_change()

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which ``group`` has committed offsets."""
        return [topic for topic, owner in self.pairs() if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of ``topic``."""
        return [group for name, group in self.pairs() if name == topic]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Iterate over the pairs of topic and group that have offsets now. The table may change
        meanwhile.
        """
        for key in list(self._table):
            topic, _, group = key.rpartition(KEY_SEPARATOR)
            yield topic, group

    def remove_group(self, group: str) -> None:
        self._remove(key for key in self._table if key.rpartition(KEY_SEPARATOR)[2] == group)

    def wrapper(self) -> ConsumerOffsetSerializeWrapper:
        """Return the table as it is sent to slaves and saved."""
        return ConsumerOffsetSerializeWrapper(offset_table=self._table)

    def file_steps(self) -> Steps[list[bytes]]:
        """Return the text of consumerOffset.json, in parts: the ``pretty`` form of the wrapper."""
        yield from self._rows.encode_steps()
        return dumps_with_rows(_NO_OFFSETS, self._rows.parts(), pretty=True)

    def encode(self) -> bytes:
        """Return the text that slaves receive."""
        return b"".join(dumps_with_rows(_NO_OFFSETS, self._rows.parts(compact=True)))

    def _row(self, key: str) -> bytes:
        numbers = ",".join([f"{queue}:{offset}" for queue, offset in self._table[key].items()])
        end = "\n\t\t}" if numbers else "}"
        return f"\n\t\t{quote(key)}:{{{numbers}{end}".encode("utf-8", "replace")

    def restore(self, saved: ConsumerOffsetSerializeWrapper) -> None:
        """Take over a saved table."""
        for key, queues in saved.offset_table.items():
            if KEY_SEPARATOR not in key:
                logger.error("offsets of %r skipped: key is not topic@group", key)
                continue
            self._table[key] = dict(queues)
            self._rows.note(key)
            self._copy(key, queues)

    def merge(self, received: ConsumerOffsetSerializeWrapper) -> None:
        """Take over a master's offset for each queue that the master names; nothing is removed."""
        changed = False
        for key, queues in received.offset_table.items():
            if KEY_SEPARATOR not in key:
                logger.error("offsets of %r skipped: key is not topic@group", key)
                continue
            own = self._table.get(key)
            if own is None:
                own = self._table[key] = {}
                self._rows.note(key)
            if any(own.get(queue_id) != offset for queue_id, offset in queues.items()):
                own.update(queues)
                changed = True
                self._rows.note(key)
                self._copy(key, own)
        if changed:
            self._on_change()

    def _new_key(self, key: str, group: str, topic: str) -> dict[int, int]:
        names.check_topic(topic)
        names.check_group(group)
        if len(self._table) >= OFFSET_KEYS_LIMIT:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY,
                f"{OFFSET_KEYS_LIMIT} offset tables exist, which is the limit",
            )
        queues: dict[int, int] = {}
        self._table[key] = queues
        self._rows.note(key)
        return queues

    def _copy(self, key: str, queues: Mapping[int, int]) -> None:
        """Update the shared copy of a key."""
        copy = self._shared.get(key)
        if copy is not None:
            for queue_id in range(len(copy)):
                copy[queue_id] = queues.get(queue_id, -1)

    def _remove(self, keys: Iterable[str]) -> None:
        removed = list(keys)
        for key in removed:
            del self._table[key]
            self._copy(key, _NOTHING)
            self._rows.discard(key)
        if removed:
            self._on_change()


_NOTHING: Final[Mapping[int, int]] = {}
_NO_OFFSETS: Final = {"offsetTable": _NOTHING}


@define(slots=True, frozen=True, eq=False, repr=False)
class OffsetProcessor:
    """The processor of the codes 14, 15 and 43."""

    offsets: ConsumerOffsetTable
    queues: MessageReader

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.get_all,
        }

    def query(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer with the committed offset. An unknown offset is 0 if the whole queue can still be
        read from memory; otherwise the client decides.
        """
        header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
        topic, queue_id = header.topic, header.queue_id
        offset = self.offsets.get(header.consumer_group, topic, queue_id)
        if offset < 0:
            if not self._begins_in_memory(topic, queue_id):
                raise RequestRejectedError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "this group has no offset; it may be reading for the first time",
                )
            offset = 0
        return RemotingCommand.response_to(
            request, header=QueryConsumerOffsetResponseHeader(offset=offset)
        )

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        queues = self.queues
        if queues.max_queue_offset(topic, queue_id) == 0:
            return True
        return queues.min_queue_offset(topic, queue_id) <= 0 and queues.in_memory(
            topic, queue_id, 0
        )

    def update(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        self.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
        return RemotingCommand.response_to(request, header=UpdateConsumerOffsetResponseHeader())

    def get_all(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response_to(request, body=self.offsets.encode())
