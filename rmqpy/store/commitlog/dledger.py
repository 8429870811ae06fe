"""DLedgerCommitLog: each message record is the body of one DLedger entry.

The physical offset of a message is the position of its entry + 48. The leader writes it into the
record's PHYSICALOFFSET when it appends; followers store the bytes as received. Readers see
committed entries only. The proposer grants the permission to append, with a term and an index.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Protocol

from rmqpy.codec.layout import ENTRY_FILLER_SIZE, ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX
from rmqpy.dledger.proposals import Proposal, ProposalRejected
from rmqpy.model.codes import PutMessageStatus
from rmqpy.model.ids import LedgerIndex, PhysicalOffset, Term
from rmqpy.store.commitlog.interface import AT_ONCE_HOURS, Appended, FlushTask, ScanRange
from rmqpy.store.files.mapped_files import MappedFile, MappedFiles
from rmqpy.store.files.staging import END, FILE_END
from rmqpy.store.files.watermark import Watermark
from rmqpy.store.ledger.entry_store import EntryStore

DLEDGER_MORE_HOURS = 1
"""The additional hours that files are kept: the Java broker passes fileReservedTime + 1 to its
ledger.
"""


class Proposer(Protocol):
    """The part of the consensus core that the log uses: permission to append, now or in advance."""

    def propose(self, count: int) -> Proposal | ProposalRejected: ...

    def grant(self) -> tuple[Proposal, int]: ...

    @property
    def grants(self) -> int:
        """A counter that grows whenever an earlier grant may have become invalid."""

    def consume_grant(self, count: int) -> None:
        """Propose ``count`` entries of the last grant, which remains valid for the entries that
        follow.
        """


class NoLeaderProposer:
    """The proposer of a log that is only read, or whose member has not started."""

    def propose(self, count: int) -> Proposal | ProposalRejected:
        return ProposalRejected.NOT_LEADER

    def grant(self) -> tuple[Proposal, int]:
        return Proposal(Term(0), LedgerIndex(0)), 0

    @property
    def grants(self) -> int:
        return 0

    def consume_grant(self, count: int) -> None:
        raise AssertionError("there is no grant to consume")


class DLedgerCommitLog:
    """The :class:`rmqpy.store.commitlog.interface.CommitLog` of a DLedger member."""

    def __init__(self, entries: EntryStore, proposer: Proposer) -> None:
        self.entries = entries
        self.proposer = proposer
        self._sizes_without_file: Sequence[int] = ()
        """The sizes of the entries for which a file could not be created."""

    def set_proposer(self, proposer: Proposer) -> None:
        """Request the permission to append from ``proposer`` from now on."""
        self.proposer = proposer

    @property
    def rows(self) -> Sequence[MappedFiles]:
        return (self.entries.data,)

    @property
    def min_offset(self) -> PhysicalOffset:
        return self.entries.base_offset

    @property
    def max_offset(self) -> PhysicalOffset:
        return self.entries.end_offset

    @property
    def confirm_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.entries.committed.value)

    @property
    def flushed_offset(self) -> PhysicalOffset:
        return PhysicalOffset(self.entries.flushed_offset)

    def acknowledged(self, wait_store_ok: bool) -> Sequence[Watermark]:
        return (self.entries.committed,)

    def append(self, records: Sequence[bytearray], store_timestamp_ms: int) -> Appended:
        largest = max(map(len, records)) + ENTRY_HEADER_SIZE
        limit = min(ENTRY_SIZE_MAX, self.entries.data.file_size - ENTRY_FILLER_SIZE)
        if largest > limit:
            return Appended(
                PutMessageStatus.MESSAGE_ILLEGAL,
                remark=f"an entry of {largest} bytes is above the limit of {limit}",
            )
        self._make_files([len(record) + ENTRY_HEADER_SIZE for record in records])
        proposal = self.proposer.propose(len(records))
        if isinstance(proposal, ProposalRejected):
            # Java's broker answers every immediate rejection by its ledger with this status.
            return Appended(PutMessageStatus.OS_PAGECACHE_BUSY, remark=proposal.name)
        try:
            offsets = self.entries.append(
                proposal.term, proposal.first_index, records, store_timestamp_ms
            )
        except OSError as error:
            # EIO, so that nothing retries: the core relies on the proposed entries.
            raise OSError(errno.EIO, f"proposed entries were not appended: {error}") from error
        return Appended(PutMessageStatus.PUT_OK, tuple(offsets), self.entries.end_offset)

    def _make_files(self, sizes: Sequence[int]) -> None:
        """Create the files that entries of these sizes need. This precedes the proposal, because
        proposed entries must be appended. Only a leader creates files.
        """
        _, count = self.proposer.grant()
        if count:
            self._sizes_without_file = sizes
            self.entries.make_files(sizes)
            self._sizes_without_file = ()

    @property
    def has_staged(self) -> bool:
        return self.entries.has_staged

    def commit(self) -> None:
        self.entries.commit()
        if self._sizes_without_file:
            # Otherwise a disk without space for another file would seem to have space again.
            self.entries.make_files(self._sizes_without_file)
            self._sizes_without_file = ()

    def read(self, offset: PhysicalOffset, size: int) -> memoryview | None:
        if offset + size > self.entries.committed.value:
            return None
        file = self.entries.file_at(offset)
        if file is None:
            return None
        position = offset - file.first_offset
        return file.read(position, position + size) if position + size <= file.size else None

    def ranges(self, offset: PhysicalOffset) -> Iterator[ScanRange]:
        end = self.entries.committed.value
        offset = max(offset, self.min_offset)
        while offset < end:
            file = self.entries.file_at(offset)
            assert file is not None
            stop = min(file.end_offset, end)
            view = file.view[offset - file.first_offset : stop - file.first_offset]
            yield ScanRange(offset, view, PhysicalOffset(file.end_offset), dledger=True)
            offset = PhysicalOffset(file.end_offset)

    def recent(self, offset: PhysicalOffset) -> ScanRange | None:
        staging = self.entries.staging
        if self.entries.committed.value != staging.state[END]:
            return None
        view = staging.recent(offset)
        if view is None:
            return None
        return ScanRange(offset, view, PhysicalOffset(staging.state[FILE_END]), dledger=True)

    def oldest_file(self, *, nothing_went: bool) -> tuple[MappedFile, int] | None:
        """Return the first file if all its entries are committed; it is kept an hour longer than
        the files of a classic log. A damaged file of which no member has a copy is removed at once.
        """
        data = self.entries.data
        if len(data) > 1 and self.entries.first_file_is_discardable:
            return data.first, AT_ONCE_HOURS
        if len(data) < 2 or data.first.end_offset > self.entries.committed.value:
            return None
        return data.first, DLEDGER_MORE_HOURS

    def release_oldest(self) -> MappedFile:
        return self.entries.release_first_file()

    def flush_task(self) -> FlushTask | None:
        files = self.entries.dirty_files()
        return FlushTask(self.entries.written_offset, files) if files else None

    def flushed(self, offset: PhysicalOffset) -> None:
        self.entries.mark_flushed(offset)

    def close(self) -> None:
        self.entries.close()
