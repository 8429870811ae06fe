"""Fixtures of tests/client; what they hand out is in harness.client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from harness.client import A0, A1, B0, NAME_SERVERS, NOW_MS, ClientWorld, topic_route

from rmqpy.codec.message import encode_messages, set_offsets
from rmqpy.codec.properties import encode_properties
from rmqpy.model.message import OutgoingMessage
from rmqpy.remoting.bodies import TopicRouteData


@pytest.fixture
def make_route() -> Callable[..., TopicRouteData]:
    return topic_route


@pytest.fixture
def world() -> ClientWorld:
    made = ClientWorld()
    for address in NAME_SERVERS:
        made.answers[address] = made.name_server
    for address in (A0, A1, B0):
        made.answers[address] = made.broker
    made.routes["T"] = topic_route()
    return made


@pytest.fixture
def record() -> Callable[..., bytes]:
    """A stored record of topic T in queue 0 at 10.0.0.1:10911."""

    def encoded(
        queue_offset: int, body: bytes = b"body", sys_flag: int = 0, **properties: str
    ) -> bytes:
        draft = OutgoingMessage(
            topic=b"T",
            queue_id=0,
            body=body,
            properties=encode_properties(properties),
            sys_flag=sys_flag,
            born_timestamp_ms=NOW_MS,
            born_host=(bytes([10, 0, 0, 7]), 1234),
            store_host=(bytes([10, 0, 0, 1]), 10911),
        )
        (raw,) = encode_messages([draft])
        set_offsets(raw, 0, queue_offset, 1000 * queue_offset, NOW_MS + 1)
        return bytes(raw)

    return encoded


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end, with a deadline."""

    def run_to_end(main: Coroutine[Any, Any, Any]) -> Any:
        async def with_deadline() -> Any:
            async with asyncio.timeout(20):
                return await main

        return asyncio.run(with_deadline())

    return run_to_end
