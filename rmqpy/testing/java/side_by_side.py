"""Run the same scenario against a Java and an rmqpy cluster, and compare the messages.

Events are those of the probe (Probe.java).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from difflib import ndiff
from pprint import pformat
from typing import Any, Final, TypeVar

from rmqpy.testing.java.clients import ClientError, Event

C = TypeVar("C")

KINDS: Final = ("java", "rmqpy")
OF_A_RUN: Final = (
    "UNIQ_KEY",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "CONSUME_START_TIME",
    "ORIGIN_MESSAGE_ID",
    "__transactionId__",
)
"""The properties whose values differ from run to run."""
NOT_STORED: Final = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
ROUTE_WAIT_S: Final = 15


def both(clusters: Mapping[str, C], scenario: Callable[[C], Any]) -> Any:
    """Run ``scenario`` against each cluster, assert that the results are equal, and return one."""
    results = {}
    for kind in KINDS:
        try:
            results[kind] = scenario(clusters[kind])
        except Exception as error:
            raise AssertionError(f"against {kind}") from error
    java, ours = (results[kind] for kind in KINDS)
    assert ours == java, "\n".join(
        ndiff(pformat(java, width=160).splitlines(), pformat(ours, width=160).splitlines())
    )
    return ours


def seen(message: Event, *more: str) -> dict[str, Any]:
    """Return the fields of a message that must be the same on both sides, and ``more`` fields."""
    names = ("topic", "queueId", "flag", "sysFlag", "reconsumeTimes", "crc", "bodyLength", *more)
    properties = {
        name: (value if name not in OF_A_RUN else "present")
        for name, value in message["properties"].items()
        if name not in NOT_STORED
    }
    return {name: message[name] for name in names} | {"properties": properties}


def received(events: Iterable[Event], *more: str) -> list[dict[str, Any]]:
    """Return the messages that a consumer received, as :func:`seen` does."""
    return [seen(event, *more) for event in events if event["event"] == "received"]


def in_order(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages in an order that does not depend on the time of their delivery."""
    return sorted(messages, key=lambda m: (m["topic"], m["queueId"], m["reconsumeTimes"], m["crc"]))


def when_known(dump: Callable[[], list[Event]]) -> list[Event]:
    """Return the result of ``dump``; repeat it while the topic's route is not yet registered."""
    give_up = time.monotonic() + ROUTE_WAIT_S
    while True:
        try:
            return dump()
        except ClientError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.5)
