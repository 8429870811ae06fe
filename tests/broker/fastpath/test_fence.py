"""A fence holds on the fast path too, from the request after it to the one after its end."""

from __future__ import annotations

from collections.abc import Callable

from harness.fastpath import BrokerPair

from rmqpy.model.codes import RequestCode
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command
from rmqpy.remoting.headers import FenceRequestHeader


def test_sends_are_refused_while_fenced(pair: Callable[..., BrokerPair]) -> None:
    for side in pair():
        side.connect(("10.0.0.1", 1234))
        plain = encode_command(side.harness.send_command(topic="T", properties="A\x01b\x02"))
        header = FenceRequestHeader(seconds=10)
        fence = encode_command(RemotingCommand.request(RequestCode.RMQPY_FENCE, header))
        stored = []
        for data in (plain, plain, plain + fence + plain, plain):
            side.receive(0, data)
            side.end_turn()
            stored.append(side.harness.store.reader.max_queue_offset("T", 0))
        assert stored == [1, 2, 3, 3]
        side.harness.scheduler.advance(10_000)
        side.receive(0, plain)
        side.end_turn()
        assert side.harness.store.reader.max_queue_offset("T", 0) == 4
