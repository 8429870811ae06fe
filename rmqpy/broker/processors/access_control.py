"""Access control of a broker, put together: the files, the rules, the table of demands, and the
administration of accounts.

Checked is every request at both ports of clients before its handler runs. The C core checks the
signatures of plain sends and pulls itself (:mod:`.hot_accounts`) and refuses nobody; the hot path
in Python knows no accounts and is left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from attrs import define

from rmqpy.acl.rules import AccessRules
from rmqpy.acl.signature import ACCESS_KEY, AccessChecker
from rmqpy.acl.watcher import AccessFiles, access_paths, watched_checker
from rmqpy.broker.processors.access_demands import broker_demands
from rmqpy.broker.processors.admin.acl import AccessAdminProcessor
from rmqpy.config.security import SecurityMode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from rmqpy.broker.assembly.server import BrokerDependencies, BrokerServer

LOG_PERIOD_MS: Final = 10_000
"""Refused requests are logged one by one at first, then with their number once in this time."""

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class BrokerAccessControl:
    """``check`` raises Refusal; ``start`` reads the files and raises ConfigError."""

    _broker: BrokerServer
    _files: AccessFiles
    _keeper: AccessChecker
    _logged_ms: int = -LOG_PERIOD_MS
    _logged: int = 0

    @classmethod
    def of(cls, broker: BrokerServer, deps: BrokerDependencies) -> BrokerAccessControl:
        """For ``aclEnable=true``. Adds the account requests to ``broker``."""
        configuration = deps.configuration
        security = configuration.security
        keeper, files = watched_checker(
            broker_demands(broker.store),
            access_paths(configuration.broker.rocketmq_home, security.acl_plain_file),
            deps.files,
            deps.scheduler,
            strict=security.security_mode is SecurityMode.SECURE,
        )
        control = cls(broker, files, keeper)
        files.start()
        administration = AccessAdminProcessor(
            identity=broker.identity, files=files, clock=deps.scheduler
        )
        for code, handler in administration.handlers().items():
            broker.register_handler(code, handler)
        broker.replication.others.append(control.runtime_info)
        return control

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """Raises Refusal unless the peer may do what it asks for."""
        try:
            self._keeper.check(channel.peer[0], request)
        except RequestRejectedError as refusal:
            self._log(channel, request, refusal)
            raise

    @property
    def rules(self) -> AccessRules:
        """As the files say now; others when one of them has changed."""
        return self._keeper.rules

    def account_of(self, request: RemotingCommand) -> str | None:
        """The access key of the account that may send this, if it has signed."""
        access_key = request.ext_fields.get(ACCESS_KEY, "")
        return access_key if self._keeper.has_rights(access_key, request) else None

    def checked_elsewhere(self, count: int) -> None:
        """So many requests were found to be allowed by the hot path."""
        self._keeper.allowed += count

    def stop(self) -> None:
        self._files.stop()

    def runtime_info(self) -> dict[str, str]:
        return {
            "accessRequestsAllowed": str(self._keeper.allowed),
            "accessRequestsRefused": str(self._keeper.refused),
        }

    def _log(
        self, channel: Channel, request: RemotingCommand, refusal: RequestRejectedError
    ) -> None:
        now_ms = self._broker.clients.clock.monotonic_ms()
        if now_ms - self._logged_ms < LOG_PERIOD_MS:
            return
        self._logged_ms = now_ms
        more = self._keeper.refused - self._logged - 1
        self._logged = self._keeper.refused
        logger.warning(
            "request %d of %s refused: %s%s",
            request.code,
            channel.peer[0],
            refusal.remark,
            f" ({more} more before it)" if more > 0 else "",
        )
