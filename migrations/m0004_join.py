"""Write the configuration of each node: the flag, the group, its peers, and the node's own id."""

from __future__ import annotations

from attrs import evolve

from rmqpy.upgrade.checks.config_checks import CONFIG_FILE_CHECKS
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.configuration import FLAG, dledger_keys, rewritten_config
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.live_records import live_records_aside
from rmqpy.upgrade.steps.plan_context import PlanContext, switch_part
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.written_config import check_written

FROM = frozenset((GroupState.SEALED,))
TO: GroupState | None = GroupState.JOINED
REASON = "the next start creates the DLedger log after the divided offset"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica of this host.

    Raise UpgradeRefusedError if the configuration of any member would be wrong.
    """
    keys = _keys(context)
    notes = list(check_written(context, keys, CONFIG_FILE_CHECKS))
    parts = []
    for replica in context.on_this_host:
        parts.append(_plan_replica(context, replica, keys[replica.name], notes))
        notes = []
    return parts


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


def _keys(context: PlanContext) -> dict[str, dict[str, str]]:
    """Return the settings to write, by replica.

    Replicas of other hosts are among them if their ids are known. Raise UpgradeRefusedError if the
    peers or an id of this host are not known.
    """
    options, found = context.options, {}
    local = [replica.name for replica in context.on_this_host]
    for survey in context.group.surveys:
        self_id = options.self_ids.get(survey.name) or survey.setting("dLegerSelfId")
        peers = options.peers or survey.setting("dLegerPeers")
        if self_id and peers:
            group = options.dledger_group or survey.setting("dLegerGroup") or _broker_name(survey)
            found[survey.name] = dledger_keys(peers, self_id, group)
        elif survey.name in local:
            raise UpgradeRefusedError(
                f"{survey.name}: its dLegerSelfId and dLegerPeers are not known; give"
                " --self-id and --peers"
            )
    return found


def _plan_replica(
    context: PlanContext, replica: Replica, keys: dict[str, str], notes: list[str]
) -> NodePlan:
    survey = replica.survey()
    text = rewritten_config(context.files, survey, keys)
    assert survey.config_path is not None
    before = digest_of(context.files.read_bytes(survey.config_path))
    op = Write.of(survey.config_path, before, text.encode(), "the flag and the group")
    shown = [f"{key}={value}" for key, value in keys.items() if key != FLAG]
    part = switch_part(context, replica, [op], [*shown, *notes])
    records = live_records_aside(context.files, replica.name, part.root, part.keep)
    return evolve(part, ops=(*records, *part.ops))


def _broker_name(survey: Survey) -> str:
    name = survey.setting("brokerName")
    if not name and survey.config is not None:
        raise UpgradeRefusedError(
            f"{survey.name}: found no brokerName, expected that of the group; set the same"
            " brokerName in every broker.conf"
        )
    return name
