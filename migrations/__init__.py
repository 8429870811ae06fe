"""The steps of an upgrade: a path between *detected* states, not a history of versions.

The path is ``diverged → aligned → sealed → joined → dledger_only``, and back to ``aligned`` by
leaving. Each module contains the code of one step and has

- ``FROM`` and ``TO``: states of :class:`rmqpy.upgrade.steps.states.GroupState`,
- ``REASON``: why the step is needed,
- ``plan(context)``: pure; reads the replicas and returns each node's operations,
- ``verify(context)``: returns every deviation from the state that the step leaves,
- ``undo()``: returns how to revert the step; or ``IRREVERSIBLE``: why it cannot be reverted.
"""
