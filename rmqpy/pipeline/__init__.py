"""Stores on Spark: the work of :mod:`rmqpy.audit` on the cores of many machines.

Sub-packages, top to bottom; each imports only from those below it:

============== ==================================================================
``jobs``       the commands: audit, export, rebuild, SQL, reports
``datasource`` ``format("rocketmq")``: stores and live brokers as tables
``lake``       tables that grow with a store: Parquet, Delta, Iceberg; masking, body schemas
``spark``      sessions with rmqpy's defaults, work in tasks, progress, the JVM
``arrow``      messages as Arrow batches
============== ==================================================================

Only this package imports pyspark and pyarrow. Except for ``datasource``, every module can be
imported without the extra ``spark``, and a call then says what is missing. The jobs use DataFrames,
not RDDs. The driver and the workers open stores read-only, under the same path. Start reading in
:mod:`rmqpy.pipeline.jobs.spark_runner`. The folder ``queries`` has the SQL of ready-made queries.
"""
