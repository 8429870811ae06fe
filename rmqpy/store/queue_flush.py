"""Making derived files durable: consume queues, full index files, then the checkpoint that vouches
for them.
"""

from __future__ import annotations

from attrs import define

from rmqpy.store.checkpoint import StoreCheckpoint, Times
from rmqpy.store.consume_queue import QueueSync
from rmqpy.store.index_file import IndexSync


@define(slots=True, frozen=True)
class QueueFlush:
    """Make consume queues, full index files and the checkpoint durable.

    ``run`` blocks and touches no state of the store: it may run in a worker thread; afterwards the
    store is told by ``MessageStore.queues_flushed``.
    """

    queues: tuple[QueueSync, ...]
    index: IndexSync | None
    checkpoint: StoreCheckpoint
    times: Times

    def run(self) -> None:
        for queue in self.queues:
            queue.run()
        if self.index is not None:
            self.index.run()
        self.checkpoint.write(self.times)
