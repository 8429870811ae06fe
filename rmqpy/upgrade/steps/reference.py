"""The choice of the reference: the replica whose log is the longest that contains every other.

If no log contains all others, the logs have diverged, and only the operator can choose. In a group
with a controller of 5.x the newest epoch decides: its master was elected last, and what an older
master has beyond that never reached it.
"""

from __future__ import annotations

from attrs import define

from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.log_comparison import (
    LISTED_MAX,
    LogComparison,
    Relation,
    classic_log,
    compare_logs,
    messages_after,
)
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError


@define(slots=True, frozen=True)
class Reference:
    """The chosen replica and the reason for the choice.

    ``others`` compares the log of each other replica, by name, with the log of this one.
    """

    replica: Replica
    why: str
    others: dict[str, LogComparison]


class DivergedError(UpgradeRefusedError):
    """No replica's log contains all others.

    ``sides`` lists, for each diverged pair, the messages that only one of the two has, by replica.
    """

    def __init__(self, text: str, sides: dict[str, dict[str, list[str]]]) -> None:
        super().__init__(text)
        self.sides = sides


def choose_reference(group: Group, chosen: str | None = None) -> Reference:
    """Return the reference; ``chosen`` names the replica that the operator chose, if any.

    Raise DivergedError if a choice is needed and ``chosen`` is None.
    """
    candidates = [group.replica(chosen)] if chosen else list(group.replicas)
    candidates.sort(key=lambda each: -classic_log(each).end)
    for candidate in candidates:
        others = {
            other.name: compare_logs(other, candidate)
            for other in group.replicas
            if other is not candidate
        }
        relations = {compared.relation for compared in others.values()}
        if relations <= {Relation.EQUAL, Relation.SHORTER}:
            why = "the operator's choice" if chosen else _why(others)
            return Reference(candidate, why, others)
        if chosen:
            return Reference(candidate, "the operator's choice", others)
    newest = _newest_epoch(group)
    if newest is not None:
        others = {
            other.name: compare_logs(other, newest)
            for other in group.replicas
            if other is not newest
        }
        return Reference(newest, "its epoch is the newest that a controller gave", others)
    raise _diverged(group)


def _newest_epoch(group: Group) -> Replica | None:
    """Return the only replica with the newest epoch, or the longest of several whose logs are one
    history; None if epochs do not decide.
    """
    epochs = {each.name: _last_epoch(each) for each in group.replicas}
    newest = max(epochs.values())
    if newest < 0 or len(set(epochs.values())) == 1:
        return None
    found = [each for each in group.replicas if epochs[each.name] == newest]
    longest = max(found, key=lambda each: classic_log(each).end)
    relations = {compare_logs(each, longest).relation for each in found}
    return longest if relations <= {Relation.EQUAL, Relation.SHORTER} else None


def _last_epoch(replica: Replica) -> int:
    facts = replica.survey().manifest.facts.get("controller") or {}
    return max((each["number"] for each in facts.get("epochs", ())), default=-1)


def _why(others: dict[str, LogComparison]) -> str:
    shorter = sum(each.relation is Relation.SHORTER for each in others.values())
    if not shorter:
        return "all logs are equal"
    return f"its log contains every other; {shorter} are shorter"


def _diverged(group: Group) -> DivergedError:
    sides: dict[str, dict[str, list[str]]] = {}
    lines = []
    for number, one in enumerate(group.replicas):
        for two in group.replicas[number + 1 :]:
            compared = compare_logs(one, two)
            if compared.relation is not Relation.DIVERGED:
                continue
            name = f"{one.name} and {two.name} from offset {compared.common_end}"
            sides[name] = {
                side.name: list(map(str, messages_after(side, compared.common_end)))
                for side in (one, two)
            }
            counts = ", ".join(f"{len(each)} on {side}" for side, each in sides[name].items())
            lines.append(f"{name} ({counts})")
            for side, each in sides[name].items():
                sides[name][side] = each[:LISTED_MAX]
    return DivergedError(
        "no replica contains all others: " + "; ".join(lines) + ". Choose the side to keep with"
        " --reference NAME; messages that only the others have are moved aside, not deleted",
        sides,
    )
