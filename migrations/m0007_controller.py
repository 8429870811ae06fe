"""Hand a master-slave group to a controller of RocketMQ 5.x.

The log of a controller group is the classic log, unchanged. What a group of 4.9 lacks is the file
with its epochs. Without it, the first replica that asks is elected, whatever its log; a slave that
lags is never served; and a longer replica keeps messages that the master does not have. So every
replica gets the same single epoch, 0, which is older than any that a controller gives, and the
handshake of 5.x compares their logs. It begins at the smallest offset that any replica has, because
Java finds the common end of two logs only by epochs that begin at the same offset
(EpochFileCache.findConsistentPoint of 5.3.3).

The offsets of an earlier controller in ``checkpoint`` (what its master had flushed, what its group
had confirmed) are cleared: a store of 4.9 has none, and 4.9 keeps those that 5.x has written.

The roles in broker.conf go, because the controller gives them, and so do the keys of DLedger, with
which a 5.x broker in controller mode ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from rmqpy.codec.epochs import EPOCH_BEFORE_CONTROLLERS, Epoch, encode_epochs
from rmqpy.config.keys import BrokerRole, parse_addresses
from rmqpy.store.files.paths import EPOCH_FILE
from rmqpy.upgrade.checks.config_checks import CONFIG_FILE_CHECKS
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.configuration import (
    NOT_WITH_A_CONTROLLER,
    controller_keys,
    rewritten_config,
)
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of, range_digest
from rmqpy.upgrade.plan.operations import Write
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext, switch_part
from rmqpy.upgrade.steps.states import GroupState

FROM = frozenset((GroupState.ALIGNED, GroupState.SEALED))
TO: GroupState | None = GroupState.CONTROLLED
REASON = "a controller elects a replica whose log nothing else has compared"

_OFFSETS = slice(24, 40)
"""masterFlushedOffset and confirmPhyOffset of ``checkpoint`` (StoreCheckpoint of 5.3.3)."""
_CHECKS = ("config-shown", "same-sizes", "same-group", "controller-flags")


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica of this host.

    Raise UpgradeRefusedError if the configuration of any replica would be wrong.
    """
    keys = controller_keys(
        ";".join(_controllers(context.options.controllers)),
        all_acknowledge=_acknowledges_twice(context),
    )
    wrong = list(_wrong(context, keys))
    if wrong:
        raise UpgradeRefusedError(
            "the configuration that would be written is wrong, and nothing was changed: "
            + "; ".join(dict.fromkeys(wrong))
        )
    return [_plan_replica(context, replica, keys) for replica in context.on_this_host]


def verify(context: PlanContext) -> list[str]:
    """Return the replicas whose epochs or configuration are not those of a controller group."""
    expected = _expected_epochs(context)
    return [
        f"{survey.name}: {what}"
        for survey in context.group.surveys
        for what, right in (
            ("its epochs are others", _epochs(survey) == expected),
            ("enableControllerMode is not true", survey.setting("enableControllerMode") == "true"),
        )
        if not right
    ]


def undo() -> str:
    return "rmqpy upgrade rollback, as long as no broker has written to the log"


def _controllers(text: str) -> tuple[str, ...]:
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise UpgradeRefusedError(
            f"--controllers {text!r}: {error}, expected HOST:PORT; write addresses with a port, and"
            " a semicolon between several"
        ) from None


def _acknowledges_twice(context: PlanContext) -> bool:
    """Return whether the group had a SYNC_MASTER; its host may have been switched before."""
    return any(
        survey.setting("brokerRole") == BrokerRole.SYNC_MASTER.value
        or survey.setting("allAckInSyncStateSet") == "true"
        for survey in context.group.surveys
    )


def _wrong(context: PlanContext, keys: dict[str, str]) -> Iterator[str]:
    surveys, expected = [], _expected_epochs(context)
    for survey in context.group.surveys:
        if _epochs(survey) not in (None, [], expected):
            yield (
                f"{survey.name}: found {EPOCH_FILE} of a controller, expected none, or only epoch"
                f" {EPOCH_BEFORE_CONTROLLERS} of a switch that other replicas lack; move it away if"
                " the group has left that controller"
            )
        kept = {k: v for k, v in (survey.config or {}).items() if k not in NOT_WITH_A_CONTROLLER}
        surveys.append(evolve(survey, config={**kept, **keys} if survey.config else None))
    for name in _CHECKS:
        yield from (each.sentence for each in CONFIG_FILE_CHECKS[name](surveys) if not each.is_note)


def _begin(context: PlanContext) -> int:
    return min(survey.manifest.begin for survey in context.group.surveys)


def _expected_epochs(context: PlanContext) -> list[dict[str, int]]:
    return [{"number": EPOCH_BEFORE_CONTROLLERS, "start_offset": _begin(context)}]


def _epochs(survey: Survey) -> object:
    return (survey.manifest.facts.get("controller") or {}).get("epochs")


def _plan_replica(context: PlanContext, replica: Replica, keys: dict[str, str]) -> NodePlan:
    survey = replica.survey()
    text = rewritten_config(context.files, survey, keys, NOT_WITH_A_CONTROLLER)
    assert survey.config_path is not None
    path = context.paths_of(survey).epochs
    epoch = Epoch(EPOCH_BEFORE_CONTROLLERS, _begin(context))
    ops = [
        Write.of(
            path,
            range_digest(context.files, path),
            encode_epochs([epoch]),
            f"epoch {epoch.number} begins at offset {epoch.start_offset} on every replica",
        ),
        Write.of(
            survey.config_path,
            digest_of(context.files.read_bytes(survey.config_path)),
            text.encode(),
            "the controller instead of fixed roles",
        ),
    ]
    ops += _cleared_checkpoint(context, survey)
    return switch_part(context, replica, [*ops], [f"{key}={value}" for key, value in keys.items()])


def _cleared_checkpoint(context: PlanContext, survey: Survey) -> Iterator[Write]:
    path = context.paths_of(survey).checkpoint
    data = context.files.read_bytes(path) if context.files.exists(path) else b""
    if any(data[_OFFSETS]):
        cleared = bytearray(data)
        cleared[_OFFSETS] = bytes(len(data[_OFFSETS]))
        why = "no offsets of an earlier controller"
        yield Write.of(path, digest_of(data), bytes(cleared), why)
