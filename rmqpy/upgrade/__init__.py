"""The switch from master-slave to DLedger and the way back, with checks, plans and a journal.

Sub-packages, top to bottom; each imports only from those below it:

========== ======================================================================
``steps``  shared by all steps: contexts, the reference, the plans of the commands
``checks`` what prevents a switch: hazards, configuration, diverged logs
``plan``   plans, the closed set of operations, the engine and its journal
========== ======================================================================

``serve`` serves a replica's files to other hosts, ``runbook`` prints the operator's commands. The
steps from one detected state to the next are in ``migrations/``. Start reading in
:mod:`rmqpy.upgrade.steps.planning`.
"""
