"""Every tool names what only 5.x reads, and nothing else, on stores that 5.3.3 wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.store.files.disk import OsFileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.unread.data import UnreadData, find_unread

NODES = (
    "E-timers-v533/lagging",
    "F-pop-v533/log",
    "F-pop-acknowledged-v533/log",
    "G-rocksdb-v533/both",
    "H-queues-v533/store",
    "I-controller-v533/n0",
    "J-tiered-v533/store",
)
"""A store of each kind; tests/store/test_unread_golden.py has the others, and their faults."""


@pytest.fixture(params=NODES)
def store(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> Path:
    node: str = request.param
    archive, _, name = node.partition("/")
    return golden(archive) / name


def expected(store: Path) -> list[UnreadData]:
    return find_unread(OsFileSystem(), StorePaths(str(store), f"{store}/commitlog"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "clean"),
    [
        (["store", "inspect"], 0),
        (["store", "fsck"], 0),
        (["upgrade", "check", "--details"], 2),
        (["pipeline", "audit", "--engine", "local"], 0),
    ],
    ids=["inspect", "fsck", "check", "audit"],
)
def test_a_command_names_it(
    store: Path, line: list[str], clean: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store is sound, whatever waits there; ``check`` does not let it be switched."""
    found = expected(store)
    code = main([*line, str(store)])
    printed = " ".join(capsys.readouterr().out.split())
    assert code == (clean if found else 0), printed
    for each in found:
        assert each.found.partition(" (")[0] in printed
    damaged = ("UNREAD_DAMAGED", "RECORD_", "UNIT_", "INDEX_", "CONFIG_")
    assert not any(word in printed for word in damaged)


@pytest.mark.spark
def test_the_data_source_names_it(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    from rmqpy.pipeline.datasource.source import RocketMqSource

    source = RocketMqSource({"path": str(store)})
    with caplog.at_level(logging.WARNING):
        source.reader(source.schema()).partitions()
    texts = [f"{each.path}: {each.found}: " for each in expected(store)]
    assert len(caplog.messages) == len(texts)
    for text, message in zip(texts, caplog.messages, strict=True):
        assert message.startswith(text)
