"""Whether an account is one of the cluster's, and connections that are signed with it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from attrs import evolve

from rmqpy.acl.signature import Credentials
from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.model.errors import RequestRejectedError, RmqError

__all__ = ["check_account", "signed_instance"]


@asynccontextmanager
async def signed_instance(
    settings: ClientSettings, credentials: Credentials
) -> AsyncIterator[ClientInstance]:
    """Open a client whose requests are signed with an account."""
    instance = await ClientInstance.open(evolve(settings, credentials=credentials))
    try:
        yield instance
    finally:
        await instance.close()


async def check_account(settings: ClientSettings, credentials: Credentials, address: str) -> None:
    """Raise RmqError unless the broker at ``address`` accepts this account as an administrator, and
    refuses it with another secret.

    Without the second answer, a broker without access control, or one that has this host in its
    white list, would make an account of anything.
    """
    try:
        await _ask(settings, credentials, address)
    except RequestRejectedError:
        raise RmqError(
            "found an account that the broker refuses, expected an administrator of the cluster"
            " with its secret; check both"
        ) from None
    wrong = Credentials(credentials.access_key, secrets.token_hex(16))
    try:
        await _ask(settings, wrong, address)
    except RequestRejectedError:
        return
    raise RmqError(
        "found a broker that accepts any secret from this host, expected one that checks accounts;"
        " switch access control on (aclEnable), and remove this host from its white addresses"
    )


async def _ask(settings: ClientSettings, credentials: Credentials, address: str) -> None:
    async with signed_instance(settings, credentials) as instance:
        await Admin(instance, settings.name_servers).runtime_info(address)
