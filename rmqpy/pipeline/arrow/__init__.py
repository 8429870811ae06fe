"""Messages as Arrow batches: the schema of exports and of the data source.

Imports nothing else of ``rmqpy.pipeline``. Start reading in :mod:`~rmqpy.pipeline.arrow.rows`.
"""
