"""Access control of a broker: the files, the rules, the table of required permissions, and the
administration of accounts.

Every request at both client ports is checked before its handler runs. The C core checks the
signatures of plain sends and pulls itself (:mod:`rmqpy.broker.fastpath.accounts`) and refuses none;
every request that it cannot verify is checked here.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define

from rmqpy.acl.rules import AccessRules
from rmqpy.acl.signature import ACCESS_KEY, AccessChecker
from rmqpy.acl.watcher import AccessFiles
from rmqpy.model.clock import Clock
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

LOG_PERIOD_MS: Final = 10_000
"""The minimum time between two log lines about refused requests. Each line contains the number of
requests refused since the last one.
"""

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class BrokerAccessControl:
    """The check of every request, which counts and logs refusals."""

    _checker: AccessChecker
    _files: AccessFiles
    _clock: Clock
    _logged_ms: int = -LOG_PERIOD_MS
    _logged: int = 0

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """Check a request. Raises RequestRejectedError unless the peer may do what it requests."""
        try:
            self._checker.check(channel.peer[0], request)
        except RequestRejectedError as refusal:
            self._log(channel, request, refusal)
            raise

    @property
    def rules(self) -> AccessRules:
        """The rules in effect: another object after one of the files has changed."""
        return self._checker.rules

    def account_of(self, request: RemotingCommand) -> str | None:
        """Return the access key of the account that signed this request and may
        send it, or None.
        """
        access_key = request.ext_fields.get(ACCESS_KEY, "")
        return access_key if self._checker.has_rights(access_key, request) else None

    def checked_elsewhere(self, count: int) -> None:
        """Count requests that the fast path has found to be allowed."""
        self._checker.count_allowed(count)

    def stop(self) -> None:
        self._files.stop()

    def runtime_info(self) -> dict[str, str]:
        return {
            "accessRequestsAllowed": str(self._checker.allowed),
            "accessRequestsRefused": str(self._checker.refused),
        }

    def _log(
        self, channel: Channel, request: RemotingCommand, refusal: RequestRejectedError
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_ms < LOG_PERIOD_MS:
            return
        self._logged_ms = now_ms
        more = self._checker.refused - self._logged - 1
        self._logged = self._checker.refused
        logger.warning(
            "request %d of %s refused: %s%s",
            request.code,
            channel.peer[0],
            refusal.remark,
            f" ({more} more since the last line)" if more > 0 else "",
        )
