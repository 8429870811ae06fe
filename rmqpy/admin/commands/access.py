"""Commands about accounts and white lists (access control 1.0, plain_acl.yml)."""

from __future__ import annotations

from rmqpy.admin.command import BROKER, CLUSTER, Command, CommandContext, masters, option
from rmqpy.admin.output import Column, CommandResult, OutputTable, java_bool, java_time
from rmqpy.remoting.bodies import DataVersion, PlainAccessConfig
from rmqpy.remoting.fastjson import loads
from rmqpy.remoting.headers import (
    CreateAccessConfigRequestHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)

_VERSIONS = OutputTable(
    [
        Column("#Cluster Name", -16),
        Column("#Broker Name", -22),
        Column("#Broker Addr", -22),
        Column("#AclFilePath", -20),
        Column("#AclConfigVersionNum", -22),
        Column("#AclLastUpdateTime", -22),
    ]
)


async def update_account(call: CommandContext) -> CommandResult:
    args = call.args
    header = CreateAccessConfigRequestHeader(
        access_key=args.text("accessKey"),
        secret_key=args.text("secretKey"),
        white_remote_address=args.optional("whiteRemoteAddress"),
        admin=args.boolean("admin", False),
        default_topic_perm=args.optional("defaultTopicPerm"),
        default_group_perm=args.optional("defaultGroupPerm"),
        topic_perms=args.optional("topicPerms"),
        group_perms=args.optional("groupPerms"),
    )
    lines, addresses = [], await masters(call)
    for address in addresses:
        await call.admin.update_account(address, header)
        lines.append(f"create or update plain access config to {address} success.")
    account = PlainAccessConfig(
        access_key=header.access_key,
        secret_key=None,
        white_remote_address=header.white_remote_address,
        admin=header.admin,
        default_topic_perm=header.default_topic_perm,
        default_group_perm=header.default_group_perm,
        topic_perms=header.topic_perms.split(",") if header.topic_perms else None,
        group_perms=header.group_perms.split(",") if header.group_perms else None,
    )
    lines.append(_account_text(account))
    return CommandResult({"brokers": addresses, "account": account}, "\n".join(lines))


async def delete_account(call: CommandContext) -> CommandResult:
    key, lines, addresses = call.args.text("accessKey"), [], await masters(call)
    for address in addresses:
        await call.admin.delete_account(address, key)
        lines.append(f"delete plain access config account from {address} success.")
    lines.append(f"account's accesskey is:{key}")
    return CommandResult({"brokers": addresses, "accessKey": key}, "\n".join(lines))


async def update_white_addresses(call: CommandContext) -> CommandResult:
    header = UpdateGlobalWhiteAddrsConfigRequestHeader(
        global_white_addrs=call.args.text("globalWhiteRemoteAddresses"),
        acl_file_full_path=call.args.optional("aclFileFullPath"),
    )
    lines, addresses = [], await masters(call)
    for address in addresses:
        await call.admin.update_white_addresses(address, header)
        lines.append(f"update global white remote addresses to {address} success.")
    return CommandResult(
        {"brokers": addresses, "addresses": header.global_white_addrs}, "\n".join(lines)
    )


async def acl_versions(call: CommandContext) -> CommandResult:
    rows, data, lines = [], [], []
    for address in await masters(call):
        header = await call.admin.acl_version(address)
        data.append({"broker": header.broker_name, "address": address, "version": header.version})
        for path, version in _versions(header.all_acl_file_version, header.version).items():
            rows.append(
                [
                    header.cluster_name,
                    header.broker_name,
                    header.broker_addr,
                    path,
                    version.counter,
                    java_time(version.timestamp, millis=False),
                ]
            )
    where = "broker" if call.args.has("brokerAddr") else "cluster"
    lines = [_VERSIONS.text(rows), f"get {where}'s plain access config version success."]
    return CommandResult(data, "\n".join(lines))


def _versions(all_files: str | None, common_version: str) -> dict[str, DataVersion]:
    """Return the versions by file; brokers before 4.9.3 report one version for all files."""
    table = loads(all_files) if all_files else None
    if not isinstance(table, dict) or not table:
        return {"": DataVersion.decode(common_version)}
    return {str(path): DataVersion.from_json(version) for path, version in table.items()}


async def get_acl_config(call: CommandContext) -> CommandResult:
    found, lines = {}, []
    for address in await masters(call):
        config = found[address] = await call.admin.acl_config(address)
        addresses = ", ".join(config.global_white_addrs or [])
        lines += ["", f"{'globalWhiteRemoteAddresses':<20}: [{addresses}]", "", "accounts:"]
        for account in config.plain_access_configs or []:
            lines += [f"  {name:<18}: {value}" for name, value in _fields(account)]
            lines.append("")
    return CommandResult(found, "\n".join(lines))


def _fields(account: PlainAccessConfig) -> list[tuple[str, str]]:
    return [
        ("accessKey", account.access_key or ""),
        ("secretKey", account.secret_key or ""),
        ("whiteRemoteAddress", account.white_remote_address or ""),
        ("admin", java_bool(account.admin)),
        ("defaultTopicPerm", account.default_topic_perm or ""),
        ("defaultGroupPerm", account.default_group_perm or ""),
        ("topicPerms", f"[{', '.join(account.topic_perms or [])}]"),
        ("groupPerms", f"[{', '.join(account.group_perms or [])}]"),
    ]


def _account_text(account: PlainAccessConfig) -> str:
    """Return the text of Java's PlainAccessConfig.toString, without the secret."""
    pairs = []
    for name, value in _fields(account):
        if name != "secretKey":
            bare = name == "admin" or name.endswith("Perms")
            pairs.append(f"{name}={value}" if bare else f"{name}='{value}'")
    return f"PlainAccessConfig{{{', '.join(pairs)}}}"


_ACCESS_KEY = option("a", "accessKey", "the account", required=True)

COMMANDS = (
    Command(
        name="updateAclConfig",
        help="create or change an account",
        run=update_account,
        options=(
            BROKER,
            CLUSTER,
            _ACCESS_KEY,
            option("s", "secretKey", "its secret", required=True),
            option("w", "whiteRemoteAddress", "addresses from which no signature is needed"),
            option("i", "defaultTopicPerm", "DENY, PUB, SUB or PUB|SUB"),
            option("u", "defaultGroupPerm", "DENY, PUB, SUB or PUB|SUB"),
            option("t", "topicPerms", "topicA=DENY,topicD=SUB"),
            option("g", "groupPerms", "groupA=DENY,groupD=SUB"),
            option("m", "admin", "true or false: the account is an administrator"),
        ),
    ),
    Command(
        name="deleteAclConfig",
        aliases=("deleteAccessConfig",),
        help="delete an account",
        run=delete_account,
        options=(BROKER, CLUSTER, _ACCESS_KEY),
    ),
    Command(
        name="updateGlobalWhiteAddr",
        help="set addresses that need no account",
        run=update_white_addresses,
        options=(
            BROKER,
            CLUSTER,
            option("g", "globalWhiteRemoteAddresses", "10.10.103.*,192.168.0.*", required=True),
            option("p", "aclFileFullPath", "path of the access file on the brokers"),
        ),
    ),
    Command(
        name="clusterAclConfigVersion",
        help="show the versions of the brokers' access files",
        run=acl_versions,
        options=(BROKER, CLUSTER),
    ),
    Command(
        name="getAclConfig",
        aliases=("getAccessConfigSubCommand",),
        help="show accounts and white lists",
        run=get_acl_config,
        options=(BROKER, CLUSTER),
    ),
)
