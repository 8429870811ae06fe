"""``rmqpy pipeline compare | plan | certify``: several replicas of one store.

A replica is written ``[NAME=]DIR``, ``[NAME=]MANIFEST`` (of ``rmqpy upgrade manifest --format
json``), ``NAME=http(s)://HOST:PORT`` (another host's ``rmqpy upgrade serve``), or, except for
plans, ``[NAME=]URI`` of an object store.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqpy.cli.given_files import check_certificate_target, read_given, read_manifest, read_secret
from rmqpy.cli.parsing import (
    EXIT_DONE,
    EXIT_NO,
    Parser,
    add_format_option,
    add_log_options,
    output_file,
)
from rmqpy.cli.pipeline.engine import engine_option, spark_options, store_runners
from rmqpy.cli.pipeline.places import (
    StorePlace,
    refuse_elsewhere,
    replica_uri,
    storage_options,
    store_places,
)
from rmqpy.cli.upgrade.aligning import plan_verb
from rmqpy.cli.upgrade.base.options import details_option, give_up_option, replica_options
from rmqpy.cli.upgrade.base.replicas import all_replicas, local_replicas, name_of, now_ms
from rmqpy.model.errors import RmqError
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rmqpy.audit.replicas.certificate import Certificate
    from rmqpy.audit.replicas.manifest import Manifest
    from rmqpy.audit.replicas.replica_set import LocalReplicaStore
    from rmqpy.cli.parsing import Commands
    from rmqpy.model.progress import ProgressSink
    from rmqpy.upgrade.checks.replica import LocalReplica


def add_verbs(verbs: Commands) -> None:
    compare = _verb(
        verbs, "compare", "show where replicas differ, to the byte; exit code 2 if so", _compare
    )
    replica_options(compare)
    storage_options(compare)

    certify = _verb(
        verbs, "certify", "write an equality certificate of replicas, or check one", _certify
    )
    replica_options(certify, "*")
    storage_options(certify)
    certify.add_argument("--key", metavar="FILE", help="sign with this key, or check the signature")
    certify.add_argument(
        "--out", type=output_file, metavar="FILE", help="write the certificate to FILE, as JSON"
    )
    certify.add_argument(
        "--check", metavar="CERTIFICATE", help="check that the replicas still match this one"
    )

    plan = _verb(
        verbs, "plan", "plan how the replicas become equal, for rmqpy upgrade apply", _plan
    )
    replica_options(plan, may_be_empty=True)
    plan.add_argument("--reference", metavar="NAME", help="the side to keep after a divergence")
    give_up_option(plan)
    details_option(plan)
    plan.add_argument(
        "--out", type=output_file, metavar="FILE", help="write the plan to FILE, as JSON"
    )


def _verb(
    verbs: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> Parser:
    parser: Parser = verbs.add_parser(name, help=text, description=text)
    engine_option(parser)
    spark_options(parser)
    add_format_option(parser)
    add_log_options(parser)
    parser.set_defaults(command=run)
    return parser


def _compare(options: argparse.Namespace) -> int:
    from rmqpy.audit.replicas.certificate_text import listed_sentences
    from rmqpy.audit.replicas.replica_set import compare_pairs
    from rmqpy.audit.replicas.verdict import Verdict

    _check_count(options)
    replicas = _replicas(options, derived=False)
    pairs = list(compare_pairs(replicas))
    _check_unchanged(options)
    if options.format == "json":
        tree = {
            "replicas": [_replica_tree(each) for each in replicas],
            "pairs": [pair.as_json() for pair in pairs],
        }
        _print_json(tree)
    else:
        for each in replicas:
            manifest = each.manifest
            print(
                f"{each.name}: {manifest.mode.value}, {manifest.begin} to {manifest.end},"
                f" {count_text(manifest.messages, 'message')}"
                + ("" if each.store else ", manifest only")
            )
        for pair in pairs:
            print(f"{pair.left} and {pair.right}: {pair.verdict}")
            _print_lines(listed_sentences(pair.sentences))
    return EXIT_DONE if Verdict.overall(pair.verdict for pair in pairs).is_equal else EXIT_NO


def _replica_tree(replica: LocalReplicaStore) -> dict[str, Any]:
    manifest = replica.manifest
    return {
        "name": replica.name,
        "mode": manifest.mode.value,
        "begin": manifest.begin,
        "end": manifest.end,
        "messages": manifest.messages,
        "findings": manifest.findings,
        "at_hand": replica.store is not None,
    }


def _certify(options: argparse.Namespace) -> int:
    from rmqpy.audit.replicas.certificate_text import certificate_lines
    from rmqpy.audit.replicas.replica_set import certify_replicas

    key = read_secret(options.key)
    if options.check:
        return _check(options, key)
    check_certificate_target(options.out, key)
    _check_count(options)
    replicas = _replicas(options, derived=True)
    certificate = certify_replicas(replicas, now_ms())
    _check_unchanged(options)
    text = certificate.encode(key)
    if options.out:
        Path(options.out).write_bytes(text)
    if options.format == "json":
        sys.stdout.write(text.decode())
    else:
        _print_lines(certificate_lines(certificate))
    return EXIT_DONE if certificate.holds else EXIT_NO


def _check_count(options: argparse.Namespace) -> None:
    """Raise RmqError for fewer than two replicas, before any of them is read."""
    count = len(options.replica)
    if count < 2:
        raise RmqError(
            f"found {count} replica{'s' if not count else ''}, expected at least two: equality"
            " needs two sides; give another directory, or an earlier manifest"
        )


def _check(options: argparse.Namespace, key: bytes | None) -> int:
    """Check that the certificate's stores are equal, or an earlier state is contained in them, that
    it is signed with ``key``, and that it still holds.
    """
    from rmqpy.audit.replicas.certificate import Certificate, check_signature
    from rmqpy.audit.replicas.replica_set import changed_subjects

    raw = read_given(options.check, "the certificate")
    certificate = Certificate.decode(raw)
    manifests: dict[str, Manifest] = {}
    if options.replica:
        manifests = {each.name: each.manifest for each in _replicas(options, derived=True)}
        _check_unchanged(options)
    wrong = _unknown(certificate, manifests)
    if key is not None and not check_signature(raw, key):
        wrong.append("the signature is not of this key, or the certificate was changed")
    if not certificate.holds:
        wrong.append(f"its verdict is {certificate.verdict}")
    changed = changed_subjects(certificate, manifests)
    wrong += [f"{name}: {text}" for name, text in changed.items()]
    if options.format == "json":
        _print_json({"holds": not wrong, "shown": sorted(manifests), "wrong": wrong})
    else:
        seen = ", ".join(sorted(manifests)) or "no store was given"
        _print_lines([*wrong, f"{'HOLDS' if not wrong else 'DOES NOT HOLD'} ({seen})"])
    return EXIT_NO if wrong else EXIT_DONE


def _unknown(certificate: Certificate, manifests: dict[str, Manifest]) -> list[str]:
    known = {subject.name for subject in certificate.subjects}
    return [f"{name}: not in the certificate" for name in manifests if name not in known]


def _check_unchanged(options: argparse.Namespace) -> None:
    for place in options.places.values():
        place.check_unchanged()


def _plan(options: argparse.Namespace) -> int:
    from functools import partial

    from rmqpy.store.files.disk import OsFileSystem

    refuse_elsewhere(
        options.replica,
        "a plan is applied on the host of each replica, which nothing can do for an object store;"
        " copy the store to a host and plan with that, or find out with compare whether it differs",
        hosts=True,
    )
    with ExitStack() as stack:
        places = [StorePlace(each.root, each.files) for each in local_replicas(options)]
        runners = store_runners(options, places, stack)
        options.runner = partial(runners, OsFileSystem()) if runners else None
        return plan_verb(options)


def _replicas(options: argparse.Namespace, *, derived: bool) -> list[LocalReplicaStore]:
    """Return the replicas in the given order; ``derived`` includes queues and key index."""
    from rmqpy.audit.replicas.replica_set import LocalReplicaStore
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.pipeline.spark.stage_progress import JobProgress
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.plan.survey import SurveyPlan

    order = [_name(text) for text in options.replica]
    if len(set(order)) < len(order):
        raise RmqError(f"replicas need different names: {', '.join(order)}; write NAME=DIR")
    saved = {
        name_of(text): _read_manifest(text)
        for text in options.replica
        if Path(text.partition("=")[2] or text).is_file()
    }
    uris = dict(filter(None, map(replica_uri, options.replica)))
    options.replica = [text for text in options.replica if _name(text) not in {*saved, *uris}]
    found = {name: LocalReplicaStore(manifest) for name, manifest in saved.items()}
    places = store_places([*uris.values()], options)
    options.places = dict(zip(uris, places, strict=True))
    with ExitStack() as stack:
        local = [StorePlace(each.root, each.files) for each in local_replicas(options)]
        line = ProgressLine("checked")
        progress = JobProgress(line)
        options.runners = store_runners(options, [*local, *places], stack, progress)
        stack.enter_context(line)
        for name, place in options.places.items():
            plan = SurveyPlan(name=name, root=place.root, now_ms=now_ms)
            found[name] = _audit_replica(
                LocalReplica(place.files, plan), options, derived, progress
            )
        for replica in all_replicas(options):
            if isinstance(replica, LocalReplica):
                found[replica.name] = _audit_replica(replica, options, derived, progress)
            else:
                found[replica.name] = LocalReplicaStore(replica.survey().manifest)
    return [found[name] for name in order]


def _name(text: str) -> str:
    uri = replica_uri(text)
    return name_of(text) if uri is None else uri[0]


def _read_manifest(text: str) -> Manifest:
    import attrs

    manifest = read_manifest(text.partition("=")[2] or text)
    return attrs.evolve(manifest, name=name_of(text))


def _audit_replica(
    replica: LocalReplica, options: argparse.Namespace, derived: bool, progress: ProgressSink
) -> LocalReplicaStore:
    from rmqpy.audit.checks.engine import AuditOptions
    from rmqpy.audit.replicas.compare import LocalStore
    from rmqpy.audit.replicas.manifest import ManifestPlan, Md5, make_manifest
    from rmqpy.audit.replicas.replica_set import LocalReplicaStore
    from rmqpy.audit.scan.directory import read_directory

    survey = replica.plan
    audit = AuditOptions(
        root=survey.root,
        settings=survey.settings,
        derived=derived,
        range_bytes=options.range_bytes,
        progress=progress,
    )
    audit = StorePlace(survey.root, replica.files).with_workers(audit)
    plan = ManifestPlan(name=survey.name, audit=audit, now_ms=now_ms, md5=Md5.NONE)
    directory = read_directory(replica.files, survey.root, survey.settings)
    runner = options.runners(replica.files, directory) if options.runners else None
    manifest, _ = make_manifest(replica.files, plan, runner)
    return LocalReplicaStore(manifest, LocalStore(replica.files, directory))


def _print_json(tree: object) -> None:
    json.dump(tree, sys.stdout, indent=1, ensure_ascii=False)
    print()


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
