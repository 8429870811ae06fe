"""The questions of health checks, and the start of the pages that answer them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmqpy.model.errors import ConfigError
from rmqpy.net.client import parse_address

if TYPE_CHECKING:  # needs aiohttp
    from rmqpy.net.status_pages import StatusPages

logger = logging.getLogger(__name__)


class Probes(Protocol):
    """What a server knows about itself. Both are called in the loop, and are cheap."""

    def unhealthy(self) -> Sequence[str]:
        """Return the reasons why the process should be started again."""

    def not_ready(self) -> Sequence[str]:
        """Return the reasons why clients should not be sent to this server."""


async def open_status_pages(
    address: str | None, probes: Probes, *, metrics: bool
) -> StatusPages | None:
    """Serve ``/health``, ``/ready`` and, with ``metrics``, ``/metrics`` on the address in
    ``metricsListenAddress``; return None without one.

    Raises ConfigError if aiohttp is missing or the port is not available.
    """
    if address is None:
        return None
    try:
        from rmqpy.net.status_pages import StatusPages
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metricsListenAddress is set, and {error.name} is not installed:"
            " pip install 'rmqpy[metrics]'"
        ) from None
    pages = StatusPages(probes.unhealthy, probes.not_ready, metrics)
    try:
        listening = await pages.listen(*parse_address(address))
    except OSError as error:
        raise ConfigError(
            f"metricsListenAddress={address}: found {error.strerror or error}, expected a free port"
            " of this machine; stop the process that uses it, or change the key"
        ) from error
    logger.info("%shealth at http://%s/", "metrics and " if metrics else "", listening)
    return pages
