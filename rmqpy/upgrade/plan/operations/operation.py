"""The form of an operation: what the engine asks of each kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum
from typing import ClassVar

from attrs import define

from rmqpy.upgrade.plan.node_context import NodeContext


class OpState(Enum):
    BEFORE = "before"
    AFTER = "after"
    OTHER = "other"


@define(slots=True, frozen=True, kw_only=True)
class Op(ABC):
    """One operation on ``path``; ``why`` is for readers of the plan."""

    kind: ClassVar[str]
    path: str
    why: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths of this node that the operation reads or writes."""
        return (self.path,)

    @property
    def source(self) -> tuple[str, str, int] | None:
        """The replica, its file, and the end of the range that is copied from there, if any."""
        return None

    def needs_source(self, context: NodeContext) -> bool:
        """Return whether the bytes of :attr:`source` are not on this host's stage already."""
        return self.source is not None

    @abstractmethod
    def state(self, context: NodeContext) -> OpState:
        """Return the state of the directory as this operation sees it."""

    def prepare(self, context: NodeContext, undo_path: str) -> None:
        """Save, durably, what :meth:`perform` would destroy. Most kinds destroy nothing."""
        return

    @abstractmethod
    def perform(self, context: NodeContext) -> None:
        """Go from *before* to *after*. On return the change is durable."""

    def resume(self, context: NodeContext, undo_path: str) -> None:
        """Go back to *before* after an interruption, unless it is *after* already.

        Kinds that consist of one atomic step do nothing.
        """
        return

    @abstractmethod
    def revert(self, context: NodeContext, undo_path: str) -> None:
        """Go back to *before*: from *before*, from *after*, or from halfway."""

    def kept_to_revert(self, undo_path: str) -> str | None:
        """Return the path from which :meth:`revert` restores what a completed operation has
        replaced, or None if it needs nothing.
        """
        return None

    @property
    def changed_bytes(self) -> int:
        """The number of bytes that the operation writes, for progress reports."""
        return 0

    @property
    def written_bytes(self) -> int:
        """The number of bytes that the operation writes to the disk at most, without its undo
        record and without holes.
        """
        return self.changed_bytes

    def space(self, context: NodeContext) -> Iterable[tuple[str, int]]:
        """Return the space that the operation takes at most, its undo record included.

        Each item is a path on the file system that is meant, and a number of bytes.
        """
        return ()

    def space_to_revert(self, context: NodeContext, undo_path: str) -> Iterable[tuple[str, int]]:
        """Return the space that :meth:`revert` takes, in the form of :meth:`space`; a negative
        number is what it releases. Only what is on another file system must be written again.
        """
        return ()
