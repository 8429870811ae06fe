"""What producers and consumers share: routes, connections, members of groups, messages.

Imports nothing else of ``rmqpy.client``. Start reading in :mod:`~rmqpy.client.core.instance`.
"""
