"""The programs that can open a store directory, following the rules of each program."""

from __future__ import annotations

from rmqpy.audit.facts.facts import Opener, StoreFacts
from rmqpy.store.files.paths import OWN_FORMAT
from rmqpy.store.unread.data import UnreadData

V1_TOPIC_BYTES_MAX = 127
"""A longer topic has records of version 2."""


def openers_of(facts: StoreFacts, own_format: int | None) -> tuple[Opener, ...]:
    """Return for each program whether it can open the store, and reads all that is in it.

    ``own_format`` is the version of rmqpy's files in the directory, or None without such files.
    """
    logs = [log for log in (facts.classic, facts.ledger) if log is not None]
    blocked: list[str] = []
    only_4: list[str] = []
    for log in logs:
        blocked += [f"{path}: its length differs from the others" for path in log.wrong_sizes]
        blocked += [f"{path}: does not belong here" for path in log.strays]
        only_4 += [f"{path}: length 0" for path in log.empty_files]
        records = [record for record in (log.first, log.last) if record is not None]
        if any(record.version == 2 for record in records):
            only_4.append(f"{log.name}: records of version 2")
    topics = {queue.topic for queue in facts.queues}
    if any(len(topic.encode()) > V1_TOPIC_BYTES_MAX for topic in topics):
        only_4.append("topics with records of version 2")
    only_4 += [_text(facts, each) for each in facts.unread if not each.kind.in_4_9]
    blocked += [f"config/{t.name}: {t.reason}" for t in facts.tables if t.source == "nothing"]
    needs = () if facts.ledger is None else ("with enableDLegerCommitLog=true",)
    ours = (
        []
        if own_format is None or own_format <= OWN_FORMAT
        else ["rmqpy/format has a newer version"]
    )
    ours += [_text(facts, each) for each in facts.unread]
    settings = dict.fromkeys(each.kind.read_with for each in facts.unread if each.kind.read_with)
    return (
        _opener("Java 4.9", [*blocked, *only_4], needs),
        _opener("Java 5.3", blocked, (*needs, *(f"with {each}" for each in settings))),
        _opener("rmqpy", [*blocked, *ours], needs),
    )


def _text(facts: StoreFacts, unread: UnreadData) -> str:
    return f"{unread.path.removeprefix(f'{facts.root}/')}: {unread.found}"


def _opener(program: str, reasons: list[str], needs: tuple[str, ...]) -> Opener:
    return Opener(program, not reasons, tuple(reasons) or needs)
