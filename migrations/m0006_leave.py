"""Leave DLedger: entries become records of a classic log that Java 4.9 and 5.x read.

Messages, queue offsets, body CRCs, and consumer progress stay. So do physical offsets, except that
the first message of each DLedger file moves down by 48. The headers of the entries are absorbed by
one reserved property per message (:mod:`rmqpy.codec.reframe`). Every member gets the same
tables: any of them may be the master afterwards, whose tables the others take over, and a follower
may have been stopped before it had the last changes of its leader. The log is first cut at an
index, the same on all members (:func:`rmqpy.upgrade.checks.ledger.agreed_index`); consume queues,
key index, and checkpoint follow. All of this happens in place, each change with an undo record, or
in a copy of the directory. The part of one member is in :mod:`rmqpy.upgrade.steps.leave_member`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from rmqpy.config.keys import parse_dledger_peers
from rmqpy.upgrade.checks.config_checks import CLASSIC_CONFIG_CHECKS
from rmqpy.upgrade.checks.ledger import (
    Ledger,
    agreed_index,
    topics_after,
)
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan.configuration import classic_keys, rewritten_config
from rmqpy.upgrade.plan.node_context import (
    UpgradeRefusedError,
)
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.steps.fetch_entries import Donor, donor_of
from rmqpy.upgrade.steps.given_up import fact_of
from rmqpy.upgrade.steps.leave_member import LeaveOptions, plan_leave
from rmqpy.upgrade.steps.live_records import live_records_aside
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.table_writes import table_writes
from rmqpy.upgrade.steps.twins import known_ledger
from rmqpy.upgrade.steps.written_config import check_written

FROM = frozenset((GroupState.JOINED, GroupState.DLEDGER_ONLY))
TO: GroupState | None = GroupState.ALIGNED
REASON = "back to master and slave, or on to another mode, with every message"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return the parts of the members on this host.

    Members on other hosts are considered in the choice of the cut, and plan their own parts with
    the same replicas.
    """
    local = context.on_this_host
    nodes = {replica.name: context.node_context(replica) for replica in local}
    ledgers = {
        replica.name: known_ledger(nodes[replica.name])
        if isinstance(replica, LocalReplica)
        else _surveyed_ledger(replica)
        for replica in context.group.replicas
    }
    cut_index = context.options.cut_index
    if cut_index is None:
        cut_index = agreed_index(list(ledgers.values()), _group_size(context, local))
    else:
        _check_cut(cut_index, ledgers)
    keys, notes = _config_keys(context)
    longest = max(context.group.replicas, key=lambda each: each.survey().manifest.end)
    merged = context.merged_for(longest)
    parts = []
    for replica in local:
        survey = replica.survey()
        text, path = "", None
        if survey.name in keys:
            path = survey.config_path
            text = rewritten_config(context.files, survey, keys[survey.name])
        options = LeaveOptions(
            replica=replica.name,
            cut_index=cut_index,
            config_path=path,
            config_text=text,
            reads_version=context.options.reads_version,
        )
        donor = _donor(context, ledgers, replica, cut_index)
        part = plan_leave(nodes[replica.name], options, donor)
        writes = tuple(table_writes(replica, merged))
        records = live_records_aside(context.files, replica.name, replica.root, part.keep)
        ops = (*records, *writes, *part.ops)
        parts.append(attrs.evolve(part, ops=ops, notes=(*part.notes, *notes)))
        notes = ()
    return parts


def _check_cut(cut_index: int, ledgers: dict[str, Ledger]) -> None:
    """Refuse a chosen cut that no member has."""
    last = max(each.end_index for each in ledgers.values())
    if not -1 <= cut_index <= last:
        raise UpgradeRefusedError(
            f"found --cut-index {cut_index}, expected a number up to {last}, the last entry of all"
            " members, or -1 to keep none; correct it, or leave it out: a majority then decides"
        )


def given_up(context: PlanContext) -> dict[str, Any]:
    """Return the fact with the messages after ``--cut-index`` that may have been acknowledged."""
    cut_index = context.options.cut_index
    if cut_index is None:
        return {}
    topics: Counter[str] = Counter()
    by_replica = {}
    for replica in context.on_this_host:
        node = context.node_context(replica)
        found = topics_after(node.files, known_ledger(node), cut_index)
        by_replica[replica.name] = sum(found.values())
        topics |= found  # The members have the same messages: the largest number of each topic.
    return fact_of(topics, by_replica)


def _donor(
    context: PlanContext, ledgers: dict[str, Ledger], replica: LocalReplica, cut_index: int
) -> Donor | None:
    """Return the member with the newest entries up to the cut, if this one may not have them."""
    newest = max(each.end_term for each in ledgers.values())
    own = ledgers[replica.name]
    if own.end_term == newest and own.end_index >= cut_index:
        return None
    able = [
        each
        for each in context.group.replicas
        if ledgers[each.name].end_term == newest and ledgers[each.name].end_index >= cut_index
    ]
    if not able:
        return None
    # A directory of this host is read without a transfer.
    chosen = min(able, key=lambda each: not isinstance(each, LocalReplica))
    holder = chosen if isinstance(chosen, LocalReplica) else replica
    return donor_of(chosen, context.node_context(holder), own)


def _config_keys(context: PlanContext) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    """Return the settings to write, by replica, and notes.

    Raise UpgradeRefusedError if the configuration of any replica would be wrong.
    """
    if not context.options.write_config:
        return {}, ()
    keys = {
        survey.name: classic_keys(survey, context.options.roles)
        for survey in context.group.surveys
        if survey.config is not None
    }
    return keys, check_written(context, keys, CLASSIC_CONFIG_CHECKS)


def verify(context: PlanContext) -> list[str]:
    """Return the replicas that still have DLedger data."""
    return [
        f"{survey.name}: DLedger data is left"
        for survey in context.group.surveys
        if survey.manifest.log("dledger") is not None
    ]


def undo() -> str:
    return "rmqpy upgrade rollback: every byte from the undo records, until finalize"


def _surveyed_ledger(replica: Replica) -> Ledger:
    """Return the entries of a member on another host, from its survey."""
    facts = replica.survey().manifest.facts
    last = (facts.get("ledger") or {}).get("last") or {}
    state = facts.get("ledger_state") or {}
    end_index = last.get("index", -1)
    return Ledger(
        end_index=end_index,
        end_term=last.get("term", -1),
        committed_index=min(state.get("committed_index", -1), end_index),
    )


def _group_size(context: PlanContext, replicas: list[LocalReplica]) -> int:
    for replica in replicas:
        peers = context.settings_of(replica).dledger_peers or context.options.peers
        if peers:
            return len(parse_dledger_peers(peers))
    raise UpgradeRefusedError(
        "the number of members of the group is not known: give a broker.conf with dLegerPeers"
        " (-c), or --cut-index"
    )
