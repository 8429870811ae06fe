"""The accounts of access control: from a broker's access files, or from a running broker."""

from __future__ import annotations

from rmqpy.acl.plain_acl_file import PlainAccount, parse_access_file
from rmqpy.acl.rules import KEY_LENGTH_MIN
from rmqpy.acl.watcher import access_paths, read_access_files
from rmqpy.config.loading import BrokerConfiguration
from rmqpy.model.errors import ConfigError
from rmqpy.model.files import FileSystem
from rmqpy.remoting.bodies import AclConfig
from rmqpy.why.sources.interface import AccessAccounts, KnownAccount

__all__ = ["accounts_of_answer", "accounts_of_files"]

_NO_SECRET = "*" * KEY_LENGTH_MIN


def accounts_of_files(files: FileSystem, configuration: BrokerConfiguration) -> AccessAccounts:
    """Return the accounts in the access files of a broker; of two with one name the first."""
    home, plain_file = configuration.broker.rocketmq_home, configuration.security.acl_plain_file
    found: dict[str, KnownAccount] = {}
    has_white = False
    try:
        paths = access_paths(home, plain_file)
        raw = read_access_files(files, *paths)
        for path, data in raw.items():
            file = parse_access_file(data.decode("utf-8", "replace"), path)
            has_white |= bool(file.white) or any(map(_is_white, file.accounts))
            for key, account in file.rules(path).accounts.items():
                found.setdefault(key, KnownAccount(account, path))
    except (ConfigError, OSError) as error:
        return AccessAccounts(fault=str(error))
    if not raw:
        return AccessAccounts(
            fault=f"neither {paths[0]} nor a file in {paths[1]} exists; set ROCKETMQ_HOME to the"
            " broker's"
        )
    return AccessAccounts(tuple(found.values()), has_white_addresses=has_white)


def accounts_of_answer(config: AclConfig, place: str) -> AccessAccounts:
    """Return the accounts that a broker has listed; rmqpy leaves their secrets out, Java does not,
    and neither is needed.
    """
    found, has_white = [], bool(config.global_white_addrs)
    try:
        for each in config.plain_access_configs or ():
            plain = PlainAccount(
                access_key=each.access_key or "",
                secret_key=_NO_SECRET,
                white_remote_address=each.white_remote_address or "",
                admin=each.admin,
                default_topic_perm=each.default_topic_perm or "",
                default_group_perm=each.default_group_perm or "",
                topic_perms=tuple(each.topic_perms or ()),
                group_perms=tuple(each.group_perms or ()),
            )
            has_white |= _is_white(plain)
            found.append(KnownAccount(plain.account(place), place))
    except ConfigError as error:
        return AccessAccounts(fault=str(error))
    return AccessAccounts(tuple(found), has_white_addresses=has_white)


def _is_white(account: PlainAccount) -> bool:
    return bool(account.white_remote_address)
