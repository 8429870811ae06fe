"""The 25 probes of known holes (docs/reference/security.md), by a client without an account,
against a broker and a name server in both security modes.

Each row is a test in each mode: refused, or, in compatible mode, one of the four that Java's tools
in good faith need open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from attrs import define
from fuzz.requests import plain_request, register, requests_with_names

from rmqpy.acl.signature import Credentials
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client import TlsSide
from rmqpy.config.loading import load_broker_configuration, load_namesrv_configuration
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import NetworkError
from rmqpy.namesrv.process import NamesrvProcess
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler, run
from rmqpy.net.tls import TlsContext, client_tls
from rmqpy.remoting.bodies import TopicRouteData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.blocking_connection import send_request
from rmqpy.testing.ports import free_port_block

ADMIN = Credentials("administrator", "admin-secret")
ACCOUNTS = "accounts: [{accessKey: administrator, secretKey: admin-secret, admin: true}]\n"
HA_WAIT_S = 1.0
SHOWN = Path(__file__).parents[2] / "docs" / "reference" / "security.md"


@define
class Site:
    """Both servers; ``attacker`` has no account and trusts every certificate."""

    root: Path
    broker: BrokerRuntime
    namesrv: NamesrvProcess
    attacker: RemotingClient
    owner: RemotingClient
    tls: TlsContext | None

    async def ask(self, command: RemotingCommand, *, namesrv: bool = False) -> int | None:
        """The code of the answer to the attacker; None: no answer."""
        address = self.namesrv.address if namesrv else self.broker.address
        try:
            return (await self.attacker.invoke(address, command, 5_000)).code
        except NetworkError:
            return None

    async def refuses(self, command: RemotingCommand, *, namesrv: bool = False) -> bool:
        return await self.ask(command, namesrv=namesrv) != 0

    async def refuses_setting(self, text: str, *, namesrv: bool = False) -> bool:
        """Whether the settings stay as they were, and the answer says so."""
        code = RequestCode.UPDATE_NAMESRV_CONFIG if namesrv else RequestCode.UPDATE_BROKER_CONFIG
        before = self.settings
        command = RemotingCommand(code, body=text.encode())
        return await self.refuses(command, namesrv=namesrv) and self.settings == before

    @property
    def settings(self) -> tuple[Any, Any]:
        return (
            self.broker.broker.identity.configuration,
            self.namesrv.name_server.configuration,
        )

    async def route_of_a(self) -> set[str]:
        command = plain_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Own"})
        answer = await self.owner.invoke(self.namesrv.address, command)
        route = TopicRouteData.decode(answer.body)
        return {each for broker in route.broker_datas for each in broker.broker_addrs.values()}


def settings_of(mode: str, root: Path, tls_folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What both servers have, what the broker has more."""
    if mode == "compatible":
        return {}, {}
    (root / "conf").mkdir()
    (root / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    (root / "conf" / "plain_acl.yml").chmod(0o640)
    both = {
        "securityMode": "secure",
        "rocketmqHome": str(root),
        "tls.server.certPath": str(tls_folder / "server.pem"),
        "tls.server.keyPath": str(tls_folder / "server.key"),
        "tls.client.trustCertPath": str(tls_folder / "ca.pem"),
    }
    own = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    return both, {"innerClientAuthenticationCredentials": json.dumps(own)}


@contextlib.asynccontextmanager
async def site_in(
    mode: str, folder: Path, tls_folder: Path, scheduler: AsyncioScheduler
) -> AsyncIterator[Site]:
    root = folder / "four" / "folders" / "further" / "down"
    root.mkdir(parents=True)
    both, more = settings_of(mode, root, tls_folder)
    ports = free_port_block(5)
    ports.release()
    own = {
        "listenPort": str(ports[4]),
        "kvConfigPath": str(root / "namesrv" / "kvConfig.json"),
        "configStorePath": str(root / "namesrv" / "namesrv.properties"),
    }
    namesrv = NamesrvProcess(
        load_namesrv_configuration(None, {**both, **own}, {}).configuration, scheduler
    )
    await namesrv.start()
    settings = {
        **both,
        **more,
        "brokerName": "broker-a",
        "listenPort": str(ports.broker_port),
        "namesrvAddr": namesrv.address,
        "storePathRootDir": str(root / "store"),
        "mappedFileSizeCommitLog": str(1 << 20),
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
        "diskMaxUsedSpaceRatio": "95",
    }
    broker = BrokerRuntime(load_broker_configuration(None, settings, {}).configuration, scheduler)
    tls = client_tls(TlsSide()) if mode == "secure" else None
    attacker = RemotingClient(scheduler, tls=tls)
    owner = RemotingClient(scheduler, credentials=ADMIN, tls=tls)
    try:
        await broker.start()
        site = Site(root, broker, namesrv, attacker, owner, tls)
        answer = await owner.invoke(broker.address, send_request("Own", 0, [b"own message"]))
        assert answer.code == 0, answer
        async with asyncio.timeout(10):
            while namesrv.name_server.routes.route("Own") is None:
                await asyncio.sleep(0.01)
        yield site
    finally:
        await attacker.close()
        await owner.close()
        await broker.stop()
        await namesrv.stop()


async def rogue_registration(site: Site) -> bool:
    """Another address in the place of a broker that is alive."""
    command = register(Random(1), "broker-a", "DefaultCluster")
    command.ext_fields["brokerAddr"] = "127.0.0.66:10911"
    refused = await site.refuses(command, namesrv=True)
    return refused and await site.route_of_a() == {site.broker.address}


async def list_of_accounts(site: Site) -> bool:
    return await site.refuses(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))


