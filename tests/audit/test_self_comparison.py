"""A store is equal to itself: the golden stores with data of 5.x beside copies of themselves.

Whatever rmqpy does not read there is listed as not examined.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.audit.checks.engine import AuditOptions
from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certificate_text import certificate_lines
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.compare import LocalStore, compare_stores, verdict_on
from rmqpy.audit.replicas.manifest import Manifest, ManifestPlan, make_manifest
from rmqpy.audit.replicas.replica_set import LocalReplicaStore, certify_replicas
from rmqpy.audit.replicas.verdict import DIFFERENT, EQUAL
from rmqpy.audit.scan.directory import read_directory
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.unread.data import UnreadKind

STORES = [
    "E-timers-v533/clean",
    "E-timers-v533/killed",
    "E-timers-v533/lagging",
    "F-pop-acknowledged-v533/log",
    "F-pop-v533/kv",
    "F-pop-v533/log",
    "G-rocksdb-v533/both",
    "G-rocksdb-v533/queues",
    "H-queues-v533/store",
    "I-controller-v533/n0",
    "I-controller-v533/n1",
    "J-tiered-v533/store",
]


def manifest_of(root: Path, name: str) -> Manifest:
    plan = ManifestPlan(name=name, audit=AuditOptions(root=str(root)), now_ms=lambda: 0)
    return make_manifest(OsFileSystem(), plan)[0]


def replica_of(root: Path, name: str) -> LocalReplicaStore:
    files = OsFileSystem()
    store = LocalStore(files, read_directory(files, str(root)))
    return LocalReplicaStore(manifest_of(root, name), store)


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_a_store_is_equal_to_itself(name: str, golden: Callable[[str], Path]) -> None:
    archive, _, node = name.partition("/")
    root = golden(archive) / node
    one, two = replica_of(root, "one"), replica_of(root, "two")
    differences = compare_stores(one.manifest, two.manifest, one.store, two.store)
    assert verdict_on(differences, one.manifest, two.manifest) == EQUAL
    present = certify_replicas([one, two], 0)
    earlier = certify([Manifest.decode(one.manifest.encode()), two.manifest], 0, earlier=1)
    for certificate in (present, earlier):
        assert certificate.verdict == EQUAL, list(certificate_lines(certificate))
        read = Certificate.decode(certificate.encode())
        assert read == certificate
        not_examined = "; ".join(certificate.not_examined)
        for each in one.manifest.facts["unread"]:
            path = each["path"].removeprefix(f"{root}/")
            assert f"{path} ({each['found']}) of one, two" in not_examined


def test_messages_in_queues_of_5x_are_counted_apart(golden: Callable[[str], Path]) -> None:
    root = golden("H-queues-v533") / "store"
    subject = certify_replicas([replica_of(root, "one")], 0).subjects[0]
    assert (subject.queued, subject.by_queue, subject.elsewhere) == (48, 44, 4)
    assert subject.is_reachable


@pytest.mark.parametrize("lost", ["batchconsumequeue/Batch/0", "consumequeue/%LMQ%one/0"])
def test_a_lost_queue_of_5x_is_no_hidden_difference(
    lost: str, golden_copy: Callable[[str], Path]
) -> None:
    """A batch queue without units is found; a light queue is named as not examined."""
    root = golden_copy("H-queues-v533") / "store"
    one = replica_of(root, "one")
    for path in (root / lost).iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    certificate = certify_replicas([one, replica_of(root, "two")], 0)
    if "batch" in lost:
        assert certificate.verdict == DIFFERENT
        assert "UNIT_MISSING" in certificate.subjects[1].severe_findings
    else:
        assert UnreadKind.LIGHT_QUEUES.value in str(one.manifest.facts["unread"])
        assert any("%LMQ%one" in text for text in certificate.not_examined)
