"""Checks of one replica at a time: its last stop, its files, its log, its disk space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import evolve

from rmqpy.audit.facts.facts import Mode
from rmqpy.audit.facts.table_content import DELAYS
from rmqpy.audit.replicas.table_comparison import (
    impossible_offsets,
    overdue_delays,
    queue_ends,
)
from rmqpy.audit.scan.findings import FindingCode
from rmqpy.codec.layout import ENTRY_HEADER_SIZE, ENTRY_SIZE_MAX, PROPERTIES_BYTES_MAX
from rmqpy.codec.reframe import PROPERTIES_MAX_BEFORE, PROPERTIES_MAX_BEFORE_FIRST
from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.config_checks import (
    INDEX_SIZE_KEYS,
    QUEUE_SIZE_KEY,
    configured_sizes,
)
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding, note
from rmqpy.upgrade.checks.tables import consumer_offsets
from rmqpy.upgrade.plan.survey import Survey

HOUR_MS = 3_600_000
DEFAULT_RESERVED_HOURS = 72
RETENTION_ROUNDS = 2
"""Old files block the cleaning of new ones, so the disk needs space for two periods."""

SurveyCheck = Callable[[Survey], Iterator[CheckFinding]]


def clean_stop(survey: Survey) -> Iterator[CheckFinding]:
    """Check that the last stop was clean (H5)."""
    if survey.manifest.running:
        yield note(
            "clean-stop",
            survey.name,
            "a broker is running here: the checks read up to its confirmed offset",
            "stop it before plan, apply or switch",
        )
    elif survey.abort_found:
        yield finding(
            "clean-stop",
            survey.name,
            "the file abort exists: the last stop was not clean, and Java 4.9 would switch without"
            " repairing the consume queues",
            clean_stop_remedy(survey),
        )


def clean_stop_remedy(survey: Survey) -> str:
    """Return what makes the next stop of a broker a clean one.

    Java 5.x leaves ``abort`` if a controller has given the broker no role, and so does each further
    start with that controller.
    """
    remedy = "start the broker once with its present configuration, and stop it with SIGTERM"
    if survey.setting("enableControllerMode") != "true":
        return remedy
    return (
        f"{remedy}; if the controller gives it no role, start it once without"
        " enableControllerMode, controllerAddr, and namesrvAddr, but with brokerRole=ASYNC_MASTER"
        " and brokerId=0, stop it, and put its broker.conf back"
    )


def _from_audit(
    name: str, summary: str, codes: Iterable[str], is_note: bool = False
) -> SurveyCheck:
    """Return a check that reports the audit's findings with these codes."""
    wanted = frozenset(codes)

    def check(survey: Survey) -> Iterator[CheckFinding]:
        by_code: dict[str, list[dict[str, Any]]] = {}
        for each in survey.found:
            if each["code"] in wanted:
                by_code.setdefault(each["code"], []).append(each)
        for code, places in by_code.items():
            count = survey.manifest.findings.get(code, len(places))
            yield CheckFinding(
                check=name,
                is_note=is_note,
                replica=survey.name,
                text=_summary(code, count, places[0]),
                remedy=FindingCode[code].remedy,
                places=tuple(places) if count > 1 else (),
                code=code,
            )

    check.__doc__ = summary
    return check


def _summary(code: str, count: int, first: dict[str, Any]) -> str:
    """Return one sentence for all findings of a code."""
    place = f"{first['file']} at offset {first['offset']}" if "offset" in first else first["file"]
    if "topic" in first:
        place += f", topic {first['topic']}, queue {first.get('queue_id')}"
    what = f": {first['found']}" if first.get("found") else ""
    what += f", expected {first['expected']}" if first.get("expected") else ""
    if count == 1:
        return f"{code} {place}{what}"
    return f"{code}, {count_text(count, 'time')}: {FindingCode[code].text}; first {place}{what}"


_audited_sizes = _from_audit("file-sizes", "", ["FILE_SIZE"])


