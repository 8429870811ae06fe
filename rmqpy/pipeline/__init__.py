"""Stores on Spark: what :mod:`rmqpy.audit` does on one machine, over the cores of many.

==================  ===========================================================================
:mod:`.java`        the Java that Spark will run on: found and asked for its version
:mod:`.session`     Spark sessions with our defaults; what is here of what they need (doctor)
:mod:`.tasks`       numbered pieces of work over Spark tasks, results in order
:mod:`.runner`      ranges of a store over Spark: the other engine of the audit
:mod:`.tables`      ranges, queues and findings of an audit as Parquet, JSON and DataFrames
:mod:`.rows`        messages of a range as Arrow batches: the schema of an export
:mod:`.pieces`      ranges whose results are files, and the proof that they join
:mod:`.export`      messages of stores as Parquet files, written by the workers
:mod:`.rebuild`     consume queues and key index from the logs, in a folder aside
:mod:`.query`       SQL over an export
==================  ===========================================================================

Only this package imports pyspark and pyarrow, and only in its functions: without the extra
``spark`` everything here can be imported, and says what is missing when it is called.

Only DataFrames are used, no RDDs. Stores are opened read-only, by the driver and by the workers,
under the same path.
"""
