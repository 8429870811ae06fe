"""The equality certificate: evidence that every message of one store is the same in others.

A certificate is computed from manifests (:mod:`rmqpy.audit.replicas.certify`), and from the stores'
files where they are available. It covers

* every field of every message (:mod:`rmqpy.audit.replicas.message_comparison`), of the classic log
  and of the DLedger log;
* reachability: through the consume queue, by the keys, and by the id;
* the tables: topics, subscription groups, consumer offsets, delay offsets
  (:mod:`rmqpy.audit.replicas.table_comparison`);
* everything that the audit of each store finds, except notes and torn tails.

``not_examined`` lists what it does not cover. Its verdict has one of the words of
:mod:`rmqpy.audit.replicas.verdict`, whatever the order of the stores.

Stores of one time must have the same messages; the tables of one may be behind those of the other,
which makes it CONTAINED in the other. An earlier state must be equal to or contained in each later
one, apart from messages that have expired since; the later ones are then compared with each other,
too.
:attr:`Certificate.holds` says whether that is so.

Stores of one time are compared with the one whose log ends last. If messages have expired in one
store and not yet in another, the first is contained in the second.

If an earlier manifest has the name of a later one, it describes the same directory at an earlier
time: the present files are not its files. Its subject is called ``NAME before``.

The JSON form can be signed: with HMAC-SHA-256 and a key of the operator, over everything else in
it. Certificates of format 1 are read, and judged by what they contain: they say nothing on tables,
and do not require that messages are found by their keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import asdict, define, field

from rmqpy.audit.checks.key_check import KeyHole
from rmqpy.audit.facts.proof_age import ProofAge, age_of_json
from rmqpy.audit.replicas.message_comparison import (
    DifferenceGroup,
    MessageDifference,
)
from rmqpy.audit.replicas.table_comparison import TableDifference, verdict_on_tables
from rmqpy.audit.replicas.verdict import (
    DIFFERENT,
    NOTHING_COMPARED,
    Containment,
    Verdict,
    Word,
)
from rmqpy.audit.scan.findings import FindingCode, Severity
from rmqpy.model.errors import RmqError

__all__ = [
    "Certificate",
    "Comparison",
    "Subject",
    "check_signature",
    "is_signed",
    "signature_of",
]

KIND: Final = "rmqpy-certificate"
NO_CERTIFICATE = (
    "found no certificate, expected the output of rmqpy pipeline certify or rmqpy upgrade verify;"
    " give another file"
)
CERTIFICATE_FORMAT: Final = 5
"""Since 2: tables, keys, groups of differences, ``not_examined``, and words of the verdict.
Since 3: which store is behind in a table. Since 4: messages in queues of 5.x. Since 5: which stores
had a running broker.
"""
SEVERE: Final = (Severity.DAMAGE, Severity.DERIVED)


@define(slots=True, frozen=True, kw_only=True)
class Subject:
    """One store of a certificate.

    ``by_queue`` and ``by_id`` count the messages that are reachable that way. ``keys`` is the
    number of (message, key) pairs that must be in the key index, ``keys_found`` the number of those
    that are; ``key_holes`` are the ranges that no index file covers. ``digest`` is the digest of
    the manifest's content (:meth:`rmqpy.audit.replicas.manifest.Manifest.content_digest`).
    """

    name: str
    digest: str
    begin: int
    end: int
    messages: int
    queued: int
    by_queue: int
    by_id: int
    keys: int
    keys_found: int
    divided_offset: int = -1
    """The end of the last file of the old log, where the DLedger log starts or would start; -1
    without an old log.
    """
    old_log_end: int = -1
    old_log_digest: str = ""
    """The digests of the old log's files, as a member sends them to others
    (:mod:`rmqpy.store.ledger.classic_prefix`).
    """
    findings: dict[str, int] = field(factory=dict)
    first_findings: tuple[dict[str, Any], ...] = ()
    key_holes: tuple[KeyHole, ...] = ()
    uncommitted: int = 0
    """Messages in entries that are not known to be committed, and in no consume queue."""
    elsewhere: int = 0
    """Messages in queues of 5.x, whose units are not examined."""
    impossible_offsets: tuple[TableDifference, ...] = ()
    running: bool = False
    """Whether a broker was running on the store: what it has written after ``end`` was not read."""
    age: ProofAge | None = None
    """How much was read for this certificate, and how much was learned earlier; None if everything
    was read.
    """

    @property
    def severe_findings(self) -> dict[str, int]:
        """The counts of findings that are neither notes nor torn tails."""
        return {
            name: count
            for name, count in self.findings.items()
            if name in FindingCode.__members__ and FindingCode[name].severity in SEVERE
        }

    @property
    def is_reachable(self) -> bool:
        """Whether every message is found by its id, and by its queue if that is examined."""
        by_queue = self.by_queue + self.uncommitted + self.elsewhere
        return by_queue == self.queued and self.by_id == self.messages


@define(slots=True, frozen=True, kw_only=True)
class Comparison:
    """The comparison of the reference with one other store. The counts are those of
    :class:`rmqpy.audit.replicas.message_comparison.MessageCounts`.
    """

    other: str
    same: int
    moved: int
    missing: int
    different: int
    undecided: int
    expired: int
    more: int
    moved_at_least: bool = False
    reference: str = ""
    """The name of the store that ``other`` is compared with; "" for the first subject."""
    may_have_more: bool = True
    """True if the reference is an earlier state: messages have been added since."""
    expired_in_reference: int = 0
    uncommitted: int = 0
    tables: tuple[str, ...] = ()
    """Configuration tables with different content."""
    table_differences: tuple[TableDifference, ...] = ()
    key_holes: tuple[KeyHole, ...] = ()
    """Ranges of the log in which messages are found by their keys in only one of the stores."""
    groups: tuple[DifferenceGroup, ...] = ()
    differences: tuple[MessageDifference, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the two stores, without what the audit of each has found."""
        if self.different or self.undecided:
            return DIFFERENT
        if not self.same:
            return NOTHING_COMPARED
        tables = verdict_on_tables(self.table_differences)
        if self.key_holes or tables == DIFFERENT:
            return DIFFERENT
        if not self.may_have_more:
            only = self.missing + self.expired, self.more + self.expired_in_reference
        elif self.missing:
            return DIFFERENT
        else:
            only = 0 if self.more else self.expired, self.more
        if only == (0, 0) and not self.may_have_more:
            return tables
        if only == (0, 0) and self.table_differences:
            return Verdict(Word.CONTAINED, (Containment(self.reference, self.other, 0),))
        return Verdict.on_contents(self.reference, self.other, *only)

    @property
    def holds(self) -> bool:
        """Whether the stores have the same messages, or the other store has those of the earlier
        state. The tables of stores of one time may be as far apart as replication explains.
        """
        verdict = self.verdict
        if verdict.word is Word.CONTAINED:
            return self.may_have_more or all(each.more == 0 for each in verdict.contained)
        return verdict.is_equal


