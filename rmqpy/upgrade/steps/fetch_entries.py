"""Fetch the entries that a member lacks from another member, while the way back is planned.

Members stop one after another, and a leader writes entries of its own (delayed messages, checks of
transactions), so their last entries may differ although every stop was clean. The plan of a member
contains the bytes that it lacks. So it depends neither on the other directory nor on the order in
which the members' parts are applied.
"""

from __future__ import annotations

import base64
from typing import Protocol

import attrs
from attrs import define, field

from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.ledger import (
    EntryFile,
    Ledger,
    position_in,
    read_entries,
    read_ledger,
    term_of,
)
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.node_context import (
    ABSENT,
    CHUNK,
    NodeContext,
    UpgradeRefusedError,
    digest_of,
    range_digest,
)
from rmqpy.upgrade.plan.operations import Cut, Fetch, MoveAside, Op

FETCH_BYTES_MAX = 16 << 20
"""The maximum number of bytes of entries that a plan contains for a member."""

FILLER_BYTES = 48
"""The number of bytes after the last entry of a file that show whether a filler follows."""

CATCH_UP = "start the group, let it catch up, and stop it again"


class EntryBytes(Protocol):
    """The content of a data file."""

    @property
    def view(self) -> memoryview: ...

    @property
    def size(self) -> int: ...

    def close(self) -> None: ...


@define(slots=True, frozen=True)
class RemoteEntries:
    """A data file of another host, read as a whole (implements :class:`EntryBytes`)."""

    path: str
    first_offset: int
    view: memoryview

    @property
    def size(self) -> int:
        return len(self.view)

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.size

    def close(self) -> None:
        return


@define(slots=True, frozen=True)
class Donor:
    """A member that has all entries that the group keeps. ``ledger`` may lack its first files."""

    name: str
    ledger: Ledger
    files: FileSystem
    remote: dict[str, RemoteEntries] = field(factory=dict)

    def open(self, entry_file: EntryFile) -> EntryBytes:
        return self.remote.get(entry_file.path) or self.files.open_readonly(entry_file.path)


@define(slots=True, frozen=True)
class Fetched:
    """The ledger of a member after ``ops``; the content of its last files is then the donor's.

    ``sources`` has the donor's file for each of these files, by path.
    """

    ledger: Ledger
    ops: tuple[Op, ...]
    donor: Donor
    sources: dict[str, EntryFile]

    def open(self, files: FileSystem, path: str) -> EntryBytes:
        source = self.sources.get(path)
        return files.open_readonly(path) if source is None else self.donor.open(source)


def donor_of(replica: Replica, context: NodeContext, own: Ledger) -> Donor:
    """Return a member as the source of entries that the member with the ledger ``own`` lacks."""
    if isinstance(replica, LocalReplica):
        return Donor(replica.name, read_ledger(context.files, context.settings), context.files)
    # The file before the last one shows that both are the same up to there.
    base = own.files[-2:][0].base_offset if own.files else 0
    log = replica.survey().manifest.log("dledger")
    remote = {}
    for file in log.files if log is not None else ():
        if file.first_offset < base:
            continue
        data = bytearray(file.file_size)
        stop = min(file.end - file.first_offset + FILLER_BYTES, file.file_size)
        data[:stop] = replica.read(file.path, 0, stop)
        remote[file.path] = RemoteEntries(file.path, file.first_offset, memoryview(data))
    return Donor(replica.name, read_entries(remote.values()), context.files, remote)


def lacks(files: FileSystem, own: Ledger, donor: Donor, index: int) -> bool:
    """Return whether a member does not have entry ``index`` as the donor has it.

    Logs with the same term at an index are the same up to it.
    """
    if index > own.end_index:
        return True
    if index < 0:
        return False
    mine = term_of(own, lambda entry_file: files.open_readonly(entry_file.path), index)
    return mine != term_of(donor.ledger, donor.open, index)


def fetch_entries(
    context: NodeContext, own: Ledger, donor: Donor, cut_index: int, keep: str
) -> Fetched:
    """Return what gives a member the donor's entries up to ``cut_index``.

    Raise UpgradeRefusedError if it lacks too much, or if it differs from the donor in a file before
    its last one.
    """
    return _Fetching(context, own, donor, cut_index, keep).plan()


