"""A group leaves DLedger: where all its members are cut, and each one's part."""

from __future__ import annotations

from rmqpy.config.keys import parse_dledger_peers
from rmqpy.upgrade.checks.ledger import Ledger, agreed_index, read_ledger
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.configuration import classic_config
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.leave import LeaveOptions, plan_leave
from rmqpy.upgrade.steps.plan_context import PlanContext


def leave_group(situation: PlanContext) -> list[NodePlan]:
    """The parts of the members of this host; members on others count for where all are cut, and
    plan their own parts with the same replicas.
    """
    locals_ = situation.on_this_host
    grounds = {replica.name: situation.ground_of(replica) for replica in locals_}
    ledgers = [read_ledger(ground.files, ground.settings) for ground in grounds.values()]
    cut_index = situation.wish.cut_index
    if cut_index is None:
        others = [each for each in situation.group.replicas if each not in locals_]
        shown = [*ledgers, *map(_told_ledger, others)]
        cut_index = agreed_index(shown, _group_size(situation, locals_))
    parts = []
    for replica in locals_:
        survey = replica.survey()
        text, path = "", None
        if survey.config is not None and situation.wish.write_config:
            path = survey.config_path
            text = classic_config(situation.files, survey, situation.wish.roles)
        wish = LeaveOptions(
            replica=replica.name,
            cut_index=cut_index,
            config_path=path,
            config_text=text,
            reads_version=situation.wish.reads_version,
        )
        parts.append(plan_leave(grounds[replica.name], wish))
    return parts


def _told_ledger(replica: Replica) -> Ledger:
    """What another host's member says of its entries."""
    facts = replica.survey().manifest.facts
    last = (facts.get("ledger") or {}).get("last") or {}
    state = facts.get("ledger_state") or {}
    end_index = last.get("index", -1)
    return Ledger(
        end_index=end_index,
        end_term=last.get("term", -1),
        committed_index=min(state.get("committed_index", -1), end_index),
    )


def _group_size(situation: PlanContext, replicas: list[LocalReplica]) -> int:
    for replica in replicas:
        peers = situation.settings_of(replica).dledger_peers or situation.wish.peers
        if peers:
            return len(parse_dledger_peers(peers))
    raise UpgradeRefusedError(
        "how many members the group has is not known: give a broker.conf with dLegerPeers (-c), or"
        " --cut-index"
    )
