"""Administration of accounts over the wire: codes 50 to 54.

A change is answered when it has been written to the access file that defines the account (the main
file for a new account) and is in effect. The listing (54) contains names and rights, but no
secrets. Without access control all five are answered as unknown codes, unlike in Java.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import define, evolve

from rmqpy.acl.plain_acl_file import AccessFile, PlainAccount
from rmqpy.acl.watcher import AccessFiles
from rmqpy.broker.base.context import BrokerContext
from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.model.clock import Clock
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.bodies import AclConfig, DataVersion, PlainAccessConfig
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import dumps
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)

ACCOUNTS_MAX: Final = 10_000
"""The limit on the accounts of all files together; at the limit, no account is created over the
wire.
"""


@define(slots=True, frozen=True, kw_only=True, eq=False, repr=False)
class AccessAdminProcessor:
    """The processor of the account requests."""

    identity: BrokerContext
    files: AccessFiles
    clock: Clock

    def handlers(self) -> HandlerTable:
        return {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: self.update_account,
            RequestCode.DELETE_ACL_CONFIG: self.delete_account,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: self.versions,
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: self.update_white_addresses,
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: self.list_accounts,
        }

    def update_account(self, channel: Channel, request: RemotingCommand) -> None:
        failed = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        header = CreateAccessConfigRequestHeader.decode(request.ext_fields)
        path = self._path_of(header.access_key)
        if path is None:
            count = sum(len(file.accounts) for file in self.files.read_files.values())
            if count >= ACCOUNTS_MAX:
                raise RequestRejectedError(failed, f"the limit of {count} accounts is reached")
        now_ms = self.clock.now_ms()

        def change(file: AccessFile) -> AccessFile:
            return file.with_account(_updated(file.find(header.access_key), header), now_ms)

        self.files.change(path or self.files.main, change, _answer(channel, request, failed))

    def delete_account(self, channel: Channel, request: RemotingCommand) -> None:
        failed = ResponseCode.DELETE_ACL_CONFIG_FAILED
        key = DeleteAccessConfigRequestHeader.decode(request.ext_fields).access_key
        path = self._path_of(key)
        if path is None:
            raise RequestRejectedError(failed, f"the access control has no account {key[:64]}")
        now_ms = self.clock.now_ms()
        self.files.change(
            path,
            lambda file: file.without_account(key, now_ms),
            _answer(channel, request, failed),
        )

    def update_white_addresses(self, channel: Channel, request: RemotingCommand) -> None:
        failed = ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        header = UpdateGlobalWhiteAddrsConfigRequestHeader.decode(request.ext_fields)
        path = header.acl_file_full_path or self.files.main
        if path != self.files.main and path not in self.files.read_files:
            raise RequestRejectedError(
                failed, "aclFileFullPath is not one of this broker's access files"
            )
        white = tuple(_split(header.global_white_addrs))
        now_ms = self.clock.now_ms()
        self.files.change(
            path,
            lambda file: file.changed(now_ms, white=white),
            _answer(channel, request, failed),
        )

    def versions(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        versions = {path: _version(file) for path, file in self.files.read_files.items()}
        main = versions.get(self.files.main) or next(iter(versions.values()))
        header = GetBrokerAclConfigResponseHeader(
            version=main.encode().decode(),
            all_acl_file_version=dumps(
                {path: version.to_json() for path, version in versions.items()}
            ).decode(),
            broker_name=self.identity.name,
            broker_addr=self.identity.address,
            cluster_name=self.identity.cluster,
        )
        return RemotingCommand.response_to(request, header=header)

    def list_accounts(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        accounts: dict[str, PlainAccessConfig] = {}
        white: list[str] = []
        for file in self.files.read_files.values():
            white += file.white
            for account in file.accounts:
                accounts.setdefault(account.access_key, _without_secret(account))
        body = AclConfig(global_white_addrs=white, plain_access_configs=list(accounts.values()))
        return RemotingCommand.response_to(request, body=body.encode())

    def _path_of(self, access_key: str) -> str | None:
        """Return the first file that defines the account, which is the one in effect, or None."""
        for path, file in self.files.read_files.items():
            if file.find(access_key) is not None:
                return path
        return None


def _answer(
    channel: Channel, request: RemotingCommand, failed: ResponseCode
) -> Callable[[str | None], None]:
    def done(fault: str | None) -> None:
        if request.is_oneway:
            return
        response = RemotingCommand.response_to(request)
        if fault is not None:
            response.code, response.remark = int(failed), fault
        channel.write(encode_command(response))

    return done


def _updated(before: PlainAccount | None, header: CreateAccessConfigRequestHeader) -> PlainAccount:
    """Return the changed account; fields that the request does not name keep their values."""
    account = before or PlainAccount(access_key=header.access_key)
    given: dict[str, Any] = {
        "secret_key": header.secret_key,
        "white_remote_address": header.white_remote_address,
        "default_topic_perm": header.default_topic_perm,
        "default_group_perm": header.default_group_perm,
        "topic_perms": _perms(header.topic_perms),
        "group_perms": _perms(header.group_perms),
    }
    named = {name: value for name, value in given.items() if value is not None}
    return evolve(account, admin=header.admin, **named)


def _perms(text: str | None) -> Sequence[str] | None:
    return None if text is None else tuple(_split(text))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _version(file: AccessFile) -> DataVersion:
    counter, timestamp = file.version
    return DataVersion(timestamp, counter)


def _without_secret(account: PlainAccount) -> PlainAccessConfig:
    return PlainAccessConfig(
        access_key=account.access_key,
        secret_key=None,
        white_remote_address=account.white_remote_address,
        admin=account.admin,
        default_topic_perm=account.default_topic_perm,
        default_group_perm=account.default_group_perm,
        topic_perms=list(account.topic_perms),
        group_perms=list(account.group_perms),
    )
