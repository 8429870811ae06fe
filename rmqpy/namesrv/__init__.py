"""The name server: the topics of each broker, as registered by the brokers, kept in memory.

It owns the route tables (``route_info``), the key-value settings in kvConfig.json (``kv_config``),
and the answers to clients, brokers and admins (``server``). Apart from kvConfig.json it writes only
its own settings to disk, after an admin has changed one.
"""

from rmqpy.namesrv.route_info import NamesrvLimits, RouteInfoTable
from rmqpy.namesrv.server import NameServer

__all__ = ["NameServer", "NamesrvLimits", "RouteInfoTable"]
