"""Pages of mapped files that the disk could not deliver: a bad sector, or a truncated file.

The first access to such a page raises SIGBUS, which ends a process. The C core has a handler that
puts a page of zeros in its place (``native/lost_pages.c``). The reader finds no valid record there,
or zeros within a body; this module tells which bytes those are. Without the C core the process
ends, as it always did.

A process has one such handler, so this is the state of the process: the files of all stores.

Invariants: bytes that passed :func:`check_read` have the content of the file; a file is forgotten
only with its mapping.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING, Final

from rmqpy.codec import backend
from rmqpy.model.errors import StoreError
from rmqpy.model.values import define

if TYPE_CHECKING:
    from typing_extensions import Buffer


@define(slots=True, frozen=True)
class LostRange:
    """The smallest range of a file that contains all its lost pages. The file ``is_written`` in
    place: its zeros may hide what was written.
    """

    path: str
    begin: int
    end: int
    is_written: bool


class LostPagesError(StoreError):
    """Bytes were requested that the disk could not deliver."""

    def __init__(self, lost: LostRange) -> None:
        super().__init__(
            lost.path,
            f"bytes {lost.begin} to {lost.end} that cannot be read (a bad sector, or the file has"
            " been truncated)",
            "a file that can be read to its end",
            "check the disk and the kernel log; then restore the file from a backup or a replica"
            " (a consume queue or index file may be removed: the next start rebuilds it)",
        )
        self.lost = lost


class _Guarded(weakref.ref["Buffer"]):
    """A mapping under guard, in one object: with many queues in turn, a file is mapped for a few
    messages, and garbage collection meets whatever that creates.
    """

    __slots__ = ("is_written", "number", "path")

    number: int
    path: str
    is_written: bool


PAGE_BYTES: Final = 4096
"""The size of the smallest page."""

known: Final[dict[str, LostRange]] = {}
"""The lost ranges that were found so far, by path. Almost always empty."""
_unreported: Final[list[LostRange]] = []
_guarded: Final[dict[int, _Guarded]] = {}
_numbers: Final = count()
_free: Final[list[int]] = []
"""The numbers that were taken and are not in use. Threads map files at the same time, and a mapping
may end at any line: each number is taken by one call, without looking first."""
_counted = 0


def guard(view: memoryview, path: str, *, is_written: bool) -> None:
    """Survive the loss of pages of a mapping, seen through ``view``, for as long as it exists."""
    try:
        number = _free.pop()
    except IndexError:
        number = next(_numbers)
    if not backend.guard_mapping(number, view):
        _free.append(number)
        return
    guarded = _Guarded(view.obj, _forget)
    guarded.number, guarded.path, guarded.is_written = number, path, is_written
    _guarded[number] = guarded


def check_read(path: str, data: memoryview, position: int) -> None:
    """Touch the pages of ``data``, which is at ``position`` of a mapped file. Raises LostPagesError
    if one of them was lost, now or before.
    """
    if not _guarded:
        return
    bytes(data[::PAGE_BYTES])
    bytes(data[-1:])
    _refresh()
    if known:
        lost = known.get(path)
        if lost is not None and position < lost.end and position + len(data) > lost.begin:
            raise LostPagesError(lost)


def take_unreported() -> list[LostRange]:
    """Return the ranges of the files that have lost pages for the first time since the last
    call.
    """
    _refresh()
    found, _unreported[:] = list(_unreported), []
    return found


def raise_if_any() -> None:
    """Raise LostPagesError if a page of any file was lost since the process has started."""
    _refresh()
    for lost in known.values():
        raise LostPagesError(lost)


def _refresh() -> None:
    global _counted
    lost_pages = backend.lost_pages()
    if lost_pages == _counted:
        return
    _counted = lost_pages
    for number, guarded in list(_guarded.items()):
        found = backend.lost_range(number)
        if found is not None:
            lost = LostRange(guarded.path, *found, guarded.is_written)
            if guarded.path not in known:
                _unreported.append(lost)
            known[guarded.path] = lost


def _forget(ended: weakref.ref[Buffer]) -> None:
    assert isinstance(ended, _Guarded)
    _refresh()
    backend.forget_mapping(ended.number)
    del _guarded[ended.number]
    _free.append(ended.number)
