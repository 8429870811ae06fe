"""The questions: each computes its answer from facts, without I/O.

May import ``sources.interface``, ``answer``, and ``message_id``.
"""
