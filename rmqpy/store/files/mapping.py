"""Shared mappings of files that need no descriptor.

Before Python 3.13 an ``mmap`` object keeps a descriptor of its own; the C core maps files without
one (``native/mapping.c``). Without the C core, those versions need a descriptor for each mapping.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Protocol

from rmqpy.codec import backend

KEEPS_DESCRIPTOR: Final = backend.implementation != "c" and sys.version_info < (3, 13)
"""True if each mapping has a descriptor."""


class MapFile(Protocol):
    """A function that maps a file from its start and returns its bytes, which stay mapped as long
    as a view of them exists. With ``random`` the system reads no pages ahead. Raises OSError.
    """

    def __call__(
        self, descriptor: int, length: int, *, writable: bool, random: bool
    ) -> memoryview: ...


def _map_in_python(descriptor: int, length: int, *, writable: bool, random: bool) -> memoryview:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    if sys.version_info >= (3, 13):
        mapping = mmap.mmap(descriptor, length, access=access, trackfd=False)
    else:
        mapping = mmap.mmap(descriptor, length, access=access)
    if random and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
    return memoryview(mapping)


class ReleasePages(Protocol):
    """A function that takes the whole pages in a range of a mapping of :data:`map_file` out of the
    memory of the process; they are read again from the file when they are needed.
    """

    def __call__(self, view: memoryview, begin: int, end: int) -> None: ...


def whole_pages(view: memoryview, begin: int, end: int) -> tuple[int, int]:
    """Return the whole pages in a range of a mapping. What is after its end belongs to others."""
    end = min(end, len(view))
    return -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE


def _release_in_python(view: memoryview, begin: int, end: int) -> None:
    mapping = view.obj
    begin, end = whole_pages(view, begin, end)
    if begin < end and isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _choose() -> tuple[MapFile, ReleasePages]:
    if backend.implementation != "c":
        return _map_in_python, _release_in_python
    from rmqpy.codec.native.binding import ffi, lib

    @lru_cache(maxsize=16)
    def unmap_of(length: int) -> Callable[[Any], None]:
        return lambda begin: lib.rmq_unmap_file(begin, length)

    def map_in_c(descriptor: int, length: int, *, writable: bool, random: bool) -> memoryview:
        begin = lib.rmq_map_file(descriptor, length, writable)
        if not begin:
            raise OSError(ffi.errno, os.strerror(ffi.errno))
        if random:
            lib.rmq_advise_random(begin, length)
        view = memoryview(ffi.buffer(ffi.gc(begin, unmap_of(length)), length))
        return view if writable else view.toreadonly()

    def release_in_c(view: memoryview, begin: int, end: int) -> None:
        begin, end = whole_pages(view, begin, end)
        if begin < end:
            lib.rmq_release_pages(ffi.from_buffer("uint8_t[]", view[begin:end]), end - begin)

    return map_in_c, release_in_c


_chosen = _choose()
map_file: Final[MapFile] = _chosen[0]
release_pages: Final[ReleasePages] = _chosen[1]
