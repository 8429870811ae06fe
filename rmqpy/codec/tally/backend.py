"""The kernel of audits, in C or Python as chosen by :mod:`rmqpy.codec.backend`."""

from __future__ import annotations

from collections.abc import Callable

from rmqpy.codec import backend
from rmqpy.codec.scan import StopReason
from rmqpy.codec.tally.kernel import Tally

__all__ = ["tally_frames"]

_TallyFrames = Callable[[memoryview, int, int, int, Tally], tuple[int, StopReason]]


def _choose() -> _TallyFrames:
    if backend.implementation == "c":
        from rmqpy.codec.tally import native

        return native.tally_frames
    from rmqpy.codec.tally import kernel

    return kernel.count_frames


tally_frames = _choose()
