"""The tables of a broker, and their JSON files in ``config/``.

Owns topics, subscription groups, consumer offsets, delay offsets, filters, connected clients, queue
locks and statistics. May import ``filter`` and ``base``. Start reading in
:mod:`~rmqpy.broker.state.topics`.
"""
