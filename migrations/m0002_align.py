"""Bring every replica's classic log up to the reference.

Only differing ranges are copied. Messages that a replica has after the common end are moved aside,
never deleted; consume queues and key index are rebuilt from there; tables get the largest values.
The reference's own part has only tables, and files that were allocated after its last message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rmqpy.audit.replicas.manifest import LogFileDigest
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.store.files.mapped_files import file_name
from rmqpy.upgrade.checks.group_checks import same_divide, same_log
from rmqpy.upgrade.checks.log_comparison import Relation, classic_log
from rmqpy.upgrade.checks.replica import LocalReplica, Replica
from rmqpy.upgrade.checks.replica_checks import clean_stop_remedy
from rmqpy.upgrade.plan.node_context import UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import (
    Copy,
    Create,
    Cut,
    Derive,
    Fill,
    Move,
    MoveAside,
    Op,
)
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.space import index_space, queue_space
from rmqpy.upgrade.plan.stage import LOG, Stage
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext
from rmqpy.upgrade.steps.staging import log_sums
from rmqpy.upgrade.steps.states import GroupState
from rmqpy.upgrade.steps.table_writes import table_writes

COPY_BYTES_MAX = 16 << 20
"""The maximum number of bytes of one copy operation, which bounds its undo record."""


FROM = frozenset((GroupState.DIVERGED, GroupState.LAGGING))
TO: GroupState | None = GroupState.ALIGNED
REASON = "members of a group must have the same old log, to the last message"


def plan(context: PlanContext) -> list[NodePlan]:
    """Return one part per replica. Raise UpgradeRefusedError if one cannot be aligned."""
    return [plan_replica(context, replica) for replica in context.group.replicas]


def plan_replica(
    context: PlanContext, replica: Replica, *, may_be_unclean: bool = False
) -> NodePlan:
    """Return one replica's part. Raise UpgradeRefusedError if it cannot be aligned as it is.

    With ``may_be_unclean``, its last stop need not have been clean: the old log of a switched
    member is closed, and its next start recovers the rest.
    """
    return _AlignPlanner(context, replica, may_be_unclean).plan()


def verify(context: PlanContext) -> list[str]:
    """Return the differences that remain."""
    found = [*same_log(context.group), *same_divide(context.group)]
    return [str(each) for each in found if not each.is_note]


def undo() -> str:
    return (
        "rmqpy upgrade rollback: every byte from the undo records, kept files back to their place"
    )


class _AlignPlanner:
    """Plans one replica's part of an alignment."""

    def __init__(
        self, context: PlanContext, replica: Replica, may_be_unclean: bool = False
    ) -> None:
        self.context = context
        self.may_be_unclean = may_be_unclean
        self.replica = replica
        self.survey: Survey = replica.survey()
        reference = context.reference
        self.reference = reference.replica
        self.compared = reference.others.get(replica.name)
        self.root = self.survey.root
        self.keep = context.keep_folder(replica)
        self.notes: list[str] = []

    def plan(self) -> NodePlan:
        self._check()
        ops = list(self._set_unused_aside())
        changes = list(self._log()) if self._differs() else []
        ops += changes
        # Before the queues: queues of a topic that is in no table count as deleted.
        ops += table_writes(self.replica, self.context.merged)
        if changes and self.survey.has_entries:
            ops += self._derived_at_start()
        elif changes or self._first_unindexed() is not None:
            ops += self._derived()
        return NodePlan(
            replica=self.replica.name,
            root=self.root,
            keep=self.keep,
            ops=tuple(ops),
            notes=tuple(self.notes),
        )

    def _check(self) -> None:
        if self.survey.manifest.running:
            raise UpgradeRefusedError(
                f"{self.replica.name}: found a broker that runs in this directory, expected none;"
                " stop it first"
            )
        if self.survey.abort_found and not self.may_be_unclean:
            raise UpgradeRefusedError(
                f"{self.replica.name}: its last stop was not clean;"
                f" {clean_stop_remedy(self.survey)}"
            )
        wrong = _blocking(self.survey)
        if wrong and self.replica is self.reference:
            raise UpgradeRefusedError(
                f"{self.replica.name} is the reference, and its log is damaged:"
                f" {wrong[0]['code']} {wrong[0]['file']}, expected a sound one; {self._way_on()}"
            )
        sizes = {each.size for each in self.survey.spans}
        expected = self.reference.survey().file_size
        if sizes and sizes != {expected}:
            raise UpgradeRefusedError(
                f"{self.replica.name} has log files of {sorted(sizes)} bytes, the reference of"
                f" {expected}: they cannot be one group"
            )

    def _way_on(self) -> str:
        intact = [each.name for each in self.context.group.surveys if not _blocking(each)]
        with_log = [name for name in intact if classic_log(self.context.group.replica(name)).files]
        if with_log:
            return f"choose another with --reference {with_log[0]}"
        return (
            "no other replica is sound either: replace the damaged messages of this one by empty"
            f" ones with rmqpy store fsck {self.root} --quarantine --yes, and plan again"
        )

    def _differs(self) -> bool:
        compared = self.compared
        if compared is None:
            return False
        return compared.relation is not Relation.EQUAL or compared.lacks_front

    # The log

    def _set_unused_aside(self) -> Iterator[Op]:
        """Move aside the files after the last message, in reverse order so that no gap appears."""
        log = classic_log(self.replica)
        end = log.files[-1].end_offset if log.files else 0
        if not log.files:
            return
        classic = [each for each in self.survey.spans if not each.of_entries]
        for span in sorted(classic, key=lambda each: each.path, reverse=True):
            if int(span.path.rpartition("/")[2]) >= end:
                yield self._aside(span.path, "allocated ahead and never written")

    def _log(self) -> Iterator[Op]:
        compared = self.compared
        assert compared is not None
        theirs = {file.first_offset: file for file in classic_log(self.reference).files}
        mine = {file.first_offset: file for file in classic_log(self.replica).files}
        last = max(theirs, default=-1)
        for offset in sorted(mine, reverse=True):
            if offset > last:
                yield self._aside(mine[offset].path, "the reference's log ends before it")
        for offset, file in sorted(theirs.items()):
            own = mine.get(offset)
            if own is None:
                if offset >= min(mine, default=0) or compared.lacks_front:
                    yield self._create(file)
            else:
                yield from self._file(file, own)

    def _create(self, file: LogFileDigest) -> Op:
        files = self.reference.survey().manifest.files
        source = next((each for each in files if each.path == file.path), None)
        if source is None:
            raise UpgradeRefusedError(
                f"the survey of {self.reference.name}: found no md5 of its log file {file.path!r},"
                " expected one for every file; plan again on a host with the same rmqpy version"
            )
        # Never a path of the other host: only the offset is taken from its survey.
        return Create(
            path=f"{self.context.commit_log(self.replica)}/{file_name(file.first_offset)}",
            replica=self.reference.name,
            source_path=file.path,
            size=file.file_size,
            after=source.md5,
            mtime_ms=source.mtime_ms,
            data_bytes=min(file.end - file.first_offset + BLANK_SIZE, file.file_size),
            why="missing here",
        )

    def _file(self, theirs: LogFileDigest, mine: LogFileDigest) -> Iterator[Op]:
        """Copy the differing ranges of one file, and clear the bytes after the reference's end."""
        base = theirs.first_offset
        for start, stop in self._ranges(theirs, mine):
            data_digest = self.reference.digest(theirs.path, start, stop)
            before = self.replica.digest(mine.path, start, stop)
            if data_digest != before:
                yield Copy(
                    path=self._absolute(mine.path),
                    start=start,
                    end=stop,
                    before=before,
                    after=data_digest,
                    replica=self.reference.name,
                    source_path=theirs.path,
                )
        end = theirs.end - base
        yield from self._clear_after(mine, end, theirs.sealed)
        if theirs.sealed:
            yield from self._fill(mine, end, theirs.file_size)

    def _ranges(self, theirs: LogFileDigest, mine: LogFileDigest) -> Iterator[tuple[int, int]]:
        """Yield the differing ranges up to the reference's end; adjacent blocks are joined."""
        end = theirs.end - theirs.first_offset
        compared = self.compared
        assert compared is not None
        common = compared.common_end - theirs.first_offset
        begin = stop = 0
        different = set(theirs.blocks.different(mine.blocks))
        for number in range(theirs.blocks.count):
            start = max(number * BLOCK_SIZE, min(common, end))
            if start >= min((number + 1) * BLOCK_SIZE, end):
                continue
            same = number not in different
            if not same and start == stop and begin < stop and stop - begin < COPY_BYTES_MAX:
                stop = min((number + 1) * BLOCK_SIZE, end)
            elif not same:
                if begin < stop:
                    yield begin, stop
                begin, stop = start, min((number + 1) * BLOCK_SIZE, end)
        if begin < stop:
            yield begin, stop

    def _clear_after(self, mine: LogFileDigest, end: int, sealed: bool) -> Iterator[Op]:
        """Cut messages after the reference's end from this file, and keep them."""
        content = mine.end - mine.first_offset
        if mine.sealed:
            content = max(content + BLANK_SIZE, end)
        if content <= end or (mine.sealed and sealed and mine.end - mine.first_offset <= end):
            return
        for start in range(end, content, COPY_BYTES_MAX):
            stop = min(start + COPY_BYTES_MAX, content)
            yield Cut(
                path=self._absolute(mine.path),
                start=start,
                end=stop,
                before=self.replica.digest(mine.path, start, stop),
                after=digest_of(bytes(stop - start)),
                kept=f"{self.keep}/cut/{mine.first_offset + start:020d}",
                why="after the end of the reference's log",
            )

    def _fill(self, mine: LogFileDigest, end: int, file_size: int) -> Iterator[Op]:
        if mine.sealed and mine.end - mine.first_offset == end:
            return
        after = digest_of(encode_blank(file_size - end))
        stop = end + BLANK_SIZE
        content = mine.end - mine.first_offset
        cut = content > end
        before = digest_of(bytes(BLANK_SIZE)) if cut else self.replica.digest(mine.path, end, stop)
        if before != after:
            yield Fill(
                path=self._absolute(mine.path),
                start=end,
                end=stop,
                before=before,
                after=after,
                file_size=file_size,
            )

    # Derived files and tables

    def _first_unindexed(self) -> int | None:
        """Return the offset of the first message that no index file covers, or None.

        Java deletes the newest index file after an unclean stop: the replicas would find different
        messages by their keys.
        """
        settings = self.context.settings_of(self.replica)
        if self.survey.has_entries or not settings.message_index_enable:
            return None
        code = FindingCode.KEYS_NOT_INDEXED.name
        offsets = [each["offset"] for each in self.survey.found if each["code"] == code]
        return min(offsets, default=None)

    def _derived(self) -> Iterator[Op]:
        compared = self.compared
        lacks_front = compared is not None and compared.lacks_front
        built = f"{self.keep}/derived"
        # After an unclean stop, units for messages before the common end may be missing too.
        paths = {name: f"{self.root}/{name}" for name in ("consumequeue", "index")}
        unindexed = self._first_unindexed()
        existing = {
            each.path.split("/", 1)[0] for each in self.survey.manifest.files if "/" in each.path
        }
        rebuilt = lacks_front or self.survey.abort_found or "consumequeue" not in existing
        ends = (compared.common_end if self._differs() and compared else None, unindexed)
        from_offset = 0 if rebuilt else min(each for each in ends if each is not None)
        bases = paths
        staged_end = self._staged_end()
        if staged_end is not None:
            folder = Stage(self.context.files, self.root, LOG).derived
            bases = {name: f"{folder}/{name}" for name in paths}
            from_offset = staged_end
        yield Derive(
            path=built,
            commit_log=self.context.commit_log(self.replica),
            queues=bases["consumequeue"],
            index=bases["index"],
            config=f"{self.root}/config",
            from_offset=from_offset,
            staged=staged_end is not None,
            bytes_max=self._derived_bytes(),
        )
        for name, folder in paths.items():
            if name in existing:
                yield MoveAside(path=folder, to=f"{self.keep}/{name}")
            yield Move(path=f"{built}/{name}", to=folder)

    def _derived_bytes(self) -> int:
        """Return the space of the result: the queues and the index of the reference, and queues
        that only this replica has.
        """
        settings = self.context.settings_of(self.replica)
        theirs = self.reference.survey().manifest
        ends = {
            (each.topic, each.queue_id): (each.topic, each.min_offset, each.max_offset)
            for manifest in (self.survey.manifest, theirs)
            for each in manifest.queues
        }
        entries = [int(each["entries"]) for each in theirs.facts.get("index", ())]
        if not entries:  # its index is missing: two keys a message
            entries = [2 * sum(each.count for each in theirs.queues)]
        return queue_space(ends.values(), settings) + index_space(entries, settings)

    def _staged_end(self) -> int | None:
        """Return the offset up to which queues and index wait on the stage of an empty member."""
        if classic_log(self.replica).files or not isinstance(self.replica, LocalReplica):
            return None
        stage = Stage(self.replica.files, self.root, LOG)
        sums = log_sums(self.reference.survey())
        return stage.derived_end(sums, self.context.settings_of(self.replica))

    def _derived_at_start(self) -> Iterator[Op]:
        """Leave the queues to the broker: it dispatches both logs when it finds none."""
        self.notes.append("the broker builds consume queues and key index at its next start")
        existing = {each.path.split("/", 1)[0] for each in self.survey.manifest.files}
        for name in ("consumequeue", "index"):
            if name in existing:
                yield MoveAside(
                    path=f"{self.root}/{name}",
                    to=f"{self.keep}/{name}",
                    why="the next start rebuilds it from both logs",
                )

    def _absolute(self, path: str) -> str:
        return self.context.log_path(self.replica, path)

    def _aside(self, path: str, why: str) -> Op:
        name = path.rpartition("/")[2]
        return MoveAside(path=self._absolute(path), to=f"{self.keep}/commitlog/{name}", why=why)


def _blocking(survey: Survey) -> list[dict[str, Any]]:
    return [each for each in survey.found if each["code"] in _BLOCKING]


_BLOCKING = frozenset(
    (
        *("RECORD_MAGIC", "RECORD_SIZE", "RECORD_FIELDS", "RECORD_ZEROED", "RECORD_BODY_CRC"),
        *("RECORD_CHECKSUM", "RECORD_PROPERTIES", "RECORD_TOPIC", "RECORD_PLACE", "FILE_MISSING"),
        *("FILLER_SIZE", "FILLER_MISSING", "TAIL_PARTIAL", "TAIL_JUNK", "FILE_SIZE"),
    )
)
"""Findings that the reference must not have."""
