"""What a rehearsal tells the operator: the forecast, and the runbook of this group."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from rmqpy.rehearsal.machine import Machine
from rmqpy.rehearsal.rehearsed_group import LogEnds, RehearsedGroup
from rmqpy.rehearsal.report import CheckedCopy, RehearsalReport
from rmqpy.rehearsal.walk import BACK, TO_DLEDGER, StepTime, WalkResult
from rmqpy.upgrade.checks.summary import CheckSummary

SUMMARY = CheckSummary(
    names=("n0",), is_switched=False, causes=(), notes=(), passed=(), failed=(), not_run=()
)


def report(settings: dict[str, str], **copied: Any) -> RehearsalReport:
    """Return the report of a rehearsal of a master with two slaves."""
    return RehearsalReport(
        copied=CheckedCopy(
            broker_name="a", master="h0:1", begin=0, end=9, summary=SUMMARY, **copied
        ),
        machine=Machine(100.0, 1.0),
        walked=WalkResult(
            steps=(StepTime("rmqpy upgrade switch", 1.5),),
            pauses={TO_DLEDGER: 8.0, BACK: 6.0},
            verdicts=(),
            acknowledged=1,
            lost=0,
            per_second=20,
            reasons=(),
        ),
        facts=RehearsedGroup(
            name="a",
            master="h0:1",
            slaves=("h1:1", "h2:1"),
            settings=settings,
            ends=LogEnds(0, 9, {}),
            sends_per_second=0.0,
        ),
        verified_ms=1,
    )


def test_a_forecast_contains_the_stops_of_java_brokers_which_the_copy_does_not_have() -> None:
    java = report({"brokerRole": "ASYNC_MASTER"})
    assert java.forecast == {TO_DLEDGER: 23.0, BACK: 6.0}
    assert java.as_json()["forecast"] == java.forecast
    assert "   15.0 s of the first are for the Java brokers to stop" in [*java.lines()]
    own = report({"rmqpyVersion": "1.0"})
    assert own.forecast == {TO_DLEDGER: 8.0, BACK: 6.0}
    assert not any("Java brokers" in line for line in own.lines())


def test_a_copy_with_records_of_5x_goes_back_for_brokers_that_read_them() -> None:
    lines = report({}, reads_version=2).runbook
    assert "rmqpy upgrade leave --reader 5" in lines
    assert "rmqpy upgrade leave" in report({}).runbook


def test_without_a_walk_there_is_no_forecast() -> None:
    refused = evolve(report({}), walked=None)
    assert (refused.forecast, refused.is_ready) == ({}, False)
