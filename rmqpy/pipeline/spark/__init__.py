"""Use Spark: sessions with rmqpy's defaults, numbered work in tasks, progress, the JVM.

May import ``arrow``. Start reading in :mod:`~rmqpy.pipeline.spark.session`.
"""
