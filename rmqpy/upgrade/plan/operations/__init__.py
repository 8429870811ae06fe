"""The closed set of operations: everything that a plan may do to a directory.

Each operation names its file, the content that the file must have before, and the content that it
will have after. So an operation can be printed and signed off, refused if its "before" no longer
holds, repeated without harm, and reverted. Paths are those of the node that carries it out.

===========  ======================================================  ===============================
kind         effect                                                  reverted by
===========  ======================================================  ===============================
copy         bytes of another replica into an existing file          undo record
create       a whole file of another replica                         removing it
cut          zeros after the last record; the bytes are kept         undo record
fill         a BLANK up to the end of a file                         undo record
fetch        entries that another member has, from the plan itself   undo record
reframe      entries of a DLedger file become classic records        undo record
move         a file or folder to another path                        moving it back
move_aside   the same, out of the store, to the plan's keep folder   moving it back
make_dir     a folder                                                removing it, if empty
write        a small file as a whole (configuration, checkpoint)     undo record
derive       consume queues and key index from the log, separately   removing them
install      a folder that was built separately takes its place      renaming both back
===========  ======================================================  ===============================
"""

from __future__ import annotations

from typing import Any

import attrs

from rmqpy.model.errors import RmqError
from rmqpy.model.typed_json import check_types
from rmqpy.upgrade.plan.operations.contents import Derive, Write
from rmqpy.upgrade.plan.operations.operation import Op, OpState
from rmqpy.upgrade.plan.operations.patches import Copy, Cut, Fetch, Fill, Patch, Reframe
from rmqpy.upgrade.plan.operations.places import Create, Install, MakeDir, Move, MoveAside

__all__ = [
    "OPERATIONS",
    "Copy",
    "Create",
    "Cut",
    "Derive",
    "Fetch",
    "Fill",
    "Install",
    "MakeDir",
    "Move",
    "MoveAside",
    "Op",
    "OpState",
    "Patch",
    "Reframe",
    "Write",
    "op_from_json",
    "op_to_json",
]

OPERATIONS: tuple[type[Op], ...] = (
    Copy,
    Create,
    Cut,
    Fill,
    Fetch,
    Reframe,
    Move,
    MoveAside,
    MakeDir,
    Write,
    Derive,
    Install,
)
_BY_KIND = {each.kind: each for each in OPERATIONS}


def op_to_json(op: Op) -> dict[str, Any]:
    """Return the JSON form. Fields that plans of earlier versions lack keep their ids unchanged."""
    value = attrs.asdict(op)
    unset = {"undo_bytes": -1, "data_bytes": -1, "staged": False, "bytes_max": -1}
    for name, default in unset.items():
        if name in value and value[name] == default:
            del value[name]
    if isinstance(op, Move) and not op.after:
        del value["after"]
    return {"op": op.kind, **value}


def op_from_json(value: dict[str, Any]) -> Op:
    """Decode an operation. Raise RmqError if it is invalid, because a plan may have been edited."""
    fields = dict(value)
    kind = _BY_KIND.get(str(fields.pop("op", None)))
    if kind is None:
        raise RmqError(
            f"unknown operation {value.get('op')!r}; known are {', '.join(sorted(_BY_KIND))}"
        )
    try:
        check_types(kind, fields)
        return kind(**fields)
    except TypeError as error:
        raise RmqError(
            f"operation {kind.kind}: {error}; the plan was changed after it was created, plan again"
        ) from None
