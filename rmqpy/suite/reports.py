"""The reports of a suite: JUnit XML, JSON, and one HTML page without scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from itertools import groupby
from xml.etree import ElementTree

from rmqpy.audit.picture.svg import MAP_STYLE
from rmqpy.suite.cases import CaseResult, CaseStatus, SuiteResult

PAGE_STYLE = """
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25em .6em;
border-bottom:1px solid var(--line);vertical-align:top}th{background:var(--head)}
pre{white-space:pre-wrap;margin:.2em 0;font-size:.9em}td.number{text-align:right}
"""
CLASSES = {CaseStatus.PASSED: "good", CaseStatus.FAILED: "bad", CaseStatus.NOT_TESTED: "note"}
LABELS = {
    "pause_s": "pause in s",
    "failover_pause_s": "pause of the fail-over in s",
    "lag_s": "lag in s",
    "check_findings": "findings of check",
}
_ILLEGAL_IN_XML = {code: "?" for code in range(32) if code not in (9, 10, 13)}


def junit_xml(result: SuiteResult) -> str:
    """Return the results as JUnit XML: a suite per store; ``skipped`` is a case not tested."""
    root = ElementTree.Element("testsuites", name=result.name)
    for store, cases in _by_store(result):
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"{result.name}.{store}",
            tests=str(len(cases)),
            failures=str(sum(each.status is CaseStatus.FAILED for each in cases)),
            skipped=str(sum(each.status is CaseStatus.NOT_TESTED for each in cases)),
            time=f"{sum(each.seconds for each in cases):.3f}",
        )
        for case in cases:
            _add_junit_case(suite, result.name, case)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_junit_case(suite: ElementTree.Element, name: str, case: CaseResult) -> None:
    element = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"{name}.{case.store}",
        name=case.case,
        time=f"{case.seconds:.3f}",
    )
    if case.status is not CaseStatus.PASSED:
        kind = "failure" if case.status is CaseStatus.FAILED else "skipped"
        found = ElementTree.SubElement(element, kind, message=_legal(case.findings[0]))
        found.text = _legal("\n".join(case.findings))
    output = ElementTree.SubElement(element, "system-out")
    facts = [f"{key} = {value}" for key, value in case.facts.items()]
    output.text = _legal("\n".join([*facts, *case.notes]))


def json_report(result: SuiteResult) -> str:
    return json.dumps(result.as_json(), indent=2) + "\n"


def html_page(result: SuiteResult) -> str:
    """Return a self-contained page: counts, pauses, lag, differences, and certificates."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(result.name)}</title><style>{MAP_STYLE}{PAGE_STYLE}</style></head>",
            f"<body><main><h1>{escape(result.name)}</h1>",
            f"<p><strong>{escape(result.verdict)}</strong></p>",
            *(line for store, cases in _by_store(result) for line in _section(store, cases)),
            "</main></body></html>",
            "",
        ]
    )


def _section(store: str, cases: list[CaseResult]) -> Iterator[str]:
    yield f"<h2>{escape(store)}</h2><table><tr><th>case</th><th>result</th><th>s</th>"
    yield "<th>counts and times</th><th>findings</th></tr>"
    for case in cases:
        facts = ", ".join(f"{LABELS.get(key, key)}: {value}" for key, value in case.facts.items())
        findings = "".join(f"<li>{escape(each)}</li>" for each in case.findings)
        yield (
            f'<tr><td>{escape(case.case)}</td><td class="{CLASSES[case.status]}">'
            f'{case.status.value}</td><td class="number">{case.seconds:.1f}</td>'
            f"<td>{escape(facts)}</td><td>{findings and f'<ul>{findings}</ul>'}</td></tr>"
        )
    yield "</table>"
    for case in cases:
        if case.notes:
            title = "certificate" if "certificate" in case.facts else "details"
            yield f"<details><summary>{escape(case.case)}: {title}</summary><pre>"
            yield f"{escape(chr(10).join(case.notes))}</pre></details>"


def result_lines(case: CaseResult) -> Iterator[str]:
    """Return a case as text."""
    facts = ", ".join(f"{LABELS.get(key, key)} {value}" for key, value in case.facts.items())
    yield f"{case.status.value:<10}  {case.store}  {case.case:<16}  {case.seconds:6.1f} s  {facts}"
    yield from (f"    {each}" for each in case.findings)


def _by_store(result: SuiteResult) -> Iterator[tuple[str, list[CaseResult]]]:
    for store, cases in groupby(result.cases, lambda case: case.store):
        yield store, list(cases)


def _legal(text: str) -> str:
    return text.translate(_ILLEGAL_IN_XML)
