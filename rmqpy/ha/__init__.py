"""Classic replication: the bytes between a slave and its master, and both ends as state machines.

:mod:`.frames` has the bytes, :mod:`.link` the states. Neither has a socket, file or clock.
"""
