"""The small files of a store: configuration tables, checkpoint, and the files next to a DLedger
log.

A table is read as the broker reads it: from the file, or from its ``.bak`` if the file is missing,
empty, or unreadable. The digest of a table does not depend on formatting: it is computed over JSON
with sorted keys, without ``dataVersion``, which counts how often the table was written.
"""

from __future__ import annotations

import hashlib
import json
import struct

from rmqpy.audit.scan.directory import LedgerFolder, StoreDirectory
from rmqpy.codec.layout import CHECKPOINT_SIZE
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.model.ids import UNREACHED_TERM
from rmqpy.model.values import define
from rmqpy.remoting.fastjson import loads
from rmqpy.store.files.checkpoint import SAFETY_MARGIN_MS
from rmqpy.store.files.paths import BACKUP_SUFFIX

__all__ = [
    "Checkpoint",
    "ConfigTable",
    "LedgerState",
    "existing_topics",
    "read_checkpoint",
    "read_ledger_state",
    "read_table",
    "read_tables",
]

DATA_VERSION = "dataVersion"
_CHECKPOINT = struct.Struct(">qqqqq")
_CHECKPOINT_FIELDS = (
    "physic_timestamp_ms",
    "logics_timestamp_ms",
    "index_timestamp_ms",
    "master_flushed_offset",
    "confirm_physical_offset",
)
TABLE_SUFFIX = ".json"


@define(slots=True, frozen=True, kw_only=True)
class ConfigTable:
    """One table of ``config/``.

    ``source`` is "file", "backup" (only the .bak is readable), or "nothing". ``digest`` is the MD5
    of the content, unless ``source`` is "nothing".
    """

    name: str
    source: str
    digest: str = ""
    reason: str = ""


@define(slots=True, frozen=True, kw_only=True)
class Checkpoint:
    """The store times, in ms, up to which log, queues, and index are on disk.

    Only 5.x writes the two offsets.
    """

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def safe_timestamp_ms(self) -> int:
        """The store time before which all messages are in the log and in the consume queues."""
        older = min(self.physic_timestamp_ms, self.logics_timestamp_ms)
        return max(0, older - SAFETY_MARGIN_MS)


@define(slots=True, frozen=True, kw_only=True)
class LedgerState:
    """The persistent state of a DLedger member; -1 or 0 for values that it does not have."""

    committed_index: int = -1
    end_index: int = -1
    current_term: int = 0
    voted_for: str = ""


def read_tables(files: FileSystem, directory: StoreDirectory) -> list[ConfigTable]:
    """Return all ``*.json`` files of ``config/``, including those with only a .bak file."""
    names = set()
    for file in directory.config_files:
        name = file.path.rpartition("/")[2].removesuffix(BACKUP_SUFFIX)
        if name.endswith(TABLE_SUFFIX):
            names.add(name)
    folder = directory.paths.config
    return [_table(files, f"{folder}/{name}", name) for name in sorted(names)]


def read_table(files: FileSystem, path: str) -> object | None:
    """Return the content of a table, from the file or its backup, or None if neither is
    readable.
    """
    for candidate in (path, path + BACKUP_SUFFIX):
        raw = _content(files, candidate)
        if raw:
            try:
                return loads(raw)
            except (RmqError, ValueError):
                continue
    return None


def _content(files: FileSystem, path: str) -> bytes:
    """Return the content of a file, or nothing if it does not exist.

    Java 4.9 deletes a table before it renames the new one to its name.
    """
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        return b""


def existing_topics(files: FileSystem, config: str, queues: str) -> set[str] | None:
    """Return the topics that have a queue folder or are in the table, or None if the table cannot
    be read or no topic has a folder.

    Messages of a deleted topic stay in the log until they expire; their queues are not rebuilt.
    """
    table = read_table(files, f"{config}/topics.json")
    folders = files.list_dir(queues)
    if not isinstance(table, dict) or not folders:
        return None
    return {*folders, *map(str, table.get("topicConfigTable", {}))}


def _table(files: FileSystem, path: str, name: str) -> ConfigTable:
    reason = "missing"
    for source, candidate in (("file", path), ("backup", path + BACKUP_SUFFIX)):
        raw = _content(files, candidate)
        if not raw:
            reason = reason if source == "backup" else "missing or empty"
            continue
        try:
            digest = table_digest(loads(raw))
        except (RmqError, ValueError) as error:
            reason = str(error)
            continue
        note = "" if source == "file" else reason
        return ConfigTable(name=name, source=source, digest=digest, reason=note)
    return ConfigTable(name=name, source="nothing", reason=reason)


