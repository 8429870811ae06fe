"""The upgrade regression suite, for users' own stores, and fixtures for users' own tests.

``pytest --pyargs rmqpy.testing.suite --rmq-store DIR`` runs check → plan → apply → switch →
verify → leave → verify on copies of DIR, with rmqpy brokers, and with ``--rmq-java VERSION`` also
with the Java broker. DIR is only read. The plug-in (entry point ``pytest11``) provides the fixtures
``rmq_namesrv``, ``rmq_broker``, ``rmq_group``, and ``rmq_upgraded_group`` to any test; their
modules are imported when one of them is used.
"""
