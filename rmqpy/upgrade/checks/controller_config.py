"""Check of the keys of broker.conf that concern the Controller mode of RocketMQ 5.x.

=======================  ===========================================================================
together                 what 5.3.3 does
=======================  ===========================================================================
enableControllerMode and
- enableDLegerCommitLog  ends with -4 (BrokerStartup.buildBrokerController)
- duplicationEnable      has no replication service (DefaultMessageStore), and ends with a null
                         pointer when it asks for it (ReplicasManager)
- no controllerAddr      never gets a role, and refuses every request
without it, in a store   starts with the role in broker.conf, beside the master that the controller
with an identity         has elected
=======================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rmqpy.config.keys import parse_addresses
from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.findings import CheckFinding, finding
from rmqpy.upgrade.plan.survey import Survey

CHECK = "controller-flags"
MODE, ADDRESS = "enableControllerMode", "controllerAddr"
_EXCLUDED = {
    "enableDLegerCommitLog": "5.x ends with -4",
    "duplicationEnable": "5.x has no replication then, and ends when it is to get a role",
}


def controller_facts(survey: Survey) -> dict[str, Any]:
    """Return what a controller has left in a store, or an empty dictionary."""
    found: dict[str, Any] | None = survey.manifest.facts.get("controller")
    return found or {}


def controller_flags(surveys: Sequence[Survey]) -> Iterator[CheckFinding]:
    """Check that the keys of a controller group do not contradict each other or its stores."""
    shown = [each for each in surveys if each.config is not None]
    controlled = [each for each in shown if _is_true(each, MODE)]
    for survey in shown:
        yield from _alone(survey, len(surveys))
    if not controlled:
        return
    for key in (MODE, ADDRESS, "allAckInSyncStateSet", "minInSyncReplicas"):
        values = {each.name: each.setting(key).strip() or "not set" for each in shown}
        if len({*values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            yield finding(
                CHECK,
                "",
                f"{key} differs: {listed}; after a fail-over another rule would hold, or the"
                " replicas would not be one group",
                f"set the same {key} on all replicas",
            )
    learners = [each for each in controlled if _is_true(each, "asyncLearner")]
    if learners and len(learners) >= len(surveys) - 1:
        yield finding(
            CHECK,
            ", ".join(each.name for each in learners),
            "asyncLearner=true: a learner is never in the SyncStateSet, so nobody can take over",
            "remove asyncLearner from all replicas that may become the master",
        )


def _alone(survey: Survey, replicas: int) -> Iterator[CheckFinding]:
    """Check one broker.conf in a group of this many replicas."""
    if not _is_true(survey, MODE):
        if controller_facts(survey).get("identity"):
            yield finding(
                CHECK,
                survey.name,
                f"found a brokerIdentity in the store, and {MODE} is not true: the broker would"
                f" start as {survey.setting('brokerRole', 'ASYNC_MASTER')}, beside the master that"
                " the controller has elected",
                f"set {MODE}=true, or leave the controller with rmqpy upgrade leave",
            )
        return
    for key, what in _EXCLUDED.items():
        if _is_true(survey, key):
            yield finding(
                CHECK, survey.name, f"{MODE}=true and {key}=true: {what}", f"remove {key}"
            )
    if not _is_true(survey, "fetchControllerAddrByDnsLookup"):
        yield from _address(survey)
    least = survey.setting("minInSyncReplicas", "1")
    if least.isdigit() and int(least) > replicas:
        yield finding(
            CHECK,
            survey.name,
            f"minInSyncReplicas={least}, the group has {count_text(replicas, 'replica')}: every"
            " message that is"
            " sent would be refused (IN_SYNC_REPLICAS_NOT_ENOUGH)",
            f"set it to {replicas} at most, on all replicas",
        )


def _address(survey: Survey) -> Iterator[CheckFinding]:
    address = survey.setting(ADDRESS)
    try:
        parse_addresses(address)
    except ValueError as error:
        yield finding(
            CHECK,
            survey.name,
            f"{ADDRESS}={address or '(not set)'}: {error}; without a controller the broker gets no"
            " role and refuses every request",
            f"set {ADDRESS} to HOST:PORT, with a semicolon between several",
        )


def _is_true(survey: Survey, key: str) -> bool:
    return survey.setting(key).strip().lower() == "true"
