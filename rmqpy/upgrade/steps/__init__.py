"""The steps of the road: each turns a detected state into the operations that change it.

Plans only; :mod:`rmqpy.upgrade.plan.engine` carries plans out. May import ``checks`` and ``plan``.
Start reading in :mod:`~rmqpy.upgrade.steps.planning`.
"""
