"""The port of a real member: who may speak for the others, and the secret of the group."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import evolve

from rmqpy.broker.assembly.process import BrokerRuntime
from rmqpy.broker.replication.group_secret import group_secret
from rmqpy.config.loading import StoreSettings, effective_lines
from rmqpy.dledger.protocol.json_bodies import decode_response, encode
from rmqpy.dledger.protocol.messages import (
    DLedgerResponseCode,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
    VoteRequest,
)
from rmqpy.model.errors import ConfigError
from rmqpy.model.ids import Term
from rmqpy.net.client import RemotingClient
from rmqpy.net.loop import AsyncioScheduler
from rmqpy.remoting.command import RemotingCommand
from rmqpy.testing.in_process import broker_in_process

SECRET = "a secret of twenty b"


@asynccontextmanager
async def member(root: Path, **settings: str) -> AsyncIterator[tuple[BrokerRuntime, str]]:
    """Run member n0 of a group whose members are on other hosts, and yield it with its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    values = {
        "bindAddress": "127.0.0.1",
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-192.0.2.1:{port};n1-192.0.2.2:1;n2-192.0.2.3:1",
    }
    async with broker_in_process(root, "127.0.0.1:1", values | settings) as runtime:
        yield runtime, f"127.0.0.1:{port}"


async def ask(address: str, request: Request) -> Response:
    scheduler = AsyncioScheduler()
    client = RemotingClient(scheduler)
    command = RemotingCommand.request(request.CODE, body=encode(request))
    answer = await client.invoke(address, command)
    await client.close()
    await scheduler.close()
    assert answer.code == 200, answer
    return decode_response(type(request), answer.body)


VOTE = VoteRequest(
    group="g",
    remote_id="n0",
    local_id="n1",
    leader_id="n1",
    term=Term(7),
    ledger_end_index=99,
    ledger_end_term=6,
)


def test_a_vote_counts_only_from_the_address_of_a_member(tmp_path: Path) -> None:
    async def run() -> None:
        async with member(tmp_path) as (runtime, address):
            vote = await ask(address, VOTE)
            assert vote.code == DLedgerResponseCode.UNEXPECTED_MEMBER
            info = runtime.broker.replication.runtime_info()
            assert info["dledgerRequestsTurnedAway"] == "1"
            assert "127.0.0.1 sends a VoteRequest" in info["dledgerLastTurnedAway"]
            client = await ask(address, MetadataRequest(group="g", remote_id="n0"))
            assert isinstance(client, MetadataResponse) and client.peers, "a client's request"

    asyncio.run(run())


def test_an_address_in_the_list_may_speak_for_a_member(tmp_path: Path) -> None:
    async def run() -> None:
        async with member(tmp_path, replicationAddresses="127.0.0.1") as (_runtime, address):
            assert (await ask(address, VOTE)).code == 200

    asyncio.run(run())


def test_with_a_secret_the_address_is_not_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        settings = {"replicationAddresses": "127.0.0.1", "rmqpyGroupSecret": SECRET}
        async with member(tmp_path, **settings) as (runtime, address):
            vote = await ask(address, VOTE)
            assert vote.code == DLedgerResponseCode.UNEXPECTED_MEMBER
            lines = effective_lines(runtime.broker.identity.configuration)
            assert "rmqpyGroupSecret=******" in lines
            assert SECRET not in "\n".join(lines)
            assert SECRET not in repr(runtime.broker.identity.configuration)

    asyncio.run(run())
    assert SECRET not in caplog.text


def test_the_secret_comes_from_the_configuration_or_from_a_file(tmp_path: Path) -> None:
    settings = StoreSettings()
    assert group_secret(settings) is None
    given = evolve(settings, rmqpy_group_secret=f" {SECRET}")
    assert group_secret(given) == SECRET.encode()
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o640)
    from_file = evolve(settings, rmqpy_group_secret_file=str(file))
    assert group_secret(from_file) == SECRET.encode()
    with pytest.raises(ConfigError, match=r"both set.*remove the other"):
        group_secret(evolve(given, rmqpy_group_secret_file=str(file)))


def test_an_unusable_secret_stops_the_start_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    settings = StoreSettings(rmqpy_group_secret_file=str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        group_secret(settings)
    file.write_text(SECRET)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"has mode 0644: expected .* chmod 0640"):
        group_secret(settings)
    file.write_text("fifteen bytes..")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="has 15 bytes, expected at least 16") as short:
        group_secret(settings)
    assert "fifteen" not in str(short.value)
