"""Requests of operators and tools, which Java answers in ``AdminBrokerProcessor``.

Owns no state; reads and changes the tables of ``rmqpy.broker.state``. Imports none of the
processors of clients. Start reading in :mod:`~rmqpy.broker.processors.admin.topics_and_groups`.
"""
