"""Notice the end of the process that started this one, so that no server outlives its test run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Final

POLL_SECONDS: Final = 0.5


class ParentWatch:
    """A watch over the parent process; ``ended`` is called once, in the loop.

    The descriptor of the parent is opened first and its process id compared then, so that a parent
    that has ended in the meantime, or whose id was given to another process, is not missed. A
    process without a parent in its container (id 0 or 1 and none given) is not watched.
    """

    def __init__(self, parent_pid: int | None, ended: Callable[[], None]) -> None:
        self._pid = os.getppid() if parent_pid is None else parent_pid
        self._given = parent_pid is not None
        self._ended = ended
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch. Call it in the loop."""
        if not self._given and self._pid <= 1:
            return
        if sys.platform != "linux":
            self._poll()
            return
        try:
            self._fd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            self._report()
            return
        except (OSError, AttributeError):  # an old kernel or library
            self._poll()
            return
        if os.getppid() != self._pid:
            self._report()
            return
        asyncio.get_running_loop().add_reader(self._fd, self._report)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _poll(self) -> None:
        if os.getppid() != self._pid:
            self._report()
        else:
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def _report(self) -> None:
        self.stop()
        self._ended()
