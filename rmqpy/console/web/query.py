"""Values in the query or the form of a page."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from rmqpy.model.errors import RmqError

__all__ = ["number_in", "own_path", "time_of"]

INT64_MAX: Final = (1 << 63) - 1
_OWN_PATH: Final = re.compile(r"/(?![/\\])[!-~]{0,2047}")
"""A browser takes two slashes, of either kind, for the name of another host, and skips blanks."""


def number_in(request: web.Request, name: str, default: int) -> int:
    """Return a number of the query, or the default if it is none of 64 bits."""
    text = request.query.get(name, "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        return default
    return min(int(text), INT64_MAX)


def time_of(text: str) -> int:
    """Return a time in ms; one without a zone is in UTC. Raise RmqError if it is none."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise RmqError(
            f"found {text[:40]!r}, expected a time in UTC such as 2024-05-31T12:00"
        ) from None


def own_path(text: str) -> str:
    """Return a path of this console, or ``/`` for a text that may lead anywhere else."""
    return text if _OWN_PATH.fullmatch(text) else "/"
