"""The parts that producers and consumers share: routes, connections, group membership, messages.

Imports nothing else of ``rmqpy.client``. Start reading in :mod:`~rmqpy.client.core.instance`.
"""
