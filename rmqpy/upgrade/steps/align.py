"""One replica's part of an alignment: which ranges travel, what is cut, moved aside, derived anew.

The reference's part is empty but for tables, and for files made ahead behind a closed one.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmqpy.audit.replicas.manifest import LogFileDigest
from rmqpy.codec.layout import BLANK_SIZE
from rmqpy.codec.message import encode_blank
from rmqpy.codec.tally import BLOCK_SIZE
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.log_comparison import Relation, classic_log
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.node_context import ABSENT, UpgradeRefusedError, digest_of
from rmqpy.upgrade.plan.operations import (
    Copy,
    Create,
    Cut,
    Derive,
    Fill,
    Move,
    MoveAside,
    Op,
    Write,
)
from rmqpy.upgrade.plan.plan import NodePlan
from rmqpy.upgrade.plan.survey import Survey
from rmqpy.upgrade.steps.plan_context import PlanContext

COPY_BYTES_MAX = 16 << 20
"""Most that one copy operation takes: bounds its undo record."""


def plan_align(situation: PlanContext, replica: Replica) -> NodePlan:
    """Raises UpgradeRefusedError when the replica cannot be aligned as it is."""
    return _Aligning(situation, replica).plan()


class _Aligning:
    def __init__(self, situation: PlanContext, replica: Replica) -> None:
        self.situation = situation
        self.replica = replica
        self.survey: Survey = replica.survey()
        reference = situation.reference
        self.reference = reference.replica
        self.compared = reference.others.get(replica.name)
        self.root = self.survey.root
        self.notes: list[str] = []

    @property
    def keep(self) -> str:
        tag = digest_of(f"{self.replica.name}|{self.survey.manifest.end}|align".encode())[:8]
        return f"{upgrade_work(self.root)}/keep-{tag}"

    def plan(self) -> NodePlan:
        self._check()
        ops = list(self._drop_ahead())
        changes = list(self._log()) if self._differs() else []
        ops += changes
        # Before the queues: those of a topic that no table has are taken for deleted.
        ops += self._tables()
        if changes and self.survey.has_entries:
            ops += self._derived_at_start()
        elif changes:
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
                f"{self.replica.name}: a broker is running there; stop it first"
            )
        if self.survey.abort_found:
            raise UpgradeRefusedError(
                f"{self.replica.name}: its last stop was not clean; start the broker once as it"
                " was, and stop it"
            )
        wrong = [each for each in self.survey.found if each["code"] in _BLOCKING]
        if wrong and self.replica is self.reference:
            raise UpgradeRefusedError(
                f"{self.replica.name} is the reference, and its log is damaged:"
                f" {wrong[0]['code']} {wrong[0]['file']}; choose another with --reference"
            )
        sizes = {each.size for each in self.survey.spans}
        expected = self.reference.survey().file_size
        if sizes and sizes != {expected}:
            raise UpgradeRefusedError(
                f"{self.replica.name} has log files of {sorted(sizes)} bytes, the reference of"
                f" {expected}: they cannot be one group"
            )

    def _differs(self) -> bool:
        compared = self.compared
        if compared is None:
            return False
        return compared.relation is not Relation.EQUAL or compared.lacks_front

    # The log

    def _drop_ahead(self) -> Iterator[Op]:
        """Files behind the last message: from the last backwards, so that no gap is made."""
        log = classic_log(self.replica)
        end = log.files[-1].end_offset if log.files else 0
        if not log.files:
            return
        classic = [each for each in self.survey.spans if not each.of_entries]
        for span in sorted(classic, key=lambda each: each.path, reverse=True):
            if int(span.path.rpartition("/")[2]) >= end:
                yield self._aside(span.path, "made ahead and never written")

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
        said = next(
            each for each in self.reference.survey().manifest.files if each.path == file.path
        )
        return Create(
            path=self._absolute(file.path),
            replica=self.reference.name,
            source_path=file.path,
            size=file.file_size,
            after=said.md5,
            mtime_ms=said.mtime_ms,
            why="missing here",
        )

    def _file(self, theirs: LogFileDigest, mine: LogFileDigest) -> Iterator[Op]:
        """Ranges that differ inside one file; what is behind the reference's end goes."""
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
        yield from self._clear_behind(mine, end, theirs.sealed)
        if theirs.sealed:
            yield from self._fill(mine, end, theirs.file_size)

    def _ranges(self, theirs: LogFileDigest, mine: LogFileDigest) -> Iterator[tuple[int, int]]:
        """Differing blocks up to the reference's end, joined."""
        end = theirs.end - theirs.first_offset
        compared = self.compared
        assert compared is not None
        common = compared.common_end - theirs.first_offset
        begin = stop = 0
        for number, block in enumerate(theirs.blocks):
            start = max(number * BLOCK_SIZE, min(common, end))
            if start >= min((number + 1) * BLOCK_SIZE, end):
                continue
            same = number < len(mine.blocks) and mine.blocks[number] == block
            if not same and start == stop and begin < stop and stop - begin < COPY_BYTES_MAX:
                stop = min((number + 1) * BLOCK_SIZE, end)
            elif not same:
                if begin < stop:
                    yield begin, stop
                begin, stop = start, min((number + 1) * BLOCK_SIZE, end)
        if begin < stop:
            yield begin, stop

    def _clear_behind(self, mine: LogFileDigest, end: int, sealed: bool) -> Iterator[Op]:
        """Messages behind the reference's end in this file are cut, and kept."""
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
                why="behind the end of the reference's log",
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

    # What is derived, and tables

    def _derived(self) -> Iterator[Op]:
        compared = self.compared
        assert compared is not None
        made = f"{self.keep}/derived"
        paths = {name: f"{self.root}/{name}" for name in ("consumequeue", "index")}
        there = {
            each.path.split("/", 1)[0] for each in self.survey.manifest.files if "/" in each.path
        }
        yield Derive(
            path=made,
            commit_log=self._commit_log,
            queues=paths["consumequeue"],
            index=paths["index"],
            config=f"{self.root}/config",
            from_offset=0 if compared.lacks_front else compared.common_end,
        )
        for name, place in paths.items():
            if name in there:
                yield MoveAside(path=place, to=f"{self.keep}/{name}")
            yield Move(path=f"{made}/{name}", to=place)

    def _derived_at_start(self) -> Iterator[Op]:
        """Both logs have to be dispatched: the broker does it when it finds no queues."""
        self.notes.append("consume queues and key index are built by the broker's next start")
        there = {each.path.split("/", 1)[0] for each in self.survey.manifest.files}
        for name in ("consumequeue", "index"):
            if name in there:
                yield MoveAside(
                    path=f"{self.root}/{name}",
                    to=f"{self.keep}/{name}",
                    why="the next start builds it anew from both logs",
                )

    def _tables(self) -> Iterator[Op]:
        merged = self.situation.merged
        for name, data in merged.tables.items():
            if self.replica.name not in merged.differing[name]:
                continue
            path = f"config/{name}"
            said = {each.path: each.md5 for each in self.survey.manifest.files}
            before = said.get(path, ABSENT)
            if before != digest_of(data):
                yield Write.of(f"{self.root}/{path}", before, data, "the largest values of all")

    @property
    def _commit_log(self) -> str:
        settings = self.situation.settings.get(self.replica.name)
        if settings is not None:
            return settings.store_path_commit_log
        return f"{self.root}/commitlog"

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        return f"{self._commit_log}/{path.rpartition('/')[2]}"

    def _aside(self, path: str, why: str) -> Op:
        name = path.rpartition("/")[2]
        return MoveAside(path=self._absolute(path), to=f"{self.keep}/commitlog/{name}", why=why)


_BLOCKING = frozenset(
    (
        *("RECORD_MAGIC", "RECORD_SIZE", "RECORD_FIELDS", "RECORD_ZEROED", "RECORD_BODY_CRC"),
        *("RECORD_CHECKSUM", "RECORD_PROPERTIES", "RECORD_TOPIC", "RECORD_PLACE", "FILE_MISSING"),
        *("FILLER_SIZE", "FILLER_MISSING", "TAIL_PARTIAL", "TAIL_JUNK", "FILE_SIZE"),
    )
)
"""What the reference must not have."""
