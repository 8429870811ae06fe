"""The manifest: the digests of a whole store, as one value that can be sent between hosts.

==========  =====================================================================================
part        content
==========  =====================================================================================
files       path below the root, length, time, and MD5 of every file as ``md5sum`` prints it
logs        for each file of a log where its content ends, and digests of the content: of each
            64 KiB block (BLAKE2b, 16 bytes), and of the frames that start in each block (offset
            of the first, count, CRC-32), packed (:mod:`rmqpy.audit.scan.blocks`), or one digest of
            all of them. Bytes after the last frame or in a filler do not count.
queues      for each queue its smallest offset and the one after its largest, the digests of its
            messages per 1024 queue offsets (defined in :mod:`rmqpy.codec.tally.kernel`), and the
            number of messages to which the consume queue leads
tables      digests of the content of the configuration tables
contents    the topics, groups, and offsets in them
key_holes   the ranges of the log that no index file covers
uncommitted entries after the committed index, which are no messages yet
facts       the facts of :mod:`rmqpy.audit.facts.facts`
==========  =====================================================================================

The JSON form (:meth:`Manifest.encode`, :meth:`Manifest.decode`) is stable: ``format`` counts its
versions, and a reader refuses a newer one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Final

from attrs import asdict, define, evolve, field

from rmqpy.audit.checks.derived_files import DerivedFiles
from rmqpy.audit.checks.engine import (
    AuditOptions,
    RangeRunner,
    StoreAudit,
    ThreadRunner,
    audit_store,
)
from rmqpy.audit.checks.key_check import KeyHole
from rmqpy.audit.checks.learned_runner import LearnedRunner
from rmqpy.audit.facts.facts import Mode
from rmqpy.audit.facts.file_md5 import FilePart
from rmqpy.audit.facts.log_reader import Slot
from rmqpy.audit.facts.proof_age import ProofAge, age_of_json
from rmqpy.audit.facts.small_files import ConfigTable
from rmqpy.audit.facts.table_content import TableFacts, read_table_facts
from rmqpy.audit.scan.blocks import Blocks, FrameGroup
from rmqpy.audit.scan.directory import StoreDirectory, read_directory
from rmqpy.audit.scan.findings import FindingCode, json_value
from rmqpy.audit.scan.range_merge import FileDigests, LogResult
from rmqpy.codec.hashes import java_text
from rmqpy.codec.tally.kernel import BLOCK_SIZE, QueueTally
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.typed_json import check_types
from rmqpy.store.unread.data import UnreadKind

__all__ = [
    "FileMd5",
    "LogDigest",
    "LogFileDigest",
    "Manifest",
    "ManifestPlan",
    "Md5",
    "QueueDigest",
    "make_manifest",
]

MANIFEST_FORMAT: Final = 3
"""Since 2: ``mapped`` in buckets, contents of tables, key holes, uncommitted entries. Since 3: the
digests of a log file's blocks are packed, or left out.
"""
NOT_MAPPED: Final = -1
_QUEUES_OF_5X: Final = (UnreadKind.ROCKSDB_QUEUES.value, UnreadKind.BATCH_QUEUES.value)
_TAILS: Final = (FindingCode.TAIL_PARTIAL.name, FindingCode.TAIL_JUNK.name)
KIND: Final = "rmqpy-manifest"


@define(slots=True, frozen=True)
class FileMd5:
    """One file. ``md5`` is "" if it was not requested."""

    path: str
    size: int
    mtime_ms: int
    md5: str = ""


@define(slots=True, frozen=True, kw_only=True)
class LogFileDigest:
    """One file of a log.

    ``end`` is the offset after its last frame; ``sealed`` means that a filler closes the file.
    """

    path: str
    first_offset: int
    file_size: int
    end: int
    sealed: bool
    blocks: Blocks = field(factory=Blocks.none)

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.file_size


@define(slots=True, frozen=True, kw_only=True)
class LogDigest:
    """One log, "classic" or "dledger". ``files`` has the files with content, in order."""

    kind: str
    files: tuple[LogFileDigest, ...] = ()

    @property
    def begin(self) -> int:
        return self.files[0].first_offset if self.files else 0

    @property
    def end(self) -> int:
        """The end of the last frame."""
        return max((file.end for file in self.files), default=0)

    @property
    def file_size(self) -> int:
        return self.files[0].file_size if self.files else 0


LoadBlocks = Callable[[str], bytes]
"""Returns the packed digests of the blocks of a log file, by its path in the manifest."""

Bucket = tuple[int, int, int, int, int]
"""(number, count, sum of content, sum of positions, sum of positions mapped to a classic log).