def file_sizes(survey: Survey) -> Iterator[CheckFinding]:
    """Check that every file of log, queues, and index has the configured length (H7)."""
    yield from _audited_sizes(survey)
    if survey.config is None:
        return
    facts, configured = survey.manifest.facts, configured_sizes(survey.config)
    index = facts.get("index") or [{"bytes": 0}]
    found = {QUEUE_SIZE_KEY: facts.get("queue_file_size"), INDEX_SIZE_KEYS: index[0]["bytes"]}
    for key, size in found.items():
        if size and size != configured[key]:
            yield finding(
                "file-sizes",
                survey.name,
                f"the files have {size} bytes, {key} in its broker.conf means {configured[key]}:"
                " Java does not start on queue files of another length, and finds no key in index"
                " files of another",
                "write the values with which the files were created into broker.conf",
            )


strays = _from_audit(
    "strays",
    "Check that the folders of the log have no foreign files (H24).",
    ["FILE_STRAY", "FILE_EMPTY"],
)
gaps = _from_audit("gaps", "Check that no file is missing between two others.", ["FILE_MISSING"])
tail = _from_audit(
    "tail",
    "Check that the log ends with a complete message (Java would accept a torn one).",
    ["TAIL_PARTIAL", "TAIL_JUNK"],
)
file_ahead = _from_audit(
    "file-ahead",
    "Check that no empty file allocated ahead follows a closed one (H6).",
    ["FILE_AHEAD_SEALED"],
)
log_sound = _from_audit(
    "log-sound",
    "Check that every message is complete and in its place (H27).",
    [
        *("RECORD_MAGIC", "RECORD_SIZE", "RECORD_FIELDS", "RECORD_ZEROED", "RECORD_BODY_CRC"),
        *("RECORD_CHECKSUM", "RECORD_PROPERTIES", "RECORD_TOPIC", "RECORD_PLACE"),
        *("FILLER_SIZE", "FILLER_MISSING", "QUEUE_STEP", "ENTRY_MAGIC", "ENTRY_SIZE"),
        *("ENTRY_FIELDS", "ENTRY_PLACE", "ENTRY_INDEX", "ENTRY_TERM", "ENTRY_RESERVED"),
    ],
)
queues_match = _from_audit(
    "queues-match",
    "Check that the consume queues lead to all messages of the log (H2, H5).",
    ["UNIT_MISSING", "UNIT_WRONG", "UNIT_SURPLUS", "ENTRY_UNIT", "ENTRY_INDEX_MISSING"],
)
index_match = _from_audit(
    "index-match",
    "Check that messages are found by their keys.",
    ["KEY_MISSING", "KEY_SURPLUS", "KEY_CHAIN", "INDEX_HEADER"],
    True,
)
divide_fits = _from_audit(
    "divide-fits",
    "Check that an old log ends where the DLedger log starts (H1, H3, H9).",
    ["DIVIDE_MISMATCH", "DIVIDE_OPEN", "LEDGER_SEVERAL"],
)
_audited_tables = _from_audit(
    "tables-readable",
    "",
    ["CONFIG_UNREADABLE", "FORMAT_NEWER", "CHECKPOINT", "LEDGER_STATE", "UNREAD_DAMAGED"],
)
_unread = _from_audit("tables-readable", "", ["DATA_UNREAD"])


def tables_readable(survey: Survey) -> Iterator[CheckFinding]:
    """Check that tables, and the state of a DLedger member, can be read, and nothing else is there
    that only RocketMQ 5.x reads (H12).
    """
    yield from _audited_tables(survey)
    keys = ("rmqpyAcceptUnreadData", "enableControllerMode")
    accepted = any(survey.setting(key) == "true" for key in keys)
    for found in _unread(survey):
        yield evolve(found, is_note=accepted)


