"""Spark itself: sessions with our defaults, numbered work over tasks, progress, the JVM.

May import ``arrow``. Start reading in :mod:`~rmqpy.pipeline.spark.session`.
"""
