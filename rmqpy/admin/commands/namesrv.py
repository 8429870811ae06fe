"""Commands for name servers: settings, key-value pairs, and write permissions."""

from __future__ import annotations

from rmqpy.admin.command import Command, CommandContext, option
from rmqpy.admin.commands.brokers import settings_text
from rmqpy.admin.output import CommandResult
from rmqpy.model.errors import RmqError

_NAMESPACE = option("s", "namespace", "namespace", required=True)
_KEY = option("k", "key", "key", required=True)
_VALUE = option("v", "value", "value", required=True)
_BROKER_NAME = option("b", "brokerName", "broker name", required=True)


async def update_kv_config(call: CommandContext) -> CommandResult:
    namespace, key, value = (call.args.text(name) for name in ("namespace", "key", "value"))
    await call.admin.put_kv(namespace, key, value)
    return CommandResult(
        {"namespace": namespace, "key": key, "value": value},
        "create or update kv config to namespace success.",
    )


async def delete_kv_config(call: CommandContext) -> CommandResult:
    namespace, key = call.args.text("namespace"), call.args.text("key")
    await call.admin.delete_kv(namespace, key)
    return CommandResult(
        {"namespace": namespace, "key": key}, "delete kv config from namespace success."
    )


async def wipe_write_perm(call: CommandContext) -> CommandResult:
    return await _permission(call, wipe=True)


async def add_write_perm(call: CommandContext) -> CommandResult:
    return await _permission(call, wipe=False)


async def _permission(call: CommandContext, *, wipe: bool) -> CommandResult:
    name = call.args.text("brokerName")
    word = "wipe" if wipe else "add"
    change = call.admin.wipe_write_perm if wipe else call.admin.add_write_perm
    counts: dict[str, int | None] = {}
    lines = []
    for server in call.admin.name_servers:
        head = f"{word} write perm of broker[{name}] in name server[{server}]"
        try:
            counts[server] = await change(server, name)
            lines.append(f"{head} OK, {counts[server]}")
        except RmqError as fault:
            counts[server] = None
            lines += [f"{head} Failed", str(fault)]
    return CommandResult(counts, "\n".join(lines), says_no=None in counts.values())


async def get_namesrv_config(call: CommandContext) -> CommandResult:
    found, lines = {}, []
    for server in call.admin.name_servers:
        found[server] = await call.admin.namesrv_config(server)
        lines += [f"============{server}============", settings_text(found[server]), ""]
    return CommandResult(found, "\n".join(lines))


async def update_namesrv_config(call: CommandContext) -> CommandResult:
    key, value = call.args.text("key"), call.args.text("value")
    for server in call.admin.name_servers:
        await call.admin.update_namesrv_config(server, {key: value})
    servers = ", ".join(call.admin.name_servers)
    text = f"update name server config success![{servers}]\n{key} : {value}"
    return CommandResult(
        {"servers": list(call.admin.name_servers), "key": key, "value": value}, text
    )


COMMANDS = (
    Command(
        name="updateKvConfig",
        help="set a key-value pair of the name servers",
        run=update_kv_config,
        options=(_NAMESPACE, _KEY, _VALUE),
    ),
    Command(
        name="deleteKvConfig",
        help="remove a key-value pair of the name servers",
        run=delete_kv_config,
        options=(_NAMESPACE, _KEY),
    ),
    Command(
        name="wipeWritePerm",
        help="forbid writing to a broker until it registers again",
        run=wipe_write_perm,
        options=(_BROKER_NAME,),
    ),
    Command(
        name="addWritePerm",
        help="allow writing to a broker again",
        run=add_write_perm,
        options=(_BROKER_NAME,),
    ),
    Command(
        name="getNamesrvConfig",
        help="show the settings of the name servers",
        run=get_namesrv_config,
    ),
    Command(
        name="updateNamesrvConfig",
        help="change one setting of all name servers",
        run=update_namesrv_config,
        options=(_KEY, _VALUE),
    ),
)
