"""A connection to a running broker for questions, and what the name servers know of brokers.

Only requests that read are sent. The calls are synchronous, because a command asks one question
after the other; the connections live in an event loop of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError, RmqError
from rmqpy.remoting.command import RemotingCommand

__all__ = ["FIRST_HEARTBEAT_MS", "BrokerConnection", "masters_of"]

T = TypeVar("T")

FIRST_HEARTBEAT_MS = 3_600_000
"""No heartbeat is sent: this client is a member of no group."""


class BrokerConnection:
    """The broker at ``address``. A context manager: leaving it closes the connections.

    ``name_servers`` are only needed for questions about routes.
    """

    def __init__(self, address: str, settings: Callable[[str], ClientSettings]) -> None:
        self.address = address
        self._settings = settings(address)
        self._runner = asyncio.Runner()
        self._cache: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._instance = self.run(ClientInstance.open(self._settings))
        self.admin = Admin(self._instance, self._settings.name_servers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(RmqError):
            self.run(self._instance.close())
        self._runner.close()

    def run(self, answer: Awaitable[T]) -> T:
        """Return the result of a call. Raises NetworkError, and what the broker answers."""

        async def awaited() -> T:
            return await answer

        try:
            return self._runner.run(awaited())
        except NetworkError as error:
            raise NetworkError(
                f"{self.address}: found no answer ({error}), expected a running broker; check the"
                " address, or give the broker's directory instead"
            ) from error

    def call(self, code: RequestCode, header: Any = None) -> RemotingCommand | None:
        """Return the broker's answer, or None if it refuses the request or does not know it.
        Raises NetworkError.
        """
        answer = self.run(self._instance.invoke(self.address, code, header))
        return answer if answer.code == ResponseCode.SUCCESS else None

    def known(self, name: str, read: Callable[[], T]) -> T:
        """Return what was read under this name before, else read it."""
        if name not in self._cache:
            self._cache[name] = read()
        found: T = self._cache[name]
        return found

    @property
    def name(self) -> str:
        return self.address

    def settings(self) -> tuple[Mapping[str, str], str]:
        values = self.known("settings", lambda: self.read(self.admin.broker_config) or {})
        return values, "the running broker"

    def runtime_info(self) -> Mapping[str, str]:
        return self.known("runtime", lambda: self.read(self.admin.runtime_info) or {})

    def read(self, ask: Callable[[str], Awaitable[T]]) -> T | None:
        """Return the broker's answer, or None if it refuses."""
        try:
            return self.run(ask(self.address))
        except RequestRejectedError:
            return None


def masters_of(settings: ClientSettings) -> list[str]:
    """Return the address of the member with the smallest id of each broker that the name servers
    know. Raises NetworkError if no name server answers.
    """

    async def ask() -> list[str]:
        instance = await ClientInstance.open(settings)
        try:
            info = await Admin(instance, settings.name_servers).cluster_info()
        finally:
            await instance.close()
        table = info.broker_addr_table
        return [
            table[name].broker_addrs[min(table[name].broker_addrs)]
            for name in sorted(table)
            if table[name].broker_addrs
        ]

    return asyncio.run(ask())
