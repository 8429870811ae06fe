"""The modules that only members of a DLedger group need, loaded by a running broker.

Loading takes 0.1 s of a core, in pieces of up to 10 ms in which the interpreter runs nothing else.
When all brokers of a group loaded at once, beside their clients, the clients of two cores waited
for up to 0.5 s. So the members load one after the other, and each rests before each module.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from attrs import field

from rmqpy.model.values import define

REST_S: Final = 0.01
LOADING_S: Final = 0.6
"""The time in which one broker loads, with its rests."""
LAST: Final = "rmqpy.store.commitlog.dledger_opening"


@define(slots=True, eq=False)
class RestBeforeModule:
    """A finder that finds nothing, and rests if this thread looks for a module."""

    _thread: int = field(factory=threading.get_ident)

    def find_spec(
        self, _name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if threading.get_ident() == self._thread:
            time.sleep(REST_S)
        return None


def load_member_modules(others_before: int) -> None:
    """Load them, after so many other members. Blocks for about half a second for each of them."""
    if LAST in sys.modules:
        return
    time.sleep(others_before * LOADING_S)
    rest = RestBeforeModule()
    # Other threads may be reading the list.
    sys.meta_path = [rest, *sys.meta_path]
    try:
        import rmqpy.broker.assembly.group_member
        import rmqpy.broker.assembly.leave.member
        import rmqpy.store.commitlog.dledger_opening  # noqa: F401
    finally:
        sys.meta_path = [each for each in sys.meta_path if each is not rest]
