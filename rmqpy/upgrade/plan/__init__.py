"""Plans: a closed set of operations, the engine that applies them, the journal and undo.

Imports nothing else of ``rmqpy.upgrade``. Start reading in :mod:`~rmqpy.upgrade.plan.plan` and
:mod:`~rmqpy.upgrade.plan.engine`.
"""
