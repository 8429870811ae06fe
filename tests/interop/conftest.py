"""The fixtures of tests/interop; their types are in harness.interop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from harness.interop import (
    CLUSTERS,
    ClusterPair,
    Commands,
    Hosts,
    InteropCluster,
    InteropServers,
    MakeHosts,
    clean_exit_codes,
    start_cluster,
)

from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT
from rmqpy.testing.processes import (
    BrokerSpec,
    RmqpySite,
    dledger_settings,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-pages", action="store_true", help="write docs/reference/conformance.md"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = JavaHome().missing()
    if reason is not None:
        for item in items:
            if here in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InteropServers]:
    root = tmp_path_factory.mktemp("interop")
    java = JavaSite(root / "java", JavaHome())
    home = {"ROCKETMQ_HOME": str(root / "rmqpy")}  # The Java servers have one, too.
    servers = InteropServers(
        java, RmqpySite(root / "rmqpy", environment=home), java.probe(""), java.admin("")
    )
    yield servers
    servers.probe.close()
    servers.admin.close()
    servers.close()


@pytest.fixture(scope="session", params=CLUSTERS, ids="-".join)
def cluster(request: pytest.FixtureRequest, servers: InteropServers) -> Iterator[InteropCluster]:
    namesrv_kind, broker_kind, mode = request.param
    name = "-".join(request.param)
    namesrv = servers.namesrv(namesrv_kind, f"{name}-namesrv")
    spec = BrokerSpec(
        port=servers.block(BROKER_PORT_COUNT).broker_port,
        namesrv=namesrv.address,
        settings=dledger_settings("broker-a", servers.block(1).first) if mode == "dledger" else {},
    )
    broker = servers.take(servers.site(broker_kind).broker(f"{name}-broker", spec).start())
    yield InteropCluster(
        namesrv,
        broker,
        spec.broker_name,
        servers.probe.at(namesrv.address),
        servers.admin.at(namesrv.address),
    )
    assert broker.stop() in clean_exit_codes(broker_kind)
    assert namesrv.stop() in clean_exit_codes(namesrv_kind)


@pytest.fixture(scope="session")
def pair_of(servers: InteropServers) -> Callable[[str, str, Mapping[str, str]], ClusterPair]:
    """Return a function that starts a pair under a name, in a mode, with settings; the caller stops
    it.

    The modes are ``classic``, ``dledger`` (a group of one), and ``group`` (a group of three).
    """

    def start(name: str, mode: str, settings: Mapping[str, str]) -> ClusterPair:
        return {kind: start_cluster(servers, kind, f"{name}-{kind}-{mode}", mode, settings)
                for kind in ("java", "rmqpy")}  # fmt: skip

    return start


@pytest.fixture
def hosts(servers: InteropServers, upgrade_commands: Commands) -> MakeHosts:
    """Return a function that creates hosts in a folder, from the kind of their name server, a name
    for all servers, and a brokerName.
    """

    def make(folder: Path, namesrv_kind: str, name: str, broker: str) -> Hosts:
        return Hosts.make(servers, upgrade_commands, folder, namesrv_kind, name, broker)

    return make
