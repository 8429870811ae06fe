"""The main port of a broker with the fast path: the C core receives the frames of a piece, answers
what it can, and hands back the others.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from rmqpy.broker.assembly.server import BrokerServer
from rmqpy.net.server.feed_api import Feed, FeedStatus
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import decode_command
from simulator.network import WireChannel

FRAME_MAX: Final = 1 << 24
NO_SOCKET: Final = -1


@define(slots=True, eq=False, repr=False)
class FastPathReceiver:
    """The steps of a ``FeedReader`` for pieces that hold whole frames, without sockets."""

    server: BrokerServer
    feed: Feed
    _numbers: dict[WireChannel, int] = field(factory=dict)
    answered: int = 0
    """The number of frames that C did not leave to Python."""

    def __attrs_post_init__(self) -> None:
        self.feed.core.frame_max = FRAME_MAX

    def receive(self, channel: WireChannel, data: bytes) -> None:
        """Answer the frames of ``data``."""
        feed = self.feed
        number = self._numbers.get(channel)
        if number is None:
            number = self._numbers[channel] = feed.attach(channel, NO_SOCKET)
        self.answered += 1
        feed.refresh()
        feed.feed(data)
        while (status := feed.resume(number)) != FeedStatus.DONE:
            if status == FeedStatus.FALLBACK:
                self._fall_back(channel)
            elif status in (FeedStatus.ROLL, FeedStatus.COMMIT):
                feed.make_room(status)
            else:
                assert status in (FeedStatus.OUT_FULL, FeedStatus.OUT_SHARE), status
                self.server.turn_ended()
                feed.refresh()

    def close(self) -> None:
        """Release the memory of the fast path, because the process has ended."""
        self.feed.close()

    def forget(self, channel: WireChannel) -> None:
        """Release the number of a channel that is closed."""
        number = self._numbers.pop(channel, None)
        if number is not None:
            self.feed.detach(number)

    def _fall_back(self, channel: WireChannel) -> None:
        commands = [decode_command(frame) for frame in self.feed.unhandled_frames()]
        self.answered -= len(commands)
        self.feed.before_fallback()
        rest: list[RemotingCommand] = commands
        while rest:
            rest = list(self.server.handle(channel, rest) or ())
        self.feed.after_fallback(commands)
