"""The message store: logs, the files derived from them, and recovery. Synchronous.

Sub-packages, top to bottom; each imports only from those below it:

============= ====================================================================
(this folder) the facade ``MessageStore`` and its parts: append, read, dispatch
``queues``    consume queues and the next queue offsets
``index``     the key index
``commitlog`` the logs, with one interface: classic, DLedger, joined
``ledger``    DLedger data and index files, and the classic log before them
``files``     mapped files, checkpoints, atomic writes, recovery of a log
============= ====================================================================

Uses no event loop and no socket; all file access goes through :mod:`rmqpy.model.files`, and the
clock is an argument. Start reading in :mod:`rmqpy.store.message_store`.
"""
