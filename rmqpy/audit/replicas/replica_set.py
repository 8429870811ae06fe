"""Compare each pair of several replicas of one store, and certify all of them.

A replica is a manifest, together with its files if they are available. A manifest of another host
is used as it is; no data is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from attrs import define

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.replicas.certificate import Certificate
from rmqpy.audit.replicas.certify import certify
from rmqpy.audit.replicas.compare import (
    Difference,
    LocalStore,
    compare_stores,
    first_difference,
    verdict_on,
)
from rmqpy.audit.replicas.difference_text import difference_sentences
from rmqpy.audit.replicas.manifest import Manifest
from rmqpy.audit.replicas.verdict import Verdict
from rmqpy.model.text import count_text

__all__ = ["LocalReplicaStore", "Pair", "certify_replicas", "changed_subjects", "compare_pairs"]


@define(slots=True, frozen=True)
class LocalReplicaStore:
    """A replica; ``store`` is None if only its manifest is available."""

    manifest: Manifest
    store: LocalStore | None = None

    @property
    def name(self) -> str:
        return self.manifest.name


@define(slots=True, frozen=True)
class Pair:
    """Two replicas, by name, and their differences; ``sentences`` has one for each cause."""

    left: str
    right: str
    differences: tuple[Difference, ...]
    sentences: tuple[str, ...]
    verdict: Verdict

    @property
    def first(self) -> Difference | None:
        """The difference at which their logs diverge."""
        return first_difference(list(self.differences))

    def as_json(self) -> dict[str, Any]:
        return {
            "left": self.left,
            "right": self.right,
            **self.verdict.as_json(),
            "first": self.first.as_json() if self.first else None,
            "differences": [each.as_json() for each in self.differences],
            "sentences": list(self.sentences),
        }


def compare_pairs(replicas: Sequence[LocalReplicaStore]) -> Iterator[Pair]:
    """Yield the comparison of every pair, in the given order."""
    for one, two in combinations(replicas, 2):
        found = compare_stores(one.manifest, two.manifest, one.store, two.store)
        verdict = verdict_on(found, one.manifest, two.manifest)
        sentences = difference_sentences(found, one.manifest, two.manifest, verdict)
        yield Pair(one.name, two.name, tuple(found), tuple(sentences), verdict)


def certify_replicas(replicas: Sequence[LocalReplicaStore], now_ms: int) -> Certificate:
    """Return the certificate of the replicas. Those that are known only by a manifest are earlier
    states, unless there are no others.
    """
    available = {
        each.name: QueueMessages(each.store.files, each.store.directory)
        for each in replicas
        if each.store is not None
    }
    past = [each.manifest for each in replicas if available and each.store is None]
    present = [each.manifest for each in replicas if not available or each.store is not None]
    return certify([*past, *present], now_ms, available, earlier=len(past))


def changed_subjects(certificate: Certificate, manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """Return, by name, how stores differ from their certified state; empty if none differs."""
    changed = {}
    for subject in certificate.subjects:
        manifest = manifests.get(subject.name)
        if manifest is None or manifest.content_digest(certificate.format) == subject.digest:
            continue
        then = f"{count_text(subject.messages, 'message')} from {subject.begin} to {subject.end}"
        now = f"{count_text(manifest.messages, 'message')} from {manifest.begin} to {manifest.end}"
        changed[subject.name] = f"certified: {then}; now: {now}"
        if then == now:
            changed[subject.name] += ", with different content or different queues"
    return changed
