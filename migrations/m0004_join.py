"""Write the configuration of each node: the flag, the group, its peers, and the node's own id."""

from __future__ import annotations

from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.configuration import dledger_config
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.plan_context import PlanContext, switch_part
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.SEALED,))
TO: GroupState | None = GroupState.JOINED
REASON = "the next start creates the DLedger log after the divided offset"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica of this host."""
    return [_plan_replica(context, replica) for replica in context.on_this_host]


def verify(context: PlanContext) -> list[str]:
    """Return the replicas without the flag in their configuration."""
    return [
        f"{survey.name}: enableDLegerCommitLog is not true"
        for survey in context.group.surveys
        if survey.setting("enableDLegerCommitLog") != "true"
    ]


def undo() -> str:
    return (
        "rmqpy upgrade rollback, as long as no message was written to the DLedger log; afterwards"
        " rmqpy upgrade leave"
    )


def _plan_replica(context: PlanContext, replica: Replica) -> NodePlan:
    """Return one replica's part. Raise UpgradeRefusedError if its peers or its id are unknown."""
    survey, options = replica.survey(), context.options
    self_id = options.self_ids.get(replica.name) or survey.setting("dLegerSelfId")
    peers = options.peers or survey.setting("dLegerPeers")
    if not self_id or not peers:
        raise UpgradeRefusedError(
            f"{replica.name}: its dLegerSelfId and dLegerPeers are not known; give"
            " --self-id and --peers"
        )
    group = options.dledger_group or survey.setting("dLegerGroup")
    keys = {
        "dLegerGroup": group or _broker_name(replica),
        "dLegerPeers": peers,
        "dLegerSelfId": self_id,
    }
    text = dledger_config(context.files, survey, keys)
    assert survey.config_path is not None
    before = digest_of(context.files.read_bytes(survey.config_path))
    op = Write.of(survey.config_path, before, text.encode(), "the flag and the group")
    return switch_part(replica, [op], [f"{key}={value}" for key, value in keys.items()])


def _broker_name(replica: Replica) -> str:
    name = replica.survey().setting("brokerName")
    if not name:
        raise UpgradeRefusedError(f"{replica.name}: brokerName is not set; give --group")
    return name
