"""The checks before a switch: replicas, configurations, tables, and the hazards of the road.

Reads only. May import ``plan``. Start reading in :mod:`~rmqpy.upgrade.checks.group_checks`.
"""
