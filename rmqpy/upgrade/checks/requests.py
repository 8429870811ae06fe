"""The requests that other hosts make about a replica of this host: all only read.

``rmqpy upgrade serve`` answers them over HTTP, ``rmqpy upgrade agent`` over ssh. Only files of the
store are read, whatever path a request names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import define

from rmqpy.audit.facts.lock_probe import find_lock_owner
from rmqpy.audit.scan.directory import StoreDirectory, read_directory
from rmqpy.store.files.paths import own_folder
from rmqpy.upgrade.checks.replica import RANGE_BYTES_MAX, SUMMED_MAX, LocalReplica

Query = Mapping[str, str]
Fingerprint = list[tuple[str, int, int]]
"""The path, size in bytes, and time in ms of every file."""
Row = tuple[str, bool, int, int, str]
"""Path, whether it is a folder, size in bytes, time in ms, and version of a file."""
OWN_FORMAT_PATH: Final = "rmqpy/format"
"""The only file of rmqpy's own folder that an audit reads."""


@define(slots=True)
class ReplicaRequests:
    """The answers about one replica. They may be computed in several threads at a time."""

    replica: LocalReplica
    _seen: Fingerprint | None = None
    """The files as they were before the last survey; None if that does not tell whether it is still
    right."""
    _survey: bytes = b""

    def answer(self, what: str, query: Query) -> bytes:
        """Return the body of an answer.

        Raise ValueError, KeyError, or RmqError for a request that cannot be answered.
        """
        match what:
            case "survey":
                return self.survey(query)
            case "blocks":
                return self._blocks(query["path"])
            case "digest":
                return self.replica.digest(*self.checked_range(query)).encode()
            case "range":
                return self.replica.read(*self.checked_range(query, RANGE_BYTES_MAX))
            case "sums":
                return json.dumps(self._sums(query)).encode()
            case "status":
                return json.dumps(self.replica.status()).encode()
            case "facts":
                return self.replica.facts().encode()
            case "clock":
                return str(self.replica.plan.now_ms()).encode()
            case "files":
                return json.dumps(self._files(query.get("path", ""))).encode()
        raise ValueError(
            "found an unknown request, expected survey, blocks, digest, range, sums, status,"
            " facts, clock, or files; use the same rmqpy on all hosts"
        )

    def survey(self, query: Query) -> bytes:
        """Return the survey; take a new one if a file has changed since the last request.

        The times of the files do not show what a running broker writes through its mappings.
        """
        now = self._fingerprint()
        if now != self._seen:
            self.replica.read_until(int(query["until"]) if "until" in query else None)
            survey = self.replica.survey()
            self._survey = survey.encode()
            self._seen = None if survey.manifest.running else now
        return self._survey

    def _blocks(self, path: str) -> bytes:
        """Return the packed digests of the blocks of a log file, as of the last survey."""
        logs = self.replica.survey().manifest.logs
        found = next((each for log in logs for each in log.files if each.path == path), None)
        if found is None:
            raise ValueError(f"{path} is not a file of the log")
        return found.blocks.to_bytes()

    def checked_range(self, query: Query, bytes_max: int | None = None) -> tuple[str, int, int]:
        """Return (path, start, end) of a request. Raise ValueError if it may not be read."""
        path = query["path"]
        start, end = int(query["start"]), int(query["end"])
        if not 0 <= start <= end:
            raise ValueError(f"invalid range from {start} to {end}")
        if bytes_max is not None and end - start > bytes_max:
            raise ValueError(f"at most {bytes_max} bytes at a time")
        absolute = self.replica.absolute(path)
        if not self._is_below(path) and absolute not in self._directory().every_file():
            raise ValueError(f"{path} is not a file of the store")
        return path, start, end

    def _sums(self, query: Query) -> tuple[int, int, int, int]:
        first, end = int(query["first"]), int(query["end"])
        if not 0 <= end - first <= SUMMED_MAX:
            raise ValueError(f"at most {SUMMED_MAX} messages at a time")
        return self.replica.sums(query["topic"], int(query["queue"]), first, end)

    def _is_below(self, path: str) -> bool:
        """Return whether a relative path names a file of the store that rmqpy did not make."""
        if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
            return False
        files, absolute = self.replica.files, self.replica.absolute(path)
        own = files.resolve(own_folder(self.replica.root))
        is_own = files.resolve(absolute).startswith(f"{own}/") and path != OWN_FORMAT_PATH
        return not is_own and files.exists(absolute) and not files.is_dir(absolute)

    def _files(self, path: str) -> dict[str, object]:
        """Return the files below the root, or the one at ``path``, and whether a broker runs."""
        root, files = self.replica.root, self.replica.files
        if path:
            rows = [self._row(path)] if self._is_below(path) else []
        else:
            rows = list(self._rows("", (files.resolve(root), files.resolve(own_folder(root)))))
            rows += [self._row(OWN_FORMAT_PATH)] if self._is_below(OWN_FORMAT_PATH) else []
        return {"running": find_lock_owner(f"{root}/lock") is not None, "files": rows}

    def _rows(self, folder: str, without: tuple[str, ...]) -> Iterator[Row]:
        """Yield the content of a folder and of its folders, except those ``without``: rmqpy's own,
        and the ones that lead here, so that a circle of links ends.
        """
        files = self.replica.files
        for entry in files.list_entries(self.replica.absolute(folder)):
            path = f"{folder}{entry.name}"
            if not entry.is_dir:
                yield self._row(path)
                continue
            real = files.resolve(self.replica.absolute(path))
            if real not in without:
                yield path, True, 0, files.mtime_ms(self.replica.absolute(path)), ""
                yield from self._rows(f"{path}/", (*without, real))

    def _row(self, path: str) -> Row:
        absolute = self.replica.absolute(path)
        identity = self.replica.files.identity(absolute)
        mtime_ms = self.replica.files.mtime_ms(absolute)
        return path, False, identity[1], mtime_ms, "-".join(map(str, identity))

    def _fingerprint(self) -> Fingerprint:
        files, plan = self.replica.files, self.replica.plan
        paths = list(self._directory().every_file())
        if plan.config_path is not None:
            paths.append(plan.config_path)
        existing = filter(files.exists, paths)
        return [(path, files.size_of(path), files.mtime_ms(path)) for path in existing]

    def _directory(self) -> StoreDirectory:
        plan = self.replica.plan
        return read_directory(self.replica.files, plan.root, plan.settings)
