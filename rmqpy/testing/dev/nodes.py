"""The servers of a test cluster: a name server, or a broker, each in a thread of its own.

States of a server::

    state     enters by       serves  its connections
    stopped   stop, kill      no      closed
    running   start, resume   yes
    paused    pause           no      stay open, and are not read
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.broker.replication.metadata_sync import MASTER_NAMED_MS
from rmqpy.broker.services.registration import RegistrationAnswer
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.testing.dev.advancing_clock import AdvancingScheduler
from rmqpy.testing.dev.server_thread import ServerThread
from rmqpy.testing.dev.slow_files import SlowDisk, SlowFileSystem
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block

LOOPBACK = "127.0.0.1"


class DevError(RmqError):
    """A server for tests was asked for something that it cannot do in its state."""


class NodeState(Enum):
    """The states of the module's table."""

    STOPPED = "stopped"
    RUNNING = "running"
    PAUSED = "paused"


class DevNode(Protocol):
    """A server of a test cluster."""

    name: str
    thread: ServerThread

    @property
    def address(self) -> str: ...

    @property
    def ports(self) -> frozenset[int]:
        """The ports that belong to this server, for partitions."""
        ...

    @property
    def state(self) -> NodeState: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class NamesrvNode:
    """The name server of a test cluster."""

    def __init__(self, root: Path, settings: Mapping[str, str]) -> None:
        self.name = "namesrv"
        self.thread = ServerThread(self.name)
        self._block = free_port_block(1)
        own = {
            "listenPort": str(self._block.first),
            "kvConfigPath": str(root / "kvConfig.json"),
            "configStorePath": str(root / "namesrv.properties"),
        }
        self._loaded = load_namesrv_configuration(None, {**own, **settings}, {"HOME": str(root)})
        self._process: NamesrvProcess | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._block.first}"

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._block)

    @property
    def state(self) -> NodeState:
        return _state(self.thread, self._process is not None)

    def start(self) -> None:
        if self._process is None:
            self._process = self.thread.run(self._start())

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self.thread.resume()
            self.thread.run(process.stop())

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            ended = self.thread.submit(process.kill())
            self.thread.resume()
            ended.result()

    def close(self) -> None:
        self.kill()
        self.thread.close()
        self._block.release()

    async def _start(self) -> NamesrvProcess:
        process = NamesrvProcess(self._loaded.configuration, self.thread.scheduler)
        await process.start()
        return process


class BrokerNode:
    """One broker of a test cluster; ``settings`` are complete except for its ports."""

    def __init__(
        self,
        name: str,
        block: PortBlock,
        config: Path | None,
        settings: Mapping[str, str],
    ) -> None:
        self.name = name
        self.thread = ServerThread(name)
        self.disk = SlowDisk()
        self._block = block
        own = {"listenPort": str(block.broker_port), "brokerIP1": LOOPBACK, "brokerIP2": LOOPBACK}
        environment = {"HOME": settings["storePathRootDir"]}
        self._loaded = load_broker_configuration(config, {**own, **settings}, environment)
        self._runtime: BrokerRuntime | None = None
        self._clock: AdvancingScheduler | None = None
        self._skipped_ms = 0
        self._leads = threading.Event()
        """Set when a name server has accepted the broker as master."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self._block.broker_port}"

    @property
    def ports(self) -> frozenset[int]:
        return frozenset(self._block)

    @property
    def store(self) -> Path:
        return Path(self._loaded.configuration.store.store_path_root_dir)

    @property
    def state(self) -> NodeState:
        return _state(self.thread, self._runtime is not None)

    @property
    def leads(self) -> bool:
        """True if the broker runs as a master that a name server knows."""
        return self.state is NodeState.RUNNING and self._leads.is_set() and self._is_master()

    def now_ms(self) -> int:
        """Return the time of the broker's clock."""
        clock = self._clock
        return (
            self.thread.scheduler.now_ms() + self._skipped_ms if clock is None else clock.now_ms()
        )

    def has_topic(self, name: str) -> bool:
        """Return whether the broker knows the topic; a slave that does not has asked its master."""
        runtime = self._runtime
        if runtime is None:
            return False
        broker = runtime.broker
        if name not in broker.topics and broker.identity.is_slave:
            self.thread.run(_fetched_tables(runtime))
        return name in broker.topics

    def start(self) -> None:
        if self._runtime is None:
            self._leads.clear()
            self._runtime = self.thread.run(self._start())

    def stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self.thread.resume()
            self.thread.run(self._end(runtime, killed=False))

    def kill(self) -> None:
        """End without writing or telling anything any more, as after kill -9."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            ended = self.thread.submit(self._end(runtime, killed=True))
            self.disk.interrupt()
            self.thread.resume()
            ended.result()

    def advance(self, delay_ms: int) -> None:
        """Skip ``delay_ms`` of the broker's clock; a broker that does not run starts later then."""
        if self.state is NodeState.PAUSED:
            raise DevError(f"{self.name}: found a paused broker, expected a running one; resume it")
        clock, runtime = self._clock, self._runtime
        if clock is not None and runtime is not None:
            self.thread.run(clock.advance(delay_ms, runtime.broker.clients.renew_all))
        self._skipped_ms += delay_ms

    def close(self) -> None:
        self.kill()
        self.thread.close()
        self._block.release()

    def _is_master(self) -> bool:
        runtime = self._runtime
        return runtime is not None and runtime.broker.identity.broker_id == MASTER_ID

    async def _start(self) -> BrokerRuntime:
        clock = AdvancingScheduler(self.thread.scheduler, self._skipped_ms)
        runtime = BrokerRuntime(
            self._loaded.configuration,
            self.thread.scheduler,
            clock=clock,
            files=SlowFileSystem(self.disk),
        )
        await runtime.start()
        registration = runtime.broker.registration
        identity = runtime.broker.identity

        def answered(_server: str, _answer: RegistrationAnswer) -> None:
            if identity.broker_id == MASTER_ID:
                self._leads.set()
            else:
                self._leads.clear()

        registration.subscribe(answered)
        if registration.last_answer is not None:
            answered("", registration.last_answer)
        self._clock = clock
        return runtime

    async def _end(self, runtime: BrokerRuntime, *, killed: bool) -> None:
        clock, self._clock = self._clock, None
        if not killed:
            await runtime.stop()
        if clock is not None:
            clock.halt()
        await runtime.kill()


async def _fetched_tables(runtime: BrokerRuntime) -> None:
    """Let a slave fetch the tables of its master, as soon as a name server has named the master."""
    ended = asyncio.Event()
    runtime.broker.metadata_sync.fetch_now(ended.set, named_within_ms=MASTER_NAMED_MS)
    await ended.wait()


def broker_block() -> PortBlock:
    """Return the ports of a broker and, as the last one, of its member of a group."""
    return free_port_block(BROKER_PORT_COUNT + 1)


def _state(thread: ServerThread, running: bool) -> NodeState:
    if not running:
        return NodeState.STOPPED
    return NodeState.PAUSED if thread.is_paused else NodeState.RUNNING
