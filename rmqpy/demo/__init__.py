"""``rmqpy demo``: switch a classic store to DLedger on one machine, with real sockets and files.

This package contains the walk-through and its table; all of its steps use the broker, the name
server, and the client.
"""

from rmqpy.demo.walkthrough import DemoPlan, run_demo

__all__ = ["DemoPlan", "run_demo"]
