"""Stores by name: every node of every golden archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def store_of(golden: Callable[[str], Path]) -> Callable[[str], Path]:
    """ "A-classic-clean-v497" or "C-upgraded-v497/n0" → that node's store folder; only to read."""

    def find(name: str) -> Path:
        archive, _, node = name.partition("/")
        stores = sorted(path.parent for path in golden(archive).rglob("consumequeue"))
        return next(store for store in stores if not node or store.name == node)

    return find


@pytest.fixture
def copy_of(golden_copy: Callable[[str], Path]) -> Callable[[str], Path]:
    """The same as a copy to write to."""

    def find(name: str) -> Path:
        archive, _, node = name.partition("/")
        stores = sorted(path.parent for path in golden_copy(archive).rglob("consumequeue"))
        return next(store for store in stores if not node or store.name == node)

    return find
