"""The vocabulary of all packages: ids, codes, flags, errors, messages, names, clock, and files.

It imports no other package of rmqpy. Start reading in :mod:`rmqpy.model.message`.
"""
