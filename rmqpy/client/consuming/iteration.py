"""Messages one by one: ``async for message in consumer`` instead of a listener.

A message is finished when the next one is requested, or by :meth:`MessageIterator.finish`. A
message that is not finished when the consumer is closed, or when its queue goes to another member,
is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from attrs import define

from rmqpy.client.consuming.consume_service import ConsumeResult, WithdrawnError
from rmqpy.client.core.message import MessageExt
from rmqpy.client.errors import ClientStateError
from rmqpy.remoting.bodies import MessageQueue


@define(slots=True, frozen=True, eq=False, repr=False)
class _Offer:
    """A message, and how it ended."""

    message: MessageExt
    ended: asyncio.Future[ConsumeResult]


class MessageIterator:
    """The listener of a consumer that is iterated over. ``listen`` returns when its messages are
    finished.
    """

    def __init__(self) -> None:
        self._offers: asyncio.Queue[_Offer | None] = asyncio.Queue()
        self._unfinished: set[_Offer] = set()
        self._current: _Offer | None = None
        self._closed = False
        self._waits = False

    async def listen(self, messages: Sequence[MessageExt]) -> ConsumeResult:
        for message in messages:
            offer = _Offer(message, asyncio.get_running_loop().create_future())
            self._unfinished.add(offer)
            self._offers.put_nowait(offer)  # One per worker, or per ordered queue, at most.
            try:
                # A cancellation cancels the offer, which is not taken then.
                if await offer.ended is ConsumeResult.RECONSUME_LATER:
                    return ConsumeResult.RECONSUME_LATER
            finally:
                self._unfinished.discard(offer)
        return ConsumeResult.SUCCESS

    async def next(self) -> MessageExt | None:
        """Finish the current message and return the next one, or None after :meth:`close`."""
        if self._waits:
            raise ClientStateError("found a second iteration over a consumer, expected one")
        self.finish(ConsumeResult.SUCCESS)
        self._waits = True
        try:
            while not self._closed:
                offer = await self._offers.get()
                if offer is not None and not offer.ended.done():
                    self._current = offer
                    return offer.message
            return None
        finally:
            self._waits = False

    def finish(self, result: ConsumeResult) -> None:
        """Finish the current message, if there is one."""
        current, self._current = self._current, None
        if current is not None and not current.ended.done():
            current.ended.set_result(result)

    def withdraw(self, queue: MessageQueue) -> None:
        """Offer the messages of ``queue`` no longer, except the current one."""
        for offer in self._unfinished:
            if offer is not self._current and offer.message.queue == queue:
                if not offer.ended.done():
                    offer.ended.set_exception(WithdrawnError())

    def close(self) -> None:
        """End the iteration, and cancel the calls of ``listen``."""
        self._closed = True
        for offer in self._unfinished:
            offer.ended.cancel()
        self._offers.put_nowait(None)
