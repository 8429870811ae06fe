"""``format("rocketmq")`` for Spark: stores and live brokers as tables, streams, and sinks.

May import ``spark`` and ``arrow``. Start reading in :mod:`~rmqpy.pipeline.datasource.source`.
"""
