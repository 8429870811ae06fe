"""GroupMember: the lifecycle that producers and consumers share.

::

    created ──start──► member ──close──► closed
                          │
                     works through a ClientInstance: its own, or one that was passed in
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rmqpy.client.core.instance import ClientInstance, NameServers, settings_of
from rmqpy.client.errors import ClientStateError, ClosedError, NotStartedError
from rmqpy.model.names import check_group


class GroupMember(ABC):
    """An asynchronous context manager that joins a group and leaves it at the end.

    Without ``instance`` it opens a ClientInstance for itself and closes it at the end.
    ``name_servers`` may then be a whole :class:`ClientSettings`, with credentials and TLS.
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
        self._shared_instance = instance
        self._client = settings_of(name_servers) if instance is None else None
        self._instance: ClientInstance | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

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
        """Join the group.

        No server is needed yet. Raises ConfigError if this client already has a member of the
        group, and ClientStateError if the member was started before.
        """
        if self._instance is not None:
            raise ClientStateError(f"the {type(self).__name__} of {self.group} is already started")
        if self._closed:
            raise self._closed_error()
        instance = self._shared_instance
        if instance is None:
            assert self._client is not None
            instance = await ClientInstance.open(self._client)
        self._instance = instance
        try:
            await self._join(instance)
        except BaseException:
            self._instance = None
            if self._shared_instance is None:
                await instance.close()
            raise

    async def close(self) -> None:
        """Leave the group, and close the client instance unless it was passed in. May be called
        in every state, and twice; a closed member cannot be started again. If this is cancelled,
        the member is closed in the background.
        """
        self._closed = True
        if self._closing is None:
            if self._instance is None:
                return
            self._closing = asyncio.create_task(self._close(self._instance))
        # A close that is cancelled goes on: half of it would leave tasks and connections behind.
        await asyncio.shield(self._closing)

    async def _close(self, instance: ClientInstance) -> None:
        try:
            await self._leave(instance)
        finally:
            self._instance = None
            if self._shared_instance is None:
                await instance.close()

    @abstractmethod
    async def _join(self, instance: ClientInstance) -> None:
        """Register the group and start the background work."""

    @abstractmethod
    async def _leave(self, instance: ClientInstance) -> None:
        """Stop the background work and unregister the group from the brokers."""

    def check_open(self) -> None:
        """Raise ClientStateError unless the member is started and not closed."""
        self._open()

    def _open(self) -> ClientInstance:
        if self._instance is None:
            if self._closed:
                raise self._closed_error()
            raise NotStartedError(
                f"the {type(self).__name__} of {self.group} is not started; use it in a with block"
            )
        return self._instance

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the {type(self).__name__} of {self.group} is closed; create a new one")