def offsets_in_range(survey: Survey) -> Iterator[CheckFinding]:
    """Check that no consumer or delay offset is after the end of its queue (H13)."""
    ends = {(each.topic, each.queue_id): each.max_offset for each in survey.manifest.queues}
    for topic, group, queue_id, offset in consumer_offsets(survey.tables):
        end = ends.get((topic, queue_id))
        if end is not None and offset > end:
            yield finding(
                "offsets-in-range",
                survey.name,
                f"{group} is at {offset} of {topic} queue {queue_id}, which ends at {end}: its"
                " clients would reset themselves",
                "rmqpy upgrade plan sets it to the end, if the log is complete",
            )
    for each in impossible_offsets(survey.manifest, queue_ends([survey.manifest])):
        if each.table == DELAYS:
            yield finding(
                "offsets-in-range",
                survey.name,
                f"{each.table}: {each.text}: messages would not be delivered",
                "restore the table from a replica",
            )
    for text in overdue_delays(survey.manifest):
        yield note(
            "offsets-in-range",
            survey.name,
            f"{DELAYS}: {text}: the table is older than the log, or deliveries were late",
            "compare it with the table of a replica; messages before it would be delivered again",
        )


def message_size(survey: Survey) -> Iterator[CheckFinding]:
    """Check that every message fits into a DLedger entry (H16)."""
    limit = ENTRY_SIZE_MAX - ENTRY_HEADER_SIZE
    configured = survey.setting("maxMessageSize")
    if survey.largest_record > limit:
        yield finding(
            "message-size",
            survey.name,
            f"the largest message has {survey.largest_record} bytes; DLedger accepts {limit}",
            "inform its producers: messages of this size are refused after the switch",
        )
    elif configured.isdigit() and int(configured) > limit:
        yield note(
            "message-size",
            survey.name,
            f"maxMessageSize={configured}, DLedger accepts records of {limit} bytes",
            "lower maxMessageSize",
        )


def way_back(survey: Survey) -> Iterator[CheckFinding]:
    """Report properties that are too long for the way back."""
    longest = survey.longest_properties
    if longest > PROPERTIES_MAX_BEFORE_FIRST:
        limit = (
            PROPERTIES_MAX_BEFORE
            if longest > PROPERTIES_MAX_BEFORE
            else PROPERTIES_MAX_BEFORE_FIRST
        )
        yield note(
            "way-back",
            survey.name,
            f"properties of up to {longest} bytes ({PROPERTIES_BYTES_MAX} are allowed); messages"
            f" with more than {limit} that are written under DLedger block the way back until they"
            " expire",
            "rmqpy upgrade leave lists them",
        )


def versions(survey: Survey) -> Iterator[CheckFinding]:
    """Report the programs that cannot open the directory."""
    for opener in survey.manifest.facts.get("openers", ()):
        if not opener["able"]:
            yield note(
                "versions",
                survey.name,
                f"{opener['program']} cannot open this directory: {'; '.join(opener['reasons'])}",
            )
    if survey.version_2:
        yield note(
            "versions",
            survey.name,
            f"{count_text(survey.version_2, 'record')} of version 2, which Java 4.9 cannot read",
            "run 5.x brokers on it, before the switch and after",
        )


def retention(survey: Survey) -> Iterator[CheckFinding]:
    """Check that the disk has space for new files while the old ones block cleaning (H14)."""
    first = [each.first_stored_ms for each in survey.spans if each.first_stored_ms > 0]
    last = survey.manifest.facts.get("classic") or {}
    last_ms = ((last.get("last") or {}) if last else {}).get("store_timestamp_ms", 0)
    if not first or last_ms - first[0] < HOUR_MS or not survey.disk_total:
        return
    hours = int(survey.setting("fileReservedTime") or DEFAULT_RESERVED_HOURS)
    log_bytes = survey.manifest.end - survey.manifest.begin
    needed = int(log_bytes / (last_ms - first[0]) * hours * HOUR_MS) * RETENTION_ROUNDS
    available = survey.disk_free + log_bytes
    if needed > available:
        yield finding(
            "retention",
            survey.name,
            f"about {needed >> 20} MiB are written in {RETENTION_ROUNDS} x fileReservedTime={hours}"
            f" hours, the disk has space for {available >> 20} MiB: while old files exist the new"
            " log cannot be cleaned, and puts are refused above 90 %",
            "lower fileReservedTime before the switch, or free disk space",
        )