def table_digest(value: object) -> str:
    """Return the MD5 of a table's content: sorted keys, all keys as text, without dataVersion."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if key != DATA_VERSION}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def read_checkpoint(files: FileSystem, directory: StoreDirectory) -> Checkpoint | str | None:
    """Return the checkpoint, None if there is none, or a text that says why it is invalid."""
    path = directory.paths.checkpoint
    if not files.exists(path):
        return None
    raw = files.read_bytes(path)
    if len(raw) != CHECKPOINT_SIZE:
        return f"{len(raw)} bytes, expected {CHECKPOINT_SIZE}"
    return Checkpoint(**dict(zip(_CHECKPOINT_FIELDS, _CHECKPOINT.unpack_from(raw), strict=True)))


def read_ledger_state(files: FileSystem, ledger: LedgerFolder) -> LedgerState:
    """Return the state from ``checkpoint`` and ``currterm``, or their backups."""
    checkpoint = _pairs(files, ledger.checkpoint)
    term = _pairs(files, ledger.current_term)
    return LedgerState(
        committed_index=_number(checkpoint, "committedIndex", -1),
        end_index=_number(checkpoint, "endIndex", -1),
        current_term=_number(term, "currTerm", 0),
        voted_for=term.get("voteLeader", ""),
    )


def ledger_state_problems(
    files: FileSystem,
    ledger: LedgerFolder,
    last_index: int,
    last_term: int,
    *,
    running: bool = False,
) -> list[tuple[str, str]]:
    """Return the paths of a member's wrong files, and what each contains.

    The last entry of the log has ``last_index`` and ``last_term``, or -1; a ``running`` broker has
    added others since. A missing ``checkpoint``
    without a backup is usual shortly after the first start, and before the first entry so is a
    missing ``currterm``: the member has not voted yet.
    """
    problems = []
    for path, numbers, further in (
        (ledger.current_term, ["currTerm"], ["voteLeader"]),
        (ledger.checkpoint, ["committedIndex", "endIndex"], ["durableIndex", "durableOffset"]),
    ):
        if files.exists(path):
            found = _unreadable(files.read_bytes(path), numbers, further)
        else:
            voted = path == ledger.current_term and last_index >= 0
            needed = voted or files.exists(path + BACKUP_SUFFIX)
            found = "no file" if needed else ""
        if found:
            problems.append((path, found))
    if problems:
        return problems
    state = read_ledger_state(files, ledger)
    durable_index = _number(_pairs(files, ledger.checkpoint), "durableIndex", -1)
    if state.current_term < last_term:
        found = f"term {state.current_term}, although the last entry has term {last_term}"
        problems.append((ledger.current_term, found))
    if state.current_term >= UNREACHED_TERM:
        found = (
            f"term {state.current_term}, which no elections reach: a forged message has raised it"
        )
        problems.append((ledger.current_term, found))
    if durable_index > last_index and not running:
        found = f"entry {durable_index} was on the disk, which the log does not have any more"
        problems.append((ledger.checkpoint, found))
    if state.committed_index > state.end_index:
        found = f"committedIndex {state.committed_index} after endIndex {state.end_index}"
        problems.append((ledger.checkpoint, found))
    return problems


def _unreadable(raw: bytes, numbers: list[str], further: list[str]) -> str:
    """Return what is wrong with a file that must have these numbers; empty if nothing is. It may
    have ``further`` keys, whose values are numbers as well, except a vote.
    """
    lines = raw.decode("utf-8", "replace").splitlines()
    pairs = dict(line.partition("=")[::2] for line in lines)
    for key in numbers:
        if key not in pairs:
            return f"{len(raw)} bytes without {key}"
        if not _is_number(pairs[key].strip()):
            return f"{key}={pairs[key]}"
    for key in further:
        if key != "voteLeader" and not _is_number(pairs.get(key, "0").strip()):
            return f"{key}={pairs[key]}"
    unknown = [line for line in lines if line.partition("=")[0] not in numbers + further]
    return f"an unknown line: {unknown[0]!r}" if unknown else ""


def _pairs(files: FileSystem, path: str) -> dict[str, str]:
    for candidate in (path, path + BACKUP_SUFFIX):
        raw = _content(files, candidate)
        lines = raw.decode("utf-8", "replace").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line)
        if pairs:
            return {key.strip(): value.strip() for key, value in pairs.items()}
    return {}


def _number(pairs: dict[str, str], key: str, default: int) -> int:
    text = pairs.get(key, "")
    return int(text) if _is_number(text) else default


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit()
