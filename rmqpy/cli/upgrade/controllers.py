"""The controllers of RocketMQ 5.x to which a group is to be handed over: what those that run know
of it, and the configuration of new ones.

A controller that already knows the brokerName waits for the replicas that it has in its
SyncStateSet, or elects one of them, whatever their logs are now. Controllers that do not answer are
those that the operator starts later.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmqpy.cli.upgrade.group.roles import ANSWER_MS_MAX, NO_HEARTBEAT_MS
from rmqpy.config.keys import parse_addresses
from rmqpy.model.errors import RmqError
from rmqpy.model.local_paths import local_path
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.client.core.instance import ClientInstance


def refuse_known_group(controllers: str, broker_names: Sequence[str]) -> None:
    """Raise UpgradeRefusedError if a controller that answers knows one of these groups."""
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    try:
        addresses = parse_addresses(controllers)
    except ValueError:
        return  # The step says what is wrong with them.
    for address, known in asyncio.run(_known_groups(addresses, broker_names)).items():
        for name, count in known.items():
            raise UpgradeRefusedError(
                f"the controller at {address}: found {name} with {count_text(count, 'replica')},"
                " expected a"
                " controller that does not know this group: it would wait for these replicas, or"
                " elect one of them; start it with a new controllerStorePath, or remove the group"
                f" from it (mqadmin cleanBrokerMetadata -a {address} -bn {name} -c CLUSTER -l), and"
                " repeat"
            )


def write_controller_configs(controllers: str, folder: str) -> None:
    """Write the configuration of each controller to ``folder``, for controllers that are new.

    Raise RmqError, before anything is written, if that is not possible.
    """
    from rmqpy.store.files.atomic import write_atomically
    from rmqpy.store.files.disk import OsFileSystem

    files = OsFileSystem()
    for path, text in check_controller_configs(controllers, folder).items():
        write_atomically(files, path, text.encode())


def check_controller_configs(controllers: str, folder: str) -> dict[str, str]:
    """Return the configuration of each controller by path, without files that are there already.

    Raise RmqError if an address is none, or if ``folder`` cannot have these files.
    """
    from rmqpy.store.files.disk import OsFileSystem
    from rmqpy.upgrade.plan.configuration import controller_configs

    option = f"--controller-conf {folder}"
    try:
        configs = controller_configs(parse_addresses(controllers))
    except ValueError as error:
        raise RmqError(
            f"--controllers {controllers}: {error}; expected HOST:PORT, with a semicolon between"
            " several"
        ) from None
    files, root = OsFileSystem(), local_path(folder)
    if not files.is_dir(root):
        raise RmqError(f"{option}: found no directory, expected one; create it")
    for name, text in [*configs.items()]:
        if files.exists(f"{root}/{name}"):
            if files.read_bytes(f"{root}/{name}") != text.encode():
                raise RmqError(
                    f"{option}: found {name} with other content, expected a new file; nothing was"
                    " changed. Move it away, or give another directory"
                )
            del configs[name]
    return {f"{root}/{name}": text for name, text in configs.items()}


async def _known_groups(
    addresses: Sequence[str], broker_names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return the number of replicas by brokerName, for each address that answers."""
    from rmqpy.admin.credentials import find_credentials
    from rmqpy.client.core.instance import ClientInstance, ClientSettings

    settings = ClientSettings(
        name_servers=addresses,  # no routes are needed
        credentials=find_credentials(None, os.environ),
        first_heartbeat_ms=NO_HEARTBEAT_MS,
        request_timeout_ms=ANSWER_MS_MAX,
    )
    instance = await ClientInstance.open(settings)
    try:
        answers = await asyncio.gather(*(_ask(instance, each, broker_names) for each in addresses))
    finally:
        await instance.close()
    return dict(zip(addresses, answers, strict=True))


async def _ask(
    instance: ClientInstance, address: str, broker_names: Sequence[str]
) -> dict[str, int]:
    from rmqpy.model.codes import RequestCode, ResponseCode
    from rmqpy.remoting.fastjson import loads

    body = json.dumps(list(broker_names)).encode()
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    try:
        async with asyncio.timeout(2 * ANSWER_MS_MAX / 1000):
            answer = await instance.invoke(address, code, body=body)
        if answer.code != ResponseCode.SUCCESS:
            return {}  # It is not the leader of the controllers, or no controller.
        return _replicas(loads(answer.body), broker_names)
    except (RmqError, TimeoutError, ValueError):
        return {}


def _replicas(answer: Any, broker_names: Sequence[str]) -> dict[str, int]:
    """Return the number of replicas in a BrokerReplicasInfo; an answer of another form has none."""
    table = answer.get("replicasInfoTable") if isinstance(answer, dict) else None
    found: dict[str, int] = {}
    for name, info in (table if isinstance(table, dict) else {}).items():
        lists = info.values() if isinstance(info, dict) else ()
        count = sum(len(each) for each in lists if isinstance(each, list))
        if name in broker_names and count:
            found[str(name)] = count
    return found
