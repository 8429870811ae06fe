"""Fixtures of tests/broker; what they hand out is in harness.broker."""

from __future__ import annotations

from typing import Any

import pytest
from harness.broker import BrokerHarness, BuildBroker, MemoryNetwork, configured

from rmqpy.broker.assembly.server import BrokerDependencies, BrokerServer
from rmqpy.broker.processors.admin.broker_config import SettingsFile
from rmqpy.store.files.deferred_write import DeferredFileWriter
from rmqpy.store.message_store import StoreContext, open_store
from rmqpy.testing.manual_scheduler import ManualScheduler
from rmqpy.testing.memory_channel import MemoryChannel
from rmqpy.testing.memory_files import MemoryFiles


@pytest.fixture
def build() -> BuildBroker:
    """Makes brokers; keyword arguments are settings of whichever part has them."""

    def make(
        files: MemoryFiles | None = None,
        scheduler: ManualScheduler | None = None,
        start: bool = True,
        host: str = "10.0.0.2",
        settings_path: str | None = None,
        **values: Any,
    ) -> BrokerHarness:
        scheduler = scheduler or ManualScheduler()
        files = files or MemoryFiles()
        settings_file = None
        if settings_path is not None:
            settings_file = SettingsFile(
                DeferredFileWriter(settings_path, files, scheduler), {"own": "1"}
            )
        configuration = configured(values)
        store = open_store(StoreContext(configuration.store, files, scheduler, 1 << 30))
        network = MemoryNetwork()
        picked: list[int] = []

        def pick(count: int) -> int:
            picked.append(count)
            return count - 1

        broker = BrokerServer(
            BrokerDependencies(
                configuration=configuration,
                host=host,
                store=store,
                scheduler=scheduler,
                network=network,
                files=files,
                pick_queue=pick,
                settings_file=settings_file,
            )
        )
        if start:
            broker.start()
        channel = MemoryChannel(peer=("10.0.0.1", 1234))
        return BrokerHarness(scheduler, files, network, store, broker, channel, picked)

    return make


@pytest.fixture
def kit(build: BuildBroker) -> BrokerHarness:
    return build()
