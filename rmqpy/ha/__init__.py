"""Classic replication: the bytes between a slave and its master, and both ends as state machines.

:mod:`.frames` defines the bytes, :mod:`.link` the states. No module has a socket, file or clock.
"""
