"""Tools for the tests of rmqpy and of its users: a broker that starts in a moment, virtual time,
channels, files, and a whole broker in memory; real processes; and real Java.

:class:`Broker` and :class:`NameServer` are for users' tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqpy.testing.broker import Broker, BrokerClosedError, NameServer

__all__ = ["Broker", "BrokerClosedError", "NameServer"]


def __getattr__(name: str) -> Any:
    # The pytest plug-in is imported in every test run, so it must not import all this.
    if name in __all__:
        from rmqpy.testing import broker

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
