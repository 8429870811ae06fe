"""The routes of a client of the simulated cluster, polled from the name servers in random order."""

from __future__ import annotations

import random

from attrs import define, field

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RmqError
from rmqpy.model.ids import MASTER_ID
from rmqpy.remoting.bodies import TopicRouteData
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import GetRouteInfoRequestHeader
from simulator.network import NetworkClient
from simulator.virtual_time import ProcessLifetime

POLL_MS = 2000
TIMEOUT_MS = 1000


@define(slots=True, eq=False, repr=False)
class Routes:
    """The route of a client. ``addresses`` are those of the last answer, by broker id."""

    topic: str
    life: ProcessLifetime
    client: NetworkClient
    servers: list[str]
    rng: random.Random
    addresses: dict[int, str] = field(factory=dict)

    @property
    def master(self) -> str | None:
        return self.addresses.get(MASTER_ID)

    def start(self) -> None:
        """Poll now, and every two seconds."""
        if self.servers:
            self.life.call_later(POLL_MS, self.start)
            self.poll()

    def poll(self) -> None:
        header = GetRouteInfoRequestHeader(topic=self.topic)
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        server = self.rng.choice(self.servers)
        self.client.request(server, command, TIMEOUT_MS, self._answered)

    def _answered(self, response: RemotingCommand | None, _fault: RmqError | None) -> None:
        if response is not None and response.code == ResponseCode.SUCCESS:
            brokers = TopicRouteData.decode(response.body).broker_datas
            self.addresses = {
                broker_id: address
                for broker in brokers
                for broker_id, address in broker.broker_addrs.items()
            }
