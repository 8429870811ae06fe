"""Runs of many seeds, in one or several processes, and the search for planted bugs.

A seed fails with the first ``InvariantViolationError``, and with any other exception too. A planted
bug counts as found only by an ``InvariantViolationError``, and by a broker that refuses to start
only if that is the bug.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter

from attrs import define

from simulator.broker_cluster import BrokerCluster
from simulator.cluster import Outcome
from simulator.invariants import InvariantViolationError, StartRefusedError
from simulator.leave_cluster import LeaveCluster
from simulator.mutations import MUTATIONS, Mutation, planted
from simulator.node_cluster import NodeCluster
from simulator.plan import (
    SimulationPlan,
    fast_path_plan,
    live_plan,
    node_plan,
    plan_of,
    single_broker_plan,
)
from simulator.switch_cluster import SwitchCluster

FAMILIES: dict[str, Callable[[int], SimulationPlan]] = {
    "group": plan_of,
    "lonely": single_broker_plan,
    "fast": fast_path_plan,
    "nodes": node_plan,
    "switch": partial(live_plan, "switch"),
    "leave": partial(live_plan, "leave"),
}
AnyCluster = BrokerCluster | NodeCluster | SwitchCluster | LeaveCluster
CHUNK = 10
SECONDS_MAX = 120
"""The limit of CPU time for one seed, so that an endless loop does not stop all others. It is not
elapsed time, which grows on a busy machine.
"""


@define(slots=True, frozen=True)
class Result:
    """The result of one seed: what it did, or why it failed."""

    family: str
    seed: int
    seconds: float
    simulated_ms: int
    outcome: Outcome | None
    failure: str = ""

    @property
    def replay(self) -> str:
        """The command that replays the seed."""
        return f"tox -e sim -- --family {self.family} --replay {self.seed}"


def cluster_of(plan: SimulationPlan, trace: list[str] | None = None) -> AnyCluster:
    """Return the cluster that a plan describes."""
    if plan.change:
        return (SwitchCluster if plan.change == "switch" else LeaveCluster)(plan, trace=trace)
    return (NodeCluster if plan.bare else BrokerCluster)(plan, trace=trace)


def run_seed(family: str, seed: int) -> Result:
    """Simulate one seed."""
    gc.collect()
    cluster = cluster_of(FAMILIES[family](seed))
    start = perf_counter()
    outcome, failure = None, ""
    try:
        outcome = _run_bounded(cluster)
    except InvariantViolationError as violation:
        failure = str(violation)
    except Exception as error:  # noqa: BLE001 - reported as the failure of this seed
        failure = f"{type(error).__name__}: {error}"
    seconds = perf_counter() - start
    return Result(family, seed, seconds, cluster.timeline.now_ms, outcome, failure)


class _EndlessLoopError(BaseException):
    """A seed does not end; not an Exception, so that the code under test cannot catch it."""


def _run_bounded(cluster: AnyCluster) -> Outcome:
    """Run a cluster. Raise TimeoutError for an endless loop."""

    def too_long(_signal: int, _frame: object) -> None:
        raise _EndlessLoopError

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
    try:
        return cluster.run()
    except _EndlessLoopError:
        raise TimeoutError(f"not done after {SECONDS_MAX} s of CPU time") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_seeds(family: str, seeds: Iterable[int], jobs: int = 1) -> Iterator[Result]:
    """Yield the results in the order of the seeds."""
    if jobs == 1:
        yield from (run_seed(family, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=silence_logs) as pool:
        yield from pool.map(_SeedRunner(family), seeds, chunksize=CHUNK)


@define(slots=True, frozen=True)
class _SeedRunner:
    family: str

    def __call__(self, seed: int) -> Result:
        return run_seed(self.family, seed)


@define(slots=True, frozen=True)
class MutationResult:
    """The result of the search for a planted bug. ``seed`` is -1 when it was not found."""

    mutation: str
    seed: int
    violation: str = ""
    others: int = 0
    """The number of seeds that ended with another exception, which proves nothing."""


def find_mutation(name: str, seeds: Iterable[int], family: str = "group") -> MutationResult:
    """Run seeds with a planted bug until a checker finds it. A plan that aims at the bug is run
    without it, too; a violation then is not the bug's, and is raised.
    """
    mutation = MUTATIONS[name]
    found = _find_planted(mutation, seeds, family)
    if mutation.aim and found.seed >= 0:
        _run_bounded(cluster_of(mutation.plan(FAMILIES[family](found.seed))))
    return found


def _find_planted(mutation: Mutation, seeds: Iterable[int], family: str) -> MutationResult:
    others, name = 0, mutation.name
    with planted(mutation):
        for seed in seeds:
            try:
                _run_bounded(cluster_of(mutation.plan(FAMILIES[family](seed))))
            except StartRefusedError as refusal:
                if mutation.refuses:
                    return MutationResult(name, seed, str(refusal), others)
                others += 1  # found by the broker, not by a checker
            except InvariantViolationError as violation:
                return MutationResult(name, seed, str(violation), others)
            except Exception:  # noqa: BLE001 - only a violation counts
                others += 1
    return MutationResult(name, -1, "", others)


@define(slots=True, frozen=True)
class _MutationSearch:
    family: str
    seeds: range

    def __call__(self, name: str) -> MutationResult:
        return find_mutation(name, self.seeds, self.family)


def find_mutations(
    family: str, names: Iterable[str], seeds: range, jobs: int = 1
) -> Iterator[MutationResult]:
    """Search for each of the bugs in the same seeds."""
    search = _MutationSearch(family, seeds)
    if jobs == 1:
        yield from map(search, names)
        return
    with ProcessPoolExecutor(jobs, initializer=silence_logs) as pool:
        yield from pool.map(search, names)


def silence_logs() -> None:
    """Disable logging, which brokers that crash all the time do much of. Collect garbage between
    seeds only: a cluster becomes garbage as a whole.
    """
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
