"""Manifests of stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.checks.engine import AuditOptions
from rmqpy.audit.replicas.manifest import Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.store.files.disk import OsFileSystem


@pytest.fixture
def manifest_of() -> Callable[[Path], Manifest]:
    """A store's manifest, without MD5; named by its folder."""

    def make(store: Path) -> Manifest:
        plan = ManifestPlan(
            name=store.name,
            audit=AuditOptions(root=str(store), workers=1),
            now_ms=lambda: 7,
            md5=Md5.NONE,
        )
        return make_manifest(OsFileSystem(), plan)[0]

    return make
