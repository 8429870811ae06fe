"""The least that pulls cost a client in Python that reads nothing ahead; ``clients.py`` starts it.

    python bench/pull_floor.py MODE NAMESRV TOPIC GROUP SECONDS WARM_SECONDS

The pulls of ``client_load.py`` on one socket of asyncio: the callback that receives a response
sends the next request. The system calls are the same. With MODE ``messages`` the functions of the
client make the messages, with ``calls`` nobody looks at a response beyond its next offset. There
are no coroutines, responses are not matched to requests, and nothing can fail or time out.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from typing import Final, cast

from client_load import PULL, whole
from meter import Meter

from rmqpy.client import ClientInstance, ClientSettings, MessageQueue
from rmqpy.client.core.base_consumer import SUBSCRIBE_ALL
from rmqpy.client.core.message import messages_of
from rmqpy.client.core.routes import subscribe_queues
from rmqpy.codec.backend import received_records
from rmqpy.model.codes import RequestCode
from rmqpy.model.flags import PULL_SUBSCRIPTION
from rmqpy.net.client import parse_address
from rmqpy.remoting.bodies import EXPRESSION_TAG
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import PullMessageRequestHeader
from rmqpy.remoting.request_template import RequestTemplate, varying_fields

BUFFER_BYTES: Final = 1 << 20
FOUND: Final = re.compile(rb'\{"code":0,.*"nextBeginOffset":"(\d+)"')
VARYING: Final = varying_fields(PullMessageRequestHeader, ("queue_id", "queue_offset"))


class Puller(asyncio.BufferedProtocol):
    """Reads all queues from their first to their last message, again and again."""

    def __init__(
        self, queues: list[MessageQueue], group: str, meter: Meter, *, with_messages: bool
    ) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._queues = queues
        self._meter = meter
        self._with_messages = with_messages
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queues[0].topic,
            queue_id=0,
            queue_offset=0,
            max_msg_nums=PULL,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription=SUBSCRIBE_ALL,
            sub_version=0,
            expression_type=EXPRESSION_TAG,
            bname=queues[0].broker_name,
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
        self._template = RequestTemplate(command, VARYING)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = self._offset = self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)
        self._pull()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the broker has closed the connection"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        size = int.from_bytes(self._buffer[:4]) + 4
        if self._filled < size:
            return
        assert self._filled == size, "more than one response"
        self._filled = 0
        start = 8 + int.from_bytes(self._buffer[5:8])
        found = FOUND.match(self._buffer, 8, start)
        if found is None:  # the end of the queue
            self._offset, self._number = 0, (self._number + 1) % len(self._queues)
        elif not self._meter.add(self._count(start, size, int(found[1]) - self._offset)):
            self.ended.set_result(None)
            return
        else:
            self._offset = int(found[1])
        self._pull()

    def _count(self, start: int, size: int, count: int) -> int:
        if not self._with_messages:
            return count
        records, fault = received_records(bytes(self._buffer[start:size]))
        assert fault is None, fault
        return whole(messages_of(self._queues[self._number], records))

    def _pull(self) -> None:
        values = self._queues[self._number].queue_id, self._offset
        self._transport.write(self._template.head(values, 0, 0, 0))


async def pull(mode: str, namesrv: str, topic: str, group: str, meter: Meter) -> None:
    instance = await ClientInstance.open(ClientSettings(name_servers=namesrv))
    queues = subscribe_queues(topic, await instance.route(topic))
    address = instance.known_address(queues[0].broker_name)
    assert address is not None and len({queue.broker_name for queue in queues}) == 1, queues
    await instance.close()
    transport, puller = await asyncio.get_running_loop().create_connection(
        lambda: Puller(queues, group, meter, with_messages=mode == "messages"),
        *parse_address(address),
    )
    await puller.ended
    transport.close()


def main() -> None:
    mode, namesrv, topic, group, seconds, warm_seconds = sys.argv[1:]
    meter = Meter(float(seconds), float(warm_seconds))
    asyncio.run(pull(mode, namesrv, topic, group, meter))
    print(json.dumps(meter.result), flush=True)


if __name__ == "__main__":
    main()
