"""Integers of different meaning are different types.

``offset`` counts bytes (physical) or items (queue), ``position`` is inside one file, ``index``
counts entries from the first. Java's names are in the glossary (docs/reference/glossary.md).
"""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte address in the joined commit log; of a DLedger message: entry position + 48."""

QueueOffset = NewType("QueueOffset", int)
"""Number of a message in its queue, from 0; its consume queue unit is at 20 times this."""

LedgerIndex = NewType("LedgerIndex", int)
"""Number of a DLedger entry, from 0; -1 means none."""

Term = NewType("Term", int)
"""Raft term."""

MASTER_ID = 0
"""brokerId of a master."""
