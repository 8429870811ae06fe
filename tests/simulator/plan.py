"""The plans of simulations: cluster, traffic, and faults, all derived from a seed.

``plan_of(seed)`` derives a plan, ``str(plan)`` prints it, one line per group of values.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from attrs import asdict, define, evolve

GROUP_NAME = "simulated"
NEVER = 0

NO_FAULTS: Mapping[str, object] = {
    "loss": 0.0,
    "repeat": 0.0,
    "slow": 0.0,
    "power": False,
    "tear": 0.0,
    "preferred": -1,
    "crash_interval_ms": NEVER,
    "partition_interval_ms": NEVER,
    "line_interval_ms": NEVER,
    "pause_interval_ms": NEVER,
    "clock_interval_ms": NEVER,
    "disk_interval_ms": NEVER,
    "blackout_interval_ms": NEVER,
    "flip_interval_ms": NEVER,
    "tail_interval_ms": NEVER,
    "transfer_interval_ms": NEVER,
    "hours_interval_ms": NEVER,
    "truce_interval_ms": NEVER,
    "stranger_interval_ms": NEVER,
    "side_interval_ms": NEVER,
    "table_interval_ms": NEVER,
}
"""The values of a plan without faults, and without clients that only disturb."""


@define(slots=True, frozen=True, kw_only=True)
class SimulationPlan:
    """The plan of a simulation.

    Probabilities are per piece on the network; intervals are averages in ms (``NEVER``: no such
    fault).
    """

    seed: int
    members: int = 3
    """The number of brokers; exactly one without ``dledger``."""

    dledger: bool = True
    sync_flush: bool = False
    old_messages: int = 0
    """The number of messages in a classic log before the DLedger log, equal on all members."""

    twice: bool = False
    """Whether the classic log has a message whose queue offset is taken, as Java's leaders can
    assign it.
    """

    duration_ms: int = 60_000
    heartbeat_ms: int = 2000
    tick_ms: int = 40
    """The period of the members' state loop; 10 outside of simulations."""

    file_size: int = 16 * 1024
    queues: int = 2
    body_bytes: int = 200
    send_interval_ms: int = 150
    batch: float = 0.1
    """The probability that a send carries several messages."""

    pull_interval_ms: int = 250

    loss: float = 0.0
    repeat: float = 0.0
    delay_ms: int = 3
    slow: float = 0.0
    crash_interval_ms: int = NEVER
    power: bool = False
    """Whether crashes are power failures; otherwise processes are killed, and no write is lost."""

    tear: float = 0.5
    """The probability of a crash in the middle of an event, at one of the next disk changes."""

    down_ms: int = 3000
    """The average time until a machine that crashed is started again."""

    partition_interval_ms: int = NEVER
    pause_interval_ms: int = NEVER
    pause_ms: int = 3000
    clock_interval_ms: int = NEVER
    disk_interval_ms: int = NEVER
    """The interval at which a disk fills up, or fails, for a while: as a whole, or its syncs."""

    blackout_interval_ms: int = NEVER
    """The interval at which machines lose their power at once: with ``sync_flush`` all or several
    of them, otherwise all.
    """

    scattered: float = 0.0
    """The probability that a power failure keeps unsynced sectors in any order."""

    flip_interval_ms: int = NEVER
    """The interval at which a bit of a committed entry, or of its index unit, flips on a disk."""

    transfer_interval_ms: int = NEVER
    """The interval at which an operator transfers leadership to another member."""

    preferred: int = -1
    """The member that should lead whenever it can."""

    hours_interval_ms: int = NEVER
    """The interval at which hours pass on all machines at once, so that files expire.

    With bare nodes, the files of one member expire.
    """

    tail_interval_ms: int = NEVER
    """The interval at which a member is stopped, loses its last entry to a flipped bit, and starts
    among those who never had it.
    """

    line_interval_ms: int = NEVER
    """The interval at which the connection from the leader to a member breaks, and the first thing
    that it sends on the next one is lost, also during truces.
    """

    tail_unit: bool = False
    """Whether a bit of its index unit flips, too: nothing then tells that the entry was there, but
    the checkpoint.
    """

    truce_interval_ms: int = NEVER
    """The interval at which a quorum is spared for a while, in which it must make progress."""

    quiet: bool = False
    """Whether hardly anything is sent during truces: a member that is cut off from the leader then
    lacks no entry, and others could vote for it.
    """

    stranger_interval_ms: int = NEVER
    """The interval at which a stranger sends a forged request, also during truces."""

    side_interval_ms: int = NEVER
    """The average interval of transactions, delayed messages and consumer offsets."""

    table_interval_ms: int = NEVER
    """The average interval of changes of topics and groups."""

    name_servers: int = 0
    fast_path: bool = False
    """Whether the C core receives the frames of the brokers' main ports."""

    comparable: bool = False
    """Whether the history is the same if C or Python answers: what a broker writes to a client in
    one moment is one piece, and its settings let C answer pulls.
    """

    sync_ms: int = 20
    """The longest time that a blocking call takes."""

    change: str = ""
    """The change of log that the brokers make while clients send: ``switch`` or ``leave``. The
    faults of such a run are not in the plan.
    """

    bare: bool = False
    """Whether members are bare DLedger nodes; the following fields concern only these."""

    lazy: float = 0.2
    """The probability that a Ready waits for the next event, so that several become one."""

    push_timeout_ms: int = 200
    batch_push: bool = False
    push_window: int = 1000
    ack_unsynced: bool = False
    """Whether unsynced entries are acknowledged even if crashes are power failures."""

    def __str__(self) -> str:
        values = asdict(self)
        return "\n".join(
            f"{title:<9}" + " ".join(f"{name}={values[name]}" for name in names.split())
            for title, names in (_LINES + _NODE_LINES if self.bare else _LINES)
        )


