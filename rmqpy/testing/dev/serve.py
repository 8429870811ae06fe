"""``rmqpy dev``: serve a test cluster until stdin or the parent ends.

stdout has JSON lines only: one with the addresses when the cluster can be used, and one for each
command that was read from stdin. Commands run one after the other, in a thread, because a cluster
blocks its caller.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from attrs import define

from rmqpy.net.loop import stop_on_signals
from rmqpy.testing.dev.cluster import DevCluster, DevPlan
from rmqpy.testing.dev.commands import QUIT, Answer, Commands
from rmqpy.testing.dev.http_control import HttpControl
from rmqpy.testing.dev.parent import ParentWatch

LINE_BYTES_MAX: Final = 65_536
LINES_WAITING_MAX: Final = 64


@define(frozen=True, kw_only=True)
class ServePlan:
    """A cluster, and ``parent_pid``: the process with which it ends; None is the parent."""

    cluster: DevPlan
    parent_pid: int | None = None


def serve_dev(plan: ServePlan) -> None:
    """Serve until SIGTERM, SIGINT, the command ``quit``, or the end of stdin or the parent."""
    cluster = DevCluster(plan.cluster)
    try:
        asyncio.run(_DevServer(cluster, plan.parent_pid).serve())
    finally:
        cluster.close()


class _DevServer:
    """Runs the commands of all sources one after the other."""

    def __init__(self, cluster: DevCluster, parent_pid: int | None) -> None:
        self._cluster = cluster
        self._parent_pid = parent_pid
        self._commands = Commands(cluster)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="rmqpy-dev-commands")
        self._stopped = asyncio.Event()
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(LINES_WAITING_MAX)

    async def serve(self) -> None:
        self._stopped = stop_on_signals()
        parent = ParentWatch(self._parent_pid, self._stopped.set)
        parent.start()
        control = HttpControl(self._run)
        try:
            if self._stopped.is_set() or not await self._started():
                return
            where = {"control": await control.listen(), "pid": os.getpid()}
            _print({**self._cluster.addresses(), **where})
            gc.freeze()
            gc.enable()
            tasks = [asyncio.create_task(work) for work in (self._read_stdin(), self._run_lines())]
            await self._stopped.wait()
            for task in tasks:
                task.cancel()
        finally:
            control.close()
            parent.stop()
            self._cluster.interrupt()
            self._worker.shutdown(wait=True)

    async def _started(self) -> bool:
        """Start the cluster. Return False if the server is stopped before that is done."""
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(loop.run_in_executor(self._worker, self._cluster.start))
        stopping = asyncio.create_task(self._stopped.wait())
        both: set[asyncio.Future[Any]] = {starting, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return False
        await starting
        return True

    async def _run(self, command: object) -> Answer:
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._worker, self._commands.run, command)
        if answer["ok"] and isinstance(command, dict) and command["do"] == QUIT:
            loop.call_soon(self._stopped.set)
        return answer

    async def _read_stdin(self) -> None:
        """Read the commands of stdin. Only the end of a pipe or socket ends the server: stdin of a
        process in the background is empty from the beginning.
        """
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return
        reader = asyncio.StreamReader(LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while True:
            try:
                line = await reader.readline()
            except ValueError:
                line = b"a line that is too long"
            if not line:
                self._stopped.set()
                return
            if line.strip():
                await self._lines.put(line)

    async def _run_lines(self) -> None:
        while True:
            _print(await self._answer(await self._lines.get()))

    async def _answer(self, line: bytes) -> Answer:
        try:
            command = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "the line is not JSON"}
        return await self._run(command)


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
