"""Deprecated name of :mod:`rmqpy.testing.plugin`."""

from rmqpy.testing.plugin import *  # noqa: F403