_LINES = (
    ("cluster", "seed change members dledger sync_flush old_messages twice name_servers preferred"),
    ("timing", "heartbeat_ms tick_ms file_size fast_path comparable"),
    ("traffic", "duration_ms queues body_bytes send_interval_ms batch pull_interval_ms"),
    ("clients", "side_interval_ms stranger_interval_ms table_interval_ms"),
    ("network", "loss repeat delay_ms slow partition_interval_ms line_interval_ms"),
    ("machines", "crash_interval_ms power tear down_ms pause_interval_ms pause_ms"),
    (
        "disks",
        "disk_interval_ms flip_interval_ms tail_interval_ms tail_unit hours_interval_ms sync_ms",
    ),
    ("power", "blackout_interval_ms scattered"),
    ("others", "clock_interval_ms transfer_interval_ms truce_interval_ms quiet"),
)
_NODE_LINES = (("nodes", "lazy push_timeout_ms batch_push push_window ack_unsynced"),)


def live_plan(change: str, seed: int) -> SimulationPlan:
    """Return the plan of brokers that switch to DLedger, or leave it."""
    return SimulationPlan(
        seed=seed,
        change=change,
        dledger=change == "leave",
        heartbeat_ms=600,
        duration_ms=7000,
        sync_flush=True,
    )


def plan_of(seed: int) -> SimulationPlan:
    """Return a plan of a group of three or five brokers."""
    rng = random.Random(f"plan {seed}")
    members = rng.choice((3, 3, 5))
    plan = _broker_plan(seed, rng)
    # Delays and transactions depend on the clocks, which must not jump then.
    has_clocks = plan.clock_interval_ms or plan.hours_interval_ms
    return evolve(
        plan,
        side_interval_ms=0 if has_clocks else 700,
        members=members,
        old_messages=rng.choice((0, 0, 5, 40)),
        partition_interval_ms=rng.choice((0, 4000, 8000, 15_000)),
        flip_interval_ms=rng.choice((0, 0, 3000, 8000)),
        transfer_interval_ms=rng.choice((0, 0, 5000, 10_000)),
        preferred=rng.choice((-1, -1, -1, 0, 2)),
        name_servers=rng.choice((0, 1, 2)),
        truce_interval_ms=rng.choice((0, 5000, 15_000)),
        stranger_interval_ms=rng.choice((0, 0, 400)),
        table_interval_ms=rng.choice((0, 1500)),
        tail_interval_ms=rng.choice((0, 0, 15_000)),
        twice=rng.random() < 0.5,
        line_interval_ms=rng.choice((0, 0, 8000)),
    )


