"""The reports of a suite, and its exit code."""

from __future__ import annotations

import json
from xml.etree import ElementTree

from attrs import evolve

from rmqpy.suite.cases import CaseResult, CaseStatus, SuiteResult, decode_results, encode_results
from rmqpy.suite.reports import html_page, json_report, junit_xml
from rmqpy.suite.runner import exit_code

PASSED = CaseResult(
    store="orders",
    case="switch",
    status=CaseStatus.PASSED,
    seconds=1.5,
    facts={"pause_s": 0.7, "certificate": "EQUAL"},
    notes=("n0, n1: EQUAL",),
)
FAILED = evolve(
    PASSED, case="verify", status=CaseStatus.FAILED, findings=("<n1> is \x01 different", "twice")
)
NOT_TESTED = evolve(
    PASSED, store="other", status=CaseStatus.NOT_TESTED, findings=("no Java",), notes=()
)
ALL = SuiteResult("nightly", (PASSED, FAILED, NOT_TESTED))


def test_findings_are_2_and_what_was_not_tested_is_1() -> None:
    assert exit_code(ALL) == 2
    assert exit_code(SuiteResult("s", (PASSED, NOT_TESTED))) == 1
    assert exit_code(SuiteResult("s", ())) == 1
    assert exit_code(SuiteResult("s", (PASSED,))) == 0
    assert ALL.verdict == "FAILED: 1 passed, 1 failed, 1 not tested"
    assert SuiteResult("s", ()).verdict.startswith("NOT TESTED")


def test_junit_has_a_suite_per_store_and_each_finding() -> None:
    root = ElementTree.fromstring(junit_xml(ALL))
    orders, other = root.findall("testsuite")
    assert (orders.get("tests"), orders.get("failures"), orders.get("skipped")) == ("2", "1", "0")
    failure = orders.find("testcase[@name='verify']/failure")
    assert failure is not None and failure.text == "<n1> is ? different\ntwice"
    skipped = other.find("testcase/skipped")
    assert skipped is not None and skipped.get("message") == "no Java"
    output = orders.findtext("testcase/system-out")
    assert output is not None and "pause_s = 0.7" in output and "EQUAL" in output


def test_the_page_escapes_and_loads_nothing() -> None:
    page = html_page(ALL)
    assert "&lt;n1&gt; is" in page and "<n1>" not in page
    assert "pause in s: 0.7" in page and "verify: certificate" in page
    assert "http" not in page and "<script" not in page


def test_json_is_read_again() -> None:
    assert json.loads(json_report(ALL))["verdict"] == ALL.verdict
    assert decode_results(encode_results(ALL.cases)) == list(ALL.cases)
