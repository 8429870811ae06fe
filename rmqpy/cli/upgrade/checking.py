"""``rmqpy upgrade check | manifest``: what prevents a switch, and what a directory contains."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.options import add_verb, full_option, replica_options
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.base.replicas import now_ms
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    check = add_verb(
        verbs, "check", "show what prevents a switch; exit code 2 if anything does", _check
    )
    replica_options(check, may_be_empty=True, of_group=True)
    full_option(check)
    check.add_argument("--details", action="store_true", help="show every finding and note")

    manifest = add_verb(
        verbs, "manifest", "print md5 and digests of everything in a directory", _manifest
    )
    replica_options(manifest)
    full_option(manifest)
    manifest.set_defaults(every_md5=True)


def _check(options: argparse.Namespace) -> int:
    from attrs import asdict

    from rmqpy.audit.facts.proof_age import age_sentences
    from rmqpy.audit.picture.layout_json import layout_json
    from rmqpy.upgrade.checks.group_checks import CHECKS, logs_verdict, run_checks
    from rmqpy.upgrade.checks.group_map import map_of_surveys
    from rmqpy.upgrade.checks.summary import summarize

    context = plan_context_of(options)
    found = run_checks(context.group)
    bad = [each for each in found if not each.is_note]
    value = {
        "replicas": [each.name for each in context.group.replicas],
        "checks": list(CHECKS),
        "findings": [each.as_json() for each in bad],
        "notes": [each.as_json() for each in found if each.is_note],
    }
    compared = []
    if len(context.group.replicas) > 1:
        verdict = logs_verdict(context.group)
        value |= verdict.as_json()
        compared = [f"logs: {verdict}"]
    ages = {each.name: each.manifest.age for each in context.group.surveys}
    value["ages"] = {name: asdict(age) for name, age in ages.items() if age is not None}
    summary = summarize(context.group, found)
    value["summary"] = summary.as_json()
    if options.format == "json":
        value["map"] = layout_json(map_of_surveys(context.group.surveys, now_ms()))
    details = (line for each in found for line in each.lines())
    lines = [
        *summary.lines(details=options.details),
        *(details if options.details else ()),
        *compared,
        *(f"{name}: {text}" for name, age in ages.items() for text in age_sentences(age, now_ms())),
        f"{count_text(len(CHECKS), 'check')}: {count_text(len(bad), 'finding')},"
        f" {count_text(len(found) - len(bad), 'note')}",
    ]
    print_result(options, value, lines)
    return EXIT_DONE if summary.is_ready else EXIT_NO


def _manifest(options: argparse.Namespace) -> int:
    if options.format == "json" and len(options.replica) > 1:
        raise RmqError(
            f"manifest --format json: found {count_text(len(options.replica), 'directory')},"
            " expected one, whose manifest is the output; run it for each"
        )
    for replica in plan_context_of(options).group.replicas:
        manifest = replica.survey().manifest
        if options.format == "json":
            sys.stdout.write(manifest.encode().decode())
            continue
        for file in manifest.files:
            print(f"{file.md5}  {file.path}")
        for log in manifest.logs:
            for part in log.files:
                sealed = ", closed" if part.sealed else ""
                print(f"# {part.path}: {len(part.blocks)} blocks up to {part.end}{sealed}")
    return EXIT_DONE
