"""UNIQ_KEY: the id that a producer gives a message before it is stored (Java:
MessageClientIDSetter).

====================  =====  ====================================================
part                  bytes  content
====================  =====  ====================================================
address               4, 16  of the producer's host (16: IPv6)
process               2      low 16 bits of the process id
marker                4      any four bytes, the same for the life of the process
time                  4      ms since the month began (local time), signed
counter               2      incremented for every id
====================  =====  ====================================================

It is written as 32 or 56 upper-case hexadecimal digits. The ids of one producer are distinct as
long as it creates fewer than 65,536 of them per millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from struct import pack

from rmqpy.model.clock import Clock

_CLOCK_STEP_BACK_MS = 1_000_000
"""A clock that is set back by less than this across the start of a month counts as that start."""


class UniqueIds:
    """A source of unique ids. ``address`` is packed; ``marker`` has four bytes."""

    def __init__(self, address: bytes, process_id: int, marker: bytes, clock: Clock) -> None:
        assert len(address) in (4, 16) and len(marker) == 4, (address, marker)
        prefix = address + (process_id & 0xFFFF).to_bytes(2) + marker
        self._prefix = prefix.hex().upper()
        self._clock = clock
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._last_ms = -1
        self._last_head = ""

    def next(self) -> str:
        """Return the next id."""
        head = self._head()
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{head}{counter:04X}"

    def take(self, count: int) -> tuple[str, str]:
        """Return the next ids, all of one time: what they begin with, and the last four digits of
        each, separated by commas.
        """
        head = self._head()
        start = self._counter
        end = start + count
        self._counter = end & 0xFFFF
        numbers: Iterable[int] = range(start, end)
        if end > 0x10000:
            numbers = [number & 0xFFFF for number in numbers]
        return head, pack(f">{count}H", *numbers).hex(",", 2).upper()

    def _head(self) -> str:
        """Return what precedes the counter in the ids of this moment."""
        now_ms = self._clock.now_ms()
        if now_ms == self._last_ms:
            return self._last_head
        if now_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = month_start_ms(now_ms)
        since_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_BACK_MS < since_ms < 0:
            since_ms = 0
        # A clock set back by months still yields an id: only the low bits count.
        self._last_ms, self._last_head = now_ms, f"{self._prefix}{since_ms & 0xFFFFFFFF:08X}"
        return self._last_head


def month_start_ms(now_ms: int) -> tuple[int, int]:
    """Return the start of the local month that contains ``now_ms``, and of the next, in ms."""
    start = datetime.fromtimestamp(now_ms / 1000).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    following = (start + timedelta(days=32)).replace(day=1)
    return int(start.timestamp() * 1000), int(following.timestamp() * 1000)
