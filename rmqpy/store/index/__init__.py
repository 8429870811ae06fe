"""The key index: files of hash slots that lead from a key to physical offsets.

May import ``commitlog`` and below. Start reading in :mod:`~rmqpy.store.index.index_file`.
"""
