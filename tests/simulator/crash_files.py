"""Shared parts of store tests.

These are the size of files so small that all of them roll, memory files that crash the process at
a counted operation, the proposer of a group of one, and readers of whole stores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from attrs import define

from rmqpy.dledger.node import Proposal
from rmqpy.dledger.state import HardState
from rmqpy.model.ids import LedgerIndex, Term
from rmqpy.store.message_store import MessageStore
from rmqpy.testing.memory_files import MemoryFiles

FILE_SIZE = 4096
LEADER_ID = "n0"
ROOM = 1000
LOADED_BYTES_MAX = 1 << 26
PAGE = 32


class KilledError(BaseException):
    """The process is killed; not an Exception, so that the code under test cannot catch it."""


class CrashingFiles(MemoryFiles):
    """Memory files that crash the process at the ``dies_at``-th changing operation."""

    operations = 0
    dies_at: int | None = None

    def touched(self, operation: str, path: str) -> None:
        if self.dies_at is not None and self.operations >= self.dies_at:
            raise KilledError(operation, path)
        self.operations += 1
        super().touched(operation, path)

    def reopen(self, dies_at: int | None) -> Self:
        """Return the files that the next process finds, which crashes at its own ``dies_at``."""
        after = self.kill()
        reopened = type(self)(
            nodes=after.nodes,
            folders=after.folders,
            now_ms=after.now_ms,
            power_failures=after.power_failures,
            durable_names=after._durable_names,
        )
        reopened.dies_at = dies_at
        return reopened


@define
class SingleNodeProposer:
    """The leader of a group of one, which proposes entries and commits each that is stored."""

    store: MessageStore
    term: Term = Term(0)  # noqa: RUF009 (a NewType)
    proposed: int = 0

    def start(self) -> None:
        """Commit the whole tail, and let the log accept messages."""
        entries, log = self.store.opened.entries, self.store.opened.dledger
        assert entries is not None and log is not None
        remembered = entries.member_files.load_hard_state()
        self.term = Term(max(remembered.current_term, entries.end.term, 0))
        entries.member_files.save_hard_state(HardState(self.term, LEADER_ID))
        entries.subscribe(stored=entries.commit_to)
        if entries.end.index >= 0:
            entries.commit_to(entries.end.index)
        log.set_proposer(self)

    def propose(self, count: int) -> Proposal:
        entries = self.store.opened.entries
        assert entries is not None
        self.proposed += 1
        return Proposal(self.term, LedgerIndex(entries.end.index + 1))

    def grant(self) -> tuple[Proposal, int]:
        return self.propose(1), ROOM

    @property
    def grants(self) -> int:
        return self.proposed

    def consume_grant(self, count: int) -> None:
        """Do nothing: there is no limit."""


def read_all(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """Return every record that a consumer gets, by queue; each queue must be dense."""
    found = {}
    for topic, queue_id in store.reader.queue_names():
        records = []
        offset = low = store.reader.min_queue_offset(topic, queue_id)
        while offset < store.reader.max_queue_offset(topic, queue_id):
            page = store.reader.get_message(topic, queue_id, offset, PAGE, None)
            assert page.messages, (topic, queue_id, offset, page.status)
            records += [bytes(message) for message in page.messages]
            offset = page.next_begin_offset
        offsets = [int.from_bytes(record[20:28]) for record in records]
        assert offsets == list(range(low, low + len(records))), (topic, queue_id)
        found[topic, queue_id] = records
    return found


def load_folder(folder: Path, files: MemoryFiles, root: str) -> None:
    """Copy a directory into memory files; a ledger's index, nearly all of it holes, is left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "lock" and path.stat().st_size < LOADED_BYTES_MAX:
            files.put(f"{root}/{path.relative_to(folder)}", path.read_bytes())