@define(slots=True, frozen=True, kw_only=True)
class Certificate:
    """The certificate; ``subjects[0]`` is the first store that was given."""

    made_ms: int
    subjects: tuple[Subject, ...]
    comparisons: tuple[Comparison, ...]
    not_examined: tuple[str, ...] = ()
    format: int = CERTIFICATE_FORMAT

    @property
    def is_sound(self) -> bool:
        """Whether every store is without damage and reaches all of its messages."""
        if self.format == 1:
            return all(
                each.is_reachable
                and not any(name.startswith(("RECORD_", "ENTRY_")) for name in each.severe_findings)
                for each in self.subjects
            )
        return all(
            each.is_reachable and not each.severe_findings and not each.impossible_offsets
            for each in self.subjects
        )

    @property
    def holds(self) -> bool:
        """Whether the stores of one time are equal, and an earlier state is equal to or contained
        in each of them.
        """
        compared = bool(self.comparisons) and all(each.holds for each in self.comparisons)
        return compared and self.is_sound

    @property
    def verdict(self) -> Verdict:
        """The verdict on all stores."""
        if not self.is_sound:
            return DIFFERENT
        return Verdict.overall(each.verdict for each in self.comparisons)

    def encode(self, key: bytes | None = None) -> bytes:
        """Return the JSON form, signed if ``key`` is given."""
        tree = {
            "kind": KIND,
            **asdict(self),
            "holds": self.holds,
            **self.verdict.as_json(),
        }
        if key:
            tree["signature"] = signature_of(tree, key)
        return json.dumps(tree, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes) -> Certificate:
        """Return the certificate in ``raw``. Raise RmqError if it is not a certificate.

        The signature is not checked here, but by :func:`check_signature`.
        """
        tree = _tree(raw)
        try:
            return cls(
                made_ms=tree["made_ms"],
                subjects=tuple(map(_subject_of, tree["subjects"])),
                comparisons=tuple(map(_comparison_of, tree["comparisons"])),
                not_examined=tuple(tree.get("not_examined", ())),
                format=tree["format"],
            )
        except (KeyError, TypeError) as error:
            raise RmqError(NO_CERTIFICATE) from error


def _subject_of(tree: dict[str, Any]) -> Subject:
    return Subject(
        **{
            **tree,
            "first_findings": tuple(tree["first_findings"]),
            "key_holes": _holes(tree),
            "impossible_offsets": _tables(tree, "impossible_offsets"),
            "age": age_of_json(tree.get("age")),
        }
    )


def _comparison_of(tree: dict[str, Any]) -> Comparison:
    return Comparison(
        **{
            **tree,
            "tables": tuple(tree["tables"]),
            "table_differences": _tables(tree, "table_differences"),
            "key_holes": _holes(tree),
            "groups": tuple(DifferenceGroup(**each) for each in tree.get("groups", ())),
            "differences": tuple(MessageDifference(**each) for each in tree["differences"]),
        }
    )


def _holes(tree: dict[str, Any]) -> tuple[KeyHole, ...]:
    return tuple((first, last, count) for first, last, count in tree.get("key_holes", ()))


def _tables(tree: dict[str, Any], name: str) -> tuple[TableDifference, ...]:
    return tuple(TableDifference(**each) for each in tree.get(name, ()))


def _tree(raw: bytes) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(raw)
        if tree["kind"] != KIND or tree["format"] > CERTIFICATE_FORMAT:
            raise RmqError(f"not a certificate of a known format: {tree['kind']}")
    except (KeyError, TypeError, ValueError) as error:
        raise RmqError(NO_CERTIFICATE) from error
    return tree


def signature_of(tree: Mapping[str, Any], key: bytes) -> str:
    """Return the HMAC-SHA-256 over everything in a JSON object except its signature."""
    content = {name: value for name, value in tree.items() if name != "signature"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_signature(raw: bytes, key: bytes) -> bool:
    """Return whether the holder of ``key`` signed exactly this certificate."""
    tree = _tree(raw)
    given = str(tree.get("signature", ""))
    return hmac.compare_digest(given, signature_of(tree, key))


def is_signed(raw: bytes) -> bool:
    """Return whether ``raw`` is a certificate with a signature."""
    try:
        return "signature" in _tree(raw)
    except RmqError:
        return False
