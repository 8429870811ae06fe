"""The roles that the running brokers of a group have at the moment.

rmqpy's brokers say it with the state of their fence, Java's with their configuration, in which they
write the present role. A broker that does not answer within a second has no role here: this machine
may not reach the addresses of clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.group.facts import GroupView
    from rmqpy.client.core.instance import ClientInstance
    from rmqpy.upgrade.group.group_file import GroupFile

ANSWER_MS_MAX: Final = 1_000
NO_HEARTBEAT_MS: Final = 3_600_000


def running_roles(group: GroupFile, view: GroupView) -> dict[str, str]:
    """Return ``leader``, ``follower``, ``master``, or ``slave`` of each member that says so."""
    running = {each.name: each.dledger for each in view.facts.members if each.running}
    if not running:
        return {}
    addresses = {name: group.member(name).address for name in running}
    found = asyncio.run(_roles_at(addresses))
    names = {True: ("leader", "follower"), False: ("master", "slave")}
    return {name: names[running[name]][role == "SLAVE"] for name, role in found.items() if role}


async def _roles_at(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return brokerRole of each broker, "" if it does not say it."""
    from rmqpy.admin.credentials import find_credentials
    from rmqpy.client.core.instance import ClientInstance, ClientSettings

    settings = ClientSettings(
        name_servers=next(iter(addresses.values())),  # no routes are needed
        credentials=find_credentials(None, os.environ),
        first_heartbeat_ms=NO_HEARTBEAT_MS,
        request_timeout_ms=ANSWER_MS_MAX,
    )
    instance = await ClientInstance.open(settings)
    try:
        roles = await asyncio.gather(*(_role_at(instance, each) for each in addresses.values()))
    finally:
        await instance.close()
    return dict(zip(addresses, roles, strict=True))


async def _role_at(instance: ClientInstance, address: str) -> str:
    from rmqpy.admin.api import Admin
    from rmqpy.model.codes import RequestCode, ResponseCode
    from rmqpy.remoting.fastjson import loads
    from rmqpy.remoting.headers import FenceRequestHeader

    header = FenceRequestHeader(seconds=None)
    try:
        async with asyncio.timeout(2 * ANSWER_MS_MAX / 1000):
            answer = await instance.invoke(address, RequestCode.RMQPY_FENCE, header)
            if answer.code == ResponseCode.SUCCESS:
                state = loads(answer.body)
                return str(state.get("role", "")) if isinstance(state, dict) else ""
            return (await Admin(instance, (address,)).broker_config(address)).get("brokerRole", "")
    except (RmqError, TimeoutError, ValueError):
        return ""
