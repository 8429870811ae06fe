"""The steps of an upgrade: a path between states that are *detected*, not a history of versions.

``diverged → aligned → sealed → joined → dledger_only``, and back to ``aligned`` by leaving. Each
module has ``FROM`` and ``TO`` (states of :class:`rmqpy.upgrade.steps.states.GroupState`),
``REASON``,
``plan(situation)`` (pure: reads, returns operations), ``verify(situation)`` (what is not as the
step leaves it) and either ``undo`` (how it is taken back) or ``IRREVERSIBLE`` (why it is not).
"""
