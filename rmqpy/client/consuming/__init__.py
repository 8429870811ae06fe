"""What a push consumer is made of: rebalance, process queues, flow control, offsets.

May import ``core``. Start reading in :mod:`~rmqpy.client.consuming.consume_service`.
"""
