"""``storeType=MEMORY``: the store of a test group, which ends with its broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqpy.broker.assembly import memory_store
from rmqpy.broker.assembly.memory_store import MemoryFolder
from rmqpy.broker.assembly.switch.checks import problems
from rmqpy.broker.assembly.switch.exchange import SwitchingBroker
from rmqpy.broker.replication.switch_protocol import SwitchPlan
from rmqpy.client import Message, Producer
from rmqpy.config.loading import configuration_text, load_broker_configuration
from rmqpy.model.errors import ConfigError
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.testing.in_process import name_server_and_broker

PREFIX = "rmqpy-store-"


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the module takes for the memory file system."""
    monkeypatch.setattr(memory_store, "MEMORY_FILE_SYSTEM", str(tmp_path))
    monkeypatch.setattr(memory_store, "_check_memory_file_system", lambda: None)
    return tmp_path


def test_a_start_removes_only_what_killed_brokers_have_left(shm: Path) -> None:
    used = MemoryFolder.create()
    left = shm / f"{PREFIX}left"
    (left / "commitlog").mkdir(parents=True)
    (shm / "another").mkdir()
    own = MemoryFolder.create()
    names = {Path(each.path).name for each in (used, own)}
    assert {each.name for each in shm.iterdir()} == {*names, "another"}
    used.remove()
    own.remove()
    assert [each.name for each in shm.iterdir()] == ["another"]


def test_a_machine_without_a_memory_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_store, "MEMORY_FILE_SYSTEM", str(tmp_path))
    with pytest.raises(ConfigError, match="expected tmpfs"):
        MemoryFolder.create()


@pytest.mark.slow
def test_nothing_survives_the_end_of_the_broker(
    shm: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")

    async def main() -> None:
        for _ in range(2):
            async with name_server_and_broker(root, {"storeType": "MEMORY"}) as running:
                store = running.broker.store
                assert store.log.max_offset == 0
                async with Producer("P", running.name_server) as producer:
                    result = await producer.send(Message(topic="TBW102", body=b"forgotten"))
                assert result.status.name == "SEND_OK"
                (folder,) = shm.iterdir()
                assert (folder / "commitlog" / f"{0:020}").exists()
                assert not (root / "store").exists()
                group = running.broker._parts.group
                assert group is not None
                switching = SwitchingBroker(running.broker.broker, store, group)
                plan = SwitchPlan(
                    switch="s",
                    group="a",
                    coordinator="n0",
                    peers="n0-127.0.0.1:1",
                    brokers={"n0": running.broker_address},
                )
                (problem,) = problems(switching, OsFileSystem(), plan, "n0")
                assert "must not forget its log" in problem
            assert list(shm.iterdir()) == []

    asyncio.run(main())


@pytest.mark.slow
def test_a_start_that_fails_leaves_nothing_in_memory(
    shm: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"storeType": "MEMORY", "aclEnable": "true"}  # There is no access file.

    async def main() -> None:
        async with name_server_and_broker(tmp_path_factory.mktemp("root"), settings):
            raise AssertionError("the broker has started")

    with pytest.raises(ConfigError):
        asyncio.run(main())
    assert list(shm.iterdir()) == []


def test_the_folder_does_not_reach_the_configuration_file(shm: Path) -> None:
    """``updateBrokerConfig`` writes all settings; the folder ends with the broker."""
    loaded = load_broker_configuration(
        None, {"storeType": "MEMORY", "storePathRootDir": "/data"}, {"HOME": "/home"}
    )
    folder = MemoryFolder.create()
    placed = folder.placed(loaded.configuration)
    folder.remove()
    assert placed.store.store_path_root_dir == folder.path
    text = configuration_text(placed, {}, folder.settings)
    assert folder.path not in text and "storeType=MEMORY" in text
