"""Run other people's judges against servers of rmqpy and of Java, and write the compatibility
card.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from foreign_clients import CLIENTS, ForeignClient, maven

from compatibility import apache
from compatibility.cases import SETTINGS, cases_at
from compatibility.client_runner import run_clients
from compatibility.page import PAGE, UnexplainedFailureError, page, read_causes
from compatibility.results import (
    JudgeResult,
    JudgeRun,
    Outcome,
    merge_run,
    read_results,
    write_result,
)
from compatibility.targets import TARGETS, JudgedCluster, Target


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    judges = [name for name in (apache.NAME, *CLIENTS) if _chosen(name, options.judges)]
    failed = 0
    if not options.page:
        for target in TARGETS:
            if _chosen(target, options.servers):
                failed += _run(target, judges, options)
    try:
        text = page(read_results(), read_causes())
    except UnexplainedFailureError as error:
        print(f"the page was not written: {error}; add it there", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{failed} failures; wrote {PAGE}")
    return 2 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tox -e card --", description=__doc__)
    names = ", ".join((apache.NAME, *CLIENTS))
    parser.add_argument("--judges", nargs="*", metavar="PATTERN", help=f"only these of {names}")
    servers = ", ".join(TARGETS)
    parser.add_argument("--servers", nargs="*", metavar="PATTERN", help=f"only {servers}")
    parser.add_argument("--tests", default="*", metavar="PATTERN", help="only these tests")
    parser.add_argument("--jobs", type=int, default=2, help="judges at the same time (2)")
    parser.add_argument(
        "--unknown", action="store_true", help="of Apache's tests, only those without a result"
    )
    parser.add_argument("--page", action="store_true", help="only write the page from the results")
    return parser


def _chosen(name: str, patterns: Collection[str] | None) -> bool:
    return not patterns or any(fnmatch(name, pattern) for pattern in patterns)


def _run(target: str, judges: Collection[str], options: argparse.Namespace) -> int:
    """Run judges against one kind of servers, keep the outcomes, and return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix=f"rmqpy-{target}-") as folder_name:
        folder = Path(folder_name)
        if _can_run(apache.NAME, apache.TITLE, judges, maven.missing):
            failed += _run_apache(target, options, folder)
        clients = {
            name: client
            for name, client in CLIENTS.items()
            if _can_run(name, client.title, judges, client.unavailable)
        }
        cases = [case for case in cases_at(TARGETS[target]) if fnmatch(case, options.tests)]
        if cases:
            for version in sorted({client.java_namesrv for client in clients.values()}):
                cluster = JudgedCluster(
                    TARGETS[target],
                    folder / f"clients-{version}",
                    settings=SETTINGS,
                    java_namesrv=version,
                )
                these = {n: each for n, each in clients.items() if each.java_namesrv == version}
                failed += _run_clients(cluster, these, cases, target, options.jobs)
    return failed


def _run_clients(
    cluster: JudgedCluster,
    clients: Mapping[str, ForeignClient],
    cases: Sequence[str],
    target: str,
    jobs: int,
) -> int:
    failed = 0
    with cluster:
        for some in _rounds(cluster.target, clients):
            leaders = cluster.leaders()
            for name, outcomes in run_clients(
                cluster, some, cases, cluster.folder / "probes", jobs
            ):
                failed += _keep(name, CLIENTS[name].title, target, leaders, outcomes)
    return failed


def _rounds(
    target: Target, clients: Mapping[str, ForeignClient]
) -> Iterable[Mapping[str, ForeignClient]]:
    """Divide clients into those that run side by side: in a group, each kills a leader alone."""
    if not target.is_group:
        return [clients]
    return [{name: client} for name, client in clients.items()]


def _run_apache(target: str, options: argparse.Namespace, folder: Path) -> int:
    classes = apache.test_classes(apache.program(), options.tests)
    if options.unknown:
        known = {name.partition("#")[0] for name in _known(apache.NAME, target)}
        classes = [name for name in classes if name not in known]
    if not classes:
        return 0
    tls = apache.tls_properties(folder)
    servers = folder / "apache"
    with JudgedCluster(TARGETS[target], servers, names=apache.BROKERS, tls_file=tls) as cluster:
        leaders = cluster.leaders()
        keep = partial(_keep, apache.NAME, apache.TITLE, target, leaders)
        outcomes = apache.run_tests(cluster, classes, folder, options.jobs, keep)
    return sum(each.outcome == "failed" for each in outcomes.values())


def _known(judge: str, target: str) -> Collection[str]:
    runs = [result.runs for result in read_results() if result.judge == judge]
    return runs[0][target].outcomes if runs and target in runs[0] else ()


def _keep(
    judge: str, title: str, target: str, leaders: list[str], outcomes: Mapping[str, Outcome]
) -> int:
    """Keep outcomes at once, so that a run may be ended at any time; return how many failed."""
    run = _result(outcomes, leaders)
    for test, outcome in outcomes.items():
        if outcome.outcome == "failed":
            print(f"{judge} {target}: {test}: {outcome.detail}", flush=True)
    print(f"{judge} {target}: {run.count('passed')} passed", flush=True)
    failed = run.count("failed")
    merge_run(judge, title, target, run)
    return failed


def _can_run(
    judge: str, title: str, judges: Collection[str], missing: Callable[[], str | None]
) -> bool:
    """Return whether a judge is chosen and can run here. Keep why it cannot, unless it has run
    elsewhere.
    """
    if judge not in judges:
        return False
    reason = missing()
    if reason is None:
        return True
    print(f"{judge}: {reason}", flush=True)
    if not any(result.judge == judge and result.runs for result in read_results()):
        write_result(JudgeResult(judge, title, missing=reason))
    return False


def _result(outcomes: Mapping[str, Outcome], leaders: list[str]) -> JudgeRun:
    date = datetime.fromtimestamp(time.time(), UTC).date().isoformat()
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return JudgeRun(date, commit, dict(outcomes), leaders)


if __name__ == "__main__":
    sys.exit(main())
