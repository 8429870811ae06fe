"""The commit log: one interface with three implementations.

``classic`` keeps mapped files, ``dledger`` keeps Raft entries, and ``joined`` routes each offset to
one of the two at ``divided_offset``. May import ``ledger`` and ``files``. Start reading in
:mod:`~rmqpy.store.commitlog.interface`.
"""
