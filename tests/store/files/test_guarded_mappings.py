"""Mappings that are guarded against the loss of pages have numbers of their own."""

from __future__ import annotations

import mmap

import pytest

from rmqpy.codec import backend
from rmqpy.store.files.lost_pages import guard


def test_mappings_of_two_threads_have_different_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread guards a mapping while the first call has not ended."""
    taken: list[int] = []
    views = [memoryview(mmap.mmap(-1, mmap.PAGESIZE)) for _ in range(2)]

    def guarded(number: int, _view: memoryview) -> bool:
        taken.append(number)
        if len(taken) == 1:
            guard(views[1], "second", is_written=False)
        return True

    monkeypatch.setattr(backend, "guard_mapping", guarded)
    monkeypatch.setattr(backend, "forget_mapping", taken.remove)
    guard(views[0], "first", is_written=False)
    assert len(set(taken)) == 2
    while views:
        views.pop()
    assert not taken


def test_a_mapping_that_cannot_be_guarded_keeps_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def refuse(number: int, _view: memoryview) -> bool:
        taken.append(number)
        return False

    monkeypatch.setattr(backend, "guard_mapping", refuse)
    view = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
    for _ in range(3):
        guard(view, "file", is_written=False)
    assert len(set(taken)) == 1
