"""The switch from master-slave to DLedger and the way back: checked, planned, journaled, proven.

Sub-packages, top to bottom; each imports only from those below it:

========== ======================================================================
``steps``  what each step of the road plans: align, seal, switch, leave
``checks`` what stands in the way: hazards, configuration, diverged logs
``plan``   plans, the closed set of operations, the engine and its journal
========== ======================================================================

``serve`` gives a replica's files to other hosts, ``runbook`` prints the commands of an operator.
Which step leads from one detected state to the next is defined in ``migrations/``. Start reading in
:mod:`rmqpy.upgrade.steps.planning`.
"""
