"""The files of the store: mapped segments, checkpoints, atomic replacement, recovery.

Imports nothing else of ``rmqpy.store``. Start reading in :mod:`~rmqpy.store.files.mapped_files`.
"""
