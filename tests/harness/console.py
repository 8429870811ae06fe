"""A console in the test's loop: its pages over HTTP, and brokers that only count and answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.admin.api import Admin
from rmqpy.client.core.instance import ClientInstance, ClientSettings
from rmqpy.client.pull_consumer import PullConsumer
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import NetworkError, RequestRejectedError
from rmqpy.remoting.bodies import BrokerData, ClusterInfo
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.command_header import CommandHeader
from rmqpy.testing.in_process import name_server_and_broker

if TYPE_CHECKING:
    from aiohttp.test_utils import TestClient

    from rmqpy.console.collecting.collector import Collector

test_utils = pytest.importorskip("aiohttp.test_utils", reason="rmqpy[console] is not installed")
console = pytest.importorskip("rmqpy.console.web.console", reason="rmqpy[console] is not installed")
collecting = pytest.importorskip("rmqpy.console.collecting.collector")
readers = pytest.importorskip("rmqpy.console.collecting.readers")
guard = pytest.importorskip("rmqpy.console.web.guard")
query = pytest.importorskip("rmqpy.console.web.query")

ACCOUNTS = """\
accounts:
- {accessKey: operator, secretKey: operators-secret, admin: true}
- {accessKey: a-reader, secretKey: readers-secret, topicPerms: [orders=SUB], groupPerms: [g=SUB]}
"""
OPERATOR = {"account": "operator", "secret": "operators-secret"}
CSRF = re.compile(r'name="csrf" value="([^"]+)"')


@define
class SetClock:
    """A clock that a test sets."""

    time_ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


@define
class HastyClock(SetClock):
    """A clock for which every shared answer is too old."""

    hurried_ms: int = 0

    def monotonic_ms(self) -> int:
        self.hurried_ms += 60_000
        return self.hurried_ms


@define
class CountedBrokers:
    """What :class:`rmqpy.admin.api.Admin` would return for brokers that a test describes.

    ``brokers`` is the address of each by (name, id), ``infos`` the runtime information by address;
    a broker without one does not answer. ``answers`` has further ones by address and code, as
    recorded from Java. ``requests`` counts all calls by their names.
    """

    brokers: dict[tuple[str, int], str]
    infos: dict[str, dict[str, str]] = field(factory=dict)
    settings: dict[str, dict[str, str]] = field(factory=dict)
    statuses: dict[str, bytes] = field(factory=dict)
    records: dict[str, bytes] = field(factory=dict)
    answers: dict[tuple[str, RequestCode], RemotingCommand] = field(factory=dict)
    cluster: str = "DefaultCluster"
    is_namesrv_up: bool = True
    requests: Counter[str] = field(factory=Counter)

    async def cluster_info(self) -> ClusterInfo:
        self.requests["cluster_info"] += 1
        if not self.is_namesrv_up:
            raise NetworkError("no name server answers")
        table: dict[str, BrokerData] = {}
        for (name, broker_id), address in self.brokers.items():
            data = table.setdefault(name, BrokerData(self.cluster, name, {}))
            data.broker_addrs[broker_id] = address
        return ClusterInfo(table, {self.cluster: list(table)})

    async def runtime_info(self, address: str) -> Mapping[str, str]:
        self.requests["runtime_info"] += 1
        if address not in self.infos:
            raise NetworkError(f"{address}: connection refused")
        return self.infos[address]

    async def broker_config(self, address: str) -> Mapping[str, str]:
        self.requests["broker_config"] += 1
        return self.settings.get(address, {})

    async def elections(self, address: str) -> bytes:
        self.requests["elections"] += 1
        if address not in self.records:
            raise RequestRejectedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        return self.records[address]

    async def call(
        self,
        address: str,
        code: RequestCode,
        header: CommandHeader | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        self.requests[code.name] += 1
        if code is RequestCode.RMQPY_DLEDGER_STATUS and address in self.statuses:
            return RemotingCommand(code=0, body=self.statuses[address])
        if (address, code) in self.answers:
            return self.answers[address, code]
        raise RequestRejectedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")


@asynccontextmanager
async def writable(
    root: Path, *, checks: bool, group: Path | None = None
) -> AsyncIterator[tuple[TestClient[Any, Any], str]]:
    """Run a broker, with access control if it ``checks``, and a console that may write;
    yield a client of it and the address of the name server.
    """
    settings = {}
    if checks:
        (root / "conf").mkdir()
        (root / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
        (root / "conf" / "plain_acl.yml").chmod(0o640)
        settings = {"aclEnable": "true", "rocketmqHome": str(root)}
    async with name_server_and_broker(root, settings) as servers:
        account = Credentials("operator", "operators-secret") if checks else None
        cluster = ClientSettings(name_servers=servers.name_server, credentials=account)
        instance = await ClientInstance.open(cluster)
        try:
            async with PullConsumer("TOOLS_CONSUMER", instance=instance) as consumer:
                admin = Admin(instance, (servers.name_server,))
                collector = collecting.Collector(admin, HastyClock())
                await collector.poll()
                given: dict[str, Any] = {
                    "allow_writes": True,
                    "cluster": servers.name_server,
                    "group": group,
                }
                async with browsing(collector, consumer, **given) as client:
                    yield client, servers.name_server
        finally:
            await instance.close()


async def page_of(client: TestClient[Any, Any], path: str) -> str:
    return await (await client.get(path)).text()


async def post(client: TestClient[Any, Any], path: str, form: dict[str, str]) -> tuple[int, str]:
    """Send a form as its page would, and return status and page."""
    csrf = csrf_of(await page_of(client, "/login"))
    answer = await client.post(path, data={**form, "csrf": csrf}, allow_redirects=False)
    return answer.status, await answer.text()


@asynccontextmanager
async def browsing(
    collector: Collector, consumer: Any = None, **given: Any
) -> AsyncIterator[TestClient[Any, Any]]:
    """Serve the console of a collector, which is not polled, and yield a client."""
    allow_writes = bool(given.pop("allow_writes", False))
    cluster = ClientSettings(name_servers=given.pop("cluster", "127.0.0.1:1"))
    group = given.pop("group", None)
    listening = guard.Listening(**given)
    options = console.ConsoleOptions(
        cluster=cluster, listening=listening, allow_writes=allow_writes, group=group
    )
    given_readers = readers.ClusterReaders.of(collector, consumer)
    app = console.application(given_readers, options, collector.clock)
    async with test_utils.TestClient(test_utils.TestServer(app)) as client:
        yield client


def csrf_of(page: str) -> str:
    """Return the form token of a page."""
    found = CSRF.search(page)
    assert found is not None
    return found[1]
