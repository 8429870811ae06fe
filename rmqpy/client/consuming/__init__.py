"""The parts of a push consumer: rebalance, process queues, flow control, and offsets.

May import ``core``. Start reading in :mod:`~rmqpy.client.consuming.consume_service`.
"""
