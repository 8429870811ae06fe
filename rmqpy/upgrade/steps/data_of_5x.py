"""Refuse to take a store to brokers that do not read everything in it.

Brokers of 4.9 read no timer wheel, no records of version 2, no queues in RocksDB; brokers of 5.x
read all of it, but nothing here rebuilds it for a replica whose log is made equal to another's.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.audit.scan.findings import FindingCode
from rmqpy.model.text import count_text
from rmqpy.store.files.paths import EPOCH_FILE, IDENTITY_FILE
from rmqpy.upgrade.checks.log_comparison import Relation
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext


def refuse_data_of_5x(context: PlanContext) -> None:
    """Raise UpgradeRefusedError with everything in the replicas that the next brokers, of the
    version ``reads_version``, would not find.
    """
    for_4 = context.options.reads_version < 2
    changed = _changed(context)
    lines = [
        f"{survey.name}: {what}"
        for survey in context.group.surveys
        if for_4 or survey.name in changed
        for what in (*_unread(survey), *(_records(survey) if for_4 else ()))
    ]
    if not lines:
        return
    if for_4:
        expected = "only what RocketMQ 4.9 reads"
        remedy = (
            "let the 5.x brokers deliver it before you stop them (rmqpy upgrade check names the way"
            " for each), or add --reader 5 if brokers of 5.x run the group afterwards"
        )
    else:
        expected = f"none in {', '.join(sorted(changed))}, whose log differs from the others"
        remedy = (
            "start the controller and all brokers, wait until the SyncStateSet has every replica,"
            " stop the slaves, then the master, and plan again"
        )
    raise UpgradeRefusedError(
        f"found data of RocketMQ 5.x in the stores: {'; '.join(lines)}; expected {expected};"
        f" nothing was changed. To go on, {remedy}"
    )


def _changed(context: PlanContext) -> set[str]:
    """Return the replicas whose log the alignment changes."""
    others = context.reference.others.items()
    return {name for name, each in others if each.relation is not Relation.EQUAL}


def _unread(survey: Survey) -> Iterator[str]:
    of_controller = tuple(
        survey.setting(key).rpartition("/")[2] or usual
        for key, usual in (
            ("storePathEpochFile", EPOCH_FILE),
            ("storePathBrokerIdentity", IDENTITY_FILE),
        )
    )
    for each in survey.found:
        name = each["file"].rpartition("/")[2]
        if each["code"] == FindingCode.DATA_UNREAD.name:
            if not name.startswith(of_controller):
                yield f"{each['found']} ({each['file']})"


def _records(survey: Survey) -> Iterator[str]:
    if survey.version_2:
        yield f"{count_text(survey.version_2, 'record')} of version 2 in the log"
