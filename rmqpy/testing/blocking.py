"""Deprecated name of :mod:`rmqpy.testing.blocking_connection`, removed in the next version."""

import warnings

from rmqpy.testing.blocking_connection import *  # noqa: F403

warnings.warn(
    "rmqpy.testing.blocking is deprecated: use rmqpy.testing.blocking_connection",
    DeprecationWarning,
    stacklevel=2,
)
