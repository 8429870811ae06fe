"""Learn, while the brokers run, everything about the files to which they no longer write.

What is learned stays in the directory (:mod:`rmqpy.audit.facts.learned`). While the group is
stopped, every command then reads only the open files and the tables. Sealed files that a member
lacks are copied to its stage (:mod:`rmqpy.upgrade.plan.stage`), from which a plan only moves them.
Preparing writes in ``rmqpy/`` alone; it may be killed, repeated, and run while files expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import define, evolve, field

from rmqpy.audit.checks.engine import RangeRunner, ThreadRunner
from rmqpy.audit.facts.file_md5 import FilePart, FileSums
from rmqpy.audit.facts.learned import SETTLED_NS, Learned, learned_folder
from rmqpy.audit.facts.proof_age import ProofAge
from rmqpy.audit.scan.directory import StoreDirectory
from rmqpy.audit.scan.ranges import RangeResult, WorkRange
from rmqpy.codec.tally.kernel import TallyPlan
from rmqpy.model.errors import RmqError
from rmqpy.upgrade.checks.ledger import read_sealed
from rmqpy.upgrade.checks.replica import LocalReplica
from rmqpy.upgrade.plan.pace import Pace
from rmqpy.upgrade.plan.stage import LOG, TWINS, Stage
from rmqpy.upgrade.plan.survey import SurveyPlan, take_survey
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.staging import stage_log
from rmqpy.upgrade.steps.twins import stage_twins

__all__ = ["Prepared", "forget", "prepare", "prepare_all"]

RANGE_BYTES = 4 << 20
"""The number of bytes that are read at a time, so that a limited rate is an even one."""
ATTEMPTS_MAX = 10
"""The number of times that a store is read again because a file has expired meanwhile."""


@define(slots=True)
class PacedRunner:
    """Reads ranges at a limited rate (implements RangeRunner).

    The sums of a log file are computed after the walk over it, from memory, and do not count.
    """

    inner: RangeRunner
    pace: Pace

    def run(self, ranges: Iterable[WorkRange], plan: TallyPlan) -> Iterator[RangeResult]:
        for result in self.inner.run(ranges, plan):
            yield result
            self.pace.spend(result.work.stop - result.work.start)

    def rerun(self, work: WorkRange, plan: TallyPlan, begin: int) -> RangeResult:
        return self.inner.rerun(work, plan, begin)

    def md5s(self, parts: Iterable[FilePart]) -> Iterator[FileSums]:
        return self.inner.md5s(parts)

    def map(self, do: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return self.inner.map(do, items)


@define(slots=True, frozen=True)
class Prepared:
    """What was prepared on one replica, and what is left for every command of the stop.

    ``read_bytes`` were read now; ``learned_bytes`` of sealed files are known; a command reads
    ``left_bytes`` in ``left_s`` seconds.
    """

    name: str
    read_bytes: int
    learned_bytes: int
    left_bytes: int
    left_s: float = field(eq=False)
    staged_bytes: int = 0
    """The bytes of log files on the stage: sealed files of the group that the member lacks."""
    twin_bytes: int = 0
    """The bytes of DLedger files on the stage in the form that they will have in a classic log."""


def prepare_all(
    context: PlanContext, pace: Callable[[], Pace], *, leave: bool = False
) -> Iterator[Prepared]:
    """Prepare all replicas of this host, and yield what was done on each.

    ``pace`` returns the pace of one replica. With ``leave``, DLedger files are converted.
    """
    found = {each.name: prepare(each, pace()) for each in context.on_this_host}
    for replica in context.on_this_host:
        replica.forget_survey()
    for replica in context.on_this_host:
        staged = stage_log(context, replica, pace())
        twins = 0
        if leave and replica.survey().has_entries:
            node = context.node_context(replica)
            known = Learned(node.files, node.root, node.now_ms)
            twins = stage_twins(node, read_sealed(node.files, node.settings, known), pace())
        yield evolve(found[replica.name], staged_bytes=staged, twin_bytes=twins)


def prepare(replica: LocalReplica, pace: Pace) -> Prepared:
    """Learn what is not known yet about a replica of this host."""
    files, plan = replica.files, replica.plan
    files.make_dirs(learned_folder(plan.root))

    def paced(_directory: StoreDirectory) -> RangeRunner:
        return PacedRunner(ThreadRunner(files, 1), pace)

    first = _age(replica, evolve(plan, runner=paced, range_bytes=RANGE_BYTES))
    Learned(files, plan.root, plan.now_ms).forget_missing()
    # A file that was closed at the last moment has not settled yet.
    pace.sleep(2 * SETTLED_NS / 1_000_000_000)
    begin_s = pace.now_s()
    left = _age(replica, plan)
    return Prepared(
        plan.name,
        first.read_bytes,
        left.learned_bytes - left.grown_bytes,
        left.read_bytes,
        pace.now_s() - begin_s,
    )


def forget(replica: LocalReplica) -> None:
    """Remove everything that was learned about a replica of this host, and its stage."""
    replica.files.remove_tree(learned_folder(replica.root))
    for row in (LOG, TWINS):
        Stage(replica.files, replica.root, row).clear()


def _age(replica: LocalReplica, plan: SurveyPlan) -> ProofAge:
    """Take a survey; start again if a file expires under it, with what was learned by then."""
    for _ in range(ATTEMPTS_MAX):
        try:
            age = take_survey(replica.files, plan).manifest.age
        except FileNotFoundError:
            continue
        assert age is not None, "the folder exists"
        return age
    raise RmqError(
        f"{plan.name}: found files that disappeared during each of {ATTEMPTS_MAX} attempts to read"
        f" {plan.root}, expected files to expire rarely; check what removes them, and repeat"
    )
