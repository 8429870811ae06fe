"""Scans of log files: ranges and their merge, damage and its diagnosis, the list of findings.

Imports nothing else of ``rmqpy.audit``. Start reading in :mod:`~rmqpy.audit.scan.ranges`.
"""
