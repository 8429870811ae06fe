"""Put files on the stage of a member while the brokers run, so that a plan only moves them.

Nothing here changes a file that a broker could see.
"""

from __future__ import annotations

import hashlib

from attrs import define, evolve

from rmqpy.audit.checks.learned_runner import learn_derived_files, learn_log_file
from rmqpy.audit.facts.learned import MD5, Learned
from rmqpy.audit.replicas.manifest import FileMd5, LogFileDigest
from rmqpy.audit.scan.ranges import WorkRange
from rmqpy.model.errors import RmqError
from rmqpy.store.files.framing import Framing
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.plan import derive
from rmqpy.upgrade.plan.derive import DerivedPaths
from rmqpy.upgrade.plan.node_context import NodeContext
from rmqpy.upgrade.plan.pace import Pace, PacedProgress
from rmqpy.upgrade.plan.stage import LOG, Stage, learned_of
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext

__all__ = ["COPY_BYTES", "build_staged", "log_sums", "stage_log", "work_of"]

COPY_BYTES = 4 << 20
"""The number of bytes that are copied at a time."""


@define(slots=True, frozen=True)
class _Missing:
    """A sealed file that a member lacks."""

    file: LogFileDigest
    source: FileMd5

    @property
    def name(self) -> str:
        return file_name(self.file.first_offset)


def log_sums(survey: Survey) -> dict[str, str]:
    """Return the MD5 sums of a replica's classic log files by their names."""
    sums = {file.path: file.md5 for file in survey.manifest.files}
    log = survey.manifest.log("classic")
    files = log.files if log is not None else ()
    return {file_name(file.first_offset): sums.get(file.path, "") for file in files}


def stage_log(context: PlanContext, replica: LocalReplica, pace: Pace) -> int:
    """Copy the sealed files of the old log that a member lacks to its stage, with queues and index
    if it has no log at all. Return the number of bytes on the stage.

    The source is the replica with the longest log. Nothing is copied if the member's own files are
    not equal to those of the source: then a plan must decide.
    """
    node = context.node_context(replica)
    stage = Stage(node.files, node.root, LOG)
    learned = learned_of(node)
    assert learned is not None, "prepare has created the folder"
    source = max(context.group.replicas, key=lambda each: classic_log(each).end)
    wanted = [] if source is replica else _missing(replica.survey(), source.survey())
    for name in set(stage.names) - {each.name for each in wanted}:
        node.files.unlink(stage.path(name))
    total = 0
    for each in wanted:
        if learned.known_md5(stage.path(each.name)) != each.source.md5:
            if not _copy(node, stage, learned, source, each, pace):
                break
        total += each.file.file_size
    if not wanted or classic_log(replica).files:
        stage.clear_derived()
    elif total:
        _derive(node, stage, log_sums(source.survey()), pace)
    return total


def _missing(mine: Survey, theirs: Survey) -> list[_Missing]:
    """Return the sealed files of ``theirs`` that ``mine`` lacks after its last file."""
    own, other = (each.manifest.log("classic") for each in (mine, theirs))
    own_files = {file.first_offset: file for file in own.files} if own is not None else {}
    sealed = [file for file in other.files[:-1] if file.sealed] if other is not None else []
    for file in sealed:
        same = own_files.get(file.first_offset)
        if same is not None and same.sealed and same.blocks != file.blocks:
            return []
    if own_files and min(own_files) > theirs.manifest.begin:
        return []
    sums = {file.path: file for file in theirs.manifest.files}
    ahead = {span.path.rpartition("/")[2] for span in mine.spans}
    return [
        _Missing(file, sums[file.path])
        for file in sealed
        if file.first_offset > max(own_files, default=-1)
        and file_name(file.first_offset) not in ahead
    ]


def _copy(
    node: NodeContext,
    stage: Stage,
    learned: Learned,
    source: Replica,
    missing: _Missing,
    pace: Pace,
) -> bool:
    """Copy one file to the stage. Return False if the source no longer has it."""
    files, size, path = node.files, missing.file.file_size, stage.path(missing.name)
    files.make_dirs(stage.folder)
    files.unlink(stage.incoming)
    digest = hashlib.md5(usedforsecurity=False)
    file = files.open(stage.incoming, size=size)
    try:
        for position in range(0, size, COPY_BYTES):
            stop = min(position + COPY_BYTES, size)
            data = source.read(missing.file.path, position, stop)
            digest.update(data)
            if any(data):
                file.write(position, data)
            pace.spend(stop - position)
        file.sync()
    except (FileNotFoundError, RmqError):
        files.unlink(stage.incoming)
        return False
    finally:
        file.close()
    if digest.hexdigest() != missing.source.md5:
        files.unlink(stage.incoming)
        return False
    files.set_mtime_ms(stage.incoming, missing.source.mtime_ms)
    files.rename(stage.incoming, path)
    files.sync_dir(stage.folder)
    identity = learned.settled(path, pace.sleep)
    work = work_of(path, missing.file.first_offset, size)
    if learn_log_file(files, learned, work) is None:
        files.unlink(path)
        return False
    sums = missing.source.md5
    learned.keep(path, MD5, {"valid": None, "md5": sums, "valid_md5": sums}, identity)
    return True


def work_of(path: str, first_offset: int, size: int) -> WorkRange:
    """Return the range of a whole classic log file."""
    return WorkRange(
        log="commitlog",
        framing=Framing.CLASSIC,
        path=path,
        file=path,
        first_offset=first_offset,
        file_size=size,
        start=first_offset,
        stop=first_offset + size,
    )


def build_staged(
    node: NodeContext, stage: Stage, places: DerivedPaths, from_offset: int, pace: Pace
) -> None:
    """Build queues and index on the stage, at the given rate, and learn their sums."""
    stage.clear_derived()
    progress = node.progress
    node = evolve(node, progress=lambda verb: PacedProgress(progress(verb), pace))
    derive.build(node, places, from_offset)
    learned = learned_of(node)
    assert learned is not None, "prepare has created the folder"
    learn_derived_files(node.files, learned, stage.derived, node.settings, pace.sleep)


def _derive(node: NodeContext, stage: Stage, sums: dict[str, str], pace: Pace) -> None:
    """Build the queues and the index of the files on the stage, unless they are built."""
    names = stage.names
    last = int(names[-1])
    end = last + node.files.size_of(stage.path(names[-1]))
    if stage.derived_end(sums, node.settings) == end:
        return
    nowhere = f"{stage.base}/none"
    places = DerivedPaths(stage.derived, stage.folder, nowhere, nowhere, nowhere)
    build_staged(node, stage, places, 0, pace)
    stage.note_derived(end, {name: sums[name] for name in names}, node.settings)
