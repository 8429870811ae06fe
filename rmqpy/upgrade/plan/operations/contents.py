"""Operations that write a small file, or build consume queues and key index from the log."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import ClassVar

from attrs import define

from rmqpy.codec.units import index_entry_position
from rmqpy.upgrade.plan import derive, undo
from rmqpy.upgrade.plan.node_context import (
    NodeContext,
    data_bytes,
    digest_of,
    range_digest,
    tree_files,
)
from rmqpy.upgrade.plan.operations.operation import Op, OpState


@define(slots=True, frozen=True, kw_only=True)
class Write(Op):
    """The whole content of a small file.

    ``before`` is the md5 of the present file or ``absent``; ``content`` is in base64.
    """

    kind: ClassVar[str] = "write"
    before: str
    content: str

    @classmethod
    def of(cls, path: str, before: str, data: bytes, why: str) -> Write:
        return cls(path=path, before=before, content=base64.b64encode(data).decode(), why=why)

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.content)

    @property
    def written_bytes(self) -> int:
        return len(self.data)

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        files = context.files
        old = files.size_of(self.path) if files.exists(self.path) else 0
        return [(self.path, len(self.data)), (context.work, old)]

    def state(self, context: NodeContext) -> OpState:
        found = range_digest(context.files, self.path)
        if found == digest_of(self.data):
            return OpState.AFTER
        return OpState.BEFORE if found == self.before else OpState.OTHER

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        undo.save_whole(context.files, undo_path, self.path)

    def perform(self, context: NodeContext) -> None:
        context.files.replace_bytes(self.path, self.data)

    def space_to_revert(self, context: NodeContext, undo_path: str) -> Iterable[tuple[str, int]]:
        return undo.space_to_restore(context.files, undo_path, self.path)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        undo.restore(context.files, undo_path)

    def kept_to_revert(self, undo_path: str) -> str | None:
        return undo_path


@define(slots=True, frozen=True, kw_only=True)
class Derive(Op):
    """Consume queues and key index, built below ``path``.

    From ``from_offset`` on they are built from the log; below it they are copied from the old ones
    at ``queues`` and ``index``. With ``staged``, these were built for the plan and wait on the
    stage: most of their files are moved.
    """

    kind: ClassVar[str] = "derive"
    commit_log: str
    queues: str
    index: str
    config: str
    from_offset: int
    staged: bool = False
    bytes_max: int = -1
    """The space that all queues and index files of the result take at most; -1 in plans of earlier
    versions.
    """

    @property
    def written_bytes(self) -> int:
        return max(self.bytes_max, 0)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, self.commit_log, self.queues, self.index, self.config)

    @property
    def _folders(self) -> derive.DerivedPaths:
        return derive.DerivedPaths(
            self.path, self.commit_log, self.queues, self.index, self.config, self.staged
        )

    def state(self, context: NodeContext) -> OpState:
        if not context.files.exists(self.path):
            has_base = self.from_offset <= 0 or context.files.is_dir(self.queues)
            return OpState.BEFORE if has_base else OpState.OTHER
        return OpState.AFTER if derive.is_finished(context.files, self.path) else OpState.OTHER

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        """Return the size of the result without what is moved from the stage.

        For plans of earlier versions, return the size of the queues and index that are copied, and
        a share of the log from which new ones are built.
        """
        files = context.files
        if self.bytes_max >= 0:
            taken = sum(data_bytes(files, path) for path in derive.moved(files, self._folders))
            return [(self.path, max(self.bytes_max - taken, 0))]
        kept = derive.copied(files, self._folders)
        log = [
            path
            for path in tree_files(files, self.commit_log)
            if int(path.rpartition("/")[2]) + files.size_of(path) > self.from_offset
        ]
        built = sum(data_bytes(files, path) for path in log) // 4
        slots = index_entry_position(0, context.settings.max_hash_slot_num) if self.staged else 0
        return [(self.path, built + slots + sum(data_bytes(files, path) for path in kept))]

    def perform(self, context: NodeContext) -> None:
        derive.build(context, self._folders, self.from_offset)

    def resume(self, context: NodeContext, undo_path: str) -> None:
        if self.state(context) is not OpState.AFTER:
            self.revert(context, undo_path)

    def revert(self, context: NodeContext, undo_path: str) -> None:
        if self.staged:
            derive.give_back(context, self._folders)
        context.files.remove_tree(self.path)
