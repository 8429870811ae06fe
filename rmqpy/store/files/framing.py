"""The two forms of a log file."""

from __future__ import annotations

from enum import Enum


class Framing(Enum):
    """The framing of the records of a log."""

    CLASSIC = "classic"
    DLEDGER = "dledger"
