"""Remove a member's entries after an index: the file with the index is cut, later ones are moved
aside. Everything that is removed is kept until ``finalize``.
"""

from __future__ import annotations

import attrs

from rmqpy.model.files import FileSystem
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.ledger import EntryFile, Ledger, position_after
from rmqpy.upgrade.plan.node_context import (
    CHUNK,
    UpgradeRefusedError,
    digest_of,
    range_digest,
)
from rmqpy.upgrade.plan.operations import Cut, MoveAside, Op


def cut_after(
    files: FileSystem, ledger: Ledger, index: int, keep: str, why: str
) -> tuple[list[EntryFile], list[Op]]:
    """Return the files that stay, in final form, and the operations that remove the rest.

    ``index`` is the last entry that stays; with one before the first entry, nothing does. Raise
    UpgradeRefusedError if the member does not have it.
    """
    if index > ledger.end_index:
        raise UpgradeRefusedError(
            f"the group keeps entries up to {index}, this member has them up to"
            f" {ledger.end_index}; start the group, let it catch up, and stop it again"
        )
    if index < 0 or index < ledger.files[0].first_index:
        return [], _aside(ledger.files, keep)
    number, position = position_after(files, ledger, index)
    last, later = ledger.files[number], ledger.files[number + 1 :]
    if index == ledger.end_index and not any(each.first_index >= 0 for each in later):
        return list(ledger.files[: number + 1]), _aside(later, keep)
    ops = _aside(later, keep)
    end = _content_end(files, last.path)
    if end > position:
        ops.append(
            Cut(
                path=last.path,
                start=position,
                end=end,
                before=range_digest(files, last.path, position, end),
                after=digest_of(bytes(end - position)),
                kept=f"{keep}/cut/{file_name(last.base_offset + position)}",
                why=why,
            )
        )
    cut = attrs.evolve(last, content_end=position, closed=False, last_index=index)
    return [*ledger.files[:number], cut], ops


def _aside(entry_files: list[EntryFile], keep: str) -> list[Op]:
    """Move files aside in reverse order, so that an interruption leaves no gap."""
    return [
        MoveAside(
            path=entry_file.path,
            to=f"{keep}/entries/{file_name(entry_file.base_offset)}",
            why="no entry in it is kept",
        )
        for entry_file in reversed(entry_files)
    ]


def _content_end(files: FileSystem, path: str) -> int:
    """Return the position after the last byte that is not zero."""
    file = files.open_readonly(path)
    try:
        view, stop = file.view, file.size
        while stop > 0:
            start = max(0, stop - CHUNK)
            chunk = bytes(view[start:stop]).rstrip(b"\0")
            if chunk:
                return start + len(chunk)
            stop = start
        return 0
    finally:
        file.close()
