"""Requests that are refused while the consume queues are rebuilt from the log after a restart.

A pull gets what exists, and waits where nothing does (:mod:`rmqpy.store.reader`). Requests that
decide on offsets are refused, because an answer from an incomplete queue would send a consumer to
the wrong place.
"""

from __future__ import annotations

from typing import Final

from rmqpy.broker.base.store_api import Store
from rmqpy.model.codes import RequestCode, ResponseCode
from rmqpy.model.errors import RequestRejectedError

_NEED_WHOLE_QUEUES: Final = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
    }
)


def reject_while_rebuilding(store: Store, code: int) -> None:
    """Refuse a request whose answer needs complete consume queues. Raises RequestRejectedError."""
    if code in _NEED_WHOLE_QUEUES and store.is_rebuilding_queues:
        raise RequestRejectedError(
            ResponseCode.SYSTEM_ERROR,
            "the consume queues are being rebuilt from the log,"
            f" {store.dispatch_behind_bytes} bytes to go",
        )
