"""Operations that change a range of bytes of an existing file; undo records take them back."""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from attrs import define

from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.codec.reframe import OFFSET_MAX, DataFile, Edit, Piece, edits_of
from rmqpy.model.errors import RmqError, StoreError
from rmqpy.upgrade.plan import undo
from rmqpy.upgrade.plan.node_context import ABSENT, CHUNK, NodeContext, digest_of, range_digest
from rmqpy.upgrade.plan.operations.operation import Op, OpState


@define(slots=True, frozen=True, kw_only=True)
class Patch(Op):
    """A change of bytes ``[start, end)`` of an existing file; the file keeps its time.

    ``before`` and ``after`` are the md5 of that range.
    """

    start: int
    end: int
    before: str
    after: str

    @abstractmethod
    def edits(self, context: NodeContext) -> Iterable[Edit]:
        """Return the bytes to write, all within the range."""

    def state(self, context: NodeContext) -> OpState:
        found = range_digest(context.files, self.path, self.start, self.end)
        if found == self.after:
            return OpState.AFTER
        return OpState.BEFORE if found == self.before else OpState.OTHER

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        undo.save_ranges(context.files, undo_path, self.path, self.overwritten(context))

    def overwritten(self, context: NodeContext) -> list[tuple[int, int]]:
        """Return the (position, length) ranges that will be written."""
        return [(self.start, self.end - self.start)]

    def perform(self, context: NodeContext) -> None:
        edits = list(self.edits(context))
        mtime_ms = context.files.mtime_ms(self.path)
        file = context.files.open(self.path)
        try:
            for edit in edits:
                assert self.start <= edit.position <= self.end - len(edit.data)
                file.write(edit.position, edit.data)
            file.sync()
        finally:
            file.close()
        context.files.set_mtime_ms(self.path, mtime_ms)
        if self.state(context) is not OpState.AFTER:
            raise StoreError(
                self.path,
                f"other bytes than planned at [{self.start}, {self.end}) after the write",
                f"md5 {self.after}",
                "take the plan back with rmqpy upgrade rollback, and check the disk",
            )

    def resume(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def kept_to_revert(self, undo_path: str) -> str | None:
        return undo_path

    @property
    def changed_bytes(self) -> int:
        return self.end - self.start

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        return [(context.work, self.end - self.start)]


@define(slots=True, frozen=True, kw_only=True)
class Copy(Patch):
    kind: ClassVar[str] = "copy"
    replica: str
    source_path: str

    @property
    def source(self) -> tuple[str, str, int]:
        return self.replica, self.source_path, self.end

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        # The range may be a hole so far.
        return [*super().space(context), (self.path, self.end - self.start)]

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        data = context.source.read(self.replica, self.source_path, self.start, self.end)
        if len(data) != self.end - self.start or digest_of(data) != self.after:
            raise RmqError(
                f"{self.source_path} on {self.replica}: bytes {self.start} to {self.end} are no"
                " longer those of the plan; stop its broker and plan again"
            )
        return [Edit(self.start, data)]


@define(slots=True, frozen=True, kw_only=True)
class Cut(Patch):
    """Zeros in place of records; the bytes are saved in the file ``kept``."""

    kind: ClassVar[str] = "cut"
    kept: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.kept)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        return [*super().space(context), (self.kept, self.end - self.start)]

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        return [
            Edit(position, bytes(min(CHUNK, self.end - position)))
            for position in range(self.start, self.end, CHUNK)
        ]

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        super().prepare(context, undo_path)
        files = context.files
        source = files.open_readonly(self.path)
        kept = files.open(self.kept, size=self.end - self.start)
        try:
            for position in range(self.start, self.end, CHUNK):
                kept.write(
                    position - self.start, source.view[position : min(position + CHUNK, self.end)]
                )
            kept.sync()
        finally:
            kept.close()
            source.close()
        files.sync_dir(self.kept.rpartition("/")[0])

    def revert(self, context: NodeContext, undo_path: str) -> None:
        super().revert(context, undo_path)
        context.files.unlink(self.kept)


@define(slots=True, frozen=True, kw_only=True)
class Fill(Patch):
    """A BLANK from ``start`` to the end of the file, whose size is ``file_size``."""

    kind: ClassVar[str] = "fill"
    file_size: int

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        assert self.end == self.start + BLANK_SIZE
        return [Edit(self.start, encode_blank(self.file_size - self.start))]


@define(slots=True, frozen=True, kw_only=True)
class Fetch(Patch):
    """Bytes of entries that ``replica`` has, in base64.

    ``before`` is ``absent`` for a file that does not exist; it is created with ``file_size`` bytes.
    """

    kind: ClassVar[str] = "fetch"
    content: str
    file_size: int
    replica: str

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        return [Edit(self.start, base64.b64decode(self.content))]

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        if self.before != ABSENT:
            super().prepare(context, undo_path)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        folder = self.path.rpartition("/")[0]
        return [*super().space(context), (folder, self.end - self.start)]

    def perform(self, context: NodeContext) -> None:
        if self.before == ABSENT:
            context.files.open(self.path, size=self.file_size).close()
            context.files.sync_dir(self.path.rpartition("/")[0])
        super().perform(context)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        self.revert(context, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        if self.before == ABSENT:
            context.files.unlink(self.path)
        else:
            super().revert(context, undo_path)

    def kept_to_revert(self, undo_path: str) -> str | None:
        return None if self.before == ABSENT else undo_path


@define(slots=True, frozen=True, kw_only=True)
class Reframe(Patch):
    """Entries of a file become classic records. ``moved_from`` and ``moved_to`` limit the offsets
    of messages that move in plans of earlier versions.
    """

    kind: ClassVar[str] = "reframe"
    base_offset: int
    content_end: int
    moved_from: int = 0
    moved_to: int = OFFSET_MAX
    undo_bytes: int = -1
    """The number of bytes that are overwritten; -1 in plans of earlier versions."""

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        known = self.undo_bytes >= 0
        return [(context.work, self.undo_bytes)] if known else super().space(context)

    def edits(self, context: NodeContext) -> Iterable[Edit]:
        file = context.files.open_readonly(self.path)
        try:
            return list(edits_of(self._data(file.view), Piece(self.start, self.end)))
        finally:
            file.close()

    def overwritten(self, context: NodeContext) -> list[tuple[int, int]]:
        return [(edit.position, len(edit.data)) for edit in self.edits(context)]

    def _data(self, view: memoryview) -> DataFile:
        return DataFile(view, self.base_offset, self.content_end, self.moved_from, self.moved_to)
