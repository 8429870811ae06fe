"""The name server: which broker has which topic, told by the brokers, kept in memory.

It owns the route tables (``routes``), the key/value settings in kvConfig.json (``kv_config``) and
the answers to clients, brokers and admins (``service``). Nothing else is written to disk but the
name server's own settings, after an admin changed one.
"""

from rmqpy.namesrv.route_info import NamesrvLimits, RouteInfoTable
from rmqpy.namesrv.server import NameServer

__all__ = ["NameServer", "NamesrvLimits", "RouteInfoTable"]
