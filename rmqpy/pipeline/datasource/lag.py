"""The lag of a stream: how many offsets of each queue it has not read yet.

Spark's progress has the position that a batch reached and, from this source, the newest position
that the brokers reported. Spark itself reports the rates (``inputRowsPerSecond``,
``processedRowsPerSecond``).
"""

from __future__ import annotations

import json
from typing import Any

from rmqpy.model.errors import ConfigError
from rmqpy.pipeline.datasource.stream_offsets import Position, position_of

__all__ = ["lag_of"]


def lag_of(progress: Any) -> Position:
    """Return the lag by queue of all RocketMQ sources in ``query.lastProgress``.

    Without a progress (before the first batch) there is none. A queue that was found after the
    batch counts from offset 0.
    """
    lag: Position = {}
    for source in progress["sources"] if progress is not None else ():
        newest, reached = _position(source["latestOffset"]), _position(source["endOffset"])
        for queue, end in newest.items():
            lag[queue] = max(end - reached.get(queue, 0), 0)
    return lag


def _position(offset: Any) -> Position:
    """Return a position of this source; empty if there is none, or it is of another source."""
    try:
        return position_of(json.loads(offset) if isinstance(offset, str) else offset or {})
    except (ConfigError, ValueError):
        return {}
