"""The checks whose findings refuse a step, because it would write on a wrong foundation."""

from __future__ import annotations

from rmqpy.upgrade.checks.config_checks import CONFIG_CHECKS
from rmqpy.upgrade.checks.group_checks import CHECKS
from rmqpy.upgrade.checks.table_checks import LOST_TOPICS
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
from rmqpy.upgrade.steps.plan_context import PlanContext

BEFORE_ALIGNMENT = ("same-sizes", "file-sizes")
"""An alignment repairs what the other checks find."""

BEFORE_SWITCH = (
    "same-sizes",
    *(name for name in CHECKS if name not in CONFIG_CHECKS and name != "message-size"),
)
"""The configurations are checked as they will be (:mod:`rmqpy.upgrade.steps.written_config`). Large
messages of the old log stay readable, and cannot be made smaller.
"""

BEFORE_CONTROLLER = tuple(name for name in BEFORE_SWITCH if name != "epochs")
"""Replicas may lack the epochs that others have: a switch on several hosts can end in the middle.
The migration refuses all other epochs.
"""

BEFORE_LEAVING: tuple[str, ...] = (
    *("same-sizes", "file-sizes", "clean-stop", "gaps", "divide-fits", "log-sound", "same-log"),
    *("same-entries", "same-divide"),
)
"""What would be written into a classic log for good. Queues and tables are rebuilt or kept."""

NOT_IN_THE_WAY = frozenset(("QUEUE_STEP", LOST_TOPICS))
"""Findings of these checks that no step makes worse, and none repairs."""


def refuse_half_done(context: PlanContext) -> None:
    """Raise UpgradeRefusedError if a plan is half done: a second one would be made of its work."""
    found = context.group.half_done()
    if found:
        names, root = ", ".join(f"{each.name} ({each.plan})" for each in found), found[0].root
        raise UpgradeRefusedError(
            f"found a plan that is half done on {names}, expected none; finish it with rmqpy"
            f" upgrade apply --resume {root}, or take it back with rmqpy upgrade rollback {root}"
        )


def refuse_findings(context: PlanContext, names: tuple[str, ...], before: str) -> None:
    """Raise UpgradeRefusedError if one of these checks finds anything."""
    found = [
        each
        for name in names
        for each in CHECKS[name](context.group)
        if not each.is_note and each.code not in NOT_IN_THE_WAY
    ]
    if found:
        more = f" (and {len(found) - 1} more, shown by rmqpy upgrade check)" if found[1:] else ""
        raise UpgradeRefusedError(f"{before}: {found[0].sentence}{more}")
