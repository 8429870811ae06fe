"""What every part of the broker shares: its context, the store API, scheduling helpers.

Imports nothing else of ``rmqpy.broker``. Start reading in :mod:`~rmqpy.broker.base.context`.
"""
