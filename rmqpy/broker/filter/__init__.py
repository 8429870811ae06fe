"""Message filters: SQL92 expressions (parsed once, evaluated per message) and tags.

Pure computation with the results of the Java broker; imports only ``base``. Start reading in
:mod:`~rmqpy.broker.filter.sql_parser`.
"""
