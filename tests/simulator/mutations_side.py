"""Planted bugs about transactions, delayed messages, consumer offsets, tables, and idle groups.

:mod:`.mutations` lists them with its own.
"""

from __future__ import annotations

from collections.abc import Callable

from rmqpy.broker.processors import end_transaction
from rmqpy.broker.services.retention import StoreCleaning
from rmqpy.broker.services.schedule import ScheduleMessageService
from rmqpy.broker.services.transaction_check import TransactionCheckService
from rmqpy.broker.state.persistence import TableFile, TableWriter
from rmqpy.dledger import replication
from rmqpy.store.files.atomic import read_with_backup
from rmqpy.store.queues.consume_queue import ConsumeQueue
from rmqpy.store.queues.table import ConsumeQueueTable
from simulator.mutation_engine import Patches, group_mutation


@group_mutation
def rolled_back_message_delivered(patches: Patches) -> None:
    commit = patches.original(end_transaction, "TRANSACTION_COMMIT")
    rollback = patches.original(end_transaction, "TRANSACTION_ROLLBACK")
    patches.replace(end_transaction, "TRANSACTION_COMMIT", rollback)
    patches.replace(end_transaction, "TRANSACTION_ROLLBACK", commit)


@group_mutation
def half_messages_cleaned_as_unused(patches: Patches) -> None:
    """The cleaning of unused topics deletes the queue of open transactions."""
    patches.replace(StoreCleaning, "_is_kept", lambda self, topic, count: False)


@group_mutation
def producers_never_asked(patches: Patches) -> None:
    patches.replace(TransactionCheckService, "ask_producer", lambda self, half: None)


@group_mutation
def delay_ignored(patches: Patches) -> None:
    original = patches.original(ScheduleMessageService, "_deliver")

    def deliver(self: ScheduleMessageService, level: object, budget: int) -> object:
        level.delay_ms = -(1 << 40)  # type: ignore[attr-defined]
        return original(self, level, budget)

    patches.replace(ScheduleMessageService, "_deliver", deliver)


@group_mutation
def commit_index_pushed_too_often(patches: Patches) -> None:
    patches.replace(replication, "COMMIT_INTERVAL_MS", 20)


@group_mutation
def table_change_acknowledged_before_its_write(patches: Patches) -> None:
    patches.replace(TableWriter, "when_saved", lambda self, done: done(None))


@group_mutation
def damaged_table_replaces_its_backup(patches: Patches) -> None:
    def load(self: TableFile, decode: Callable[[bytes], object]) -> object:
        return read_with_backup(self.files, self.path, decode)

    patches.replace(TableFile, "load", load)


@group_mutation
def second_message_hidden_in_silence(patches: Patches) -> None:
    """A message whose queue offset is taken is neither counted nor logged."""

    def report(self: ConsumeQueueTable, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        queue.hidden = ()

    patches.replace(ConsumeQueueTable, "_report_hidden", report)
