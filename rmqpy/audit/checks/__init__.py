"""The full audit of one store: every message, every queue unit, every key.

May import ``facts`` and ``scan``. Start reading in :mod:`~rmqpy.audit.checks.engine`.
"""
