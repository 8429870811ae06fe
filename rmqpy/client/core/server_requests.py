"""The requests that brokers send to clients, dispatched by request code and group, each in a task
of its own (Java: ClientRemotingProcessor).

====  ===============================  =======================  ==========
code  request                          group                    answer
====  ===============================  =======================  ==========
39    CHECK_TRANSACTION_STATE          PGROUP of the message    none
40    NOTIFY_CONSUMER_IDS_CHANGED      consumerGroup            none
220   RESET_CONSUMER_CLIENT_OFFSET     group                    none
221   GET_CONSUMER_STATUS_FROM_CLIENT  group                    a body
307   GET_CONSUMER_RUNNING_INFO        consumerGroup            a body
309   CONSUME_MESSAGE_DIRECTLY         consumerGroup            a body
====  ===============================  =======================  ==========

Invariants: a request with another code is answered with code 3, one for a group that this client
does not have with code 1; at most ``RUNNING_MAX`` requests run at once, and further ones are
refused; an error in one request is answered to that request only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from rmqpy.codec.errors import InvalidRecordError
from rmqpy.codec.message import decode_message
from rmqpy.codec.properties import PROPERTY_PRODUCER_GROUP
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError, RmqError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.frame import encode_command

logger = logging.getLogger(__name__)

RUNNING_MAX: Final = 1_000

Answerer = Callable[[Channel, RemotingCommand], Awaitable[bytes | None]]
"""Returns the body of a successful answer, or None if the request has no answer."""

_GROUP_FIELD: Final[Mapping[int, str]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
}


class ServerRequestHandler:
    """The ``RequestHandler`` of a client's connections."""

    def __init__(self) -> None:
        self._answerers: dict[tuple[int, str], Answerer] = {}
        self._running: set[asyncio.Task[None]] = set()

    def answer(self, group: str, answerers: Mapping[int, Answerer]) -> None:
        """Pass requests for ``group`` to ``answerers``, by request code, from now on."""
        for code, answerer in answerers.items():
            assert (code, group) not in self._answerers, (code, group)
            self._answerers[code, group] = answerer

    def forget(self, group: str, codes: Sequence[int]) -> None:
        """Stop answering the requests ``codes`` for ``group``."""
        for code in codes:
            self._answerers.pop((code, group), None)

    async def close(self) -> None:
        """Cancel the running requests."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- RequestHandler

    def handle(self, channel: Channel, commands: Sequence[RemotingCommand]) -> None:
        """Start a task for each request, or refuse it with the reason."""
        for command in commands:
            try:
                answerer = self._answerer(command)
            except RequestRejectedError as refusal:
                _answer(channel, command, _refused(command, refusal))
                continue
            task = asyncio.create_task(self._run(channel, command, answerer))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def turn_ended(self) -> None:
        """Do nothing: no work is deferred to the end of a turn."""

    def channel_closed(self, channel: Channel) -> None:
        """Do nothing: no state is kept per channel."""

    def _answerer(self, command: RemotingCommand) -> Answerer:
        code = command.code
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            group = _group_of_message(command.body)
        elif code in _GROUP_FIELD:
            group = command.ext_fields.get(_GROUP_FIELD[code], "")
        else:
            raise RequestRejectedError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
            )
        answerer = self._answerers.get((code, group))
        if answerer is None:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"the group {group} is not one of this client's"
            )
        if len(self._running) >= RUNNING_MAX:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY, f"{RUNNING_MAX} requests run already"
            )
        return answerer

    async def _run(self, channel: Channel, command: RemotingCommand, answerer: Answerer) -> None:
        try:
            body = await answerer(channel, command)
        except RequestRejectedError as refusal:
            response = _refused(command, refusal)
        except RmqError as fault:
            response = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, str(fault))
        except Exception as error:
            logger.exception("request %d from broker %s:%d failed", command.code, *channel.peer)
            response = RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, repr(error))
        else:
            if body is None:
                return
            response = RemotingCommand.response_to(command, body=body)
        _answer(channel, command, response)


def _answer(channel: Channel, request: RemotingCommand, response: RemotingCommand) -> None:
    if response.code != ResponseCode.SUCCESS:
        logger.warning(
            "request %d from broker %s:%d was not served: %s",
            request.code,
            *channel.peer,
            response.remark or response.code,
        )
    if not request.is_oneway:
        channel.write(encode_command(response))


def _refused(request: RemotingCommand, refusal: RequestRejectedError) -> RemotingCommand:
    return RemotingCommand.response_to(request, refusal.code, refusal.remark)


def _group_of_message(body: bytes) -> str:
    try:
        message = decode_message(memoryview(body))
    except InvalidRecordError as fault:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR, f"the body is not a message: {fault}"
        ) from None
    return message.properties.get(PROPERTY_PRODUCER_GROUP, "")
