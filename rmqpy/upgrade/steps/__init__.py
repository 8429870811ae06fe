"""What the steps of an upgrade share; the steps themselves are in ``migrations/``.

Planning only; :mod:`rmqpy.upgrade.plan.engine` carries plans out. May import ``checks`` and
``plan``. Start reading in :mod:`~rmqpy.upgrade.steps.planning`.
"""
