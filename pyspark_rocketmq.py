"""The module by which Spark finds ``format("rocketmq")`` itself.

Spark imports every installed top-level module whose name starts with ``pyspark_`` and registers its
``DefaultSource``, so that no program has to call ``register``.
"""

from __future__ import annotations

from rmqpy.pipeline.datasource.source import RocketMqSource as DefaultSource

__all__ = ["DefaultSource"]
