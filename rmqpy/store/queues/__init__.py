"""Consume queues: 20-byte units per message, their recovery, and the next queue offsets.

May import ``index``, ``commitlog`` and below. Start reading in
:mod:`~rmqpy.store.queues.consume_queue`.
"""