@define(slots=True)
class _Fetching:
    context: NodeContext
    own: Ledger
    donor: Donor
    cut_index: int
    keep: str
    ops: list[Op] = field(factory=list)
    sources: dict[str, EntryFile] = field(factory=dict)
    fetched: int = 0

    def plan(self) -> Fetched:
        own, donor = self.own, self.donor
        base = own.files[-1].base_offset if own.files else donor.ledger.base_offset
        theirs = [
            each
            for each in donor.ledger.files
            if each.base_offset >= base and 0 <= each.first_index <= self.cut_index
        ]
        if not theirs:
            raise self._refused(f"{donor.name} has no file at offset {base}")
        self._check_earlier()
        last = theirs[-1]
        for entry_file in reversed(own.files):
            if entry_file.base_offset > last.base_offset:
                self._aside(entry_file)
        kept = list(own.files[:-1])
        for entry_file in theirs:
            kept.append(self._take(entry_file, is_last=entry_file is last))
        ledger = attrs.evolve(
            donor.ledger,
            files=kept,
            end_index=self.cut_index,
            committed_index=own.committed_index,
            version=max(own.version, donor.ledger.version),
            too_long=sorted({*own.too_long, *donor.ledger.too_long}),
        )
        return Fetched(ledger, tuple(self.ops), donor, self.sources)

    def _check_earlier(self) -> None:
        """Check that the files before the last one are the donor's: their last entry decides."""
        indexes = [each.last_index for each in self.own.files[:-1] if each.last_index >= 0]
        if indexes and lacks(self.context.files, self.own, self.donor, indexes[-1]):
            raise self._refused(f"entry {indexes[-1]} is another one on {self.donor.name}")

    def _take(self, theirs: EntryFile, *, is_last: bool) -> EntryFile:
        """Plan one file, and return it as it will be."""
        path = f"{self.context.settings.dledger_data_path}/{file_name(theirs.base_offset)}"
        whole = theirs.closed and (not is_last or self.cut_index == self.donor.ledger.end_index)
        source = self.donor.open(theirs)
        try:
            stop = source.size if whole else position_in(source.view, self.cut_index)
            self._write(path, source.view[:stop], source.size)
        finally:
            source.close()
        kept = attrs.evolve(theirs, path=path)
        self.sources[path] = theirs
        if whole:
            return kept
        return attrs.evolve(kept, content_end=stop, closed=False, last_index=self.cut_index)

    def _write(self, path: str, target: memoryview, size: int) -> None:
        """Plan the operations that give a file the content ``target``, followed by zeros."""
        files = self.context.files
        if not files.exists(path):
            self._fetch(path, 0, _without_zeros(target), ABSENT, size)
            return
        mine = files.open_readonly(path)
        try:
            if mine.size != size:
                raise self._refused(f"{path} has {mine.size} bytes, {self.donor.name}'s {size}")
            own = _without_zeros(mine.view)
            start = _first_difference(own, target)
            if start < 0:
                return
            end = len(own)
        finally:
            mine.close()
        for position in range(start, end, CHUNK):
            stop = min(position + CHUNK, end)
            self.ops.append(
                Cut(
                    path=path,
                    start=position,
                    end=stop,
                    before=range_digest(files, path, position, stop),
                    after=digest_of(bytes(stop - position)),
                    kept=f"{self.keep}/cut/{file_name(int(path.rpartition('/')[2]) + position)}",
                    why="the group has other entries here",
                )
            )
        rest = _without_zeros(target[start:])
        self._fetch(path, start, rest, digest_of(bytes(len(rest))), size)

    def _fetch(self, path: str, start: int, data: memoryview, before: str, size: int) -> None:
        self.fetched += len(data)
        if self.fetched > FETCH_BYTES_MAX:
            raise self._refused(
                f"it lacks more than {FETCH_BYTES_MAX >> 20} MiB of entries that {self.donor.name}"
                " has"
            )
        if not data:
            return
        self.ops.append(
            Fetch(
                path=path,
                start=start,
                end=start + len(data),
                before=before,
                after=digest_of(data),
                file_size=size,
                content=base64.b64encode(data).decode(),
                replica=self.donor.name,
                why="entries that the group keeps and this member lacks",
            )
        )

    def _aside(self, entry_file: EntryFile) -> None:
        to = f"{self.keep}/entries/{file_name(entry_file.base_offset)}"
        self.ops.append(MoveAside(path=entry_file.path, to=to, why="no entry in it is kept"))

    def _refused(self, why: str) -> UpgradeRefusedError:
        return UpgradeRefusedError(
            f"the group keeps entries up to {self.cut_index}, this member has them up to"
            f" {self.own.end_index}, and they cannot be fetched: {why}; {CATCH_UP}"
        )


def _first_difference(own: memoryview, target: memoryview) -> int:
    """Return the first position at which both differ, if zeros follow the shorter one, or -1."""
    for position in range(0, max(len(own), len(target)), CHUNK):
        one, two = (
            bytes(own[position : position + CHUNK]),
            bytes(target[position : position + CHUNK]),
        )
        width = max(len(one), len(two))
        one, two = one.ljust(width, b"\0"), two.ljust(width, b"\0")
        if one != two:
            return position + next(at for at in range(width) if one[at] != two[at])
    return -1


def _without_zeros(view: memoryview) -> memoryview:
    """Return ``view`` without the zeros at its end."""
    stop = len(view)
    while stop > 0:
        start = max(0, stop - CHUNK)
        chunk = bytes(view[start:stop]).rstrip(b"\0")
        if chunk:
            return view[: start + len(chunk)]
        stop = start
    return view[:0]
