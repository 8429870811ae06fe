"""The tables of the C core: topics to send to, queues, groups that may read, and files.

Nothing is decided here. An entry is *learned* after Python has handled a request of its kind, from
the tables that Python has used, and discarded when what it was learned from has changed
(:meth:`.eligibility.FastPathEligibility.take_changes`). C therefore answers only requests of a kind
that Python has answered in the same way before.

====================  =====================================================================
entry                 valid as long as
====================  =====================================================================
topic                 its settings, the configuration and the role are the same
queue of a topic      the store has not removed it, and the configuration and role are the same
reader (group#topic)  its topic is valid; the group, its members, subscriptions and filters are the
                      same
file                  it is one of its log, queue, or index
====================  =====================================================================

A discarded entry keeps its place, and the queues of its topic stay known: it is learned again from
one request. Only topics that do not exist any more, and their queues, leave their places to others.
No table is emptied because it is full: names grow with their number; the arrays are
reserved and cost nothing until they are used; of readers beyond ``READERS_MAX``, each takes the
place of one that is discarded, and without such a place it is not learned.

The system limits the number of mappings. Of the queues beyond ``shared_max``, C writes the units
through a descriptor, which it opens for each. One that is read, or that receives several messages
at once, takes the mappings of the queue that was learned first.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from rmqpy.broker.fastpath.eligibility import FastPathInputs, may_send
from rmqpy.broker.filter.tags import EVERYTHING, is_tag_expression
from rmqpy.broker.state.consumer_filters import SQL92, compile_filter
from rmqpy.codec.layout import QUEUE_UNIT_SIZE, TOPIC_BYTES_MAX
from rmqpy.codec.native.binding import ffi, lib, memory_of
from rmqpy.model import names
from rmqpy.model.flags import MULTI_TAGS, PERM_READ, PERM_WRITE
from rmqpy.remoting.bodies import MULTI_TAG, SubscriptionData
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.queues.consume_queue import END_STATE, WATCHED_STATE, ConsumeQueue

if TYPE_CHECKING:
    from rmqpy.broker.fastpath.sql_filters import CSqlProgram
    from rmqpy.broker.filter.sql_parser import Expression
    from rmqpy.broker.state.consumer_offsets import ConsumerOffsetTable
    from rmqpy.store.index.index_file import IndexFile, KeyIndex

TOPICS_MAX: Final = 1 << 18
READERS_MAX: Final = 1 << 18
QUEUES_MAX: Final = 1 << 20
NAMES_FIRST: Final = 1024
"""The number of slots of a table of names, which doubles when half of them are used."""
QUEUES_OF_TOPIC_MAX: Final = 4096
"""Queues with a larger number are handled in Python."""
QUEUES_OF_NEW_TOPIC: Final = 16
"""The number of queues assumed for an unknown topic, because a follower
receives messages before their topic.
"""
WAITING_TOPICS: Final = frozenset(
    (names.TRANSACTION_HALF_TOPIC, names.TRANSACTION_OP_HALF_TOPIC, names.SCHEDULE_TOPIC)
)
"""The topics in which messages wait, which C knows by their numbers."""
LOG_ROWS: Final = 2
FREED_AT_ONCE: Final = 256
"""The number of objects of discarded entries that are freed in a turn of the loop."""
RETIRED_FIRST: Final = 64
"""The number of programs without an entry at which those that no pull holds are removed."""

Cdata = Any
"""A C value, for which cffi has no types."""

QueueName = tuple[str, int]


def c_array(kind: str, count: int) -> Cdata:
    """Return zeroed memory that costs nothing until it is touched; it lives as long as the result
    does.
    """
    return ffi.from_buffer(f"{kind}[]", mmap.mmap(-1, count * ffi.sizeof(kind)))


@define(slots=True, eq=False, repr=False)
class CFiles:
    """The segments of a log or queue for C; each is mapped when its content is first requested."""

    segments: MappedFiles
    views: Cdata = None
    _seen: int = -1
    """The ``changes`` of the segments at the last :meth:`renew`."""
    _first_offset: int = -1
    _mapped: dict[MappedFile, Cdata] = field(factory=dict)
    """The views of mapped segments, kept alive."""

    def changed(self) -> bool:
        return self.segments.changes != self._seen

    def renew(self, target: Cdata) -> None:
        """Describe the current segments in an ``rmq_files``; those that still exist stay mapped."""
        segments = self.segments
        self._seen = segments.changes
        known = self._mapped
        self._mapped = {file: known[file] for file in segments if file in known}
        self.views = ffi.new("const uint8_t *[]", max(1, len(segments)))
        for number, file in enumerate(segments):
            self.views[number] = self._mapped.get(file, ffi.NULL)
        self._first_offset = segments.min_offset
        target.views = self.views
        target.first_offset = segments.min_offset
        target.file_size = segments.file_size
        target.count = len(segments)

    def learn(self, offset: int) -> None:
        """Map the segment that holds ``offset``."""
        file = self.segments.find(offset)
        if file is None or file in self._mapped or self.changed():
            return
        view = self._mapped[file] = memory_of(file.view)
        self.views[(offset - self._first_offset) // self.segments.file_size] = view

    def forget(self, target: Cdata) -> None:
        """Keep no segment mapped."""
        self._mapped.clear()
        self.renew(target)


@define(slots=True, eq=False, repr=False)
class _Queue:
    """The objects that one ``rmq_queue`` points to, kept alive."""

    number: int
    queue: ConsumeQueue
    state: Cdata
    files: CFiles
    tail: Cdata = None


@define(slots=True, eq=False, repr=False)
class _TopicSlot:
    """The arrays that one ``rmq_topic`` points to, kept alive."""

    number: int
    cells: Cdata
    queues: Cdata

    def resize(self, count: int) -> None:
        """Change the number of queues; those that remain stay known."""
        remaining = min(count, len(self.queues))
        for name in ("cells", "queues"):
            former, array = getattr(self, name), _unknown(count)
            array[0:remaining] = list(former[0:remaining])
            setattr(self, name, array)


class FastPathTables:
    """The tables of topics, queues, readers and files that C reads; keeps their memory alive."""

    def __init__(self, core: Cdata, sources: FastPathInputs) -> None:
        self._core = core
        self._sources = sources
        self._watched: set[QueueName] = set()
        self._subscribed: dict[int, CSqlProgram] = {}
        self._requested: dict[int, tuple[str, CSqlProgram, Cdata]] = {}
        self._retired: list[CSqlProgram] = []
        """The programs of former entries that pulls held when they were removed."""
        self._retired_max = RETIRED_FIRST
        self._index: KeyIndex | None = None
        self._index_seen = -1
        self._index_views: dict[IndexFile, Cdata] = {}
        self._index_files: Cdata = None
        self._alive: list[Cdata] = []
        self._former: list[Callable[[], object]] = []
        """Removes one item each from the containers of discarded entries, of which those of 200,000
        queues would take 100 ms to free at once.
        """
        core.queue_folder = -1
        self.use_log()
        for name, kind, count in (
            ("topics", "rmq_topic", TOPICS_MAX),
            ("readers", "rmq_reader", READERS_MAX),
            ("queues", "rmq_queue", QUEUES_MAX),
            ("touched", "int64_t", READERS_MAX),
        ):
            array = c_array(kind, count)
            self._alive.append(array)
            setattr(core, name, array)
        delays_ms = sources.identity.store.delay_levels_ms
        delays = ffi.new("int64_t[]", delays_ms)
        self._alive.append(delays)
        core.delays = delays
        core.delay_count = len(delays_ms)
        self._start_empty()

    def use_log(self) -> None:
        """Read the files of the log that the store has now."""
        self._log_files = [CFiles(segments) for segments in self._sources.store.log.rows]
        assert len(self._log_files) <= LOG_ROWS

    def clear(self) -> None:
        """Discard all entries, because a table from which they were derived has changed."""
        self._sources.store.queues.release_shared()
        self._former += (
            *(self._readers.popitem, self._reader_names.pop, self._reader_keys.kept.popitem),
            *(self._reader_codes.popitem, self._reader_offsets.popitem),
            *(self._topics.popitem, self._topic_order.pop, self._topic_names.kept.popitem),
            *(self._queue_names.pop, self._mapped.popitem, self._queues.popitem),
        )
        for number in (*self._subscribed, *self._requested):
            self._retire(number)
        self._start_empty()

    def _start_empty(self) -> None:
        core = self._core
        self._topics: dict[str, _TopicSlot] = {}
        self._topic_order: list[str] = []
        self._queues: dict[QueueName, _Queue] = {}
        self._queue_names: list[QueueName] = []
        self._mapped: OrderedDict[_Queue, None] = OrderedDict()
        """The queues whose files C has, in the order in which they were learned."""
        self._readers: dict[tuple[str, str], int] = {}
        self._reader_names: list[tuple[str, str]] = []
        self._reader_codes: dict[int, Cdata] = {}
        self._reader_offsets: dict[int, Cdata] = {}
        self._readers_of_topic: dict[str, set[int]] = {}
        self._readers_of_group: dict[str, set[int]] = {}
        self._discarded_readers: dict[int, None] = {}
        self._free_topics: list[int] = []
        self._free_queues: list[int] = []
        """The numbers of discarded topics and queues."""
        self._topic_names = _NameTable(core.topic_table)
        self._reader_keys = _NameTable(core.reader_table)
        core.touched_count = 0
        self.find_waiting_topics()

    def find_waiting_topics(self) -> None:
        """Let C find :data:`WAITING_TOPICS`, of which one may have changed."""
        core = self._core
        rejects = self._sources.identity.broker_settings.reject_transaction_message
        half = self._waiting_topic(names.TRANSACTION_HALF_TOPIC, 1)
        core.half_topic = -1 if rejects else half
        core.op_topic = self._waiting_topic(names.TRANSACTION_OP_HALF_TOPIC, 1)
        core.delay_topic = self._waiting_topic(names.SCHEDULE_TOPIC, core.delay_count)

    def free_some(self) -> None:
        """Free some objects of the entries that :meth:`clear` has discarded."""
        for _ in range(FREED_AT_ONCE):
            if not self._former:
                return
            try:
                self._former[-1]()
            except LookupError:
                self._former.pop()

    def _waiting_topic(self, topic: str, queues: int) -> int:
        """Return the number of a topic in whose first ``queues`` queues messages wait, or -1."""
        slot = self._topic(topic)
        if slot is None or not 0 < queues <= len(slot.queues):
            return -1
        for queue_id in range(queues):
            slot.cells[queue_id] = self._sources.store.appender.tails.index_of(
                (topic.encode(), queue_id)
            )
        return slot.number

    def discard_topic(self, topic: str) -> None:
        """Discard what was learned from the settings of a topic, because they have changed."""
        slot = self._changed_slot(topic)
        if slot is None:
            return
        for number in self._readers_of_topic.get(topic, ()):
            self._discard_reader(number)
        target = self._core.topics[slot.number]
        target.send_queues = target.accepts_returns = target.shows_offsets = 0
        count = self._queue_count(topic)
        if count != len(slot.queues):
            for queue_id in range(count, len(slot.queues)):
                self._discard_queue(topic, slot, queue_id)
            slot.resize(count)
            target.cells, target.queues, target.queue_count = slot.cells, slot.queues, count

    def discard_group(self, group: str) -> None:
        """Discard the readers of a group, which has changed."""
        for number in self._readers_of_group.get(group, ()):
            self._discard_reader(number)
        slot = self._topics.get(names.retry_topic(group))
        if slot is not None:
            target = self._core.topics[slot.number]
            target.send_queues = target.accepts_returns = 0

    def renew_topic(self, topic: str) -> None:
        """Forget what was removed of the queues of a topic: files, cells, or whole queues."""
        slot = self._changed_slot(topic)
        if slot is None:
            return
        cells = self._sources.store.appender.tails.known_cells(topic.encode())
        for queue_id in range(len(slot.queues)):
            if slot.cells[queue_id] >= 0:
                slot.cells[queue_id] = cells.get(queue_id, -1)
            if slot.queues[queue_id] >= 0:
                self._renew_queue(topic, slot, queue_id)

    def _changed_slot(self, topic: str) -> _TopicSlot | None:
        """Return the entry of a topic that has changed, unless nothing of it can remain."""
        slot = self._topics.get(topic)
        if slot is None:
            return None
        if topic not in self._sources.topics:
            self._remove_topic(topic, slot)
            return None
        return slot

    def _renew_queue(self, topic: str, slot: _TopicSlot, queue_id: int) -> None:
        known = self._queues[topic, queue_id]
        if self._sources.store.queues.find(topic, queue_id) is not known.queue:
            self._discard_queue(topic, slot, queue_id)
        elif known.files.changed():
            target = self._core.queues[known.number]
            known.files.renew(target.files)
            # The file of the next unit may be among those that were removed.
            target.tail, target.tail_capacity, target.tail_size = ffi.NULL, 0, 0
            known.tail = None

    def _discard_queue(self, topic: str, slot: _TopicSlot, queue_id: int) -> None:
        slot.queues[queue_id] = slot.cells[queue_id] = -1
        known = self._queues.pop((topic, queue_id), None)
        if known is None:
            return
        if known in self._mapped:
            del self._mapped[known]
            self._take_back(known)
        self._core.queues[known.number].state = ffi.NULL
        self._free_queues.append(known.number)

    def _remove_topic(self, topic: str, slot: _TopicSlot) -> None:
        for number in self._readers_of_topic.get(topic, ()):
            self._discard_reader(number)  # Another topic may get the number that they have.
        for queue_id in range(len(slot.queues)):
            self._discard_queue(topic, slot, queue_id)
        self._topic_names.remove(topic.encode())
        del self._topics[topic]
        self._core.topics[slot.number] = (ffi.NULL, ffi.NULL, *(0,) * 5, ffi.NULL, *(0,) * 4)
        self._free_topics.append(slot.number)

    def _discard_reader(self, number: int) -> None:
        self._core.readers[number].read_queues = 0
        self._discarded_readers[number] = None

    def renew_files(self) -> None:
        """Update the files of the log if its segments have changed."""
        for number, files in enumerate(self._log_files):
            if files.changed():
                files.renew(self._core.logs[number])
        self._renew_index()

    def close(self) -> None:
        """Release the files."""
        self.clear()
        self._former.clear()
        self._close_folder()
        self._alive.clear()
        self._log_files.clear()
        self._index_views.clear()
        self._core = None

    # Learning

    def learn_send(self, topic: str, queue_id: int, accounts: int) -> None:
        """Learn a topic and queue in which Python has stored a message; ``accounts`` is the bit of
        the account that may send it.
        """
        config = self._sources.topics.get(topic)
        if config is None or not may_send(topic):
            return
        slot = self._topic(topic)
        if slot is None or (names.is_retry_topic(topic) and not self._learn_retry(topic, slot)):
            return
        target = self._core.topics[slot.number]
        is_new, target.send_queues = not target.send_queues, target.queue_count
        target.sys_flag = MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0
        target.accounts |= accounts
        tails, name = self._sources.store.appender.tails, topic.encode()
        if 0 <= queue_id < target.send_queues:
            slot.cells[queue_id] = tails.index_of((name, queue_id))
        for known, cell in tails.known_cells(name).items() if is_new else ():
            if 0 <= known < target.send_queues:
                slot.cells[known] = cell

    def _learn_retry(self, topic: str, slot: _TopicSlot) -> bool:
        """Learn the group of a retry topic. Return whether it exists."""
        group = self._sources.groups.groups.get(names.group_of_retry_topic(topic))
        if group is None:
            return False
        target = self._core.topics[slot.number]
        target.is_retry, target.retry_times_max = True, group.retry_max_times
        return True

    def learn_send_back(self, group: str) -> None:
        """Learn a group whose message that was sent back Python has stored. C does not choose
        among several retry queues.
        """
        topic = names.retry_topic(group)
        settings, config = self._sources.groups.groups.get(group), self._sources.topics.get(topic)
        slot = self._topic(topic) if config is not None else None
        if settings is None or config is None or slot is None or not config.perm & PERM_WRITE:
            return
        if settings.retry_queue_nums == 1 and self._learn_retry(topic, slot):
            self._core.topics[slot.number].accepts_returns = True

    def learn_offsets(self, topic: str, queue_id: int, timestamp_ms: int | None) -> None:
        """Learn a queue of which Python has shown an offset, and the files that a search for this
        store time reads.
        """
        if self._sources.topics.get(topic) is None or not self.learn_queue(topic, queue_id):
            return
        self._core.topics[self._topics[topic].number].shows_offsets = True
        if timestamp_ms is None:
            return
        queue, reader = self._queues[topic, queue_id].queue, self._sources.store.reader
        low, high = int(queue.min_offset), int(queue.max_offset)
        while low < high:
            middle = (low + high) // 2
            self._learn_page(topic, queue_id, middle)
            if reader.store_timestamp_at(topic, queue_id, middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        for offset in (low - 1, low):
            self._learn_page(topic, queue_id, offset)

    def learn_commit(self, group: str, topic: str) -> None:
        """Learn a group of which Python has stored an offset in this topic."""
        self._reader(group, topic)

    def learn_committed(self, group: str, topic: str, offsets: ConsumerOffsetTable) -> None:
        """Learn a group of which Python has shown an offset in this topic."""
        reader = self._reader(group, topic)
        if reader is None:
            return
        shared = offsets.shared(group, topic, min(reader.read_queues, QUEUES_OF_TOPIC_MAX))
        kept = ffi.from_buffer("int64_t[]", shared)
        self._reader_offsets[self._readers[group, topic]] = kept
        reader.offsets = kept
        reader.offset_count = len(shared)

    def learn_index(self) -> None:
        """Share the files of the key index, because Python has answered a query by key."""
        self._index = self._sources.store.index
        self._renew_index()

    def _renew_index(self) -> None:
        index, target = self._index, self._core.index
        if index is None or not index.parts or index.changes == self._index_seen:
            return
        self._index_seen = index.changes
        known = self._index_views
        self._index_views = {file: known.get(file) or memory_of(file.view) for file in index.parts}
        self._index_files = ffi.new("const uint8_t *[]", [*self._index_views.values()])
        target.files = self._index_files
        target.count = len(index.parts)
        target.slots, target.entries = index.parts[0].slot_count, index.parts[0].entry_count

    def learn_copies(self, topic: str, queue_id: int) -> None:
        """Learn a queue in which Python has stored a message of the broker itself."""
        slot = self._topic(topic)
        if slot is not None and 0 <= queue_id < len(slot.queues):
            tails = self._sources.store.appender.tails
            slot.cells[queue_id] = tails.index_of((topic.encode(), queue_id))

    def learn_log(self, offset: int) -> None:
        """Map the segment of the log that holds ``offset``."""
        for files in self._log_files:
            files.learn(offset)

    def learn_pull(
        self, reader_name: tuple[str, str], queue_id: int, offset: int, accounts: int
    ) -> None:
        """Learn a reader after Python has answered a pull of this group and topic at this offset;
        ``accounts`` is the bit of the account that may pull.
        """
        group, topic = reader_name
        reader = self._reader(group, topic)
        if reader is None or not self.learn_queue(topic, queue_id):
            return
        reader.accounts |= accounts
        self._learn_page(topic, queue_id, offset)

    def _learn_page(self, topic: str, queue_id: int, offset: int) -> None:
        """Map the files of a unit of a known queue, and of its message."""
        queue = self._queues[topic, queue_id]
        if queue.files.changed():
            number = self._topics[topic].queues[queue_id]
            queue.files.renew(self._core.queues[number].files)
        queue.files.learn(offset * QUEUE_UNIT_SIZE)
        unit = queue.queue.unit(offset)
        if unit is not None:
            self.learn_log(unit[0])

    def learn_expression(self, reader_name: tuple[str, str], text: str) -> None:
        """Learn the SQL92 expression of a pull that Python has answered."""
        number = self._readers.get(reader_name)
        if number is None or not self._sources.identity.broker_settings.enable_property_filter:
            return
        if number in self._requested and self._requested[number][0] == text:
            return
        try:
            program = c_program(compile_filter(SQL92, text))
            expression = ffi.from_buffer("uint8_t[]", text.encode())
        except ValueError:  # not an expression, or not UTF-8
            return
        if program is None:
            return
        self._retire(number, of_subscription=False)
        self._requested[number] = text, program, expression
        reader = self._core.readers[number]
        reader.expression = expression
        reader.expression_length = len(expression)
        reader.expression_program = program.pointer

    def learn_queue(self, topic: str, queue_id: int, *, maps: bool = True) -> bool:
        """Learn a queue of the store and the file to which its next unit is written. Return whether
        C has an entry for the queue. Without ``maps``, its files are mapped only if there is room.
        """
        queue = self._sources.store.queues.find(topic, queue_id)
        slot = self._topic(topic) if queue is not None else None
        if queue is None or slot is None or not 0 <= queue_id < len(slot.queues):
            return False
        known = self._queues.get((topic, queue_id))
        if known is not None and known.queue is not queue:  # It was deleted and created again.
            self._discard_queue(topic, slot, queue_id)
            known = None
        if known is None:
            number = self._free_queues.pop() if self._free_queues else len(self._queue_names)
            if number == QUEUES_MAX:
                return False
            state = ffi.from_buffer("int64_t[]", queue.state)
            known = _Queue(number, queue, state, CFiles(queue.segments))
            self._queues[topic, queue_id] = known
            self._queue_names[number : number + 1] = [(topic, queue_id)]
            self._core.queues[number].state = state
            known.files.renew(self._core.queues[number].files)
            # The hold in C is searched at the next arrival, whether or not a pull waits there.
            queue.state[WATCHED_STATE] = lib.RMQ_WATCHED_BY_HOLD | (
                (topic, queue_id) in self._watched
            )
        slot.queues[queue_id] = known.number
        target = self._core.queues[known.number]
        file = queue.segments.find(queue.state[END_STATE])
        target.tail_size = file.size if file is not None else 0
        if known not in self._mapped and not self._share(known, even_if_full=maps):
            target.tail, target.tail_capacity, known.tail = ffi.NULL, 0, None
            target.tail_first = file.first_offset if file is not None else 0
            return True
        if file is None:
            target.tail = ffi.NULL
        elif known.tail is None or target.tail_first != file.first_offset or not target.tail:
            known.tail = memory_of(file.file.writable)
            target.tail = known.tail
            target.tail_first = file.first_offset
        target.tail_capacity = file.reserved_position if file is not None else 0
        return True

    def _share(self, queue: _Queue, *, even_if_full: bool) -> bool:
        """Let C have the files of a queue. If it has those of too many, take back those of another
        one, or return False.
        """
        queues = self._sources.store.queues
        if len(self._mapped) >= queues.shared_max:
            if self._core.queue_folder < 0:
                self._core.queue_folder = queues.open_folder()
            if not even_if_full and self._core.queue_folder >= 0:
                return False
            self._take_back(self._mapped.popitem(last=False)[0])
        self._mapped[queue] = None
        queues.shared.add(queue.queue)
        return True

    def wrote(self, numbers: list[int]) -> None:
        """Note the queues, by their numbers, to which C has written through descriptors. Map those
        that have received several messages at once.
        """
        touched, seen = self._sources.store.queues.touched, set()
        for number in numbers:
            name = self._queue_names[number]
            if number in seen and self._queues[name] not in self._mapped:
                self.learn_queue(*name)
            else:
                touched.note(self._queues[name].queue)
                seen.add(number)

    def _close_folder(self) -> None:
        if self._core.queue_folder >= 0:
            os.close(self._core.queue_folder)
            self._core.queue_folder = -1

    def _take_back(self, queue: _Queue) -> None:
        """Close the files of a queue. C hands a request to read it to Python."""
        target = self._core.queues[queue.number]
        target.tail, target.tail_capacity, queue.tail = ffi.NULL, 0, None
        queue.files.forget(target.files)
        queues = self._sources.store.queues
        queues.shared.discard(queue.queue)
        if queues.find(*queue.queue.name) is not queue.queue:
            return  # It was deleted.
        queues.touched.add(queue.queue)
        queue.queue.close()
        queues.touched.closed(queue.queue)

    def watch(self, topic: str, queue_id: int, wanted: bool) -> None:
        """Set whether Python holds a pull that waits for a message in this queue."""
        name = (topic, queue_id)
        (self._watched.add if wanted else self._watched.discard)(name)
        queue = self._sources.store.queues.find(topic, queue_id)
        if queue is not None:
            by_hold = queue.state[WATCHED_STATE] & lib.RMQ_WATCHED_BY_HOLD
            queue.state[WATCHED_STATE] = by_hold | wanted

    def queue_name(self, number: int) -> QueueName:
        return self._queue_names[number]

    def queue(self, number: int) -> ConsumeQueue:
        return self._queues[self._queue_names[number]].queue

    def topic_name(self, number: int) -> str:
        return self._topic_order[number]

    def reader_name(self, number: int) -> tuple[str, str]:
        """Return group and topic."""
        return self._reader_names[number]

    # Inside

    def _topic(self, topic: str) -> _TopicSlot | None:
        slot = self._topics.get(topic)
        if slot is not None:
            return slot
        name = topic.encode()
        if not topic.isascii() or len(name) > TOPIC_BYTES_MAX:
            return None
        number = self._free_topics.pop() if self._free_topics else len(self._topic_order)
        if number == TOPICS_MAX:
            return None
        count = self._queue_count(topic)
        slot = _TopicSlot(number, _unknown(count), _unknown(count))
        self._topics[topic] = slot
        self._topic_order[number : number + 1] = [topic]
        key = self._topic_names.add(name, slot.number)
        self._core.topics[slot.number] = (
            *(slot.cells, slot.queues, 0, count, 0, len(name), 0),
            *(key, False, 0, False, False),
        )
        return slot

    def _queue_count(self, topic: str) -> int:
        config = self._sources.topics.get(topic)
        count = QUEUES_OF_NEW_TOPIC
        if config is not None:
            count = max(config.read_queue_nums, config.write_queue_nums)
        return min(max(1, count), QUEUES_OF_TOPIC_MAX)

    def _reader(self, group: str, topic: str) -> Cdata | None:
        """Return the entry of a group that may read a topic according to the current tables, or
        None if Python must handle pulls of this pair.
        """
        sources = self._sources
        settings = sources.groups.groups.get(group)
        config = sources.topics.get(topic)
        slot = self._topic(topic) if config is not None else None
        if settings is None or not settings.consume_enable or config is None or slot is None:
            return None
        if not config.perm & PERM_READ or not group.isascii():
            return None
        number = self._readers.get((group, topic))
        if number is None:
            number = self._new_reader(group, topic)
            if number is None:
                return None
        self._discarded_readers.pop(number, None)
        reader = self._core.readers[number]
        reader.topic = slot.number
        reader.read_queues = config.read_queue_nums
        reader.commits = 1
        reader.subscribed = 0
        reader.program = ffi.NULL
        online = sources.clients.consumer_group(group)
        if online is not None and (not online.is_broadcast or settings.consume_broadcast_enable):
            subscription = online.subscription(topic)
            if subscription is not None and is_tag_expression(subscription.expression_type):
                self._subscribe(reader, number, subscription)
            elif subscription is not None:
                self._subscribe_by_sql(reader, number, subscription)
        return reader

    def _new_reader(self, group: str, topic: str) -> int | None:
        """Return the number of a new reader, or None if there is no place for it."""
        number = len(self._reader_names)
        if number < READERS_MAX:
            self._reader_names.append((group, topic))
        elif self._discarded_readers:
            number = next(iter(self._discarded_readers))
            former = self._reader_names[number]
            self._reader_keys.remove(_reader_key(*former))
            del self._readers[former]
            self._readers_of_group[former[0]].discard(number)
            self._readers_of_topic[former[1]].discard(number)
            self._reader_names[number] = group, topic
        else:
            return None
        self._readers[group, topic] = number
        self._readers_of_group.setdefault(group, set()).add(number)
        self._readers_of_topic.setdefault(topic, set()).add(number)
        self._reader_keys.add(_reader_key(group, topic), number)
        target = self._core.readers[number]
        target.found = target.messages = target.accounts = 0
        target.expression = target.expression_program = target.offsets = ffi.NULL
        target.offset_count = 0
        self._retire(number)
        self._reader_offsets.pop(number, None)
        return number

    def _retire(
        self, number: int, *, of_subscription: bool = True, of_request: bool = True
    ) -> None:
        """Remove the programs of a reader; those that pulls hold exist until they are answered."""
        programs = []
        if of_subscription and number in self._subscribed:
            programs.append(self._subscribed.pop(number))
        if of_request and number in self._requested:
            programs.append(self._requested.pop(number)[1])
        self._retired += [program for program in programs if program.pointer.held]
        if len(self._retired) >= self._retired_max:
            self._retired = [program for program in self._retired if program.pointer.held]
            self._retired_max = max(RETIRED_FIRST, 2 * len(self._retired))

    def _subscribe_by_sql(self, reader: Cdata, number: int, subscription: SubscriptionData) -> None:
        sources = self._sources
        found = sources.filters.get(*self._reader_names[number])
        if found is None or not sources.identity.broker_settings.enable_property_filter:
            return
        program = c_program(found.expression)
        if program is None:
            return
        self._retire(number, of_request=False)
        self._subscribed[number] = program
        reader.program = program.pointer
        reader.code_count = 0
        reader.sub_version = min(subscription.sub_version, found.client_version)
        reader.subscribed = 1

    def _subscribe(self, reader: Cdata, number: int, subscription: SubscriptionData) -> None:
        if self._sources.identity.broker_settings.filter_support_retry and names.is_retry_topic(
            subscription.topic
        ):
            return  # the filter of each message is that of its original topic
        everything = subscription.sub_string == EVERYTHING or subscription.class_filter_mode
        codes = [] if everything else sorted(set(subscription.code_set))
        if not everything and not codes:
            return
        self._reader_codes[number] = kept = ffi.new("int32_t[]", codes or [0])
        reader.codes = kept
        reader.code_count = len(codes)
        reader.sub_version = subscription.sub_version
        reader.subscribed = 1


def c_program(expression: Expression) -> CSqlProgram | None:
    """Return the program of an expression, or None if only Python can evaluate it."""
    # Most brokers never use SQL92, so its parser must not cost start time.
    from rmqpy.broker.fastpath.sql_filters import CSqlProgram

    try:
        return CSqlProgram(expression)
    except ValueError:
        return None


class _NameTable:
    """The names of one ``rmq_table`` and their memory; grows with their number."""

    def __init__(self, table: Cdata) -> None:
        self._table = table
        self.kept: dict[bytes, Cdata] = {}
        self._used = 0
        """The number of slots that are not empty, those of removed names included."""
        self._slots: Cdata = None
        self._resize(NAMES_FIRST)

    def add(self, name: bytes, item: int) -> Cdata:
        """Add a name that the table does not contain. Return its memory."""
        size = self._table.mask + 1
        if 2 * self._used >= size:
            self._resize(2 * size if 4 * len(self.kept) >= size else size)
        kept = self.kept[name] = ffi.from_buffer("uint8_t[]", name)
        slot = lib.rmq_find_slot(ffi.addressof(self._table), kept, len(name))
        slot.key = kept
        slot.key_length = len(name)
        slot.item = item
        self._used += 1
        return kept

    def remove(self, name: bytes) -> None:
        """Remove a name. Its slot stays in use, so that names after it are found."""
        kept = self.kept.pop(name)
        slot = lib.rmq_find_slot(ffi.addressof(self._table), kept, len(name))
        slot.key = _REMOVED
        slot.key_length = _REMOVED_LENGTH

    def _resize(self, size: int) -> None:
        former, count = self._slots, self._table.mask + 1
        self._slots = self._table.slots = c_array("rmq_slot", size)
        self._table.mask = size - 1
        if former is not None:
            lib.rmq_move_slots(former, count, ffi.addressof(self._table))
        self._used = len(self.kept)


_REMOVED: Final = ffi.new("uint8_t[]", 1)
_REMOVED_LENGTH: Final = 0


def _reader_key(group: str, topic: str) -> bytes:
    return f"{group}\0{topic}".encode()


def _unknown(count: int) -> Cdata:
    return ffi.new("int32_t[]", [-1] * count)
