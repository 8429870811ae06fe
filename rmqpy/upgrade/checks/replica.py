"""Access to a replica: a directory of this host, or another host's ``rmqpy upgrade serve``."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from attrs import define, evolve, field

from rmqpy.audit.facts.log_reader import QueueMessages
from rmqpy.audit.scan.directory import read_directory
from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import NetworkError, RmqError, StoreError
from rmqpy.model.files import FileSystem
from rmqpy.store.upgrade_guard import upgrade_work
from rmqpy.upgrade.checks.member_facts import MemberFacts, read_member_facts
from rmqpy.upgrade.link.connections import TOKEN_HEADER, distrusted, trusting
from rmqpy.upgrade.link.driver import attempted
from rmqpy.upgrade.plan.evidence import current_journal
from rmqpy.upgrade.plan.node_context import NodeContext, range_digest
from rmqpy.upgrade.plan.survey import Survey, SurveyPlan, take_survey

RANGE_BYTES_MAX = 4 << 20
SUMMED_MAX = 1 << 10
"""The limits of one request: bytes, and messages for which sums are returned."""

ANSWER_BYTES_MAX = {
    "survey": 1 << 30,
    "blocks": 1 << 26,
    "range": RANGE_BYTES_MAX,
    "digest": 64,
    "sums": 1 << 10,
    "status": 1 << 16,
    "facts": 1 << 20,
    "clock": 64,
    "files": 1 << 28,
}
"""The limits of one answer."""

REQUEST_SECONDS_MAX = 600
_DIGEST = re.compile(rb"[0-9a-f]{32}|absent")


class Replica(Protocol):
    """A replica of the group. Paths are relative to its root, or absolute outside of it."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """The directory on this host, or the URL."""

    def survey(self) -> Survey: ...

    def read_until(self, end: int) -> None:
        """Let a survey of the store end at this offset of the log while its broker runs."""

    def read(self, path: str, start: int, end: int) -> bytes: ...

    def digest(self, path: str, start: int, end: int) -> str:
        """Return the md5 of a range as hex, or ``absent`` if the range does not exist."""

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int, int]:
        """Return the same as :meth:`rmqpy.audit.facts.log_reader.QueueMessages.sums`."""

    def status(self) -> dict[str, Any]:
        """Return the state of the journal, for ``rmqpy upgrade status``."""

    def facts(self) -> MemberFacts:
        """Return what shows how far the member is, cheaply, also while it runs."""

    def clock_skew_ms(self) -> int:
        """Return by how many ms the clock of the replica's host is ahead of this host's."""


@define(slots=True)
class LocalReplica:
    """A directory of this host (implements :class:`Replica`)."""

    files: FileSystem
    plan: SurveyPlan
    _survey: Survey | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def root(self) -> str:
        return self.plan.root

    @property
    def address(self) -> str:
        return self.plan.root

    def survey(self) -> Survey:
        if self._survey is None:
            self._survey = take_survey(self.files, self.plan)
        return self._survey

    def forget_survey(self) -> None:
        """Discard the survey because the directory has changed."""
        self._survey = None

    def read_until(self, end: int | None) -> None:
        self.plan = evolve(self.plan, until=end)
        self.forget_survey()

    def absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.plan.root}/{path}"

    def read(self, path: str, start: int, end: int) -> bytes:
        file = self.files.open_readonly(self.absolute(path))
        try:
            if end > file.size:
                raise RmqError(
                    f"{path} on {self.name} has {file.size} bytes, the request goes up to {end}"
                )
            return bytes(file.view[start:end])
        finally:
            file.close()

    def digest(self, path: str, start: int, end: int) -> str:
        return range_digest(self.files, self.absolute(path), start, end)

    def messages(self) -> QueueMessages:
        """Return a reader of the messages that are in the directory now."""
        directory = read_directory(self.files, self.root, self.plan.settings)
        return QueueMessages(self.files, directory)

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int, int]:
        return self.messages().sums(topic, queue_id, first, end)

    def status(self) -> dict[str, Any]:
        work = upgrade_work(self.plan.root)
        try:
            journal = current_journal(NodeContext(self.files, work, self._settings()))
        except StoreError as error:
            return {"state": "damaged", "damage": str(error)}
        if journal is None:
            return {"state": "untouched"}
        state = {
            "state": journal.state,
            "root": self.plan.root,
            "plan": journal.plan_id,
            "phase": journal.phase,
            "done": journal.done,
            "since_ms": journal.since_ms,
        }
        return state | ({"damage": journal.damage} if journal.damage else {})

    def _settings(self) -> StoreSettings:
        return self.plan.settings or StoreSettings(store_path_root_dir=self.plan.root)

    def facts(self) -> MemberFacts:
        return read_member_facts(self.files, self.plan)

    def clock_skew_ms(self) -> int:
        return 0


@define(slots=True)
class RemoteReplica:
    """A replica that is read over HTTP (implements :class:`Replica`).

    ``authority`` is the path of a file with trusted certificates. A request is repeated if its
    connection is lost; ``note`` receives a line about it.
    """

    name: str
    address: str
    token: str = field(default="", repr=False)
    authority: str | None = None
    note: Callable[[str], None] = field(kw_only=True, default=lambda text: None)
    _survey: Survey | None = None
    _until: int | None = None

    def survey(self) -> Survey:
        if self._survey is None:
            query = {"name": self.name}
            if self._until is not None:
                query["until"] = str(self._until)
            survey = Survey.decode(self._get("survey", query), self._blocks)
            self._survey = evolve(survey, name=self.name)
        return self._survey

    def read_until(self, end: int) -> None:
        self._until, self._survey = end, None

    def _blocks(self, path: str) -> bytes:
        """Return the packed digests of a log file's blocks; who asks compares their checksum."""
        return self._get("blocks", {"path": path})

    def read(self, path: str, start: int, end: int) -> bytes:
        parts = []
        while start < end:
            stop = min(start + RANGE_BYTES_MAX, end)
            data = self._get("range", {"path": path, "start": start, "end": stop})
            if len(data) != stop - start:
                raise NetworkError(f"{self.address}: {len(data)} bytes of {stop - start} of {path}")
            parts.append(data)
            start = stop
        return b"".join(parts)

    def digest(self, path: str, start: int, end: int) -> str:
        found = self._get("digest", {"path": path, "start": start, "end": end})
        if not _DIGEST.fullmatch(found):
            raise RmqError(
                f"{self.address}: found {found[:40]!r} as the digest of {path!r}, expected an md5"
                " or absent; check that this is the address of rmqpy upgrade serve"
            )
        return found.decode()

    def sums(self, topic: str, queue_id: int, first: int, end: int) -> tuple[int, int, int, int]:
        query = {"topic": topic, "queue": queue_id, "first": first, "end": end}
        try:
            count, content, positions, mapped = json.loads(self._get("sums", query))
            return int(count), int(content), int(positions), int(mapped)
        except (ValueError, TypeError, RecursionError):
            raise self._not_ours("sums") from None

    def status(self) -> dict[str, Any]:
        try:
            value = json.loads(self._get("status", {}))
        except (ValueError, RecursionError):
            raise self._not_ours("status") from None
        if not isinstance(value, dict) or not isinstance(value.get("state"), str):
            raise self._not_ours("status")
        return value

    def facts(self) -> MemberFacts:
        return evolve(MemberFacts.decode(self._get("facts", {})), name=self.name)

    def clock_skew_ms(self) -> int:
        before_ms = time.time_ns() // 1_000_000
        try:
            theirs = int(self._get("clock", {}))
        except ValueError:
            raise self._not_ours("clock") from None
        after_ms = time.time_ns() // 1_000_000
        return theirs - (before_ms + after_ms) // 2

    def raw(self, what: str, query: Mapping[str, object]) -> bytes:
        """Return the answer of the other host as it is, to hand it on."""
        return self._get(what, query)

    def _not_ours(self, what: str) -> RmqError:
        return RmqError(
            f"{self.address}: found something else as the {what}, expected an answer of rmqpy"
            " upgrade serve; check the address, and use the same rmqpy on both hosts"
        )

    def _get(self, what: str, query: Mapping[str, object]) -> bytes:
        """Return the body of an answer, which may not be longer than its kind allows."""

        def lost(error: NetworkError, pause_s: float) -> None:
            if not isinstance(error, LostConnectionError):
                raise error
            self.note(f"{error}; connecting again in {pause_s:.0f} s")

        return attempted(lambda: self._answer(what, query), lost, time.sleep)

    def _answer(self, what: str, query: Mapping[str, object]) -> bytes:
        url = f"{self.address.rstrip('/')}/v1/{what}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, headers={TOKEN_HEADER: self.token})
        if self.token and not url.startswith("https:"):
            raise RmqError(
                f"{self.address}: found an address without TLS, expected https://, because a token"
                " is not sent without TLS; correct the address, or leave the token out"
            )
        secure = urllib.request.HTTPSHandler(context=trusting(self.authority))
        opener = urllib.request.build_opener(secure, _NoRedirects)
        try:
            with opener.open(request, timeout=REQUEST_SECONDS_MAX) as answer:
                data: bytes = answer.read(ANSWER_BYTES_MAX[what] + 1)
                rest = answer.length
        except urllib.error.HTTPError as error:
            text = error.read(1000).decode("utf-8", "replace")
            raise RmqError(f"{self.address}: {error.code} {text}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            text = getattr(reason, "strerror", None) or str(reason)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise distrusted(self.address, reason) from None
            if _is_lost(error):
                raise LostConnectionError(f"{self.address}: {text}") from None
            raise NetworkError(
                f"{self.address}: found no rmqpy upgrade serve that answers ({text}), expected one;"
                " start it on that host, or correct the address"
            ) from None
        if len(data) > ANSWER_BYTES_MAX[what]:
            raise self._not_ours(what)
        if rest:
            raise LostConnectionError(
                f"{self.address}: the connection ended {rest} bytes too early"
            )
        return data


class LostConnectionError(NetworkError):
    """A connection that was open has ended before the answer was complete."""


def _is_lost(error: Exception) -> bool:
    """Return whether a connection was lost, rather than never made."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return False
    return isinstance(reason, ConnectionError | ssl.SSLEOFError | http.client.IncompleteRead)


Fetch = Callable[[str, Mapping[str, object]], bytes]
"""Returns the answer to a question (``survey``, ``range``, ...) and its query."""


@define(slots=True)
class LinkedReplica(RemoteReplica):
    """A replica of another host that is asked through a link (:mod:`rmqpy.upgrade.link`)."""

    fetch: Fetch = field(kw_only=True)

    def _get(self, what: str, query: Mapping[str, object]) -> bytes:
        data = self.fetch(what, query)
        if len(data) > ANSWER_BYTES_MAX[what]:
            raise self._not_ours(what)
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would send the token to an address that nobody has chosen."""

    def redirect_request(self, *arguments: object) -> None:
        return None


@define(slots=True, frozen=True)
class Replicas:
    """All replicas by name, as the source of an operation's bytes (implements ``RangeSource``)."""

    by_name: Mapping[str, Replica]

    @property
    def addresses(self) -> dict[str, str]:
        return {name: replica.address for name, replica in self.by_name.items()}

    def read(self, replica: str, path: str, start: int, end: int) -> bytes:
        found = self.by_name.get(replica)
        if found is None:
            raise RmqError(
                f"bytes of replica {replica} are needed; give it as {replica}=DIR or"
                f" {replica}=https://HOST:PORT"
            )
        return found.read(path, start, end)
