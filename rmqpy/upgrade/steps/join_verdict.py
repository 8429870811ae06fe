"""The verdict on a member that has joined: its logs, compared with those of the member from which
it has received them.

The answer is yes if the logs are EQUAL, or if the member is CONTAINED in the other: the group sends
the entries that it lacks. It is no if the member has entries that the other lacks: the group
refuses it if it knows them to be committed, and its leader does not have them, which this
comparison cannot tell. Only ends count: what one of the two has expired is not needed.
"""

from __future__ import annotations

from typing import Any

from attrs import define

from rmqpy.audit.replicas.verdict import DIFFERENT, Verdict, Word
from rmqpy.upgrade.checks.entry_comparison import common_prefix
from rmqpy.upgrade.checks.findings import Group
from rmqpy.upgrade.checks.group_checks import (
    logs_verdict,
    same_entries,
    same_log,
)
from rmqpy.upgrade.checks.log_comparison import classic_log
from rmqpy.upgrade.checks.replica import Replica


@define(slots=True, frozen=True)
class JoinVerdict:
    """The verdict, what it is based on, the differences found, and what was not examined."""

    verdict: Verdict
    has_more: bool
    """True if the member has entries that the other one does not have."""
    compared: tuple[str, ...]
    differences: tuple[str, ...]
    not_examined: tuple[str, ...]

    @property
    def can_join(self) -> bool:
        return self.verdict.word in (Word.EQUAL, Word.CONTAINED) and not self.has_more

    def lines(self) -> list[str]:
        return [
            *(f"difference: {text}" for text in self.differences),
            f"compared: {'; '.join(self.compared)}",
            f"not examined: {'; '.join(self.not_examined)}",
            str(self.verdict),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.verdict.as_json(),
            "compared": list(self.compared),
            "differences": list(self.differences),
            "not_examined": list(self.not_examined),
        }


def judge_member(member: Replica, reference: Replica) -> JoinVerdict:
    """Return the verdict on a member that has joined; the surveys must have been taken since."""
    group = Group((reference, member))
    compared = []
    log = classic_log(member)
    if log.files:
        begin = max(log.begin, classic_log(reference).begin)
        compared.append(f"the old log, {begin} to {log.end}, byte by byte")
    common = common_prefix(member, reference)
    if common is not None:
        compared.append(f"the entries up to {common.last_index}, byte by byte")
    not_examined = [
        "tables, which a member copies from its leader",
        f"consume queues and key index of {member.name}, which its next start checks",
    ]
    checks = (same_log, same_entries)
    manifests = [each.survey().manifest for each in group.replicas]
    begins = {each.name: each.begin for each in manifests if each.messages}
    if len(set(begins.values())) > 1:
        first, last = sorted(begins, key=begins.__getitem__)
        older = f"the messages of {first} before offset {begins[last]}, which {last} does not have"
        not_examined.insert(0, older)
    differences = [each.sentence for check in checks for each in check(group) if not each.is_note]
    verdict = DIFFERENT if differences else logs_verdict(group, only_ends=True)
    return JoinVerdict(
        verdict,
        any(each.outer == member.name for each in verdict.contained),
        tuple(compared or ["nothing"]),
        tuple(differences),
        tuple(not_examined),
    )
