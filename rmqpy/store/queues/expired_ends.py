"""ExpiredQueueEnds: the next offsets of consume queues whose messages the log no longer has.

A member whose log was reset to a later start (:mod:`rmqpy.store.ledger.entry_store`), or that is
new in an old group, has no units of the queues that have received no message since then. As a
leader it would assign their offsets a second time. Therefore it does not lead until a leader has
sent the ends of the queues that have no message in that leader's log.

``rmqpy/queue-ends`` is JSON: ``wanted`` (not received yet), ``ends`` (topic to queue id to the
offset of the next message). The answer of a leader has the same format.

Invariant: an end is never larger than the offset of the queue's next message; it only grows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rmqpy.model.errors import RemoteProtocolError
from rmqpy.model.files import FileSystem
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import QueueName

OFFSET_MAX = 1 << 62


class ExpiredQueueEnds:
    """The queue ends of one store. If the file cannot be read, the ends are requested again
    (``is_requested``).
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self.is_requested = False
        self.ends: dict[QueueName, int] = {}
        if files.exists(path):
            try:
                self.is_requested, self.ends = _decoded(files.read_bytes(path))
            except RemoteProtocolError:
                self.is_requested = True

    def request(self) -> None:
        """Record that the ends are needed, because the log is about to be reset. Blocks; raises
        OSError.
        """
        if not self.is_requested:
            self.is_requested = True
            self._save()

    def merge_answer(self, body: bytes) -> None:
        """Store the answer of a leader. Blocks; raises RemoteProtocolError, OSError."""
        _, ends = _decoded(body)
        for name, end in ends.items():
            self.ends[name] = max(end, self.ends.get(name, 0))
        self.is_requested = False
        self._save()

    def mark_unavailable(self) -> None:
        """Stop requesting the ends, because the leader cannot send them (a Java member)."""
        self.is_requested = False
        self._save()

    def forget(self, topic: str) -> None:
        """Remove a topic that was deleted: its offsets start at 0 again."""
        if any(name[0] == topic for name in self.ends):
            self.ends = {name: end for name, end in self.ends.items() if name[0] != topic}
            self._save()

    def encode(self, queues: Iterable[tuple[QueueName, ConsumeQueue]], log_begin: int) -> bytes:
        """Return the answer to a member: the ends of all queues without a message in the log."""
        ends = dict(self.ends)
        for name, queue in queues:
            if queue.max_offset and queue.max_physical_offset <= log_begin:
                ends[name] = max(queue.max_offset, ends.get(name, 0))
        return _encoded(wanted=False, ends=ends)

    def _save(self) -> None:
        self._files.replace_bytes(self._path, _encoded(wanted=self.is_requested, ends=self.ends))


def _encoded(*, wanted: bool, ends: dict[QueueName, int]) -> bytes:
    tree: dict[str, dict[int, int]] = {}
    for (topic, queue_id), end in sorted(ends.items()):
        tree.setdefault(topic, {})[queue_id] = end
    return json.dumps({"wanted": wanted, "ends": tree}).encode()


def _decoded(body: bytes) -> tuple[bool, dict[QueueName, int]]:
    """Decode the file or an answer. Raises RemoteProtocolError."""
    try:
        tree = json.loads(body)
        ends = {
            (str(topic), int(queue_id)): int(end)
            for topic, queues in tree["ends"].items()
            for queue_id, end in queues.items()
        }
        wanted = bool(tree["wanted"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a table of queue ends: {error!r:.200}") from None
    if not all(queue_id >= 0 and 0 <= end < OFFSET_MAX for (_, queue_id), end in ends.items()):
        raise RemoteProtocolError("a table of queue ends with an invalid queue id or offset")
    return wanted, ends
