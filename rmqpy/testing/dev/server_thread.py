"""A thread with an event loop for one server, which can be paused, and whose connections to other
servers can be cut.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from rmqpy.net.loop import AsyncioScheduler

T = TypeVar("T")


class CuttableLoop(asyncio.SelectorEventLoop):
    """An event loop that connects to no port in ``unreachable``."""

    def __init__(self) -> None:
        super().__init__(selectors.DefaultSelector())
        self.unreachable: frozenset[int] = frozenset()
        self._opened: weakref.WeakKeyDictionary[asyncio.BaseTransport, int] = (
            weakref.WeakKeyDictionary()
        )

    def cut(self, ports: frozenset[int]) -> None:
        """End the connections that this loop has opened to ``ports``, and open none until ``cut``
        is called with others.
        """
        self.unreachable = ports
        for transport, port in list(self._opened.items()):
            if port in ports and isinstance(transport, asyncio.WriteTransport):
                transport.abort()

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        if port in self.unreachable:
            raise OSError(errno.EHOSTUNREACH, "a partition separates the servers")
        opened = await super().create_connection(protocol_factory, host, port, **options)
        if port in self.unreachable:  # It was cut in the meantime.
            opened[0].abort()
            raise OSError(errno.EHOSTUNREACH, "a partition separates the servers")
        if port is not None:
            self._opened[opened[0]] = port
        return opened


class ServerThread:
    """A thread that runs a :class:`CuttableLoop` and its scheduler until :meth:`close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scheduler: AsyncioScheduler
        self._loop = CuttableLoop()
        self._awake: threading.Event | None = None
        self._thread = threading.Thread(target=self._serve, name=f"rmqpy-{name}", daemon=True)
        self._thread.start()
        self.scheduler = self.run(self._make_scheduler())

    @property
    def is_paused(self) -> bool:
        return self._awake is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run ``work`` in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and return its result. Call it from other threads only."""
        return self.submit(work).result()

    def cut(self, ports: frozenset[int]) -> None:
        """Cut the connections to ``ports``, and no others."""
        self._loop.call_soon_threadsafe(self._loop.cut, ports)

    def pause(self) -> None:
        """Stop the loop where it is: the kernel accepts connections and data, nobody reads them."""
        if self._awake is None:
            self._awake = threading.Event()
            self._loop.call_soon_threadsafe(self._awake.wait)

    def resume(self) -> None:
        """Continue after :meth:`pause`."""
        if self._awake is not None:
            self._awake.set()
            self._awake = None

    def close(self) -> None:
        """End the loop and the thread."""
        self.resume()
        self.run(self.scheduler.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _make_scheduler(self) -> AsyncioScheduler:
        return AsyncioScheduler()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
