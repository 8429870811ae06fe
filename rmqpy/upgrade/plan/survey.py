"""The survey: everything that the checks need about one replica, as one value.

A survey has the manifest, the configuration, the tables, disk space, and sizes. Taking a survey
reads every byte of the log once, unless it was learned earlier, and changes nothing in the store.
``rmqpy upgrade serve`` sends the JSON form of the survey, and ranges of files only when a plan
needs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
from attrs import define, evolve, field

from rmqpy.audit.checks.engine import AuditOptions, RangeRunner, StoreAudit
from rmqpy.audit.facts.learned import SPAN, Learned, open_learned
from rmqpy.audit.replicas.manifest import LoadBlocks, Manifest, ManifestPlan, Md5, make_manifest
from rmqpy.audit.scan.directory import LogFile, LogSegments, StoreDirectory, read_directory
from rmqpy.audit.scan.findings import Finding
from rmqpy.audit.scan.ranges import RANGE_BYTES
from rmqpy.audit.scan.sealed import sealed_files
from rmqpy.codec.backend import scan_records
from rmqpy.config.loading import StoreSettings
from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.progress import NoProgress, StartProgress
from rmqpy.model.typed_json import check_types
from rmqpy.store.files.framing import Framing

SURVEY_FORMAT = 3
"""Since 3: the manifest has no digests of single blocks; who compares requests those of a file that
differs. Format 2, which has them as text, is still read.
"""
READABLE_FORMATS = (2, 3)
FINDINGS_MAX = 1000
"""The maximum number of audit findings in a survey."""

SIZE_KEY = "mappedFileSizeCommitLog"
DEFAULT_FILE_SIZE = 1 << 30


@define(slots=True, frozen=True)
class FileSpan:
    """One log file: the time of its last write, and the store time of its first message."""

    path: str
    size: int
    mtime_ms: int
    first_stored_ms: int
    first_stored_of_next_ms: int = -1
    """The store time of the next file's first message, or -1. If ``mtime_ms`` is much later, the
    file was copied without its time.
    """
    of_entries: bool = False


@define(slots=True, frozen=True, kw_only=True)
class Survey:
    """The survey of one replica.

    ``config`` is the broker.conf, or None if it was not passed. ``tables`` has the texts of the
    files in ``config/`` by name. ``found`` has the findings of the audit, at most
    ``FINDINGS_MAX``. Numbers refer to the whole log.
    """

    name: str
    root: str
    manifest: Manifest
    config_path: str | None = None
    config: dict[str, str] | None = None
    tables: dict[str, str] = field(factory=dict)
    disk_total: int = 0
    disk_free: int = 0
    largest_record: int = 0
    longest_properties: int = 0
    version_2: int = 0
    spans: tuple[FileSpan, ...] = ()
    found: tuple[dict[str, Any], ...] = ()
    abort_found: bool = False

    @property
    def file_size(self) -> int:
        """The size of a log file in bytes: as configured, else as the files show."""
        if self.config is not None:
            return int(self.config.get(SIZE_KEY, DEFAULT_FILE_SIZE))
        return max((span.size for span in self.spans), default=DEFAULT_FILE_SIZE)

    @property
    def has_entries(self) -> bool:
        """True if the replica has a DLedger log with at least one entry."""
        log = self.manifest.log("dledger")
        return log is not None and bool(log.files)

    def setting(self, key: str, default: str = "") -> str:
        return (self.config or {}).get(key, default)

    def encode(self) -> bytes:
        names = (each.name for each in attrs.fields(Survey) if each.name != "manifest")
        tree = {name: getattr(self, name) for name in names}
        tree["spans"] = [attrs.asdict(span) for span in self.spans]
        tree["manifest"] = json.loads(self.manifest.encode(blocks=False))
        return json.dumps({"format": SURVEY_FORMAT, **tree}).encode()

    @classmethod
    def decode(cls, raw: bytes, load_blocks: LoadBlocks | None = None) -> Survey:
        """Decode a survey. Raise RmqError if ``raw`` is not a survey of a known format.

        ``load_blocks`` returns the packed digests of the blocks of a log file.
        """
        try:
            tree = json.loads(raw)
            if tree.pop("format") not in READABLE_FORMATS:
                raise RmqError("a survey of another format: use the same rmqpy on all hosts")
            manifest = json.dumps(tree["manifest"]).encode()
            tree["manifest"] = Manifest.decode(manifest, load_blocks)
            for span in tree["spans"]:
                check_types(FileSpan, span)
            tree["spans"] = tuple(FileSpan(**span) for span in tree["spans"])
            tree["found"] = tuple(tree["found"])
            for name, text in tree["tables"].items():
                if not name.endswith(".json") or "/" in name or not isinstance(text, str):
                    raise ValueError(f"a table is named {name!r}")
            check_types(cls, tree)
            return cls(**tree)
        except KeyError as error:
            raise RmqError(f"not a survey: it has no {error}") from error
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RmqError(f"not a survey: {error}") from error


@define(slots=True, frozen=True, kw_only=True)
class SurveyPlan:
    """The options of a survey.

    ``settings`` are the broker's, if its files are elsewhere or its sizes are known. ``runner``
    reads the logs; without one, threads of this process do. ``md5`` selects the files whose md5 is
    computed: comparing and aligning need those of logs and tables. ``full`` reads files again about
    which everything was learned earlier. ``until`` is the offset up to which the store of a running
    broker is read.
    """

    name: str
    root: str
    config_path: str | None = None
    settings: StoreSettings | None = None
    now_ms: Callable[[], int]
    progress: StartProgress = NoProgress
    md5: Md5 = Md5.OWN_FILES
    runner: Callable[[StoreDirectory], RangeRunner] | None = None
    full: bool = False
    until: int | None = None
    range_bytes: int = RANGE_BYTES


def take_survey(files: FileSystem, plan: SurveyPlan) -> Survey:
    """Return a survey of everything below ``plan.root``; change nothing in the store."""
    found: list[dict[str, Any]] = []

    def keep(findings: list[Finding]) -> None:
        found.extend(each.as_json() for each in findings[: FINDINGS_MAX - len(found)])

    learned = open_learned(files, plan.root, plan.now_ms, full=plan.full)
    audit_plan = AuditOptions(
        root=plan.root,
        settings=plan.settings,
        sink=keep,
        progress=plan.progress("reading"),
        learned=learned,
        until=plan.until,
        range_bytes=plan.range_bytes,
    )
    manifest_plan = ManifestPlan(name=plan.name, audit=audit_plan, now_ms=plan.now_ms, md5=plan.md5)
    directory = read_directory(files, plan.root, plan.settings)
    runner = plan.runner(directory) if plan.runner else None
    manifest, audit = make_manifest(files, manifest_plan, runner)
    total, free = files.disk_usage(directory.paths.commit_log)
    return Survey(
        name=plan.name,
        root=plan.root,
        manifest=manifest,
        config_path=plan.config_path,
        config=read_config(files, plan.config_path),
        tables=_tables(files, directory),
        disk_total=total,
        disk_free=free,
        largest_record=_largest(audit, "largest_record"),
        longest_properties=_largest(audit, "longest_properties"),
        version_2=sum(log.tally.version_2 for log in audit.logs),
        spans=tuple(_spans(files, directory, learned)),
        found=tuple(found),
        abort_found=files.exists(directory.paths.abort),
    )


def read_config(files: FileSystem, path: str | None) -> dict[str, str] | None:
    """Return a broker.conf as unchecked pairs, or None without a path. Raise RmqError if the file
    is missing.
    """
    if path is None:
        return None
    if not files.exists(path):
        raise RmqError(
            f"{path}: found no file, expected the replica's broker.conf; correct the path (-c, or"
            " config in group.toml)"
        )
    text = decode_properties_bytes(files.read_bytes(path))
    return {each.key: each.value.strip() for each in parse_properties(text, path)}


def _largest(audit: StoreAudit, name: str) -> int:
    return max((getattr(log.tally, name) for log in audit.logs), default=0)


def _tables(files: FileSystem, directory: StoreDirectory) -> dict[str, str]:
    found = {}
    for file in directory.config_files:
        name = file.path.rpartition("/")[2]
        if name.endswith(".json"):
            found[name] = files.read_bytes(file.path).decode("utf-8", "replace")
    return found


def _spans(files: FileSystem, directory: StoreDirectory, learned: Learned | None) -> list[FileSpan]:
    sealed = sealed_files(files, directory) if learned is not None else frozenset()
    spans: list[FileSpan] = []
    for log in directory.logs:
        of_entries = log.framing is Framing.DLEDGER
        for file in log.files:
            stored_ms = _first_stored_ms(files, log, file, learned if file.path in sealed else None)
            path = directory.relative(file.path)
            if spans and spans[-1].of_entries == of_entries:
                spans[-1] = evolve(spans[-1], first_stored_of_next_ms=stored_ms)
            spans.append(FileSpan(path, file.size, file.mtime_ms, stored_ms, of_entries=of_entries))
    return spans


def _first_stored_ms(
    files: FileSystem, log: LogSegments, log_file: LogFile, learned: Learned | None
) -> int:
    """Return the store time of a file's first message, or -1.

    What is known of a sealed file is ``learned``: reading one page of a mapped file makes the
    system read megabytes around it.
    """
    known = learned.known(log_file.path, SPAN) if learned is not None else None
    if known is not None:
        return int(known)
    identity = learned.identity(log_file.path) if learned is not None else None
    file = files.open_readonly(log_file.path)
    try:
        dledger = log.framing is Framing.DLEDGER
        scan = scan_records(
            file.view, log_file.first_offset, dledger=dledger, check_crc=False, max_records=1
        )
        stored_ms = scan.store_timestamp_ms[0] if len(scan) else -1
    finally:
        file.close()
    if learned is not None:
        learned.keep(log_file.path, SPAN, stored_ms, identity)
    return stored_ms
