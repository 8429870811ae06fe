"""Classic replication: the bytes between a slave and its master, and both ends as states.

:mod:`.frames` knows the bytes, :mod:`.link` what to do with them. No socket, file or clock here.
"""
