"""The COMPARE_LOG request of rmqpy: digests of a range of this broker's log, with which a replica
checks that it is a copy (:mod:`rmqpy.ha.compare`). One request reads at most ``SPAN_MAX`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from attrs import define

from rmqpy.broker.base.store_api import HandlerTable
from rmqpy.ha.compare import CompareRange, digests
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.remoting.channel import Channel
from rmqpy.remoting.command import RemotingCommand
from rmqpy.remoting.headers import CompareLogRequestHeader
from rmqpy.store.commitlog.interface import ReadableLog, read_span


@define(slots=True, frozen=True, eq=False, repr=False)
class LogCompareProcessor:
    """The processor of the COMPARE_LOG request."""

    current_log: Callable[[], ReadableLog]

    def handlers(self) -> HandlerTable:
        return {RequestCode.RMQPY_COMPARE_LOG: self.compare}

    def compare(self, _channel: Channel, request: RemotingCommand) -> RemotingCommand:
        header = CompareLogRequestHeader.decode(request.ext_fields)
        try:
            span = CompareRange(header.begin_offset, header.end_offset, header.block_size)
            body = digests(span, partial(read_span, self.current_log()))
        except (ValueError, KeyError) as error:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_ERROR, f"nothing to compare: {error}"
            ) from error
        return RemotingCommand.response_to(request, body=body)
