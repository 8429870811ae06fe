"""Audits and manifests of store directories on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmqpy.audit.checks.engine import AuditOptions, audit_store
from rmqpy.audit.replicas.manifest import Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.audit.scan.directory import StoreDirectory, read_directory
from rmqpy.audit.scan.findings import Finding, Severity
from rmqpy.audit.scan.ranges import RANGE_BYTES
from rmqpy.store.files.disk import OsFileSystem


def audit(store: Path, range_bytes: int = RANGE_BYTES) -> list[Finding]:
    """Audit a store and return all findings."""
    found: list[Finding] = []
    options = AuditOptions(root=str(store), sink=found.extend, workers=1, range_bytes=range_bytes)
    audit_store(OsFileSystem(), options)
    return found


def without_notes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings above NOTE."""
    return [finding for finding in findings if finding.code.severity is not Severity.NOTE]


def directory_of(store: Path) -> StoreDirectory:
    return read_directory(OsFileSystem(), str(store))


def manifest_of(store: Path, md5: Md5 = Md5.NONE) -> Manifest:
    """Return the manifest of a store, which has the name of its folder."""
    options = AuditOptions(root=str(store), workers=1)
    plan = ManifestPlan(name=store.name, audit=options, now_ms=lambda: 7, md5=md5)
    return make_manifest(OsFileSystem(), plan)[0]
