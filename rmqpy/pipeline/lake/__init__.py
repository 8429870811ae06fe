"""Tables that grow with a store: Parquet folders, Delta tables, and Iceberg tables.

A table records in each commit how far the store has been appended, so the rows and the position
change together. Start reading in :mod:`rmqpy.pipeline.lake.tables`.
"""
