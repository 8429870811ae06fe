"""What the controllers of 5.x, and the brokers below them, say of the groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rmqpy.console.collecting.collector import Collector
from rmqpy.console.collecting.shared import SharedAnswers
from rmqpy.console.facts import BrokerFacts
from rmqpy.console.views.controllers import ControllerAnswers, ControllerGroup, controlled
from rmqpy.model.codes import RequestCode
from rmqpy.model.errors import RmqError
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.fastjson import loads

__all__ = ["ControllerReader"]

FRESH_MS: Final = 4_000
CONTROLLERS_MAX: Final = 16
NAMES_MAX: Final = 256


class ControllerReader:
    """Asks controllers and brokers when a page is looked at; all viewers share the answers."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._shared = SharedAnswers(collector.clock)
        self._known: dict[str, str] = {}
        """The controllers of each broker name, which are also asked while no broker answers."""

    async def groups(self) -> list[ControllerGroup]:
        """Return the groups whose masters controllers elect."""
        moment = self._collector.moment
        for broker in moment.brokers:
            addresses = ";".join(broker.controllers.split(";")[:CONTROLLERS_MAX])
            if addresses and (broker.name in self._known or len(self._known) < NAMES_MAX):
                self._known[broker.name] = addresses
        answers = await asyncio.gather(*(self._of(each) for each in {*self._known.values()}))
        return controlled(moment, dict(answers), self._known)

    async def _of(self, addresses: str) -> tuple[str, ControllerAnswers]:
        async def ask() -> ControllerAnswers:
            return await self._ask(addresses)

        return addresses, await self._shared.get(addresses, FRESH_MS, ask)

    async def _ask(self, addresses: str) -> ControllerAnswers:
        names = sorted(name for name, each in self._known.items() if each == addresses)
        asked = [each for each in addresses.split(";") if each]
        headers = await asyncio.gather(*(self._metadata(each) for each in asked))
        found = {
            address: header
            for address, header in zip(asked, headers, strict=True)
            if header is not None
        }
        leader = ControllerAnswers(metadata=found).leader
        replicas = await self._replicas(leader, names) if leader else {}
        brokers = [
            each for each in self._collector.moment.brokers if each.name in names and not each.fault
        ]
        return ControllerAnswers(
            metadata=found,
            replicas=replicas,
            epochs=await self._bodies(brokers, RequestCode.GET_BROKER_EPOCH_CACHE),
            ha_status=await self._bodies(
                (each for each in brokers if each.is_master), RequestCode.GET_BROKER_HA_STATUS
            ),
        )

    async def _metadata(self, address: str) -> Mapping[str, str] | None:
        answer = await self._call(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return None if answer is None else dict(answer.ext_fields)

    async def _replicas(self, leader: str, names: list[str]) -> Mapping[str, Any]:
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        answer = await self._call(leader, code, json.dumps(names).encode())
        tree = _tree_of(answer)
        table = tree.get("replicasInfoTable") if isinstance(tree, dict) else None
        return table if isinstance(table, dict) else {}

    async def _bodies(self, brokers: Iterable[BrokerFacts], code: RequestCode) -> dict[str, Any]:
        asked = [each.address for each in brokers]
        answers = await asyncio.gather(*(self._call(each, code) for each in asked))
        return {address: _tree_of(answer) for address, answer in zip(asked, answers, strict=True)}

    async def _call(
        self, address: str, code: RequestCode, body: bytes = b""
    ) -> RemotingCommand | None:
        try:
            return await self._collector.admin.call(address, code, body=body)
        except (RmqError, ValueError):  # a broker's setting may hold what is no address
            return None


def _tree_of(answer: RemotingCommand | None) -> Any:
    try:
        return None if answer is None else loads(answer.body)
    except (RmqError, ValueError):
        return None
