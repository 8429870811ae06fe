"""The programs that can open a store directory, following the rules of each program."""

from __future__ import annotations

from collections.abc import Sequence

from rmqpy.audit.facts.facts import Opener, StoreFacts
from rmqpy.store.files.paths import OWN_FORMAT
from rmqpy.store.unread_data import UnreadData


def openers_of(
    facts: StoreFacts, own_format: int | None, unread: Sequence[UnreadData]
) -> tuple[Opener, ...]:
    """Return for each program whether it can open the store.

    ``own_format`` is the version of rmqpy's files in the directory, or None without such files;
    ``unread`` is the data that rmqpy does not read.
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
    blocked += [f"config/{t.name}: {t.reason}" for t in facts.tables if t.source == "nothing"]
    needs = () if facts.ledger is None else ("with enableDLegerCommitLog=true",)
    ours = (
        []
        if own_format is None or own_format <= OWN_FORMAT
        else ["rmqpy/format has a newer version"]
    )
    ours += [f"{each.path.removeprefix(f'{facts.root}/')}: {each.found}" for each in unread]
    return (
        _opener("Java 4.9", [*blocked, *only_4], needs),
        _opener("Java 5.3", blocked, needs),
        _opener("rmqpy", [*blocked, *ours], needs),
    )


def _opener(program: str, reasons: list[str], needs: tuple[str, ...]) -> Opener:
    return Opener(program, not reasons, tuple(reasons) or needs)
