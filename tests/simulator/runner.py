"""Many seeds, one after the other or on several processes; and the search for planted bugs.

A seed fails by the first ``InvariantViolationError``, and by any other exception too: the brokers
of a simulated
cluster have no excuse. A planted bug counts as found by a ``InvariantViolationError`` only.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter

from attrs import define

from simulator.broker_cluster import BrokerCluster
from simulator.cluster import Outcome
from simulator.invariants import InvariantViolationError, StartRefusedError
from simulator.mutations import MUTATIONS, planted
from simulator.node_cluster import NodeCluster
from simulator.plan import SimulationPlan, node_plan, plan_of, single_broker_plan

FAMILIES: dict[str, Callable[[int], SimulationPlan]] = {
    "group": plan_of,
    "lonely": single_broker_plan,
    "nodes": node_plan,
}
AnyCluster = BrokerCluster | NodeCluster
CHUNK = 10
SECONDS_MAX = 120
"""Time of the processor for one seed: a loop that does not end must not hold up all others, and a
busy machine is no such loop.
"""


@define(slots=True, frozen=True)
class Result:
    """One seed: what it did, or why it failed."""

    family: str
    seed: int
    seconds: float
    simulated_ms: int
    outcome: Outcome | None
    failure: str = ""

    @property
    def replay(self) -> str:
        """The command that shows it again."""
        return f"python -m simulator --family {self.family} --replay {self.seed}"


def cluster_of(plan: SimulationPlan, trace: list[str] | None = None) -> AnyCluster:
    """Return the cluster that a plan describes."""
    return (NodeCluster if plan.bare else BrokerCluster)(plan, trace=trace)


def run_seed(family: str, seed: int) -> Result:
    """Simulate one seed."""
    cluster = cluster_of(FAMILIES[family](seed))
    begin = perf_counter()
    outcome, failure = None, ""
    try:
        outcome = _run_bounded(cluster)
    except InvariantViolationError as violation:
        failure = str(violation)
    except Exception as error:  # noqa: BLE001 - a result like any other
        failure = f"{type(error).__name__}: {error}"
    seconds = perf_counter() - begin
    return Result(family, seed, seconds, cluster.timeline.now_ms, outcome, failure)


class _EndlessLoopError(BaseException):
    """Nobody may take this for an error of his own."""


def _run_bounded(cluster: AnyCluster) -> Outcome:
    """Raises TimeoutError for a run that takes much too long."""

    def too_long(_signal: int, _frame: object) -> None:
        raise _EndlessLoopError

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
    try:
        return cluster.run()
    except _EndlessLoopError:
        raise TimeoutError(f"not done after {SECONDS_MAX} s of the processor") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_seeds(family: str, seeds: Iterable[int], jobs: int = 1) -> Iterator[Result]:
    """Results in the order of the seeds."""
    if jobs == 1:
        yield from (run_seed(family, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=silence_logs) as pool:
        yield from pool.map(_RunOf(family), seeds, chunksize=CHUNK)


@define(slots=True, frozen=True)
class _RunOf:
    family: str

    def __call__(self, seed: int) -> Result:
        return run_seed(self.family, seed)


@define(slots=True, frozen=True)
class MutationResult:
    """How the search for a planted bug ended. ``seed`` is -1 when it was not found."""

    mutation: str
    seed: int
    violation: str = ""
    others: int = 0
    """Seeds that ended by another exception on the way; they prove nothing."""


def find_mutation(name: str, seeds: Iterable[int], family: str = "group") -> MutationResult:
    """Run seeds with a planted bug until a checker sees it."""
    others = 0
    with planted(MUTATIONS[name]):
        for seed in seeds:
            try:
                _run_bounded(cluster_of(FAMILIES[family](seed)))
            except StartRefusedError:
                others += 1  # the broker has found it by itself
            except InvariantViolationError as violation:
                return MutationResult(name, seed, str(violation), others)
            except Exception:  # noqa: BLE001 - not what is looked for
                others += 1
    return MutationResult(name, -1, "", others)


@define(slots=True, frozen=True)
class _FindIn:
    family: str
    seeds: range

    def __call__(self, name: str) -> MutationResult:
        return find_mutation(name, self.seeds, self.family)


def find_mutations(
    family: str, names: Iterable[str], seeds: range, jobs: int = 1
) -> Iterator[MutationResult]:
    """Search for each of the bugs in the same seeds."""
    search = _FindIn(family, seeds)
    if jobs == 1:
        yield from map(search, names)
        return
    with ProcessPoolExecutor(jobs, initializer=silence_logs) as pool:
        yield from pool.map(search, names)


def silence_logs() -> None:
    """Brokers that crash all the time have much to say; and nothing here needs the collector often:
    a world is garbage as a whole.
    """
    logging.disable(logging.CRITICAL)
    gc.set_threshold(50_000, 20, 100)
