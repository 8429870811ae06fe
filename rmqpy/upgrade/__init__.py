"""The switch from master-slave to DLedger and the way back: checked, planned, journaled, proven.

Owns operations (a closed set), the engine that carries plans out and takes them back, and the verbs
of ``rmqpy upgrade``. What a directory *is* comes from below; which steps lead from one state to
another stands in ``migrations/``.
"""
