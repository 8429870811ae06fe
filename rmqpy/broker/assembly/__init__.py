"""The composition root of the broker: settings in, a running broker out.

Owns construction, the life cycle of a process, and the exporter of metrics. May import everything
in ``rmqpy.broker`` and below it; nothing in ``rmqpy.broker`` imports it. Start reading in
:mod:`~rmqpy.broker.assembly.process`, which starts a broker, and
:mod:`~rmqpy.broker.assembly.server`, which routes requests to processors.
"""