def single_broker_plan(seed: int) -> SimulationPlan:
    """Return a plan of one broker, with a classic log or as a group of one."""
    rng = random.Random(f"lonely {seed}")
    dledger = rng.random() < 0.5
    return evolve(
        _broker_plan(seed, rng),
        members=1,
        dledger=dledger,
        old_messages=rng.choice((0, 5, 40)) if dledger else 0,
        table_interval_ms=rng.choice((0, 1500)),
    )


def fast_path_plan(seed: int) -> SimulationPlan:
    """Return a plan of brokers with the fast path: a group, or for even seeds a single one."""
    plan = plan_of(seed) if seed % 2 else single_broker_plan(seed)
    return evolve(plan, fast_path=True, comparable=True)


def node_plan(seed: int) -> SimulationPlan:
    """Return a plan of three or five bare nodes, whose faults come faster than those of brokers."""
    rng = random.Random(f"nodes {seed}")
    haste = rng.choice((1, 1, 2, 4, 8))
    # Slow messages and short timeouts cause one election after another.
    is_impatient = rng.random() < 0.4
    power = rng.random() < 0.5
    if power:
        haste = max(haste, 2)
    push_window = rng.choice((1000, 1000, 1000, 5, 20))
    sync_ms = rng.choice((10, 100, 300))
    return SimulationPlan(
        seed=seed,
        bare=True,
        members=rng.choice((3, 3, 5)),
        power=power,
        duration_ms=20_000,
        heartbeat_ms=60 if is_impatient else 200,
        tick_ms=20,
        push_timeout_ms=100 if is_impatient else 200,
        batch_push=rng.random() < 0.3,
        push_window=push_window,
        batch=0.4,
        send_interval_ms=rng.choice((20, 80, 300)),
        # A follower that answers a few pushes per sync would not keep up.
        sync_ms=sync_ms if push_window == 1000 else 10,
        delay_ms=5,
        loss=rng.choice((0.0, 0.02, 0.1)),
        slow=rng.choice((0.0, 0.02, 0.1)),
        repeat=rng.choice((0.0, 0.01, 0.05)),
        crash_interval_ms=4000 // haste,
        tear=rng.choice((0.0, 0.5)),
        down_ms=4000 // haste,
        partition_interval_ms=3000 // haste,
        transfer_interval_ms=8000,
        hours_interval_ms=6000,
        disk_interval_ms=15_000,
        pause_interval_ms=10_000,
        pause_ms=1000,
        truce_interval_ms=rng.choice((0, 2000, 5000)),
    )


def _broker_plan(seed: int, rng: random.Random) -> SimulationPlan:
    """Draw the values that plans of brokers have in common."""
    sync_flush = rng.random() < 0.5
    return SimulationPlan(
        seed=seed,
        sync_flush=sync_flush,
        power=sync_flush and rng.random() < 0.7,
        heartbeat_ms=rng.choice((300, 500, 1000, 2000)),
        tick_ms=rng.choice((10, 50, 50, 50, 100, 100, 100, 100)),
        file_size=rng.choice((4096, 16 * 1024, 64 * 1024)),
        queues=rng.choice((1, 2, 4)),
        body_bytes=rng.choice((20, 200, 800)),
        send_interval_ms=rng.choice((100, 150, 160)),
        batch=rng.choice((0.0, 0.1, 0.3)),
        loss=rng.choice((0.0, 0.01, 0.05)),
        repeat=rng.choice((0.0, 0.01, 0.05)),
        delay_ms=rng.choice((1, 3, 10)),
        slow=rng.choice((0.0, 0.01, 0.05)),
        crash_interval_ms=rng.choice((0, 5000, 8000, 15_000)),
        tear=rng.choice((0.0, 0.5, 1.0)),
        down_ms=rng.choice((500, 3000, 8000)),
        pause_interval_ms=rng.choice((0, 10_000, 20_000)),
        pause_ms=rng.choice((500, 3000, 8000)),
        clock_interval_ms=rng.choice((0, 10_000)),
        disk_interval_ms=rng.choice((0, 0, 20_000)),
        hours_interval_ms=rng.choice((0, 0, 15_000)),
        sync_ms=rng.choice((3, 20, 100)),
        flip_interval_ms=rng.choice((0, 0, 5000)),
        blackout_interval_ms=rng.choice((0, 0, 20_000)),
        scattered=rng.choice((0.0, 0.5)),
    )
