"""The operations that give a replica the merged tables of its group."""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.checks.tables import MergedTables
from rmqpy.upgrade.plan.node_context import ABSENT, digest_of
from rmqpy.upgrade.plan.operations import Op, Write


def table_writes(replica: Replica, merged: MergedTables) -> Iterator[Op]:
    """Yield a write of each table in which this replica differs from ``merged``."""
    manifest = replica.survey().manifest
    digests = {each.path: each.md5 for each in manifest.files}
    for name, data in merged.tables.items():
        if replica.name not in merged.differing[name]:
            continue
        path = f"config/{name}"
        before = digests.get(path, ABSENT)
        if before != digest_of(data):
            why = "the largest offsets, and the topics and groups of all members"
            yield Write.of(f"{replica.survey().root}/{path}", before, data, why)
