"""Deprecated name of :mod:`rmqpy.testing.suite.test_upgrade`, so that ``--pyargs`` finds it."""

from rmqpy.testing.suite.test_upgrade import *  # noqa: F403
