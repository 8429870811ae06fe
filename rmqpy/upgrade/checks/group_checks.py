"""The named checks of a switch: each reads surveys and reports what is wrong, why, and a remedy.

A check is a function from a :class:`Group` to findings; its name appears in reports and in
``docs/reference/upgrade.md``. A *finding* stops a plan or a switch; a *note* is harmless, or a
matter for the operator to judge. Checks of one replica are in
:mod:`rmqpy.upgrade.checks.replica_checks`, checks of the configuration in
:mod:`rmqpy.upgrade.checks.config_checks`. This module has the checks that compare replicas, and the
table of all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from rmqpy.audit.replicas.compare import verdict_on_logs
from rmqpy.audit.replicas.manifest import LogDigest, Manifest
from rmqpy.audit.replicas.verdict import DIFFERENT, NOTHING_COMPARED, Verdict
from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.config_checks import CONFIG_CHECKS
from rmqpy.upgrade.checks.controller_checks import (
    confirm_offset,
    epochs,
    has_left_behind,
    identities,
    stale_tail,
    timers_in_log,
)
from rmqpy.upgrade.checks.entry_comparison import (
    EntryComparison,
    EntryConflict,
    compare_entries,
)
from rmqpy.upgrade.checks.findings import CheckFinding, Group, finding, note
from rmqpy.upgrade.checks.log_comparison import (
    LogComparison,
    Relation,
    compare_logs,
    messages_after,
)
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.checks.replica_checks import REPLICA_CHECKS
from rmqpy.upgrade.checks.table_checks import tables_agree, tables_there

CLOCK_SKEW_NOTE_MS = 1000
CLOCK_SKEW_MS = 10_000

Check = Callable[[Group], Iterator[CheckFinding]]


def same_log(group: Group) -> Iterator[CheckFinding]:
    """Check that all replicas have the same old log, to the last message (H1, H2, H3, H4, H15)."""
    for one, two in combinations(group.replicas, 2):
        if has_left_behind(one, two) or has_left_behind(two, one):
            continue  # `stale-tail` reports it: what one of them has more is not to be copied.
        yield from _compare_pair(group, one.name, two.name, compare_logs(one, two))


def _compare_pair(
    group: Group, one: str, two: str, compared: LogComparison
) -> Iterator[CheckFinding]:
    ends = {name: group.survey(name).manifest.log("classic") for name in (one, two)}
    end_one, end_two = (log.end if log else 0 for log in ends.values())
    if compared.relation is Relation.DIVERGED:
        listed = [
            f"{name}: {len(list(messages_after(group.replica(name), compared.common_end)))}"
            " messages"
            for name in (one, two)
        ]
        yield finding(
            "same-log",
            f"{one}, {two}",
            f"the logs differ from offset {compared.common_end} on (first differing byte"
            f" {compared.difference}; after it {', '.join(listed)})",
            "choose the side to keep: rmqpy upgrade plan --reference NAME lists the messages of"
            " both sides",
        )
    elif compared.relation is not Relation.EQUAL:
        shorter, longer = (one, two) if compared.relation is Relation.SHORTER else (two, one)
        end, full = sorted((end_one, end_two))
        missing = sum(1 for _ in messages_after(group.replica(longer), compared.common_end))
        where = "has no old log" if end == 0 else f"ends at {end}"
        size = group.survey(longer).file_size
        same = " in the same file" if end and -(-end // size) == -(-full // size) else ""
        yield finding(
            "same-log",
            shorter,
            f"{where}{same}, {longer} at {full}:"
            f" {count_text(missing, 'message is', 'messages are')} missing here",
            "rmqpy upgrade plan and apply copy them; if the group starts as it is, it loses them or"
            " never agrees on the divided offset",
        )
    elif compared.lacks_front or _begins(ends[one]) != _begins(ends[two]):
        yield note(
            "same-log",
            f"{one}, {two}",
            "one of them has expired more old files than the other; their smallest offsets differ"
            " until the other expires the same files",
        )


def _begins(log: LogDigest | None) -> int:
    return log.begin if log else -1


def same_entries(group: Group) -> Iterator[CheckFinding]:
    """Check that the entries of all members are the same, in every field (H22)."""
    for one, two in combinations(group.replicas, 2):
        compared = compare_entries(one, two)
        if compared is None:
            continue
        yield from _entry_conflicts(f"{one.name}, {two.name}", compared)
        ends = {one.name: compared.end_one, two.name: compared.end_two}
        if compared.end_one != compared.end_two:
            shorter, longer = sorted(ends, key=lambda name: ends[name])
            yield note(
                "same-entries",
                shorter,
                f"its entries end at index {ends[shorter]}, those of {longer} at {ends[longer]}",
                "none needed if the group is started: it receives the others from the leader",
            )


_CONFLICTS = {
    EntryConflict.DAMAGE: (
        "have the same index and term and are not the same",
        "rmqpy store fsck and the other members show which log is damaged: restore it from a member"
        " that is sound. If all are sound, the term had two leaders, as after a restored backup:"
        " rmqpy upgrade join gives one member the entries of another",
    ),
    EntryConflict.COMMITTED: (
        "were committed with different content",
        "keep both logs as evidence, and choose the member whose messages are kept: rmqpy upgrade"
        " join gives its entries to the others",
    ),
    EntryConflict.PENDING: (
        "are of different terms, and not known to be committed on both",
        "none needed: the group decides after a start, and cuts the others",
    ),
}


def _entry_conflicts(names: str, compared: EntryComparison) -> Iterator[CheckFinding]:
    for kind, group in compared.conflicts.items():
        make = note if kind is EntryConflict.PENDING else finding
        what, remedy = _CONFLICTS[kind]
        count = (
            f"{group.count} or more entries"
            if not compared.is_complete
            else count_text(group.count, "entry")
        )
        indexes = f" from index {group.first_index} to {group.last_index}"
        yield make(
            "same-entries",
            names,
            f"{count}{indexes if group.first_index >= 0 else ''} {what}; first at {group.place}:"
            f" {group.fields} differs",
            remedy,
        )


def logs_verdict(group: Group, *, only_ends: bool = False) -> Verdict:
    """Return the verdict on the logs of the replicas, each compared with the one that ends last.

    With ``only_ends``, what one of them has at the start and the other has expired does not count.
    """
    manifests = {each.name: each.survey().manifest for each in group.replicas}
    ends = {name: (each.end, -each.begin) for name, each in manifests.items()}
    reference = max(group.replicas, key=lambda each: ends[each.name])
    others = [each for each in group.replicas if each is not reference]
    return Verdict.overall(_pair_verdict(reference, other, only_ends=only_ends) for other in others)


def _pair_verdict(reference: Replica, other: Replica, *, only_ends: bool) -> Verdict:
    mine, theirs = reference.survey().manifest, other.survey().manifest
    if not mine.messages:
        return NOTHING_COMPARED
    relation = compare_logs(other, reference).relation
    entries = compare_entries(reference, other)
    if relation is Relation.DIVERGED or (entries is not None and entries.differs):
        return DIFFERENT
    my_end, their_end = _last_entries(mine), _last_entries(theirs)
    shorter = relation is Relation.SHORTER or their_end < my_end
    longer = relation is Relation.LONGER or their_end > my_end
    if theirs.begin != mine.begin and only_ends:
        more = [None if each else 0 for each in (shorter, longer)]
        return Verdict.on_contents(mine.name, theirs.name, *more)
    shorter |= theirs.begin > mine.begin
    longer |= theirs.begin < mine.begin
    return verdict_on_logs(mine, theirs, in_left=shorter, in_right=longer)


def _last_entries(manifest: Manifest) -> int:
    log = manifest.log("dledger")
    return log.end if log is not None and log.files else -1


def same_divide(group: Group) -> Iterator[CheckFinding]:
    """Check that all replicas have, or would set, the same divided offset (H1, H3, H6, H7)."""
    divides: dict[int, list[str]] = {}
    for replica in group.replicas:
        divide = group.divide(replica)
        if divide is not None:
            divides.setdefault(divide, []).append(replica.name)
    if len(divides) > 1:
        listed = "; ".join(f"{', '.join(names)}: {divide}" for divide, names in divides.items())
        yield finding(
            "same-divide",
            "",
            f"the divided offset would not be the same: {listed}",
            "align the logs with rmqpy upgrade plan and apply; never start such a group",
        )


def tail_bytes(group: Group) -> Iterator[CheckFinding]:
    """Check that the bytes after the last message are the same (H8).

    If not, the md5 of the last file differs although the logs are equal.
    """
    for one, two in combinations(group.replicas, 2):
        mine, theirs = (
            group.survey(each.name).manifest.log("classic") or LogDigest(kind="classic")
            for each in (one, two)
        )
        for first, second in zip(mine.files, theirs.files, strict=False):
            same = first.blocks == second.blocks and first.end == second.end
            if same and group.md5(one, first.path) != group.md5(two, second.path):
                yield note(
                    "tail-bytes",
                    f"{one.name}, {two.name}",
                    f"md5 of {first.path} differs only after the last message in it, at"
                    f" {first.end}; the logs are equal",
                )


def clocks(group: Group) -> Iterator[CheckFinding]:
    """Check that the hosts' clocks agree: store times, delays, and retention depend on them."""
    times = {each.name: each.clock_skew_ms() for each in group.replicas}
    skew = max(times.values()) - min(times.values())
    if skew > CLOCK_SKEW_NOTE_MS:
        make = finding if skew > CLOCK_SKEW_MS else note
        yield make(
            "clocks",
            ", ".join(times),
            f"the clocks differ by up to {skew} ms",
            "synchronize them with a time service; delays and retention use the leader's clock",
        )


GROUP_CHECKS: dict[str, Check] = {
    "same-log": same_log,
    "same-entries": same_entries,
    "same-divide": same_divide,
    "tail-bytes": tail_bytes,
    "tables-agree": tables_agree,
    "tables-there": tables_there,
    "clocks": clocks,
    "epochs": epochs,
    "identities": identities,
    "confirm-offset": confirm_offset,
    "stale-tail": stale_tail,
    "timers-in-log": timers_in_log,
}
CHECKS: dict[str, Check] = {**REPLICA_CHECKS, **CONFIG_CHECKS, **GROUP_CHECKS}
"""All checks by name, in the order of reports."""


def run_checks(group: Group) -> list[CheckFinding]:
    """Return the results of all checks, findings before notes."""
    found = [each for check in CHECKS.values() for each in check(group)]
    return sorted(found, key=lambda each: each.is_note)
