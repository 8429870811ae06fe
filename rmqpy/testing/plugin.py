"""The pytest plug-in: options and fixtures.

It does not import other modules of rmqpy until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rmqpy.testing.fixtures import RunningBroker, RunningGroup, UpgradeFixture
    from rmqpy.testing.harness import BuildBroker
    from rmqpy.testing.processes import ServerProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmqpy")
    group.addoption("--rmq-store", metavar="DIR", help="a broker's storePathRootDir; it is copied")
    group.addoption(
        "--rmq-config", metavar="FILE", help="broker.conf with which the store was written"
    )
    group.addoption(
        "--rmq-java", metavar="VERSION", help="run with this Java broker as well, such as 4.9.7"
    )


@pytest.fixture
def rmq_ground(tmp_path: Path) -> Iterator[UpgradeFixture]:
    """The factory of the servers of a test; it stops all of them at the end."""
    from rmqpy.testing.fixtures import UpgradeFixture

    ground = UpgradeFixture(tmp_path)
    yield ground
    ground.close()


@pytest.fixture
def rmq_memory_broker() -> BuildBroker:
    """The function that builds brokers in memory, ``rmqpy.testing.harness.memory_broker``."""
    from rmqpy.testing.harness import memory_broker

    return memory_broker


@pytest.fixture
def rmq_namesrv(rmq_ground: UpgradeFixture) -> ServerProcess:
    """A running name server on a random port; its address is ``.address``."""
    return rmq_ground.namesrv()


@pytest.fixture
def rmq_broker(rmq_ground: UpgradeFixture) -> RunningBroker:
    """A running broker with a classic log, and its name server."""
    return rmq_ground.broker()


@pytest.fixture
def rmq_group(rmq_ground: UpgradeFixture) -> RunningGroup:
    """Three running members of a DLedger group, one of them elected, and their name server."""
    return rmq_ground.group()


@pytest.fixture
def rmq_upgraded_group(rmq_ground: UpgradeFixture, request: pytest.FixtureRequest) -> RunningGroup:
    """A group switched from a copy of ``--rmq-store``, or from a small classic store."""
    store = request.config.getoption("--rmq-store")
    return rmq_ground.upgraded_group(Path(store) if store else None)
