"""Planted bugs of the fast path: of the rules by which Python and the C core share their state.

:mod:`.mutations` lists them with its own. The fast path itself is imported when a bug is planted,
because it needs the C core.
"""

from __future__ import annotations

from typing import Any

from simulator.mutation_engine import Patches, fast_path_mutation


@fast_path_mutation
def fast_path_answers_before_the_quorum(patches: Patches) -> None:
    from rmqpy.broker.fastpath.engine import FastPath

    patches.replace(FastPath, "_hold_unacknowledged", lambda self: None)


@fast_path_mutation
def fast_path_forgets_the_next_offsets(patches: Patches) -> None:
    """C gives queue offsets from a table that Python no longer uses."""
    from rmqpy.broker.fastpath.engine import FastPath

    original = patches.original(FastPath, "_share_cells")

    def share_cells(self: Any) -> None:
        if self._cells is None:
            original(self)

    patches.replace(FastPath, "_share_cells", share_cells)
