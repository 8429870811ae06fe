"""The 25 probes of known vulnerabilities (docs/reference/security.md) on a broker and a name server
in both security modes, by a client without an account.

Each probe is a test in each mode. It must be refused, except four in compatible mode that Java's
tools need.
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

import pytest
from attrs import define
from fuzz.requests import plain_request, register, requests_with_names

from rmqpy.acl.signature import Credentials
from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.client import TlsSide
from rmqpy.config.loading import (
    BrokerConfiguration,
    NamesrvConfiguration,
    load_broker_configuration,
    load_namesrv_configuration,
)
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
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "security.md"


@define
class Site:
    """Both servers and two clients; ``attacker`` has no account and trusts every certificate."""

    root: Path
    broker: BrokerRuntime
    namesrv: NamesrvProcess
    attacker: RemotingClient
    owner: RemotingClient
    tls: TlsContext | None

    async def attack(self, command: RemotingCommand, *, namesrv: bool = False) -> int | None:
        """Return the code of the answer to the attacker, or None without an answer."""
        address = self.namesrv.address if namesrv else self.broker.address
        try:
            return (await self.attacker.invoke(address, command, 5_000)).code
        except NetworkError:
            return None

    async def refuses(self, command: RemotingCommand, *, namesrv: bool = False) -> bool:
        return await self.attack(command, namesrv=namesrv) != 0

    async def refuses_setting(self, text: str, *, namesrv: bool = False) -> bool:
        """Return whether the settings are unchanged and the request is refused."""
        code = RequestCode.UPDATE_NAMESRV_CONFIG if namesrv else RequestCode.UPDATE_BROKER_CONFIG
        before = self.settings
        command = RemotingCommand(code, body=text.encode())
        return await self.refuses(command, namesrv=namesrv) and self.settings == before

    @property
    def settings(self) -> tuple[BrokerConfiguration, NamesrvConfiguration]:
        return (
            self.broker.broker.identity.configuration,
            self.namesrv.name_server.configuration,
        )

    async def route_addresses(self) -> set[str]:
        """Return the addresses in the route of the owner's topic."""
        command = plain_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Own"})
        answer = await self.owner.invoke(self.namesrv.address, command)
        route = TopicRouteData.decode(answer.body)
        return {each for broker in route.broker_datas for each in broker.broker_addrs.values()}


def settings_of(mode: str, root: Path, tls_folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of both servers, and the further ones of the broker."""
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
    """Run both servers in a folder four levels below ``folder``."""
    root = folder / "four" / "folders" / "further" / "down"
    root.mkdir(parents=True)
    both, more = settings_of(mode, root, tls_folder)
    ports = free_port_block(5)
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
    """Register another address under the name of a live broker."""
    command = register(Random(1), "broker-a", "DefaultCluster")
    command.ext_fields["brokerAddr"] = "127.0.0.66:10911"
    refused = await site.refuses(command, namesrv=True)
    return refused and await site.route_addresses() == {site.broker.address}


async def list_of_accounts(site: Site) -> bool:
    return await site.refuses(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))


async def topic_deletion(site: Site) -> bool:
    command = plain_request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Own"})
    return await site.refuses(command) and site.broker.broker.topics.get("Own") is not None


async def log_from_replication_port(site: Site) -> bool:
    """Request the log with eight zero bytes, as a slave that starts from offset 0."""
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


async def no_file_elsewhere(site: Site) -> bool:
    """Send all probes that have a path, and look for files outside the folders."""
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


def create_topic(name: str) -> Callable[[Site], Awaitable[bool]]:
    request = requests_with_names(Random(0), name, "g")["create_topic"]
    return lambda site: site.refuses(request)


def send_to(name: str) -> Callable[[Site], Awaitable[bool]]:
    request = requests_with_names(Random(0), name, "g")["send"]
    return lambda site: site.refuses(request)


def change_setting(text: str, namesrv: bool = False) -> Callable[[Site], Awaitable[bool]]:
    return lambda site: site.refuses_setting(text, namesrv=namesrv)


NAMES = {"../../../../x": "../../../../x", "..": "..", "a/b": "a/b", "a name with NUL": "a\0b"}
PUT_KV = plain_request(
    RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "Own", "value": "x:9"}
)
PROBES: dict[str, Callable[[Site], Awaitable[bool]]] = {
    **{f"create topic {shown}": create_topic(name) for shown, name in NAMES.items()},
    **{f"send to {shown}": send_to(name) for shown, name in NAMES.items()},
    "broker rocketmqHome= and filterServerNums=": change_setting(
        "rocketmqHome=-c $@|sh . echo touch /tmp/x;\nfilterServerNums=1\n"
    ),
    "broker brokerConfigPath=": change_setting("brokerConfigPath=/tmp/x\nbrokerPermission=4\n"),
    "broker storePathRootDir=": change_setting("storePathRootDir=/tmp/x\n"),
    "broker configBlackList=": change_setting("configBlackList=x\n"),
    "broker aclEnable=": change_setting("aclEnable=false\n"),
    "name server configStorePath=": change_setting("configStorePath=/tmp/x\n", True),
    "name server kvConfigPath=": change_setting("kvConfigPath=/tmp/x\n", True),
    "name server rocketmqHome=": change_setting("rocketmqHome=/tmp/x\n", True),
    "name server configStorePathName=": change_setting("configStorePathName=/tmp/x\n", True),
    "list of accounts": list_of_accounts,
    "reading the configuration": lambda site: site.refuses(
        RemotingCommand(RequestCode.GET_BROKER_CONFIG)
    ),
    "rogue broker registration": rogue_registration,
    "key-value write at the name server": lambda site: site.refuses(PUT_KV, namesrv=True),
    "topic deletion": topic_deletion,
    "the log from the replication port": log_from_replication_port,
    "no file where a probe pointed": no_file_elsewhere,
    "listening on named addresses only": named_addresses_only,
}
OPEN_IN_COMPATIBLE = {
    "reading the configuration",
    "key-value write at the name server",
    "topic deletion",
    "the log from the replication port",
}


def test_at_least_21_of_25_probes_are_refused_in_each_mode() -> None:
    assert len(PROBES) == 25
    assert len(PROBES.keys() - OPEN_IN_COMPATIBLE) >= 21


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compatible", "secure"])
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_refused_unless_it_is_open_in_this_mode(
    name: str, mode: str, tmp_path: Path, tls_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "rmqpy")

    async def main(scheduler: AsyncioScheduler) -> None:
        async with asyncio.timeout(60), site_in(mode, tmp_path, tls_folder, scheduler) as site:
            refused = await PROBES[name](site)
            assert refused == (mode == "secure" or name not in OPEN_IN_COMPATIBLE)
            assert scheduler.failure_log.failures == 0

    run(main)


def test_the_page_has_a_row_for_each_probe() -> None:
    rows = re.findall(r"^\| (.+?) \| (refused|open) \| (refused|open) \|$", PAGE.read_text(), re.M)
    shown = {re.sub(r"[`\\]", "", name): (compatible, secure) for name, compatible, secure in rows}
    assert shown == {
        name: ("open" if name in OPEN_IN_COMPATIBLE else "refused", "refused") for name in PROBES
    }
