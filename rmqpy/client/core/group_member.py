"""A client in a group: what producers and consumers share of a life.

::

    made ──start──► member ──close──► gone
                       │
                 works through a ClientInstance: its own, or one that was given and is shared
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rmqpy.client.core.instance import ClientInstance, NameServers, settings_of
from rmqpy.model.errors import NetworkError
from rmqpy.model.names import check_group


class GroupMember(ABC):
    """An asynchronous context manager. Without ``instance`` it opens one of its own and closes it
    at the end; ``name_servers`` may be whole ``ClientSettings`` then, with credentials and TLS.
    """

    def __init__(
        self,
        group: str,
        name_servers: NameServers = (),
        *,
        instance: ClientInstance | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self._given = instance
        self._client = settings_of(name_servers) if instance is None else None
        self._instance: ClientInstance | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group."""
        assert self._instance is None, "started twice"
        instance = self._given
        if instance is None:
            assert self._client is not None
            instance = await ClientInstance.open(self._client)
        self._instance = instance
        try:
            await self._join(instance)
        except BaseException:
            self._instance = None
            if self._given is None:
                await instance.close()
            raise

    async def close(self) -> None:
        """Leave the group. Harmless twice."""
        instance = self._instance
        if instance is None:
            return
        try:
            await self._leave(instance)
        finally:
            self._instance = None
            if self._given is None:
                await instance.close()

    @abstractmethod
    async def _join(self, instance: ClientInstance) -> None:
        """Make the group known; the member works from now on."""

    @abstractmethod
    async def _leave(self, instance: ClientInstance) -> None:
        """End what runs, and tell the brokers."""

    def _open(self) -> ClientInstance:
        if self._instance is None:
            raise NetworkError(f"the {type(self).__name__} of {self.group} is not started")
        return self._instance
