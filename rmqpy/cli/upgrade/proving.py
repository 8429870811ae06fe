"""``rmqpy upgrade verify``: compare all messages, and certify that they are equal."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from rmqpy.cli.given_files import check_certificate_target, read_manifest, read_secret
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.hosts import note
from rmqpy.cli.upgrade.base.options import (
    add_verb,
    full_option,
    key_option,
    out_option,
    replica_options,
)
from rmqpy.cli.upgrade.base.output import print_result, write_result, written_line
from rmqpy.cli.upgrade.base.replicas import now_ms
from rmqpy.cli.upgrade.group.outcome import show_state
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    verify = add_verb(
        verbs,
        "verify",
        "compare all messages of the stores and write the certificate",
        _verify,
    )
    replica_options(verify, of_group=True)
    full_option(verify)
    verify.add_argument(
        "--before", action="append", default=[], metavar="MANIFEST", help="an earlier manifest"
    )
    key_option(verify)
    out_option(verify)


def _verify(options: argparse.Namespace) -> int:
    from rmqpy.audit.replicas.certificate_text import certificate_lines
    from rmqpy.audit.replicas.certify import certify
    from rmqpy.upgrade.checks.replica import LocalReplica
    from rmqpy.upgrade.group.common_end import Waiting, level_running

    group = options.given_group
    if group is not None and not options.before:
        options.before = [str(group.before)] if group.before.exists() else []
        options.out = options.out or str(group.certificate)
    before = [read_manifest(path) for path in options.before]
    replicas = plan_context_of(options).group.replicas
    level_running(replicas, Waiting(time.monotonic, time.sleep, note))
    manifests = [*before, *(replica.survey().manifest for replica in replicas)]
    if len(manifests) < 2:
        raise RmqError("give two replicas, or --before MANIFEST: equality needs two sides")
    available = {
        replica.name: replica.messages() if isinstance(replica, LocalReplica) else replica
        for replica in replicas
    }
    key = read_secret(options.key)
    check_certificate_target(options.out, key)
    count = len(before) if replicas else 0
    certificate = certify(manifests, now_ms(), available, earlier=count)
    text = certificate.encode(key)
    *compared, verdict = certificate_lines(certificate)
    if options.out:
        _write(options, text, [*compared, verdict])
    print_result(options, json.loads(text), [*compared, *written_line(options), verdict])
    if group is not None:
        show_state(options)
    return EXIT_DONE if certificate.holds else EXIT_NO


def _write(options: argparse.Namespace, text: bytes, lines: list[str]) -> None:
    """Write the certificate. If that fails, what was found is not lost: print it."""
    try:
        write_result(options.out, text)
    except OSError:
        if options.format != "json":
            print_result(options, None, lines)
        raise