Number -1 is for messages without a queue offset. The last sum is ``NOT_MAPPED`` in manifests of
format 1.
"""


@define(slots=True, frozen=True, kw_only=True)
class QueueDigest:
    """One queue according to the log; ``right_units`` counts the messages with a correct unit."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    count: int
    unqueued: int
    right_units: int
    buckets: tuple[Bucket, ...] = ()


@define(slots=True, frozen=True, kw_only=True)
class Manifest:
    """A store at one moment. ``name`` identifies the replica; ``findings`` maps codes to counts."""

    name: str
    taken_ms: int
    mode: Mode
    divided_offset: int | None
    clean_stop: bool
    running: bool
    files: tuple[FileMd5, ...] = ()
    logs: tuple[LogDigest, ...] = ()
    queues: tuple[QueueDigest, ...] = ()
    tables: tuple[ConfigTable, ...] = ()
    keys: int = 0
    """The number of (message, key) pairs that must be in the key index; ``keys_found`` are."""
    keys_found: int = 0
    findings: dict[str, int] = field(factory=dict)
    first_findings: tuple[dict[str, Any], ...] = ()
    facts: dict[str, Any] = field(factory=dict)
    contents: TableFacts | None = None
    """None in manifests of format 1."""
    key_holes: tuple[KeyHole, ...] = ()
    uncommitted: tuple[Slot, ...] = ()
    """The messages in entries after the committed index that are in no consume queue."""
    age: ProofAge | None = None
    """How much was read, and how much was learned earlier; None if everything was read."""

    @property
    def begin(self) -> int:
        return min((log.begin for log in self.logs if log.files), default=0)

    @property
    def end(self) -> int:
        """The end of the last frame of all logs."""
        return max((log.end for log in self.logs), default=0)

    @property
    def messages(self) -> int:
        return sum(queue.count + queue.unqueued for queue in self.queues)

    @property
    def tails(self) -> dict[str, int]:
        """The counts of the findings of bytes after the last record, which are not compared."""
        return {name: count for name, count in self.findings.items() if name in _TAILS}

    @property
    def elsewhere(self) -> int:
        """The messages in queues without a correct unit in ``consumequeue`` in a store that keeps
        units in files of 5.x: batch queues, or RocksDB. Where a unit is missing that must be
        there, ``findings`` has it.
        """
        kinds = {each["kind"] for each in self.facts.get("unread", ())}
        if kinds.isdisjoint(_QUEUES_OF_5X):
            return 0
        return sum(queue.count for queue in self.queues if not queue.right_units)

    def content_digest(self, manifest_format: int = MANIFEST_FORMAT) -> str:
        """Return the SHA-256 of the manifest's content on logs and messages, in hex.

        Every engine computes the same value at any time, until a message is added or expires. An
        earlier ``manifest_format`` gives the value that certificates of that time contain.
        """
        columns = 4 if manifest_format == 1 else 5
        queues = [
            {**asdict(queue), "buckets": [bucket[:columns] for bucket in queue.buckets]}
            for queue in self.queues
        ]
        content = {
            "mode": self.mode.value,
            "divided_offset": self.divided_offset,
            "logs": [[log.kind, log.begin, log.end] for log in self.logs],
            "queues": queues,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def log(self, kind: str) -> LogDigest | None:
        return next((log for log in self.logs if log.kind == kind), None)

    def fits(self, files: FileSystem, root: str) -> bool:
        """Return whether every log file still has the length and time that it had."""
        known = {file.path: (file.size, file.mtime_ms) for file in self.files}
        directory = read_directory(files, root)
        found = {
            directory.relative(file.path): (file.size, file.mtime_ms)
            for log in directory.logs
            for file in log.files
        }
        logs = {file.path for log in self.logs for file in log.files}
        return all(known.get(path) == what for path, what in found.items()) and logs <= set(found)

    def encode(self, *, blocks: bool = True) -> bytes:
        """Return the JSON form. Without ``blocks``, it has one digest of each log file, and none of
        single blocks.
        """
        tree = asdict(evolve(self, logs=()), value_serializer=json_value)
        tree["logs"] = [
            {"kind": log.kind, "files": [_log_file_tree(each, blocks=blocks) for each in log.files]}
            for log in self.logs
        ]
        head = {"kind": KIND, "format": MANIFEST_FORMAT}
        return json.dumps({**head, **tree}, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes, load_blocks: LoadBlocks | None = None) -> Manifest:
        """Return the manifest in ``raw``. Raise RmqError unless it has a known format.

        ``load_blocks`` returns the packed digests of a log file, if ``raw`` does not have them.
        """
        try:
            tree = json.loads(raw)
            if tree["kind"] != KIND:
                raise RmqError(f"not a manifest: kind is {tree['kind']!r}, expected {KIND!r}")
            if tree["format"] > MANIFEST_FORMAT:
                raise RmqError(f"the manifest has format {tree['format']}: use a newer rmqpy")
            return _manifest_of(tree, load_blocks)
        except KeyError as error:
            raise RmqError(f"not a manifest: it has no {error}") from error
        except (TypeError, ValueError) as error:
            raise RmqError(f"not a manifest: {error}") from error


def _manifest_of(tree: dict[str, Any], load_blocks: LoadBlocks | None) -> Manifest:
    return Manifest(
        name=tree["name"],
        taken_ms=tree["taken_ms"],
        mode=Mode(tree["mode"]),
        divided_offset=tree["divided_offset"],
        clean_stop=tree["clean_stop"],
        running=tree["running"],
        files=tuple(map(_file_md5_of, tree["files"])),
        logs=tuple(
            LogDigest(
                kind=log["kind"],
                files=tuple(_log_file_of(each, load_blocks) for each in log["files"]),
            )
            for log in tree["logs"]
        ),
        queues=tuple(
            QueueDigest(**{**queue, "buckets": tuple(map(_bucket_of, queue["buckets"]))})
            for queue in tree["queues"]
        ),
        tables=tuple(ConfigTable(**table) for table in tree["tables"]),
        keys=tree["keys"],
        keys_found=tree["keys_found"],
        findings=tree["findings"],
        first_findings=tuple(tree["first_findings"]),
        facts=tree["facts"],
        contents=TableFacts.of_json(contents) if (contents := tree.get("contents")) else None,
        key_holes=tuple((first, last, count) for first, last, count in tree.get("key_holes", ())),
        uncommitted=tuple((topic, *numbers) for topic, *numbers in tree.get("uncommitted", ())),
        age=age_of_json(tree.get("age")),
    )


def _bucket_of(numbers: list[int]) -> Bucket:
    number, count, content, positions, *mapped = numbers
    return number, count, content, positions, mapped[0] if mapped else NOT_MAPPED


def _log_file_tree(file: LogFileDigest, *, blocks: bool) -> dict[str, Any]:
    tree = {name: getattr(file, name) for name in _LOG_FILE}
    summary = file.blocks.summary()
    if blocks and file.blocks.is_whole:
        summary["packed"] = base64.b64encode(file.blocks.to_bytes()).decode()
    return {**tree, "blocks": summary}


_LOG_FILE: Final = ("path", "first_offset", "file_size", "end", "sealed")


def _file_md5_of(tree: dict[str, Any]) -> FileMd5:
    check_types(FileMd5, tree)
    return FileMd5(**tree)


def _log_file_of(tree: dict[str, Any], load_blocks: LoadBlocks | None) -> LogFileDigest:
    check_types(LogFileDigest, tree)
    values = {name: tree[name] for name in _LOG_FILE}
    return LogFileDigest(**values, blocks=_blocks_of(tree, load_blocks))


def _blocks_of(tree: dict[str, Any], load_blocks: LoadBlocks | None) -> Blocks:
    summary = tree["blocks"]
    if isinstance(summary, list):  # before format 3
        groups = [FrameGroup(*group) for group in tree["groups"]]
        return Blocks.of(map(bytes.fromhex, summary), groups)
    check_types(Blocks, summary)
    if summary["count"] < 0:
        raise ValueError(f"{tree['path']} has {summary['count']} blocks")
    packed = summary.get("packed")
    if packed is not None:
        raw = base64.b64decode(packed, validate=True)
        return Blocks.of_summary(summary, lambda _: raw)
    load = None if load_blocks is None else partial(_loaded, load_blocks, tree["path"])
    return Blocks.of_summary(summary, load)


def _loaded(load_blocks: LoadBlocks, path: str, _: str) -> bytes:
    return load_blocks(path)


class Md5(Enum):
    """The files whose MD5 sums are computed."""

    EVERY_FILE = "every file"
    OWN_FILES = "logs, tables and small files, not what is made from them"
    NONE = "none"


@define(slots=True, frozen=True, kw_only=True)
class ManifestPlan:
    """The options of a manifest.

    Digests of messages are always computed. ``md5`` selects the files whose MD5 sum is computed;
    ``blocks`` adds digests of the logs' blocks, which show where two logs diverge. A certificate
    needs neither.
    """

    name: str
    audit: AuditOptions
    now_ms: Callable[[], int]
    md5: Md5 = Md5.EVERY_FILE
    blocks: bool = True


def make_manifest(
    files: FileSystem, plan: ManifestPlan, runner: RangeRunner | None = None
) -> tuple[Manifest, StoreAudit]:
    """Audit a store and return its manifest and the audit; no block is split between ranges."""
    runner = runner or ThreadRunner(files, plan.audit.workers)
    range_bytes = plan.audit.range_bytes
    if plan.blocks:
        range_bytes = max(range_bytes & -BLOCK_SIZE, BLOCK_SIZE)
    audit_plan = evolve(plan.audit, digests=True, blocks=plan.blocks, range_bytes=range_bytes)
    directory = read_directory(files, plan.audit.root, plan.audit.settings)
    # Before the queues: the offsets of a running broker lead to no message after their ends.
    contents = read_table_facts(files, directory)
    audit = audit_store(files, audit_plan, runner)
    directory = read_directory(files, plan.audit.root, plan.audit.settings)
    learned = plan.audit.learned
    if learned is not None:
        runner = LearnedRunner(runner, learned, DerivedFiles.of(files, directory, learned))
    md5s = tuple(_file_md5s(files, plan, directory, runner))
    if learned is not None:
        audit.age = learned.age
    return evolve(_manifest_of_audit(plan, md5s, audit), contents=contents), audit


def _manifest_of_audit(
    plan: ManifestPlan, md5s: tuple[FileMd5, ...], audit: StoreAudit
) -> Manifest:
    facts = audit.facts
    logs = [("classic", audit.classic), ("dledger", audit.ledger)]
    return Manifest(
        name=plan.name,
        taken_ms=plan.now_ms(),
        mode=facts.mode,
        divided_offset=facts.divided_offset,
        clean_stop=facts.clean_stop,
        running=facts.running,
        files=md5s,
        logs=tuple(_log_digest(kind, log) for kind, log in logs if log is not None),
        queues=tuple(_queue_digests(audit.queues.values())),
        tables=facts.tables,
        findings={code.name: count for code, count in sorted(audit.counts.items(), key=_by_name)},
        keys=audit.keys,
        keys_found=audit.keys_found,
        first_findings=tuple(finding.as_json() for finding in audit.first_findings),
        facts=facts.as_json(),
        key_holes=tuple(audit.key_holes),
        uncommitted=tuple(audit.uncommitted),
        age=audit.age,
    )


def _by_name(item: tuple[Any, int]) -> str:
    name: str = item[0].name
    return name


def _log_digest(kind: str, log: LogResult) -> LogDigest:
    with_content = [file for file in log.files if file.end > file.first_offset]
    return LogDigest(kind=kind, files=tuple(map(_log_file_digest, with_content)))


def _log_file_digest(file: FileDigests) -> LogFileDigest:
    return LogFileDigest(
        path=file.file,
        first_offset=file.first_offset,
        file_size=file.file_size,
        end=file.end,
        sealed=file.is_sealed,
        blocks=file.blocks,
    )


def _queue_digests(queues: Iterable[QueueTally]) -> list[QueueDigest]:
    return [
        QueueDigest(
            topic=java_text(queue.topic),
            queue_id=queue.queue_id,
            min_offset=max(queue.first_queue_offset, 0),
            max_offset=queue.last_queue_offset + 1,
            count=queue.count,
            unqueued=queue.unqueued,
            right_units=queue.right_units,
            buckets=tuple(
                (number, sums[0], sums[1], sums[2], sums[3])
                for number, sums in sorted(queue.buckets.items())
            ),
        )
        for queue in sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))
    ]


def _file_md5s(
    files: FileSystem, plan: ManifestPlan, directory: StoreDirectory, runner: RangeRunner
) -> Iterator[FileMd5]:
    paths = sorted(directory.every_file())
    small = [directory.paths.checkpoint, directory.paths.abort]
    for ledger in directory.ledgers:
        small += [ledger.checkpoint, ledger.current_term]
    paths += [path for path in small if files.exists(path)]
    selected = {
        Md5.EVERY_FILE: paths,
        Md5.OWN_FILES: [*directory.own_files(), *small],
        Md5.NONE: [],
    }[plan.md5]
    read = sorted(set(selected).intersection(paths))
    sums = runner.md5s(map(FilePart, read))
    md5s = {path: each.md5 for path, each in zip(read, sums, strict=True)}
    for path in paths:
        relative = directory.relative(path)
        yield FileMd5(relative, files.size_of(path), files.mtime_ms(path), md5s.get(path, ""))
