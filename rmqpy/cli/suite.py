"""The command ``rmqpy suite``."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import add_format_option, add_log_options
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.suite.cases import CaseResult, SuiteResult


def add_commands(commands: Commands) -> None:
    suite = commands.add_parser("suite", help="rehearse upgrades of copies of your own stores")
    verbs = suite.add_subparsers(required=True, metavar="VERB")
    run = verbs.add_parser("run", help="carry out the stages of a suite file, and report each")
    run.add_argument("suite", metavar="FILE", help="the suite, such as suite.toml")
    run.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")
    run.add_argument("--json", metavar="FILE", help="write the results as JSON")
    run.add_argument("--html", metavar="FILE", help="write one HTML page")
    run.add_argument("--work", metavar="DIR", help="copy the stores to this new directory")
    run.add_argument("--keep", action="store_true", help="with --work: keep the copies")
    add_format_option(run)
    add_log_options(run)
    run.set_defaults(command=_run, interrupted="")


def _run(options: argparse.Namespace) -> int:
    from rmqpy.suite.reports import json_report
    from rmqpy.suite.runner import SuiteRun, exit_code
    from rmqpy.suite.suite_file import read_suite

    if options.keep and options.work is None:
        raise RmqError("--keep: found no --work, expected --work DIR, where the copies remain")
    plan = read_suite(Path(options.suite))
    targets = [Path(each) for each in (options.junit, options.json, options.html) if each]
    for target in targets:
        if not target.resolve().parent.is_dir():
            raise RmqError(
                f"{target}: found no directory {target.parent}, expected an existing one"
            )
    logging.getLogger("rmqpy.client").setLevel(logging.ERROR)  # Brokers are stopped on purpose.
    as_json = options.format == "json"
    work = Path(options.work) if options.work else Path(tempfile.mkdtemp(prefix="rmqpy-suite-"))
    if options.work and any(work.glob("*.json")):
        raise RmqError(f"{work}: found the results of an earlier run, expected a new directory")
    try:
        run = SuiteRun(plan=plan, work=work, keep=options.keep)
        result = run.run(_silent if as_json else _print)
    finally:
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    print(json_report(result) if as_json else result.verdict)
    _write(options, result)
    return exit_code(result)


def _write(options: argparse.Namespace, result: SuiteResult) -> None:
    from rmqpy.suite.reports import html_page, json_report, junit_xml

    for name, render in ((options.junit, junit_xml), (options.json, json_report)):
        if name is not None:
            Path(name).write_text(render(result), encoding="utf-8")
    if options.html is not None:
        Path(options.html).write_text(html_page(result), encoding="utf-8")


def _print(case: CaseResult) -> None:
    from rmqpy.suite.reports import result_lines

    print("\n".join(result_lines(case)))
    sys.stdout.flush()


def _silent(_case: CaseResult) -> None:
    """Print nothing before the whole result."""
