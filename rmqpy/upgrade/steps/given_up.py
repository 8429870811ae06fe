"""The messages that a plan would discard: how many, of which topics, and on which replicas.

They stay in the keep folder until ``finalize``, but no broker has them any more. So an operator
confirms their number (``--give-up``) when planning, and again when applying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.log_comparison import (
    Relation,
    classic_log,
    compare_logs,
    messages_after,
)
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.plan.plan import Plan
from rmqpy.upgrade.steps.plan_context import PlanContext

FACT = "given_up"
TOPICS_MAX = 20


def beyond_reference(context: PlanContext, replicas: Iterable[Replica]) -> dict[str, Any]:
    """Return the fact for a plan that cuts these replicas at the end of the reference's log.

    A message that several of them have counts once. The result is empty if nothing is given up.
    """
    reference = context.reference
    replicas = sorted(replicas, key=lambda each: -classic_log(each).end)
    counted: list[Replica] = []
    topics: Counter[str] = Counter()
    by_replica: dict[str, int] = {}
    for replica in replicas:
        compared = reference.others.get(replica.name)
        if compared is None or compared.relation not in (Relation.LONGER, Relation.DIVERGED):
            continue
        end = compared.common_end
        shared = max((compare_logs(replica, each).common_end for each in counted), default=0)
        by_replica[replica.name] = sum(1 for _ in messages_after(replica, end))
        topics.update(line.topic for line in messages_after(replica, max(end, shared)))
        counted.append(replica)
    return fact_of(topics, by_replica)


def fact_of(topics: Mapping[str, int], by_replica: Mapping[str, int]) -> dict[str, Any]:
    """Return the fact, or an empty dictionary if no message is given up."""
    total = sum(topics.values())
    if not total:
        return {}
    ordered = dict(sorted(topics.items(), key=lambda each: (-each[1], each[0])))
    return {FACT: {"messages": total, "topics": ordered, "replicas": dict(by_replica)}}


def check_given_up(plan: Plan, confirmed: int | None, node: str | None = None) -> None:
    """Raise UpgradeRefusedError unless ``confirmed`` is the number of messages given up.

    With ``node``, only that replica's part counts.
    """
    found = plan.facts.get(FACT) or {"messages": 0, "topics": {}, "replicas": {}}
    names = [name for name, count in found["replicas"].items() if count]
    total = int(found["messages"])
    if node is not None and node not in names:
        total = 0
    if total == (confirmed or 0):
        return
    if not total:
        raise UpgradeRefusedError(
            f"--give-up {confirmed}: no message would be given up, expected no --give-up; nothing"
            " was changed. Run the command without it"
        )
    topics = [f"{topic} {count}" for topic, count in found["topics"].items()]
    more = (
        f" and {count_text(len(topics) - TOPICS_MAX, 'more topic')}" if topics[TOPICS_MAX:] else ""
    )
    asked = f"--give-up {confirmed}" if confirmed is not None else "no --give-up"
    raise UpgradeRefusedError(
        f"{count_text(total, 'message')} of {', '.join(names)} would be given up"
        f" ({', '.join(topics[:TOPICS_MAX])}{more}): found {asked}, expected --give-up {total};"
        f" nothing was changed. Add --give-up {total} if they may be lost, or choose another"
        " --reference or --cut-index"
    )
