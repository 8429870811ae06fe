"""The group that checks examine, and the findings that they report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define

from rmqpy.audit.facts.facts import Mode
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean
from rmqpy.upgrade.checks.member_facts import MemberFacts
from rmqpy.upgrade.checks.replica import Replica
from rmqpy.upgrade.plan.journal import APPLYING, ROLLING_BACK
from rmqpy.upgrade.plan.survey import Survey


@define(slots=True, frozen=True, kw_only=True)
class CheckFinding:
    """One result of a check.

    ``check`` is the name of the check, ``replica`` the replica that it concerns ("" for the group).
    """

    check: str
    is_note: bool
    replica: str
    text: str
    remedy: str = ""
    places: tuple[dict[str, Any], ...] = ()
    """The findings of the audit that the text sums up, only in the JSON form."""
    code: str = ""
    """The audit's code, if the check reports a finding of the audit, or one of the check."""

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": "note" if self.is_note else "finding",
            "replica": self.replica,
            "text": self.text,
            "remedy": self.remedy,
            **({"places": list(self.places)} if self.places else {}),
        }

    @property
    def sentence(self) -> str:
        """The finding in one line, with its remedy."""
        subject = f"{self.replica}: " if self.replica else ""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"{subject}{self.text}{remedy}"

    def lines(self) -> Iterator[str]:
        """Yield the line of the finding and that of its remedy."""
        head = "note   " if self.is_note else "FINDING"
        subject = f" {self.replica}:" if self.replica else ""
        yield f"{head} [{self.check}]{subject} {self.text}"
        if self.remedy:
            yield f"        -> {self.remedy}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def finding(check: str, replica: str, text: str, remedy: str = "") -> CheckFinding:
    return CheckFinding(check=check, is_note=False, replica=replica, text=text, remedy=remedy)


def note(check: str, replica: str, text: str, remedy: str = "") -> CheckFinding:
    return CheckFinding(check=check, is_note=True, replica=replica, text=text, remedy=remedy)


@define(slots=True)
class Group:
    """The replicas of one broker name."""

    replicas: tuple[Replica, ...]

    def survey(self, name: str) -> Survey:
        return self.replica(name).survey()

    @property
    def surveys(self) -> list[Survey]:
        return [replica.survey() for replica in self.replicas]

    def replica(self, name: str) -> Replica:
        """Return a replica by its name. Raise RmqError if there is none."""
        for each in self.replicas:
            if each.name == name:
                return each
        known = [each.name for each in self.replicas]
        raise RmqError(
            f"found no replica {name}, expected one of {', '.join(known)}; correct the name"
            f"{did_you_mean(name, known)}"
        )

    def half_done(self) -> list[MemberFacts]:
        """Return the members on which a plan was begun and not finished, also as they are now."""
        found = [each.facts() for each in self.replicas]
        return [each for each in found if each.journal in (APPLYING, ROLLING_BACK)]

    @staticmethod
    def mode(replica: Replica) -> Mode:
        return replica.survey().manifest.mode

    @staticmethod
    def divide(replica: Replica) -> int | None:
        """Return the offset at which the DLedger log starts, or would start after a switch.

        Return None if the replica has no log.
        """
        survey = replica.survey()
        manifest = survey.manifest
        ledger = manifest.facts.get("ledger")
        if ledger:
            begin: int = ledger["begin"]
            return begin
        files = [each for each in survey.spans if not each.of_entries]
        if manifest.mode is not Mode.CLASSIC or not files:
            return None
        last = max(int(each.path.rpartition("/")[2]) + each.size for each in files)
        log = manifest.log("classic")
        end = log.files[-1] if log and log.files else None
        if end is None or last <= end.end_offset:
            return last
        # A start drops a file allocated ahead, unless the file before it is closed already.
        return last if end.sealed else end.end_offset

    @staticmethod
    def md5(replica: Replica, path: str) -> str:
        files = replica.survey().manifest.files
        return next((each.md5 for each in files if each.path == path), "")
