"""The result of a rehearsal, for an operator and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import define, evolve

from rmqpy.model.text import count_text, format_bytes
from rmqpy.rehearsal.machine import Machine
from rmqpy.rehearsal.rehearsed_group import RehearsedGroup
from rmqpy.rehearsal.walk import TO_DLEDGER, WalkResult
from rmqpy.upgrade.checks.summary import CheckSummary
from rmqpy.upgrade.group.group_file import LOCAL, MemberSpec
from rmqpy.upgrade.runbook import (
    JAVA,
    RMQPY,
    RunbookGroup,
    leave_controller_runbook,
    leave_runbook,
    switch_runbook,
)

MEMBERS = 3
JAVA_STOP_S = 5.0
"""What a broker of Java 4.9 needs to stop, in s, most of it in fixed waits; two took 5.5 to 12.4 s
(bench/results/2026-11-29-forecast.json). A rehearsal cannot measure it: nothing of the group is
stopped.
"""
_LOOPBACK = ("127.", "localhost")


@define(slots=True, frozen=True, kw_only=True)
class CheckedCopy:
    """The copy ``[begin, end)`` of a master, and what the checks of an upgrade find in it."""

    broker_name: str
    master: str
    begin: int
    end: int
    summary: CheckSummary
    reads_version: int = 1
    """The version of records that its readers must know: 2 if it has those of 5.x."""

    def as_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "master": self.master,
            "begin": self.begin,
            "end": self.end,
            "summary": self.summary.as_json(),
        }


@define(slots=True, frozen=True, kw_only=True)
class RehearsalReport:
    """Everything a rehearsal has found. ``walked`` is None if the checks prevented the walk."""

    copied: CheckedCopy
    machine: Machine
    walked: WalkResult | None
    facts: RehearsedGroup
    verified_ms: int

    @property
    def is_ready(self) -> bool:
        return self.walked is not None and not self.walked.reasons

    @property
    def forecast(self) -> dict[str, float]:
        """For how long no send will be acknowledged, in s, by cause."""
        pauses = dict(self.walked.pauses) if self.walked is not None else {}
        if TO_DLEDGER in pauses:
            pauses[TO_DLEDGER] += self._java_stop_s
        return pauses

    @property
    def _java_stop_s(self) -> float:
        return JAVA_STOP_S * (1 + len(self.facts.slaves)) if self.facts.is_java else 0.0

    @property
    def runbook(self) -> list[str]:
        """The commands of the way there, then of the way back, for the members of this group; of a
        controller group, those of the way back.
        """
        members = list(_members(self.facts))
        kind = JAVA if self.facts.is_java else RMQPY
        init = [f"{'' if each.is_local else each.host}{each.config}" for each in members]
        name = self.copied.broker_name
        group = RunbookGroup(
            members=members,
            brokers=kind,
            init=init,
            broker_name=name,
            reads_version=self.copied.reads_version,
        )
        if self.facts.controlled:
            return [*leave_controller_runbook(group)]
        return [*switch_runbook(group), "", *leave_runbook(evolve(group, init=()))]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.copied.as_json(),
            "ready": self.is_ready,
            "verified_ms": self.verified_ms,
            "machine": self.machine.as_json(),
            "walk": self.walked.as_json() if self.walked is not None else None,
            "forecast": self.forecast,
            "runbook": self.runbook if self.is_ready else [],
        }

    def lines(self) -> Iterator[str]:
        copied = self.copied
        yield (
            f"copied {format_bytes(copied.end - copied.begin)} of {copied.broker_name} from"
            f" {copied.master}: offsets {copied.begin} to {copied.end}, and its tables"
        )
        yield (
            f"this machine reads {self.machine.read_mib_s:.0f} MiB/s, and syncs 4 KiB in"
            f" {self.machine.fsync_p99_ms:.1f} ms (p99)"
        )
        if self.walked is None:
            yield from copied.summary.lines(details=False)
            return
        yield from self._walk_lines(self.walked)
        if self.is_ready:
            did = "left its controller" if self.facts.controlled else "was there and back"
            yield f"READY: {copied.broker_name} {did} on the copy, and lost nothing"
            yield ""
            yield from self.runbook
        else:
            yield f"NOT READY: {copied.broker_name}"
            yield from (f"  {reason}" for reason in self.walked.reasons)

    def _walk_lines(self, walked: WalkResult) -> Iterator[str]:
        yield f"steps, with {walked.per_second:.0f} messages a second sent meanwhile:"
        yield from (f"{step.seconds:7.1f} s  {step.name}" for step in walked.steps)
        if forecast := self.forecast:
            yield "forecast, for machines like this one: no send is acknowledged for"
            yield from (f"{seconds:7.1f} s  {cause}" for cause, seconds in forecast.items())
        if TO_DLEDGER in forecast and self._java_stop_s:
            yield f"{self._java_stop_s:7.1f} s of the first are for the Java brokers to stop"
        yield from (f"verify, {verdict}" for verdict in walked.verdicts)
        acknowledged = count_text(walked.acknowledged, "message")
        yield f"{acknowledged} acknowledged meanwhile, {walked.lost} lost"


def _members(facts: RehearsedGroup) -> Iterator[MemberSpec]:
    """Yield the brokers of the group as members, with what is not known as a placeholder."""
    addresses = [facts.master, *facts.slaves]
    addresses += [""] * (MEMBERS - len(addresses))
    for number, address in enumerate(addresses):
        host = address.rpartition(":")[0] or f"HOST{number}"
        is_local = host.startswith(_LOOPBACK)
        yield MemberSpec(
            name=f"n{number}",
            host=LOCAL if is_local else f"ssh://{host}",
            config=f"n{number}.conf" if is_local else "/PATH/broker.conf",
            directory="",
            address=address,
            id="",
            peer="",
            role="",
        )