async def topic_deletion(site: Site) -> bool:
    command = plain_request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Own"})
    return await site.refuses(command) and site.broker.broker.topics.get("Own") is not None


async def the_log_by_eight_zeros(site: Site) -> bool:
    host, _, port = site.broker.address.rpartition(":")
    context = site.tls.current() if site.tls is not None else None
    try:
        reader, writer = await asyncio.open_connection(host, int(port) + 1, ssl=context)
    except OSError:
        return True
    try:
        writer.write(bytes(8))
        async with asyncio.timeout(HA_WAIT_S):
            return b"own message" not in await reader.read(1 << 16)
    except (TimeoutError, OSError):
        return True
    finally:
        writer.close()


async def no_file_anywhere_else(site: Site) -> bool:
    """After all the requests with paths in them."""
    for name, probe in PROBES.items():
        if "../" in name or "=" in name:
            await probe(site)
    outside = [
        path
        for path in site.root.parents[3].rglob("*")
        if path.is_file() and not path.is_relative_to(site.root)
    ]
    return not outside and {each.name for each in site.root.iterdir()} <= {
        "store",
        "namesrv",
        "conf",
    }


async def named_addresses_only(site: Site) -> bool:
    servers = [*site.broker._parts.servers, site.namesrv._server]
    addresses = {host for server in servers for host, _ in server.addresses}
    return addresses == {"127.0.0.1"}


def creates(name: str) -> Callable[[Site], Awaitable[bool]]:
    request = requests_with_names(Random(0), name, "g")["create_topic"]
    return lambda site: site.refuses(request)


def sends(name: str) -> Callable[[Site], Awaitable[bool]]:
    request = requests_with_names(Random(0), name, "g")["send"]
    return lambda site: site.refuses(request)


def sets(text: str, namesrv: bool = False) -> Callable[[Site], Awaitable[bool]]:
    return lambda site: site.refuses_setting(text, namesrv=namesrv)


NAMES = {"../../../../x": "../../../../x", "..": "..", "a/b": "a/b", "a name with NUL": "a\0b"}
PUT_KV = plain_request(
    RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "Own", "value": "x:9"}
)
PROBES: dict[str, Callable[[Site], Awaitable[bool]]] = {
    **{f"create topic {shown}": creates(name) for shown, name in NAMES.items()},
    **{f"send to {shown}": sends(name) for shown, name in NAMES.items()},
    "broker rocketmqHome= and filterServerNums=": sets(
        "rocketmqHome=-c $@|sh . echo touch /tmp/x;\nfilterServerNums=1\n"
    ),
    "broker brokerConfigPath=": sets("brokerConfigPath=/tmp/x\nbrokerPermission=4\n"),
    "broker storePathRootDir=": sets("storePathRootDir=/tmp/x\n"),
    "broker configBlackList=": sets("configBlackList=x\n"),
    "broker aclEnable=": sets("aclEnable=false\n"),
    "name server configStorePath=": sets("configStorePath=/tmp/x\n", True),
    "name server kvConfigPath=": sets("kvConfigPath=/tmp/x\n", True),
    "name server rocketmqHome=": sets("rocketmqHome=/tmp/x\n", True),
    "name server configStorePathName=": sets("configStorePathName=/tmp/x\n", True),
    "list of accounts": list_of_accounts,
    "reading the configuration": lambda site: site.refuses(
        RemotingCommand(RequestCode.GET_BROKER_CONFIG)
    ),
    "rogue broker registration": rogue_registration,
    "key-value write at the name server": lambda site: site.refuses(PUT_KV, namesrv=True),
    "topic deletion": topic_deletion,
    "the log from the replication port": the_log_by_eight_zeros,
    "no file where a probe pointed": no_file_anywhere_else,
    "listening on named addresses only": named_addresses_only,
}
OPEN_IN_COMPATIBLE = {
    "reading the configuration",
    "key-value write at the name server",
    "topic deletion",
    "the log from the replication port",
}


def test_there_are_25_probes_and_at_least_21_are_refused_in_every_mode() -> None:
    assert len(PROBES) == 25
    assert len(PROBES.keys() - OPEN_IN_COMPATIBLE) >= 21


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compatible", "secure"])
@pytest.mark.parametrize("name", PROBES)
def test_probe(
    name: str, mode: str, tmp_path: Path, tls_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "rmqpy")

    async def main(scheduler: AsyncioScheduler) -> None:
        async with asyncio.timeout(60), site_in(mode, tmp_path, tls_folder, scheduler) as site:
            refused = await PROBES[name](site)
            assert refused == (mode == "secure" or name not in OPEN_IN_COMPATIBLE)
            assert scheduler.supervisor.failures == 0

    run(main)


def test_the_page_has_a_row_for_each_probe() -> None:
    rows = re.findall(r"^\| (.+?) \| (refused|open) \| (refused|open) \|$", SHOWN.read_text(), re.M)
    shown = {re.sub(r"[`\\]", "", name): (compatible, secure) for name, compatible, secure in rows}
    assert shown == {
        name: ("open" if name in OPEN_IN_COMPATIBLE else "refused", "refused") for name in PROBES
    }
