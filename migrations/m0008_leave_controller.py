"""Take a group back from a controller of RocketMQ 5.x to master and slaves.

The log is the classic one already. Replicas may end at different offsets, because a controller
group is stopped broker by broker and an old master may have messages that its successor never got:
they are aligned first, as :mod:`m0002_align` does. Then the epochs and the identities are moved
aside, since a broker of rmqpy refuses a store that has them and a later controller would take them
for its own; and broker.conf has roles instead of the controller.

What only RocketMQ 5.x reads stays in the store, so a group whose next brokers are of 4.9 is refused
while such data waits there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from attrs import evolve

from rmqpy.config.keys import BrokerRole
from rmqpy.model.ids import MASTER_ID
from rmqpy.upgrade.checks.config_checks import CLASSIC_CONFIG_CHECKS
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.configuration import ONLY_WITH_A_CONTROLLER, rewritten_config
from rmqpy.upgrade.plan.node_context import digest_of
from rmqpy.upgrade.plan.operations import MoveAside, Op, Write
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.data_of_5x import refuse_data_of_5x
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import AlignStep, GroupState, load_step
from rmqpy.upgrade.steps.written_config import check_written

FROM = frozenset((GroupState.CONTROLLED, GroupState.LAGGING, GroupState.DIVERGED))
TO: GroupState | None = GroupState.ALIGNED
REASON = "back to master and slave, with every message that the group has confirmed"

Keys = dict[str, str]


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica of this host.

    Raise UpgradeRefusedError if a replica cannot be aligned, if it has data that the next brokers
    do not read, or if the configuration of any replica would be wrong.
    """
    refuse_data_of_5x(context)
    keys: dict[str, Keys] = {}
    notes: tuple[str, ...] = ()
    if context.options.write_config:
        keys = _keys(context)
        notes = check_written(context, keys, CLASSIC_CONFIG_CHECKS, ONLY_WITH_A_CONTROLLER)
    align = cast(AlignStep, load_step("m0002_align"))
    parts = []
    for replica in context.on_this_host:
        part = align.plan_replica(context, replica)
        ops = *part.ops, *_aside(context, replica, part.keep), *_config(context, replica, keys)
        own = *part.notes, *_notes(context, replica), *notes
        parts.append(evolve(part, ops=ops, notes=own))
        notes = ()
    return parts


def verify(context: PlanContext) -> list[str]:
    """Return the replicas that still have files of a controller."""
    return [
        f"{survey.name}: files of a controller are left"
        for survey in context.group.surveys
        if survey.manifest.facts.get("controller")
    ]


def undo() -> str:
    return "rmqpy upgrade rollback: the files back to their place, every byte from the undo records"


def _keys(context: PlanContext) -> dict[str, Keys]:
    """Return the settings to write, by replica. Slaves are numbered in the order of their names,
    which is the same on every host.
    """
    roles = context.options.roles
    keys: dict[str, Keys] = {}
    slaves = 0
    for survey in sorted(context.group.surveys, key=lambda each: each.name):
        role = roles.get(survey.name)
        keys[survey.name] = {} if role is None else {"brokerRole": role}
        if role == BrokerRole.SLAVE.value:
            slaves += 1
            keys[survey.name]["brokerId"] = str(slaves)
        elif role is not None:
            keys[survey.name]["brokerId"] = str(MASTER_ID)
    return keys


def _aside(context: PlanContext, replica: LocalReplica, keep: str) -> Iterator[Op]:
    survey = replica.survey()
    for path in context.paths_of(survey).controller_files:
        if context.files.exists(path):
            to = f"{keep}/controller/{path.rpartition('/')[2]}"
            yield MoveAside(path=path, to=to, why="what a controller knows of this replica")


def _config(context: PlanContext, replica: LocalReplica, keys: dict[str, Keys]) -> Iterator[Op]:
    survey = replica.survey()
    if survey.name not in keys:
        return
    text = rewritten_config(context.files, survey, keys[survey.name], ONLY_WITH_A_CONTROLLER)
    assert survey.config_path is not None
    before = digest_of(context.files.read_bytes(survey.config_path))
    why = "fixed roles instead of the controller"
    yield Write.of(survey.config_path, before, text.encode(), why)


def _notes(context: PlanContext, replica: LocalReplica) -> Iterator[str]:
    survey = replica.survey()
    waited = survey.setting("allAckInSyncStateSet") == "true"
    if waited and context.options.roles.get(survey.name) == BrokerRole.ASYNC_MASTER.value:
        yield (
            "allAckInSyncStateSet=true is removed, and an ASYNC_MASTER acknowledges messages that"
            " no slave has: choose SYNC_MASTER to wait for one"
        )
