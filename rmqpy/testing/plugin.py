"""The pytest plug-in: options and fixtures.

It does not import other modules of rmqpy until a fixture is used. Two settings of pytest's
configuration change the servers: ``rmq_scope`` (``function`` or ``session``), and ``rmq_process``
(true for a process of their own). Each worker of pytest-xdist has servers of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from rmqpy.testing.broker import Broker, NameServer
    from rmqpy.testing.harness import BuildBroker

SCOPES = ("function", "session")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rmqpy")
    group.addoption("--rmq-suite", metavar="FILE", help="a suite file, for rmqpy.suite")
    group.addoption("--rmq-store", metavar="DIR", help="a broker's storePathRootDir; it is copied")
    group.addoption(
        "--rmq-config", metavar="FILE", help="broker.conf with which the store was written"
    )
    group.addoption(
        "--rmq-java", metavar="VERSION", help="run with this Java broker as well, such as 4.9.7"
    )
    parser.addini(
        "rmq_scope", "scope of rmq_namesrv, rmq_broker, and rmq_group", default="function"
    )
    parser.addini("rmq_process", "run the servers in a process of their own", "bool", default=False)


def _scope(fixture_name: str, config: pytest.Config) -> Literal["function", "session"]:
    scope = config.getini("rmq_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"rmq_scope: found {scope!r}, expected one of {', '.join(SCOPES)}")
    return "session" if scope == "session" else "function"


@pytest.fixture(scope=_scope)
def rmq_settings() -> Mapping[str, str]:
    """The keys of broker.conf for ``rmq_broker`` and ``rmq_group``; override it to change them."""
    return {}


@pytest.fixture(scope=_scope)
def rmq_topics() -> Sequence[str]:
    """The topics that ``rmq_broker`` and ``rmq_group`` have, as ``name`` or ``name:queues``;
    override it to change them.
    """
    return ()


@pytest.fixture(scope=_scope)
def rmq_namesrv(request: pytest.FixtureRequest) -> Iterator[NameServer]:
    """A running name server, which ``rmq_broker`` and ``rmq_group`` share."""
    from rmqpy.testing.broker import NameServer

    with NameServer(process=request.config.getini("rmq_process")) as server:
        yield server


@pytest.fixture(scope=_scope)
def rmq_broker(
    request: pytest.FixtureRequest,
    rmq_namesrv: NameServer,
    rmq_settings: Mapping[str, str],
    rmq_topics: Sequence[str],
) -> Iterator[Broker]:
    """A running broker with a classic log."""
    with _broker(request, rmq_namesrv, topics=rmq_topics, settings=rmq_settings) as broker:
        yield broker


@pytest.fixture(scope=_scope)
def rmq_group(
    request: pytest.FixtureRequest,
    rmq_namesrv: NameServer,
    rmq_settings: Mapping[str, str],
    rmq_topics: Sequence[str],
) -> Iterator[Broker]:
    """Three running members of a DLedger group, one of them elected."""
    settings = {"brokerName": "group-a", **rmq_settings}
    with _broker(request, rmq_namesrv, members=3, topics=rmq_topics, settings=settings) as group:
        yield group


@pytest.fixture
def rmq_upgraded_group(
    request: pytest.FixtureRequest, rmq_namesrv: NameServer, tmp_path: Path
) -> Iterator[Broker]:
    """A group switched from a copy of ``--rmq-store``, or from a small classic store."""
    from rmqpy.testing.fixtures import shown_sizes, switched_run

    given = request.config.getoption("--rmq-store")
    run = switched_run(tmp_path / "upgraded", Path(given) if given else None)
    settings = {"brokerName": "upgraded-a", **shown_sizes(run.stores["n0"])}
    stores = run.stores
    with _broker(request, rmq_namesrv, members=3, stores=stores, settings=settings) as group:
        yield group


@pytest.fixture
def rmq_memory_broker() -> BuildBroker:
    """The function that builds brokers in memory, ``rmqpy.testing.harness.memory_broker``."""
    from rmqpy.testing.harness import memory_broker

    return memory_broker


def _broker(request: pytest.FixtureRequest, namesrv: NameServer, **given: Any) -> Broker:
    from rmqpy.testing.broker import Broker

    process: bool = request.config.getini("rmq_process")
    return Broker(name_server=namesrv, process=process, **given)
