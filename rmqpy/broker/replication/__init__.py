"""The roles of a broker: following a master, becoming master, and becoming slave again.

Owns the slave's copy of its master's metadata, the check of a master's log before it is followed,
and the order of steps at a role change. May import ``services`` and below. Start reading in
:mod:`~rmqpy.broker.replication.role`.
"""
