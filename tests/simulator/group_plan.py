"""What may go wrong in a simulated group: a :class:`GroupPlan`, made by hand or from a seed."""

from __future__ import annotations

import random

from attrs import define, evolve

from rmqpy.dledger.member import RaftOptions

FAST = RaftOptions(
    heartbeat_interval_ms=200,
    min_vote_interval_ms=30,
    max_vote_interval_ms=150,
    push_timeout_ms=200,
    rpc_timeout_ms=400,
)
"""Times of a group that elects within a second or two."""


@define(slots=True, frozen=True, kw_only=True)
class GroupPlan:
    """What may happen. Chances are per message, intervals averages in ms (0: never)."""

    members: int = 3
    duration_ms: int = 20_000
    tick_ms: int = 20
    options: RaftOptions = FAST
    loss: float = 0.02
    repeat: float = 0.01
    delay_ms: int = 5
    slow: float = 0.02
    """Chance that a message takes up to a hundred times ``delay_ms``."""

    put_interval_ms: int = 40
    crash_interval_ms: int = 4000
    power: bool = False
    """Crashes are power failures; needs ``ack_after_sync``, which it switches on."""

    sync_ms: int = 30
    """Longest time from a write to its sync."""

    unsafe: bool = False
    """Leave ``ack_after_sync`` off, to see what a power failure does then."""

    partition_interval_ms: int = 3000
    transfer_interval_ms: int = 8000
    expire_interval_ms: int = 6000
    disk_interval_ms: int = 15_000
    pause_interval_ms: int = 10_000
    through_wire: bool = False
    """Each message is encoded and decoded on its way."""

    lazy: float = 0.2
    """Chance that a Ready is left for the next event, so that several are carried out as one."""

    settle_ms: int = 10_000


def plan_of(seed: int) -> GroupPlan:
    """The plan that a seed stands for: size, kind of crash, way of pushing, how much goes wrong."""
    rng = random.Random(f"plan {seed}")
    haste = rng.choice((1, 1, 2, 4, 8))
    options = FAST
    if rng.random() < 0.4:  # slow messages and short patience: one election after the other
        options = evolve(options, heartbeat_interval_ms=60, push_timeout_ms=100, rpc_timeout_ms=200)
    if rng.random() < 0.3:
        options = evolve(options, batch_push=True, batch_push_bytes=300)
    if rng.random() < 0.3:
        options = evolve(options, push_window=rng.choice((5, 20)))
    power = rng.random() < 0.5
    if power:
        haste = max(haste, 2)
    return GroupPlan(
        members=rng.choice((3, 3, 5)),
        options=options,
        power=power,
        sync_ms=rng.choice((10, 100, 300)),
        through_wire=rng.random() < 0.1,
        loss=rng.choice((0.0, 0.02, 0.1)),
        slow=rng.choice((0.0, 0.02, 0.1)),
        repeat=rng.choice((0.0, 0.01, 0.05)),
        crash_interval_ms=4000 // haste,
        partition_interval_ms=3000 // haste,
        put_interval_ms=rng.choice((20, 80, 300)),
    )
