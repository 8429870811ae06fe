"""Every tool names what only 5.x reads, and nothing else, on stores that 5.3.3 wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import UnreadData, UnreadKind, find_unread

NODES = (
    "E-timers-v533/clean",
    "E-timers-v533/killed",
    "E-timers-v533/lagging",
    "F-pop-v533/log",
    "F-pop-v533/kv",
    "F-pop-acknowledged-v533/log",
    "G-rocksdb-v533/queues",
    "G-rocksdb-v533/both",
    "H-queues-v533/store",
    "I-controller-v533/n0",
    "J-tiered-v533/store",
)
"""Stores with all that rmqpy does not read; tests/store/test_unread_golden.py has their faults."""
COMMANDS = {
    "inspect": (["store", "inspect"], 0),
    "fsck": (["store", "fsck"], 0),
    "check": (["upgrade", "check", "--details"], 2),
    "audit": (["pipeline", "audit", "--engine", "local"], 0),
}
"""The words of each, and its exit code for a store with such data."""
NAMES_VERSION_2 = ("inspect", "check")
"""The commands that say which versions can open a store. Every command reads records of version 2,
so the others have nothing to say about them.
"""


@pytest.fixture(params=NODES)
def store(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> Path:
    node: str = request.param
    archive, _, name = node.partition("/")
    return golden(archive) / name


def expected(store: Path) -> list[UnreadData]:
    return find_unread(OsFileSystem(), StorePaths(str(store), f"{store}/commitlog"))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_it(store: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A store is sound, whatever waits there; ``check`` does not let it be switched."""
    words, code_of_5x = COMMANDS[command]
    found = expected(store)
    code = main([*words, str(store)])
    printed = " ".join(capsys.readouterr().out.split())
    assert code == (code_of_5x if found else 0), printed
    for each in found:
        assert each.found.partition(" (")[0] in printed
    damaged = ("UNREAD_DAMAGED", "RECORD_", "UNIT_", "INDEX_", "CONFIG_")
    assert not any(word in printed for word in damaged)
    names_version_2 = command in NAMES_VERSION_2 and "F-pop-v533" in store.parts
    assert ("records of version 2" in printed) == names_version_2


def test_every_kind_has_a_store(golden: Callable[[str], Path]) -> None:
    roots = [golden(archive) / name for archive, _, name in (node.partition("/") for node in NODES)]
    assert {each.kind for root in roots for each in expected(root)} == {*UnreadKind}


@pytest.mark.spark
def test_the_data_source_names_it(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed; pip install 'rmqpy[spark]'")
    from rmqpy.pipeline.datasource.source import RocketMqSource

    source = RocketMqSource({"path": str(store)})
    with caplog.at_level(logging.WARNING):
        source.reader(source.schema()).partitions()
    texts = [f"{each.path}: {each.found}: " for each in expected(store)]
    assert len(caplog.messages) == len(texts)
    for text, message in zip(texts, caplog.messages, strict=True):
        assert message.startswith(text)
