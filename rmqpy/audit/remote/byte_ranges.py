"""The interface of a store elsewhere: names, sizes, and byte ranges of its files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from attrs import define, field

__all__ = ["ByteRanges", "ListedFile"]


@define(slots=True, frozen=True, kw_only=True)
class ListedFile:
    """A file, or a folder that may be empty. ``path`` is relative to the root of the store.

    ``version`` changes whenever the content does; it is what the place offers for that: an ETag, a
    generation, or the time of the last write. Two are equal if the content is.
    """

    path: str
    is_folder: bool = False
    size: int = 0
    mtime_ms: int = field(default=0, eq=False)
    version: str = ""


class ByteRanges(Protocol):
    """The files of one store. Implementations can be pickled, and are called by several threads at
    a time.

    All methods raise StoreError, NetworkError, or ConfigError with a sentence for the user: no such
    store, no permission, no answer.
    """

    @property
    def root(self) -> str:
        """The URI of the store, without a slash at its end."""

    def listed(self) -> Iterable[ListedFile]:
        """Return all files of the store as they are now."""

    def current(self, path: str) -> ListedFile | None:
        """Return a file as it is now, or None if it is gone."""

    def read(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end`` of a file, or fewer if the place has no
        more. ``path`` is relative to the root.
        """