def times(survey: Survey) -> Iterator[CheckFinding]:
    """Check that files still have the modification time of their last write (H23)."""
    for span in survey.spans:
        following = span.first_stored_of_next_ms
        if following > 0 and span.mtime_ms > following + HOUR_MS:
            yield note(
                "times",
                survey.name,
                f"{span.path} was last written {(span.mtime_ms - following) // 60_000} minutes"
                " after the next file's first message: it was copied without its time, so its"
                " retention starts over and searches by time miss",
                "restore the time with touch -d; rmqpy upgrade apply keeps times",
            )
            return


def committed(survey: Survey) -> Iterator[CheckFinding]:
    """Check that no committed entry was lost (H22), and that all entries are committed (H21)."""
    state = survey.manifest.facts.get("ledger_state")
    last = ((survey.manifest.facts.get("ledger") or {}).get("last") or {}).get("index", -1)
    if not state or survey.manifest.running:
        return  # A running member commits entries meanwhile.
    if state["committed_index"] > last:
        yield finding(
            "committed",
            survey.name,
            f"entries up to {state['committed_index']} were committed, the last one here is {last}",
            "start this member as a follower only, after the others; never let it lead",
        )
    elif state["committed_index"] < last:
        yield note(
            "committed",
            survey.name,
            f"entries {state['committed_index'] + 1} to {last} are not known to be committed: the"
            " group decides that after a start",
        )


def half_messages(survey: Survey) -> Iterator[CheckFinding]:
    """Report pending transactions, which the leader resolves from its own old log (H17)."""
    queues = [q for q in survey.manifest.queues if q.topic == "RMQ_SYS_TRANS_HALF_TOPIC"]
    count = sum(queue.unqueued + queue.count for queue in queues)
    if count:
        yield note(
            "half-messages",
            survey.name,
            f"{count} prepared messages in the log; after the switch the leader checks those that"
            " are still pending, and needs this log to do so",
        )


def switched(survey: Survey) -> Iterator[CheckFinding]:
    """Check that no DLedger data exists while the flag is off: a start would hide it (H9, H10)."""
    flag = survey.setting("enableDLegerCommitLog", "false").lower() == "true"
    has_data = survey.manifest.mode in (Mode.JOINED, Mode.DLEDGER)
    if survey.config is not None and has_data and not flag:
        yield finding(
            "switched",
            survey.name,
            "DLedger data exists and enableDLegerCommitLog is not true: Java would hide every"
            " message since the switch and assign their queue offsets again",
            "set enableDLegerCommitLog=true, or go back with rmqpy upgrade leave",
        )


SURVEY_CHECKS: dict[str, SurveyCheck] = {
    "clean-stop": clean_stop,
    "file-sizes": file_sizes,
    "strays": strays,
    "gaps": gaps,
    "tail": tail,
    "file-ahead": file_ahead,
    "log-sound": log_sound,
    "queues-match": queues_match,
    "index-match": index_match,
    "divide-fits": divide_fits,
    "switched": switched,
    "committed": committed,
    "tables-readable": tables_readable,
    "offsets-in-range": offsets_in_range,
    "message-size": message_size,
    "way-back": way_back,
    "versions": versions,
    "retention": retention,
    "times": times,
    "half-messages": half_messages,
}


def _for_each(check: SurveyCheck) -> Callable[[Group], Iterator[CheckFinding]]:
    def each(group: Group) -> Iterator[CheckFinding]:
        for survey in group.surveys:
            yield from check(survey)

    each.__doc__ = check.__doc__
    return each


REPLICA_CHECKS = {name: _for_each(check) for name, check in SURVEY_CHECKS.items()}
