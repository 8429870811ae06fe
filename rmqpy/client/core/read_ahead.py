"""Read-ahead: a queue that is read in sequence is pulled before its reader asks for more.

A reader that handles the messages of one pull before it starts the next one waits for the broker
each time, and the broker for it. As an operating system does with files, the consumer therefore
requests the next messages as soon as it has the last ones::

    pull of the reader                              the consumer then
    continues the last one, within ``QUICK_MS``     requests the next messages if there are more
    any other                                       only remembers where it ended

A pull continues the last one if it starts where that one ended, with the same parameters. Messages
never change, so those that were requested earlier are those that the pull itself would return. Any
other response, an error included, is dropped, and the pull is sent as always.

Invariants: at most one response is read ahead for a queue, and for at most ``QUEUES_MAX`` queues;
none is used after ``QUICK_MS``. A reader that is slower, or that reads more queues in turn, costs
the broker no request that it does not need.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from attrs import define, field

from rmqpy.client.core.base_consumer import PullOrder
from rmqpy.remoting.bodies import MessageQueue
from rmqpy.remoting.command import RemotingCommand

QUICK_MS: Final = 1_000
"""The longest time between a pull and one that continues it."""
QUEUES_MAX: Final = 16


@define(slots=True, eq=False)
class Sequence:
    """The last pull of a queue. It ended at ``ended_ms`` before ``following``, and ``response`` is
    the response to that one if it was requested.
    """

    ended_ms: int
    following: PullOrder | None = None
    response: Awaitable[RemotingCommand] | None = None

    def is_continued_by(self, order: PullOrder, now_ms: int) -> bool:
        """Return whether ``order`` starts where the last pull ended, soon enough."""
        following = self.following
        return (
            following is not None
            and following.offset == order.offset
            and following.max_count == order.max_count
            and following.expression == order.expression
            and following.expression_type == order.expression_type
            and now_ms - self.ended_ms <= QUICK_MS
        )

    def take(self) -> Awaitable[RemotingCommand] | None:
        """Return the response that was read ahead, and forget it."""
        response, self.response = self.response, None
        return response


@define(slots=True, eq=False)
class ReadAhead:
    """The queues that were pulled last."""

    _sequences: dict[MessageQueue, Sequence] = field(factory=dict)

    def sequence(self, queue: MessageQueue, now_ms: int) -> Sequence | None:
        """Return the sequence of ``queue``; None if too many other queues are being read."""
        sequences = self._sequences
        sequence = sequences.get(queue)
        if sequence is None:
            if len(sequences) >= QUEUES_MAX:
                for each in [*sequences]:
                    if now_ms - sequences[each].ended_ms > QUICK_MS:
                        del sequences[each]
                if len(sequences) >= QUEUES_MAX:
                    return None
            sequence = sequences[queue] = Sequence(now_ms)
        return sequence

    def clear(self) -> None:
        """Forget all sequences."""
        self._sequences.clear()
