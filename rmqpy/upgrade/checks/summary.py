"""The result of all checks as an operator reads it: what happened, in words, and what to do.

One cause can have dozens of findings: an empty member has no log, no tables, no queues. A cause
takes up the findings that follow from it, so that each is said once; what no cause explains is
grouped by check and text. :data:`rmqpy.upgrade.checks.hazards.HAZARDS` has the hazards by number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from attrs import define

from rmqpy.audit.facts.facts import Mode
from rmqpy.model.text import count_text, format_bytes
from rmqpy.upgrade.checks.config_checks import CONFIG_CHECKS
from rmqpy.upgrade.checks.controller_checks import has_left_behind
from rmqpy.upgrade.checks.controller_config import controller_facts
from rmqpy.upgrade.checks.findings import CheckFinding, Group
from rmqpy.upgrade.checks.group_checks import CHECKS, GROUP_CHECKS
from rmqpy.upgrade.checks.log_comparison import (
    MessageLine,
    Relation,
    classic_log,
    compare_logs,
    messages_after,
)
from rmqpy.upgrade.checks.replica import Replica

__all__ = ["CheckCause", "CheckSummary", "Precondition", "summarize"]

PLAN: Final = "rmqpy upgrade plan, then apply"
CAUSES_SHOWN: Final = 8
NOTES_SHOWN: Final = 4
TOPICS_NAMED: Final = 3
QUEUES_NAMED: Final = 8
OF_EMPTY: Final = frozenset(
    ("same-log", "same-divide", "same-entries", "tables-agree", "tables-there", "queues-match")
)
OF_SHORT: Final = frozenset(("same-log", "same-divide"))
OF_LOST: Final = OF_SHORT | {"log-sound", "queues-match"}
"""The checks whose findings follow from an empty member, from a log that ends earlier, and from a
switch in that state.
"""
SHOWN: Final = "config-shown"
"""The note about a missing broker.conf: the summary lists the checks that need it instead."""


@define(slots=True, frozen=True, kw_only=True)
class CheckCause:
    """One cause, and the findings that follow from it. ``hazard`` is its number, or ""."""

    text: str
    next: str = ""
    hazard: str = ""
    findings: tuple[CheckFinding, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "next": self.next,
            "hazard": self.hazard or None,
            "checks": sorted({each.check for each in self.findings}),
            "findings": len(self.findings),
        }


@define(slots=True, frozen=True)
class Precondition:
    """The checks that could not run, and what they need."""

    checks: tuple[str, ...]
    reason: str


@define(slots=True, frozen=True, kw_only=True)
class CheckSummary:
    """The summary of a check. ``names`` are the replicas; ``is_switched`` is True if one of them
    already has a DLedger log, or the epochs of a controller.
    """

    names: tuple[str, ...]
    is_switched: bool
    causes: tuple[CheckCause, ...]
    notes: tuple[CheckCause, ...]
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    not_run: tuple[Precondition, ...]

    @property
    def is_ready(self) -> bool:
        return not self.causes

    def lines(self, *, details: bool) -> Iterator[str]:
        """Yield the lines for a person: the state, what happened, what to do, the checks.

        Without ``details`` only the first causes and notes are shown.
        """
        what = "starting" if self.is_switched else "switching"
        names = ", ".join(self.names)
        if self.is_ready:
            yield f"READY for {what} {names}: no check has a finding"
        else:
            yield f"NOT READY for {what} {names}: {count_text(len(self.causes), 'cause')}"
        shown = len(self.causes) if details else CAUSES_SHOWN
        for number, cause in enumerate(self.causes[:shown], 1):
            hazard = f" (hazard {cause.hazard})" if cause.hazard else ""
            yield f"{number}. {cause.text}{hazard}"
            if cause.next:
                yield f"   -> {cause.next}"
        yield from _more(self.causes[shown:], "cause")
        shown = len(self.notes) if details else NOTES_SHOWN
        for cause in self.notes[:shown]:
            yield f"note: {cause.text}"
            if cause.next:
                yield f"   -> {cause.next}"
        yield from _more(self.notes[shown:], "note")
        unrun = sum(len(each.checks) for each in self.not_run)
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {unrun} not run"
        yield f"checks: {counts}"
        if self.failed:
            yield f"  failed:  {', '.join(self.failed)}"
        for each in self.not_run:
            yield f"  not run: {', '.join(each.checks)}; {each.reason}"
        if details:
            yield f"  passed:  {', '.join(self.passed)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "ready": self.is_ready,
            "causes": [each.as_json() for each in self.causes],
            "passed": list(self.passed),
            "failed": list(self.failed),
            "not_run": [{"checks": list(e.checks), "reason": e.reason} for e in self.not_run],
        }


def summarize(group: Group, found: Iterable[CheckFinding]) -> CheckSummary:
    """Return the summary of the results of all checks."""
    left = [each for each in found if not each.is_note]
    notes = [each for each in found if each.is_note and each.check != SHOWN]
    causes = [*_empty(group, left, notes), *_left_behind(left), *_short(group, left)]
    causes += _grouped(left)
    causes = [*_half_done(group), *causes]
    not_run = tuple(_not_run(group))
    unrun = {name for each in not_run for name in each.checks}
    failed = tuple(
        name for name in CHECKS if any(e.check == name for c in causes for e in c.findings)
    )
    return CheckSummary(
        names=tuple(each.name for each in group.replicas),
        is_switched=any(group.mode(e) in (Mode.JOINED, Mode.DLEDGER) for e in group.replicas)
        or any(controller_facts(each).get("epochs") for each in group.surveys),
        causes=tuple(causes),
        notes=tuple(_grouped(notes)),
        passed=tuple(name for name in CHECKS if name not in failed and name not in unrun),
        failed=failed,
        not_run=not_run,
    )


def _half_done(group: Group) -> Iterator[CheckCause]:
    """Yield the cause that comes first: what else is found may be the work of half a plan."""
    found = group.half_done()
    if found:
        plans = ", ".join(dict.fromkeys(each.plan for each in found))
        names = ", ".join(each.name for each in found)
        yield CheckCause(
            text=f"a plan is half done on {names} ({plans}); what follows may be its work",
            next="rmqpy upgrade apply continues it, rmqpy upgrade rollback takes it back",
        )


def _take(left: list[CheckFinding], checks: frozenset[str], names: set[str]) -> list[CheckFinding]:
    """Remove and return the findings of these checks that concern one of the replicas, or all."""
    taken = [
        each
        for each in left
        if each.check in checks and (not each.replica or names & set(each.replica.split(", ")))
    ]
    left[:] = [each for each in left if each not in taken]
    return taken


def _empty(
    group: Group, left: list[CheckFinding], notes: list[CheckFinding]
) -> Iterator[CheckCause]:
    empty = [each for each in group.replicas if group.mode(each) is Mode.EMPTY]
    full = [each for each in group.replicas if each not in empty]
    if not full:
        return
    source = max(full, key=lambda each: each.survey().manifest.end)
    manifest, log = source.survey().manifest, classic_log(source)
    for replica in empty:
        taken = _take(left, OF_EMPTY, {replica.name})
        taken += _take(notes, OF_EMPTY, {replica.name})
        size = format_bytes(log.end - log.begin)
        yield CheckCause(
            text=f"{replica.name} is empty: plan fills it"
            f" ({count_text(manifest.messages, 'message')}, {size})",
            next=PLAN,
            hazard="H15",
            findings=tuple(taken),
        )


def _left_behind(left: list[CheckFinding]) -> Iterator[CheckCause]:
    """Yield a cause for each rest of a log that 5.x has cut: what is broken or queued there is not
    to be restored. Other damage of that replica stays a cause of its own.
    """
    for stale in [each for each in left if each.check == "stale-tail"]:
        left.remove(stale)
        yield CheckCause(
            text=f"{stale.replica}: {stale.text}",
            next=stale.remedy,
            hazard="C13",
            findings=(stale,),
        )


def _short(group: Group, left: list[CheckFinding]) -> Iterator[CheckCause]:
    """Yield one cause for all replicas whose log ends at the same offset before the longest."""
    logs = [each for each in group.replicas if classic_log(each).files]
    full = [each for each in logs if not any(has_left_behind(each, other) for other in logs)]
    if len(full) < 2:
        return
    longest = max(full, key=lambda each: classic_log(each).end)
    ends: dict[int, list[Replica]] = defaultdict(list)
    for replica in full:
        compared = compare_logs(replica, longest)
        if compared.relation is Relation.SHORTER:
            ends[compared.common_end].append(replica)
    for end, short in sorted(ends.items()):
        names = [each.name for each in short]
        switched = [each for each in short if group.mode(each) is Mode.JOINED]
        lines = list(messages_after(longest, end))
        what = f"{count_text(len(lines), 'message')} ({_places(lines)})"
        listed = ", ".join(names)
        size = format_bytes(classic_log(longest).end - end)
        taken = _take(left, OF_LOST if switched else OF_SHORT, set(names))
        if switched:
            text = f"the switch lost {what} on {listed}; {longest.name} has them"
        else:
            text = f"{listed} lags behind {longest.name} by {what}, {size}"
        next_step = f"{PLAN}: they copy the rest of the log from {longest.name}"
        hazard = _hazard(longest, end)
        yield CheckCause(text=text, next=next_step, hazard=hazard, findings=tuple(taken))


def _hazard(longest: Replica, end: int) -> str:
    """Return H2 if the longer log ends in the same file, else H1."""
    last = classic_log(longest).files[-1]
    return "H2" if end > last.first_offset else "H1"


def _places(lines: list[MessageLine]) -> str:
    """Return topics, queues, and ranges of queue offsets, such as "Orders 0: 30-34"."""
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in lines:
        queues[line.topic, line.queue_id].append(line.queue_offset)
    topics: dict[str, list[str]] = defaultdict(list)
    for (topic, queue_id), offsets in sorted(queues.items()):
        first, last = min(offsets), max(offsets)
        span = str(first) if first == last else f"{first}-{last}"
        topics[topic].append(f"queue {queue_id} offset {span}")
    named = [
        f"{topic} {', '.join(spans[:QUEUES_NAMED])}"
        for topic, spans in list(topics.items())[:TOPICS_NAMED]
    ]
    more = len(topics) - len(named)
    return "; ".join([*named, *([f"{count_text(more, 'more topic')}"] if more else [])])


def _grouped(left: list[CheckFinding]) -> list[CheckCause]:
    """Return one cause per check and text; replicas that have the same are named together."""
    groups: dict[tuple[str, str], list[CheckFinding]] = defaultdict(list)
    for each in left:
        groups[each.check, _pattern(each)].append(each)
    return [_cause(check, findings) for (check, _), findings in groups.items()]


def _pattern(finding: CheckFinding) -> str:
    """Return the text without what differs between replicas; of tables only the name."""
    if finding.check == "tables-agree":
        return finding.text.partition(":")[0]
    if finding.code:
        return finding.code
    names = [name for name in finding.replica.split(", ") if name]
    text = finding.text
    for name in names:
        text = re.sub(rf"\b{re.escape(name)}\b", "*", text)
    return "".join("#" if character.isdigit() else character for character in text)


def _cause(check: str, findings: list[CheckFinding]) -> CheckCause:
    first = findings[0]
    names = list(dict.fromkeys(name for each in findings for name in each.replica.split(", ")))
    others = (
        f" (and {count_text(len(findings) - 1, 'more finding')} like it)" if findings[1:] else ""
    )
    subject = f"{', '.join(filter(None, names))}: " if any(names) else ""
    same = len({each.text for each in findings}) == 1
    text = f"[{check}] {subject}{first.text}{'' if same else others}"
    return CheckCause(text=text, next=first.remedy, findings=tuple(findings))


def _not_run(group: Group) -> Iterator[Precondition]:
    bare = [each.name for each in group.replicas if each.survey().config is None]
    if bare:
        checks = tuple(name for name in CONFIG_CHECKS if name != SHOWN)
        reason = f"the broker.conf of {', '.join(bare)} was not given: add -c NAME=FILE"
        yield Precondition(checks, reason)
    if len(group.replicas) < 2:
        yield Precondition(tuple(GROUP_CHECKS), "they compare replicas: give all of the group")


def _more(hidden: Iterable[object], noun: str) -> Iterator[str]:
    count = len(tuple(hidden))
    if count:
        yield f"   ... and {count_text(count, f'more {noun}')}; --details shows all"
