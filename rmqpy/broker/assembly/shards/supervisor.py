"""The supervisor of shards: starts a process for each, starts those again that end, and passes
SIGTERM on.

====================================  ===========================================================
event                                 effect
====================================  ===========================================================
a process says that it is ready       once all are: ``ready: N shards``
one ends before all have been ready   the others are stopped, and the supervisor ends with its
                                      exit code: the operator is looking
one ends later                        it is started again after ``delay_ms``
SIGTERM or SIGINT                     SIGTERM to all; the end of all is awaited
the supervisor is killed              the kernel sends SIGTERM to the processes (Linux)
====================================  ===========================================================

The processes are in sessions of their own, so that Ctrl-C reaches the supervisor alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from attrs import define, field

from rmqpy.model.clock import Clock
from rmqpy.net.loop import AsyncioScheduler, run, stop_on_signals
from rmqpy.net.service_manager import ServiceManager, own_manager

logger = logging.getLogger(__name__)

FIRST_DELAY_MS: Final = 1000
DELAY_MAX_MS: Final = 60_000
_PR_SET_PDEATHSIG: Final = 1


@define(slots=True)
class Restarts:
    """The pauses before the starts of one process: each is twice the last one, until the process
    has run for ``DELAY_MAX_MS``.
    """

    next_ms: int = FIRST_DELAY_MS

    def delay_ms(self, ran_ms: int) -> int:
        """Return the pause after a process that ran for ``ran_ms``."""
        if ran_ms >= DELAY_MAX_MS:
            self.next_ms = FIRST_DELAY_MS
        delay_ms, self.next_ms = self.next_ms, min(DELAY_MAX_MS, 2 * self.next_ms)
        return delay_ms


@define(slots=True, frozen=True)
class ShardCommand:
    """How a shard is started. A line of its stdout that begins with ``ready:`` says that it is
    ready.
    """

    name: str
    argv: tuple[str, ...]


def run_shards(commands: Sequence[ShardCommand]) -> int:
    """Run the shards until SIGTERM or SIGINT, and return the exit code."""
    # asyncio's own loop: a supervisor has nothing to do, and starts processes.
    return run(lambda scheduler: _supervise(commands, scheduler), uvloop="off")


async def _supervise(commands: Sequence[ShardCommand], scheduler: AsyncioScheduler) -> int:
    stopped = stop_on_signals()
    return await Supervisor(commands, scheduler, stopped, manager=own_manager()).run()


@define(eq=False)
class Supervisor:
    """The supervisor. ``stopped`` is set when all shards are to end; ``say`` prints a line."""

    commands: Sequence[ShardCommand]
    clock: Clock
    stopped: asyncio.Event
    say: Callable[[str], None] = lambda line: print(line, flush=True)
    restarts: Callable[[], Restarts] = Restarts
    manager: ServiceManager = field(factory=lambda: ServiceManager(None, None))
    processes: dict[str, asyncio.subprocess.Process] = field(factory=dict, init=False)
    _ready: set[str] = field(factory=set, init=False)
    _exit_code: int = field(default=0, init=False)

    async def run(self) -> int:
        tasks = [asyncio.create_task(self._keep(command)) for command in self.commands]
        await self.stopped.wait()
        self.manager.stopping()
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*tasks)
        logger.info("all shards have ended")
        return self._exit_code

    async def _keep(self, command: ShardCommand) -> None:
        """Run a shard again and again."""
        restarts = self.restarts()
        while not self.stopped.is_set():
            start_ms = self.clock.monotonic_ms()
            code = await self._run_once(command)
            if self.stopped.is_set():
                if code:
                    logger.error("%s has ended with %s", command.name, _told(code))
                return
            if len(self._ready) < len(self.commands):
                logger.error(
                    "%s has ended with %s before all shards were ready: stopping the others",
                    command.name,
                    _told(code),
                )
                self._exit_code = code if code > 0 else 1
                self.stopped.set()
                return
            delay_ms = restarts.delay_ms(self.clock.monotonic_ms() - start_ms)
            logger.error(
                "%s has ended with %s: it is started again in %d s",
                command.name,
                _told(code),
                delay_ms // 1000,
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), delay_ms / 1000)

    async def _run_once(self, command: ShardCommand) -> int:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_end_with_supervisor, os.getpid()),
        )
        self.processes[command.name] = process
        if self.stopped.is_set():  # while the process was started
            with suppress(ProcessLookupError):
                process.terminate()
        logger.info("%s is process %d", command.name, process.pid)
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._relay(command, line.decode("utf-8", "replace").rstrip("\n"))
        code = await process.wait()
        del self.processes[command.name]
        return code

    def _relay(self, command: ShardCommand, line: str) -> None:
        self.say(line)
        if line.startswith("ready:") and command.name not in self._ready:
            self._ready.add(command.name)
            if len(self._ready) == len(self.commands):
                self.say(f"ready: {len(self.commands)} shards")
                self.manager.ready(f"{len(self.commands)} shards")


def _told(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"


def _end_with_supervisor(supervisor: int) -> None:
    """Have the kernel end this new process with its parent. It is called between fork and exec."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:  # it has ended already
            os._exit(1)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
