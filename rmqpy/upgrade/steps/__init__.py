"""The shared code of the steps of an upgrade; the steps themselves are in ``migrations/``.

This package only plans; :mod:`rmqpy.upgrade.plan.engine` carries plans out. May import ``checks``
and ``plan``. Start reading in :mod:`~rmqpy.upgrade.steps.planning`.
"""
