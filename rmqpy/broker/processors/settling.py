"""After a restart the consume queues may follow the log for a while: what is not answered then.

A pull gets what is there, and waits where nothing is (rmqpy.store.reader); requests that decide on
offsets are refused, for an answer from half a queue would send a consumer to the wrong place.
"""

from __future__ import annotations

from typing import Final

from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.store.dispatcher import Dispatcher

_NEED_WHOLE_QUEUES: Final = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
    }
)


def reject_while_rebuilding(dispatcher: Dispatcher, code: int) -> None:
    """Raises Refusal when the answer has to wait for the consume queues."""
    if code in _NEED_WHOLE_QUEUES and dispatcher.is_rebuilding_queues:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            "the consume queues are being brought in line with the log,"
            f" {dispatcher.behind_bytes} bytes to go",
        )
