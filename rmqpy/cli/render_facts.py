"""Render the facts of a store directory as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rmqpy.audit.facts.facts import LogFacts, Mode, RecordFacts, StoreFacts, TailKind
from rmqpy.model.text import count_text

_TAILS = {
    TailKind.NONE: "nothing",
    TailKind.CLEAN: "clean: zeros",
    TailKind.BLANK: "closed by a filler up to the end of its file",
    TailKind.PARTIAL: "a truncated record",
    TailKind.JUNK: "bytes that are not a record",
}


def facts_lines(facts: StoreFacts) -> Iterator[str]:
    """Yield lines with name and value in two columns, and the findings last."""
    yield _line("directory", facts.root)
    yield _line("mode", _mode(facts))
    yield _line("broker", _broker(facts))
    for log in (facts.classic, facts.ledger):
        if log is not None:
            yield from _log_lines(log)
    if facts.divided_offset is not None:
        yield _line("divided offset", facts.divided_offset)
    state = facts.ledger_state
    if state is not None:
        yield _line("committed index", state.committed_index)
        yield _line("current term", f"{state.current_term}, voted for {state.voted_for or '-'}")
    if facts.checkpoint is not None:
        safe = facts.checkpoint.safe_timestamp_ms
        yield _line("checkpoint", f"safe up to messages of {_time(safe)}" if safe else "never")
    yield from _derived_lines(facts)
    for opener in facts.openers:
        text = "can open it" if opener.able else "cannot open it"
        yield _line(opener.program, ": ".join(filter(None, (text, "; ".join(opener.reasons)))))
    for finding in facts.findings:
        yield f"{finding.code.severity.value:<8} {finding}"


def _line(name: str, value: object) -> str:
    return f"{name:<16} {value}"


def _mode(facts: StoreFacts) -> str:
    texts = {
        Mode.EMPTY: "empty: no log",
        Mode.CLASSIC: "classic commit log",
        Mode.DLEDGER: f"DLedger log of member {facts.self_id}",
        Mode.JOINED: f"classic commit log joined to the DLedger log of member {facts.self_id}",
    }
    return texts[facts.mode]


def _broker(facts: StoreFacts) -> str:
    if facts.running:
        return f"running; examined up to its confirmed end {facts.confirmed_end}"
    return "stopped cleanly" if facts.clean_stop else "stopped uncleanly (abort exists)"


def _log_lines(log: LogFacts) -> Iterator[str]:
    files = f"{log.file_count} of {log.file_size} bytes, offsets {log.begin} to {log.end}"
    yield _line(log.name, files)
    if log.first is not None:
        yield _line("  first record", _record(log.first))
    if log.last is not None:
        yield _line("  last record", _record(log.last))
    tail = _TAILS[log.tail]
    if log.tail_bytes:
        tail += f", {log.tail_bytes} bytes"
    yield _line("  after it", tail)
    if log.files_ahead:
        yield _line("  files ahead", f"{log.files_ahead}, empty")


def _record(record: RecordFacts) -> str:
    text = (
        f"offset {record.offset}, {record.size} bytes, {record.topic} queue {record.queue_id}"
        f" offset {record.queue_offset}, stored {_time(record.store_timestamp_ms)}"
    )
    return text if record.index < 0 else f"{text}, index {record.index} term {record.term}"


def _derived_lines(facts: StoreFacts) -> Iterator[str]:
    topics = len({queue.topic for queue in facts.queues})
    messages = sum(queue.count for queue in facts.queues)
    yield _line(
        "consume queues",
        f"{len(facts.queues)} of {count_text(topics, 'topic')}, {count_text(messages, 'message')}",
    )
    entries = sum(index.entries for index in facts.index)
    yield _line(
        "key index", f"{count_text(len(facts.index), 'file')}, {count_text(entries, 'entry')}"
    )
    names = ", ".join(table.name.removesuffix(".json") for table in facts.tables)
    yield _line("tables", names or "none")


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
