"""Free what tests leave in memory, so that a whole run stays small.

Python seldom looks for cycles among few objects, even if these are the files of a store in memory;
and the C library keeps what was freed in its arenas. Without this, a run of all tests reaches
2.5 GB.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

from attrs import define

STATM = Path("/proc/self/statm")
LEFT_BYTES_MAX = 128 << 20


@define
class Memory:
    """The memory of this process, if the system shows it."""

    after_last_free: int | None = None

    def free_if_much_is_left(self) -> None:
        """Free memory if more than LEFT_BYTES_MAX has been added since the last call that did."""
        resident = resident_bytes()
        if resident is None:
            return
        if self.after_last_free is None:
            self.after_last_free = resident
        elif resident > self.after_last_free + LEFT_BYTES_MAX:
            gc.collect()
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
            self.after_last_free = resident_bytes()


def resident_bytes() -> int | None:
    if not STATM.exists():
        return None
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
