"""Servers: listening sockets, remoting connections, overload, and the feed of the fast path.

May import the modules of ``rmqpy.net`` that are neither ``dledger`` nor ``ha``. Start reading in
:mod:`~rmqpy.net.server.server`.
"""
