"""The access control of a name server: which peers may register, administer, and read.

Java's name server accepts requests of every peer. rmqpy's requires a listed address or a signature:

================  ==================================  ==============================================
request           without namesrvAclEnable            with namesrvAclEnable
================  ==================================  ==============================================
registrations     from registrationAddresses          from these, or signed by an administrator
administration    from administrationAddresses        from these, or signed by an administrator
reading           from anywhere                       signed by an account
================  ==================================  ==============================================

A registration by signature needs the key of an administrator in the broker's
``innerClientAuthenticationCredentials``. Java brokers do not sign their registrations, so their
addresses must be in the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define

from rmqpy.acl.address_patterns import AddressPattern, any_matches
from rmqpy.acl.signature import AccessChecker, AccessDemand, AccessLevel
from rmqpy.acl.watcher import AccessFiles, access_paths, watched_checker
from rmqpy.config.loading import NamesrvConfiguration
from rmqpy.config.security import SecurityMode, split_patterns
from rmqpy.model.clock import Scheduler
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.files import FileSystem
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand

REGISTRATION: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
    }
)

ADMINISTRATION: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)

READING: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    }
)

NAMESRV_DEMANDS: Final[Mapping[int, AccessDemand]] = {
    **{code: AccessDemand(AccessLevel.ADMINISTRATOR) for code in REGISTRATION | ADMINISTRATION},
    **{code: AccessDemand(AccessLevel.ACCOUNT) for code in READING},
}
"""The demand of every request code that a name server answers. With access control, all other codes
are refused.
"""


@define(slots=True, eq=False, repr=False)
class NamesrvAccess:
    """The access control of a name server.

    ``start`` reads the access files and raises ConfigError; ``check`` raises RequestRejectedError.
    """

    _registrars: tuple[AddressPattern, ...]
    _administrators: tuple[AddressPattern, ...]
    _checker: AccessChecker | None
    _files: AccessFiles | None

    @classmethod
    def from_configuration(
        cls, configuration: NamesrvConfiguration, files: FileSystem, scheduler: Scheduler
    ) -> NamesrvAccess:
        settings, security = configuration.namesrv, configuration.security
        registrars = split_patterns(settings.registration_addresses)
        administrators = split_patterns(settings.administration_addresses)
        if not settings.namesrv_acl_enable:
            return cls(registrars, administrators, None, None)
        checker, access_files = watched_checker(
            NAMESRV_DEMANDS,
            access_paths(settings.rocketmq_home, security.acl_plain_file),
            files,
            scheduler,
            strict=security.security_mode is SecurityMode.SECURE,
        )
        return cls(registrars, administrators, checker, access_files)

    def start(self) -> None:
        if self._files is not None:
            self._files.start()

    def stop(self) -> None:
        if self._files is not None:
            self._files.stop()

    def check(self, channel: Channel, request: RemotingCommand) -> None:
        """Raise RequestRejectedError unless the peer may send ``request``."""
        address = channel.peer[0]
        if request.code in REGISTRATION:
            allowed, action, key = self._registrars, "register with", "registrationAddresses"
        elif request.code in ADMINISTRATION:
            allowed, action, key = self._administrators, "administer", "administrationAddresses"
        elif self._checker is None:
            return
        else:
            self._checker.check(address, request)
            return
        if any_matches(allowed, address):
            return
        if self._checker is None:
            raise RequestRejectedError(
                ResponseCode.NO_PERMISSION,
                f"{address} may not {action} this name server: it is not in {key}",
            )
        self._checker.check(address, request)
