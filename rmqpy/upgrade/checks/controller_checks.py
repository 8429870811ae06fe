"""Checks of replicas that a controller of RocketMQ 5.x manages, or is to manage.

5.3.3 takes an ``epochFileCheckpoint`` that it cannot read for an empty one, and then compares no
logs (EpochFileCache.initCacheFromFile, AutoSwitchHAClient.doTruncate); the checks report what it
passes over. Groups without files of a controller pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding
from rmqpy.upgrade.plan.survey import Survey

_BY_HAND = "move epochFileCheckpoint* of every replica away, align them with rmqpy upgrade plan and"
_BY_HAND += " apply, and write the epochs again with rmqpy upgrade switch --to controller"


def epochs(group: Group) -> Iterator[CheckFinding]:
    """Check that the epochs of a controller group can be read, fit the log, and are one history."""
    found = {each.name: _controller(each) for each in group.surveys}
    if not any(found.values()):
        return
    for survey in group.surveys:
        for problem in found[survey.name].get("problems", ()):
            yield finding(
                "epochs", survey.name, f"{problem}: 5.x would use the file as empty", _BY_HAND
            )
        yield from _fits(survey, found[survey.name].get("epochs", []))
    for one, two in combinations(group.surveys, 2):
        yield from _one_history(one.name, two.name, found)


def identities(group: Group) -> Iterator[CheckFinding]:
    """Check that the identities of a controller group are unique and belong to its name."""
    owners: dict[int, str] = {}
    for survey in group.surveys:
        identity = _controller(survey).get("identity")
        if identity is None:
            continue
        for key, part in (("brokerClusterName", "cluster"), ("brokerName", "broker_name")):
            configured = survey.setting(key)
            if configured and configured != identity[part]:
                yield finding(
                    "identities",
                    survey.name,
                    f"brokerIdentity was given to {identity[part]}, and {key}={configured}: 5.x"
                    " does not start",
                    "start it with the store that belongs to it, or move brokerIdentity away to"
                    " have the controller give another one",
                )
        other = owners.setdefault(identity["broker_id"], survey.name)
        if other != survey.name:
            yield finding(
                "identities",
                f"{other}, {survey.name}",
                f"both have brokerId {identity['broker_id']} in brokerIdentity: one store is a copy"
                " of the other, and the controller would take them for one replica",
                "move brokerIdentity of the copy away; the controller gives it an id of its own",
            )


def _controller(survey: Survey) -> dict[str, Any]:
    found: dict[str, Any] | None = survey.manifest.facts.get("controller")
    return found or {}


def _fits(survey: Survey, epochs: list[dict[str, int]]) -> Iterator[CheckFinding]:
    end = survey.manifest.end
    beyond = [each for each in epochs if each["start_offset"] > end]
    if beyond:
        first = beyond[0]
        yield finding(
            "epochs",
            survey.name,
            f"epoch {first['number']} begins at {first['start_offset']}, the log ends at {end}: the"
            " end of the log is missing",
            "use the other replicas, and let this one fetch the log from them",
        )


def _one_history(one: str, two: str, found: dict[str, dict[str, Any]]) -> Iterator[CheckFinding]:
    """Compare two replicas: up to the last common epoch, all must begin at the same offset."""
    mine, theirs = (
        {each["number"]: each["start_offset"] for each in found[name].get("epochs", [])}
        for name in (one, two)
    )
    if bool(mine) != bool(theirs):
        with_epochs, without = (one, two) if mine else (two, one)
        yield finding(
            "epochs",
            without,
            f"it has no epochs, {with_epochs} has: 5.x would not compare their logs",
            _BY_HAND,
        )
        return
    common = mine.keys() & theirs.keys()
    wrong = next((each for each in sorted(common) if mine[each] != theirs[each]), None)
    if mine and not common:
        yield finding("epochs", f"{one}, {two}", "they have no epoch in common", _BY_HAND)
    elif wrong is not None:
        yield finding(
            "epochs",
            f"{one}, {two}",
            f"epoch {wrong} begins at {mine[wrong]} in {one} and at {theirs[wrong]} in {two}: two"
            " histories; 5.x would cut one of them",
            "compare the logs (rmqpy upgrade verify), and choose one before either starts",
        )
