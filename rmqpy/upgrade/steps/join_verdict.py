"""The verdict on a member that has joined: its logs, compared with those of the member from which
it has received them.

The answer is yes if the logs are EQUAL, or if one is CONTAINED in the other: the group sends the
entries that a member lacks. It refuses a member that has more, and knows these entries to be
committed, as long as its leader does not have them.
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

    member: str
    verdict: Verdict
    compared: tuple[str, ...]
    differences: tuple[str, ...]
    not_examined: tuple[str, ...]

    @property
    def can_join(self) -> bool:
        return self.verdict.word in (Word.EQUAL, Word.CONTAINED)

    @property
    def has_more(self) -> bool:
        """True if the member has entries that the other one does not have."""
        return any(each.outer == self.member for each in self.verdict.contained)

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
        compared.append(f"the old log, {log.begin} to {log.end}, byte by byte")
    common = common_prefix(member, reference)
    if common is not None:
        compared.append(f"the entries up to {common.last_index}, byte by byte")
    not_examined = (
        "tables, which a member copies from its leader",
        f"consume queues and key index of {member.name}, which its next start checks",
    )
    checks = (same_log, same_entries)
    differences = [each.sentence for check in checks for each in check(group) if not each.is_note]
    verdict = DIFFERENT if differences else logs_verdict(group)
    return JoinVerdict(
        member.name,
        verdict,
        tuple(compared or ["nothing"]),
        tuple(differences),
        not_examined,
    )
