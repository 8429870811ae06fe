"""The journal of a leave, ``leave.json`` among the files of rmqpy, and how a start reads it."""

from __future__ import annotations

from typing import Final

from attrs import evolve

from rmqpy.broker.assembly.switch.journal import SwitchJournal
from rmqpy.broker.replication.leave_protocol import SLAVE
from rmqpy.broker.replication.switch_protocol import SwitchStage
from rmqpy.config.keys import BrokerRole
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import StoreError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import MASTER_ID

ROLE: Final = BrokerRole.ASYNC_MASTER
"""The role of the slave after it has taken over."""


def leave_journal(files: FileSystem, root: str) -> SwitchJournal:
    """Return the journal in the store directory ``root``."""
    return SwitchJournal(files, root, "leave.json")


def checked_configuration(
    journal: SwitchJournal, configuration: BrokerConfiguration
) -> BrokerConfiguration:
    """Return the settings with which the broker starts: those of the master if a leave was decided,
    and broker.conf does not contain them yet.

    Raises StoreError for a member that has left its group.
    """
    record = journal.read()
    if record is None or record.stage is SwitchStage.PREPARED:
        return configuration
    if record.self_id == SLAVE:
        if record.stage is SwitchStage.COMPLETE:
            return configuration
        return evolve(
            configuration,
            broker=evolve(configuration.broker, broker_id=MASTER_ID),
            store=evolve(configuration.store, broker_role=ROLE),
        )
    if configuration.store.enable_dledger_commit_log:
        master = record.plan.brokers[SLAVE]
        raise StoreError(
            journal.path,
            f"a member that has left the DLedger group {record.plan.group}",
            f"a member of the group; {master} is its master now",
            "start this broker as a slave of that master: an empty store, brokerRole=SLAVE, a"
            " brokerId of 1 or more, and no enableDLegerCommitLog. Its old store is not needed"
            " any more",
        )
    return configuration
