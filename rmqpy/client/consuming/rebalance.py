"""The share of the queues that each member of a group consumes: all members compute disjoint shares
with the same arithmetic. Pure.

===================  ============================================================================
AVERAGELY            contiguous ranges; the first ``n mod k`` members have one queue more (default)
AVERAGELY_BY_CIRCLE  round robin: member ``i`` has queues ``i``, ``i + k``, ``i + 2k``, …
===================  ============================================================================

Invariants: members that see the same queues and the same client ids assign every queue to exactly
one of them; queues and ids are sorted first, so the order of answers does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from rmqpy.model.deprecation import deprecated_names
from rmqpy.remoting.bodies import MessageQueue

Strategy = Callable[[str, Collection[MessageQueue], Collection[str]], list[MessageQueue]]
"""(own client id, all queues, all client ids) → own queues; empty if the own id is missing."""


def allocate_averagely(
    client_id: str, queues: Collection[MessageQueue], client_ids: Collection[str]
) -> list[MessageQueue]:
    """Return a contiguous share of the queues (Java: AllocateMessageQueueAveragely)."""
    members, ordered = sorted(set(client_ids)), sorted(queues)
    if client_id not in members:
        return []
    number, remainder = members.index(client_id), len(ordered) % len(members)
    size = len(ordered) // len(members)
    start = number * size + min(number, remainder)
    return ordered[start : start + size + (number < remainder)]


def allocate_averagely_by_circle(
    client_id: str, queues: Collection[MessageQueue], client_ids: Collection[str]
) -> list[MessageQueue]:
    """Return every k-th queue (Java: AllocateMessageQueueAveragelyByCircle)."""
    members, ordered = sorted(set(client_ids)), sorted(queues)
    if client_id not in members:
        return []
    return ordered[members.index(client_id) :: len(members)]


__getattr__ = deprecated_names(__name__, {"averagely_by_circle": "allocate_averagely_by_circle"})
