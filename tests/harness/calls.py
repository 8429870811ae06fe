"""The Python functions that are called: what a feature costs, without a clock."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

STATUS = "broker/state/replication_status.py"


@contextmanager
def calls() -> Iterator[Counter[CodeType]]:
    """Count the calls of each Python function, without those of a garbage collection."""
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found[frame.f_code] += 1

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        yield found
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


def asked(found: Counter[CodeType]) -> Counter[str]:
    """Return how often a send asked for the state of the slaves, by function."""
    return Counter(
        {code.co_name: n for code, n in found.items() if code.co_filename.endswith(STATUS)}
    )
