"""The facts of a store: mode, logs, ends, queues, and small files, read without a full scan.

May import ``scan``. Start reading in :mod:`~rmqpy.audit.facts.facts`.
"""
