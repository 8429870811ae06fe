"""Distinct types for integers of different meaning.

An ``offset`` counts bytes (physical) or messages (queue), a ``position`` is relative to the start
of a file, an ``index`` counts entries from the first. The glossary (docs/reference/glossary.md)
lists Java's names.
"""

from __future__ import annotations

from typing import Final, NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""The byte address of a message in the joined commit log. In the DLedger part it is the entry
position + 48.
"""

QueueOffset = NewType("QueueOffset", int)
"""The number of a message in its queue, from 0. Its consume queue unit begins at 20 times this."""

LedgerIndex = NewType("LedgerIndex", int)
"""The number of a DLedger entry, from 0; -1 means none."""

Term = NewType("Term", int)
"""A Raft term."""

UNREACHED_TERM: Final = Term(1 << 62)
"""The first term that no group reaches, because elections raise it by one: a member in it has
believed a forged message.
"""

MASTER_ID = 0
"""The brokerId of a master."""
