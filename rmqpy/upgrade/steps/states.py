"""The states of a group, detected from the surveys of its replicas, and the steps between them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from rmqpy.audit.facts.facts import Mode
from rmqpy.model.errors import RmqError
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.log_comparison import Relation, compare_logs

if TYPE_CHECKING:
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.plan.plan import NodePlan
    from rmqpy.upgrade.steps.plan_context import PlanContext

MIGRATIONS = "rmqpy_migrations"


class GroupState(Enum):
    """The state of a group; ``text`` says what its replicas have."""

    text: str

    def __new__(cls, value: str, text: str) -> GroupState:
        state = object.__new__(cls)
        state._value_, state.text = value, text
        return state

    DIVERGED = "diverged", "logs that differ, none of which contains all others"
    LAGGING = "lagging", "logs of different lengths, the longest of which contains all others"
    ALIGNED = "aligned", "equal classic logs"
    SEALED = "sealed", "equal classic logs whose last file is closed"
    JOINED = "joined", "old logs that continue in a DLedger log"
    DLEDGER_ONLY = "dledger_only", "DLedger logs without an old log"
    CONTROLLED = "controlled", "equal classic logs, with the epochs of a controller"
    MIXED = "mixed", "replicas that have switched to DLedger, and others that have not"


class Step(Protocol):
    """A migration module."""

    FROM: frozenset[GroupState]
    TO: GroupState | None
    REASON: str
    plan: Callable[[PlanContext], list[NodePlan]]
    verify: Callable[[PlanContext], list[str]]


class AlignStep(Step, Protocol):
    """The migration ``m0002_align``, which can also plan for a single replica."""

    def plan_replica(
        self, context: PlanContext, replica: Replica, *, may_be_unclean: bool = False
    ) -> NodePlan: ...


class LeaveStep(Step, Protocol):
    """The migration ``m0006_leave``, which also counts what an early cut gives up."""

    given_up: Callable[[PlanContext], dict[str, Any]]


def detect(group: Group) -> GroupState:
    """Return the state in which the group is now."""
    modes = {group.mode(replica) for replica in group.replicas}
    if modes == {Mode.JOINED}:
        return GroupState.JOINED
    if modes == {Mode.DLEDGER}:
        return GroupState.DLEDGER_ONLY
    if modes & {Mode.JOINED, Mode.DLEDGER}:
        return GroupState.MIXED
    first, *others = group.replicas
    relations = {compare_logs(first, other).relation for other in others}
    if relations <= {Relation.EQUAL}:
        if all(survey.manifest.facts.get("controller") for survey in group.surveys):
            return GroupState.CONTROLLED
        return GroupState.SEALED if _all_sealed(group) else GroupState.ALIGNED
    for candidate in group.replicas:
        seen = {compare_logs(each, candidate).relation for each in group.replicas}
        if seen <= {Relation.EQUAL, Relation.SHORTER}:
            return GroupState.LAGGING
    return GroupState.DIVERGED


def is_controlled(group: Group) -> bool:
    """Return whether a controller of 5.x elects the master of a group with a classic log, or has
    done so.
    """
    modes = {group.mode(replica) for replica in group.replicas}
    return not modes & {Mode.JOINED, Mode.DLEDGER} and any(
        survey.manifest.facts.get("controller") or survey.setting("enableControllerMode") == "true"
        for survey in group.surveys
    )


def load_step(name: str) -> Step:
    """Return a migration by the name of its module."""
    _make_importable()
    try:
        return cast(Step, importlib.import_module(f"{MIGRATIONS}.{name}"))
    except ModuleNotFoundError as error:
        raise RmqError(f"migration {name} does not exist: {error}") from None


def _all_sealed(group: Group) -> bool:
    logs = [survey.manifest.log("classic") for survey in group.surveys]
    return all(log is not None and log.files and log.files[-1].sealed for log in logs)


def _make_importable() -> ModuleType:
    """Return the package of the migrations, installed or, in a checkout, next to ``rmqpy``."""
    try:
        return importlib.import_module(MIGRATIONS)
    except ModuleNotFoundError:
        folder = Path(__file__).resolve().parents[3] / "migrations"
        spec = importlib.util.spec_from_file_location(
            MIGRATIONS, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None or not folder.is_dir():
            raise RmqError("the migrations are not installed: install rmqpy as a whole") from None
        package = importlib.util.module_from_spec(spec)
        sys.modules[MIGRATIONS] = package
        spec.loader.exec_module(package)
        return package
