"""Stores by name: every node of every golden archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.engine import AuditPlan
from rmqpy.audit.manifest import Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.store.disk import Disk


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


@pytest.fixture
def manifest_of() -> Callable[[Path], Manifest]:
    """A store's manifest, without MD5; named by its folder."""

    def make(store: Path) -> Manifest:
        plan = ManifestPlan(
            name=store.name,
            audit=AuditPlan(root=str(store), workers=1),
            now_ms=lambda: 7,
            md5=Md5.NONE,
        )
        return make_manifest(Disk(), plan)[0]

    return make
