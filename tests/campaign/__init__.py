"""The fault campaign: one random fault in a healthy store, and the commands that must report it.

=============  ====================================================================
``stores``     healthy groups of every kind: classic, joined, DLedger, left
``faults``     faults: a bit, a page, a truncation, a missing, extra or swapped file,
               a stale table
``meaning``    the bytes of each kind of file that matter, by the rules of its readers
``judges``     the commands, run as a user runs them, and what they reported
``runner``     injects faults, asks the judges, removes the faults again
=============  ====================================================================

``tox -e faults`` runs it; docs/reference/fault-campaign.md has its results.
"""
