"""The parts that the whole broker shares: its context, the store API, scheduling.

Imports nothing else of ``rmqpy.broker``. Start reading in :mod:`~rmqpy.broker.base.context`.
"""
