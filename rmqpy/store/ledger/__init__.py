"""The files of a DLedger member: entries, their index, term and vote, and the classic prefix.

May import ``files``. Start reading in :mod:`~rmqpy.store.ledger.entry_store`.
"""
