"""Servers: listening sockets, remoting connections, overload, and the feed of the fast path.

The package may import the modules of ``rmqpy.net`` except for ``dledger`` and ``ha``. Start reading
in :mod:`~rmqpy.net.server.server`.
"""
