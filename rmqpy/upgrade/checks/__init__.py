"""The checks before a switch: replicas, configurations, tables, and the known hazards.

Checks change nothing. May import ``plan``. Start reading in
:mod:`~rmqpy.upgrade.checks.group_checks`.
"""
