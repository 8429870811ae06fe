"""What must hold before the first operation of a plan: nothing is changed until all of it does."""

from __future__ import annotations

from attrs import define, field

from rmqpy.upgrade.plan.node_context import NodeContext, UpgradeRefusedError
from rmqpy.upgrade.plan.operations import Op, OpState, Patch
from rmqpy.upgrade.plan.own_paths import check_own_paths
from rmqpy.upgrade.plan.plan import NodePlan, op_line
from rmqpy.upgrade.plan.space import missing_space


def check_startable(context: NodeContext, node: NodePlan) -> None:
    """Raise UpgradeRefusedError if this node's part cannot be carried out completely as it stands:
    a path is not this node's, a "before" does not hold, or bytes of another replica are missing.
    """
    check_own_paths(context, node)
    wrong = verify_preconditions(context, node)
    if wrong:
        raise UpgradeRefusedError(
            "the directory has changed since the plan was created; plan again. First"
            f" difference of {len(wrong)}: {wrong[0]}"
        )
    check_sources(context, node)
    missing = missing_space(context, node)
    if missing:
        raise UpgradeRefusedError("; ".join(missing))


def verify_preconditions(context: NodeContext, node: NodePlan) -> list[str]:
    """Return the lines of all operations whose "before" does not hold now. Change nothing.

    Operations that depend on an earlier one of the plan are not checked.
    """
    touched = _ModifiedPaths()
    found = []
    for op in node.ops:
        if not touched.by_earlier(op) and op.state(context) is OpState.OTHER:
            found.append(op_line(op))
        touched.add(op)
    return found


def check_sources(context: NodeContext, node: NodePlan) -> None:
    """Read the last byte of every range that will be copied. Raise RmqError if it is missing."""
    ends: dict[tuple[str, str], int] = {}
    for op in node.ops:
        if op.source is not None and op.needs_source(context):
            replica, path, end = op.source
            ends[replica, path] = max(end, ends.get((replica, path), 0))
    for (replica, path), end in ends.items():
        context.source.read(replica, path, max(end - 1, 0), end)


@define(slots=True)
class _ModifiedPaths:
    """The files, folders and ranges inside files that earlier operations change.

    ``above`` has their parent folders.
    """

    places: set[str] = field(factory=set)
    above: set[str] = field(factory=set)
    ranges: dict[str, list[tuple[int, int]]] = field(factory=dict)

    def by_earlier(self, op: Op) -> bool:
        if isinstance(op, Patch):
            for start, end in self.ranges.get(op.path, ()):
                if op.start < end and start < op.end:
                    return True
        elif op.path in self.ranges:
            return True
        if op.path in self.above:
            return True
        return any(place in self.places for place in _with_folders(op.path))

    def add(self, op: Op) -> None:
        if isinstance(op, Patch):
            self.ranges.setdefault(op.path, []).append((op.start, op.end))
            self.above.update(_with_folders(op.path)[1:])
            return
        for path in (op.path, getattr(op, "to", op.path)):
            self.places.add(path)
            self.above.update(_with_folders(path)[1:])


def _with_folders(path: str) -> list[str]:
    """Return the path and all its parent folders."""
    found = []
    while path:
        found.append(path)
        path = path.rpartition("/")[0]
    return found
