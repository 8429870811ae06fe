"""The commands of ``rmqpy upgrade`` for a whole group: ``init``, ``status``, ``next``, ``run``."""
