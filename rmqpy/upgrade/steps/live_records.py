"""The records of a switch or a leave that a group made while it ran, in the store of one broker.

A start of the broker obeys them: a member that has left does not start as a member again, and one
that has switched does not start as a classic broker. After an offline change of the log they would
be about a log that is no longer there, so the plan of the change moves them aside, and a rollback
brings them back. While a record is undecided, nothing may change offline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rmqpy.broker.replication.switch_protocol import SwitchRecord, SwitchStage
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import own_folder
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.operations import MoveAside

LIVE_RECORDS: Final = ("switch.json", "leave.json")


def live_records_aside(
    files: FileSystem, replica: str, root: str, keep: str
) -> Iterator[MoveAside]:
    """Yield the operations that move the records in the store ``root`` to the folder ``keep``.

    Raises UpgradeRefusedError if one of them is undecided, and StoreError if it is unreadable.
    """
    for name in LIVE_RECORDS:
        path = f"{own_folder(root)}/{name}"
        if not files.exists(path):
            continue
        record = SwitchRecord.decode(path, files.read_bytes(path))
        if record.stage is SwitchStage.PREPARED:
            kind, member = name.partition(".")[0], record.plan.coordinator
            raise UpgradeRefusedError(
                f"{replica}: found a {kind} that is undecided on this broker ({path}), expected a"
                f" decided one: its log may not be the last one of the group; start this broker"
                f" and {record.plan.brokers[member]}, which knows the decision, and stop them again"
            )
        yield MoveAside(path=path, to=f"{keep}/{name}", why="it is about the log before this plan")
