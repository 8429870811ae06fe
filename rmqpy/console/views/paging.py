"""Searching and paging of lists, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from attrs import define

__all__ = ["PAGE_ROWS", "ListPage", "page_of"]

PAGE_ROWS: Final = 50

T = TypeVar("T")


@define(slots=True, frozen=True)
class ListPage(Generic[T]):
    """One page; numbers start at 1. ``found`` is the number of rows that match, of ``total``."""

    rows: Sequence[T]
    number: int
    pages: int
    found: int
    total: int


def page_of(rows: Sequence[T], name: Callable[[T], str], search: str, number: int) -> ListPage[T]:
    """Return a page of the rows whose name contains ``search``, whatever its case."""
    wanted = search.casefold()
    found = [row for row in rows if wanted in name(row).casefold()] if wanted else rows
    pages = max(1, -(-len(found) // PAGE_ROWS))
    number = min(max(number, 1), pages)
    start = (number - 1) * PAGE_ROWS
    return ListPage(found[start : start + PAGE_ROWS], number, pages, len(found), len(rows))
