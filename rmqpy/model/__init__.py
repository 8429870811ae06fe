"""Words that every floor shares: ids, codes, flags, errors, messages, names, clock, files.

Imports nothing of rmqpy. Start reading in :mod:`rmqpy.model.message`.
"""
