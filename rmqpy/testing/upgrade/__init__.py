"""Deprecated name of :mod:`rmqpy.testing.suite`; it will be removed in the next version."""

import warnings

warnings.warn(
    "rmqpy.testing.upgrade is deprecated: use rmqpy.testing.suite and rmqpy.testing.plugin",
    DeprecationWarning,
    stacklevel=2,
)
