"""``rmqpy upgrade``: check, plan, apply, switch, verify, and the way back.

A replica is written ``[NAME=]DIR`` or ``NAME=http(s)://HOST:PORT`` (another host's ``serve``), its
broker.conf ``-c [NAME=]FILE``. Exit codes: 0 done or clean; 1 could not be done; 2 refused by a
safety check, or findings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rmqpy.cli.given_files import (
    check_readable,
    read_manifest,
    read_plan,
    read_secret,
    read_token,
)
from rmqpy.cli.parsing import (
    CAN_BE_RESUMED,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NO,
    Parser,
    add_format_option,
    add_log_options,
)
from rmqpy.cli.upgrade_carry_out import (
    announced_in_all,
    carry_out,
    described,
    recorded_context,
)
from rmqpy.cli.upgrade_inputs import (
    absolute,
    all_replicas,
    check_certificate_target,
    copied,
    local_replicas,
    locked,
    name_of,
    named,
    now_ms,
    plan_context_of,
)
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from typing import TextIO

    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.checks.replica import Replica
    from rmqpy.upgrade.plan.journal import Journal
    from rmqpy.upgrade.plan.node_context import NodeContext
    from rmqpy.upgrade.plan.plan import NodePlan, Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext

Verb = Callable[[argparse.Namespace], int]

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\t"}
_CONTROL |= {0x2028: "\\u2028", 0x2029: "\\u2029"}
"""The escapes of characters that would control the terminal or break a line."""


def add_commands(commands: Commands) -> None:
    upgrade = commands.add_parser(
        "upgrade", help="switch from master and slave to DLedger and back, with plans and proofs"
    )
    verbs = upgrade.add_subparsers(required=True, metavar="VERB", parser_class=Parser)
    _add_checks(verbs)
    _add_alignment(verbs)
    _add_switch(verbs)
    _add_leave(verbs)
    _add_undo(verbs)
    _add_proof(verbs)
    _add_serve(verbs)


def _add_checks(verbs: Commands) -> None:
    check = _verb(
        verbs, "check", "show what prevents a switch; exit code 2 if anything does", _check
    )
    replica_options(check, may_be_empty=True)

    manifest = _verb(
        verbs, "manifest", "print md5 and digests of everything in a directory", _manifest
    )
    replica_options(manifest)
    manifest.set_defaults(every_md5=True)


def _add_alignment(verbs: Commands) -> None:
    plan = _verb(verbs, "plan", "plan how the replicas become equal, to read and sign off", _plan)
    replica_options(plan, may_be_empty=True)
    plan.add_argument("--reference", metavar="NAME", help="the side to keep after a divergence")
    give_up(plan)
    _out(plan)
    _key(plan)

    apply = _verb(verbs, "apply", "carry out one node's part of a plan; resumable", _apply)
    replica_options(apply, at_least="*", may_be_empty=True)
    apply.add_argument("--plan", metavar="FILE", help="the plan; not needed with --resume")
    apply.add_argument("--node", metavar="NAME", help="the node whose part is carried out")
    apply.add_argument("--resume", metavar="DIR", help="continue an interrupted apply in DIR")
    give_up(apply)
    apply.add_argument("--dry-run", action="store_true", help="only check that it could be done")
    apply.add_argument("--key", metavar="FILE", help="require a plan signed with this key")
    apply.set_defaults(interrupted=CAN_BE_RESUMED)


def _add_switch(verbs: Commands) -> None:
    switch = _verb(
        verbs, "switch", "seal the old log and write the configuration of a node", _switch
    )
    replica_options(switch, may_be_empty=True)
    switch.add_argument("--peers", default="", metavar="ID-HOST:PORT;...", help="dLegerPeers")
    switch.add_argument(
        "--self-id", action="append", default=[], metavar="[NAME=]ID", help="a node's dLegerSelfId"
    )
    switch.add_argument("--group", default="", help="dLegerGroup; default: brokerName")
    switch.add_argument("--dry-run", action="store_true", help="only print the plan")
    _runbook(switch)
    switch.set_defaults(interrupted=CAN_BE_RESUMED)

    join = _verb(
        verbs, "join", "copy the old log to a member that its group refuses without it", _join
    )
    join.add_argument("directory", metavar="[NAME=]DIR")
    join.add_argument(
        "--from", dest="source", required=True, metavar="NAME=DIR|URL", help="a member that has it"
    )
    _inputs(join)
    give_up(join)
    join.add_argument("--dry-run", action="store_true", help="only print the plan")
    join.add_argument("--yes", action="store_true", help="carry out the plan without asking")
    join.set_defaults(interrupted=CAN_BE_RESUMED, may_be_empty=True)


def _add_leave(verbs: Commands) -> None:
    leave = _verb(verbs, "leave", "go back from DLedger to a classic log", _leave)
    replica_options(leave)
    leave.add_argument("--cut-index", type=int, metavar="N", help="last entry to keep")
    give_up(leave)
    leave.add_argument("--peers", default="", metavar="ID-HOST:PORT;...", help="dLegerPeers")
    leave.add_argument(
        "--role", action="append", default=[], metavar="NAME=ROLE", help="SYNC_MASTER, SLAVE, ..."
    )
    leave.add_argument(
        "--reader",
        choices=["4", "5"],
        default="4",
        help="oldest Java version that must be able to read the result; default 4",
    )
    leave.add_argument("--into", metavar="DIR", help="work on a copy in DIR; keep broker.conf")
    leave.add_argument("--apply", action="store_true", help="carry out the plan now, on this host")
    _out(leave)
    _key(leave)
    _runbook(leave)
    leave.set_defaults(interrupted=CAN_BE_RESUMED)


def _add_undo(verbs: Commands) -> None:
    for name, text, run in (
        ("rollback", "undo what a plan did in a directory, to the byte", _rollback),
        ("finalize", "give up the rollback: remove undo records and kept files", _finalize),
    ):
        verb = _verb(verbs, name, text, run)
        verb.add_argument("directory", metavar="DIR")
        if run is _rollback:
            verb.add_argument(
                "--plan", metavar="ID", help="the plan that is meant, if status shows several"
            )


def _add_proof(verbs: Commands) -> None:
    verify = _verb(
        verbs,
        "verify",
        "compare all messages of the stores and write the certificate",
        _verify,
    )
    replica_options(verify)
    verify.add_argument(
        "--before", action="append", default=[], metavar="MANIFEST", help="an earlier manifest"
    )
    _key(verify)
    _out(verify)

    status = _verb(verbs, "status", "show the progress of each replica", _status)
    replica_options(status, may_be_empty=True)


def _add_serve(verbs: Commands) -> None:
    serve = _verb(verbs, "serve", "serve this directory to other hosts, read only", _serve)
    serve.add_argument("directory", metavar="DIR")
    serve.add_argument("-c", dest="config", action="append", default=[], metavar="FILE")
    serve.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    serve.add_argument("--port", type=int, default=0, help="default: any free port")
    serve.add_argument("--token-file", metavar="FILE", help="token that clients must send")
    serve.add_argument("--certificate", metavar="FILE", help="TLS certificate, PEM")
    serve.add_argument("--key", metavar="FILE", help="key of the certificate")
    serve.set_defaults(every_md5=True, may_be_empty=True)


def _verb(verbs: Commands, name: str, text: str, run: Verb) -> Parser:
    parser: Parser = verbs.add_parser(name, help=text, description=text)
    add_format_option(parser)
    add_log_options(parser)
    parser.set_defaults(command=_guarded(run))
    return parser


def _guarded(run: Verb) -> Verb:
    def guarded(options: argparse.Namespace) -> int:
        from rmqpy.cli.os_errors import sentence_of
        from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
        from rmqpy.upgrade.steps.reference import DivergedError

        try:
            return run(options)
        except UpgradeRefusedError as refused:
            sides = refused.sides if isinstance(refused, DivergedError) else {}
            value = {"refused": str(refused), **({"sides": sides} if sides else {})}
            _print(options, value, _refusal_lines(str(refused), sides), sys.stderr)
            return EXIT_NO
        except (RmqError, OSError) as error:
            if options.format != "json":
                raise
            text = sentence_of(error) if isinstance(error, OSError) else str(error)
            _print(options, {"error": text}, ())
            return EXIT_FAILED

    return guarded


def _refusal_lines(text: str, sides: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    yield f"rmqpy: refused: {text}"
    for pair, messages in sides.items():
        for side, lines in messages.items():
            yield f"{pair}, only on {side}:"
            yield from (f"  {line}" for line in lines)


def replica_options(parser: Parser, at_least: str = "+", *, may_be_empty: bool = False) -> None:
    """Add the replicas; ``may_be_empty`` if one of them may be a member to be filled."""
    parser.add_argument("replica", nargs=at_least, metavar="[NAME=]DIR|NAME=URL")
    parser.set_defaults(may_be_empty=may_be_empty)
    _inputs(parser)


def _inputs(parser: Parser) -> None:
    parser.add_argument(
        "-c", dest="config", action="append", default=[], metavar="[NAME=]FILE", help="broker.conf"
    )
    parser.add_argument("--token-file", metavar="FILE", help="token for replicas on other hosts")
    parser.add_argument("--authority", metavar="FILE", help="certificates to trust, PEM")


def give_up(parser: Parser) -> None:
    parser.add_argument(
        "--give-up", type=int, metavar="N", help="confirm that N messages are discarded"
    )


def _out(parser: Parser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write the result to FILE, as JSON")


def _key(parser: Parser) -> None:
    parser.add_argument("--key", metavar="FILE", help="sign with the secret in FILE")


def _runbook(parser: Parser) -> None:
    parser.add_argument(
        "--runbook", choices=["java", "rmqpy"], help="only print the commands for these brokers"
    )


# Verbs


def _check(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.checks.group_checks import CHECKS, logs_verdict, run_checks

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
    lines = [
        *(line for each in found for line in each.lines()),
        *compared,
        f"{len(CHECKS)} checks: {len(bad)} findings, {len(found) - len(bad)} notes",
    ]
    _print(options, value, lines)
    return EXIT_NO if bad else EXIT_DONE


def _manifest(options: argparse.Namespace) -> int:
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


def _plan(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.planning import plan_alignment

    plan = plan_alignment(plan_context_of(options))
    check_given_up(plan, options.give_up)
    return _show_plan(options, plan)


def plan_verb(options: argparse.Namespace) -> int:
    """Run ``plan`` with another engine: ``options.runner`` reads the logs."""
    return _guarded(_plan)(options)


def _apply(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import apply_plan, remaining, resume
    from rmqpy.upgrade.steps.given_up import check_given_up

    if options.resume:
        root = absolute(options.resume)
        node_context = recorded_context(options, root)
        if options.dry_run:
            return _dry_run(options, node_context, remaining(node_context))
        with locked(node_context.files, root):
            journal = resume(node_context)
        return _print_journal(options, journal, f"plan {journal.plan_id} is applied in {root}")
    context = plan_context_of(options)
    plan, node = _read_plan(options.plan, read_secret(options.key)), options.node or ""
    node_context = context.node_context(_replica_of(context, plan.node(node)))
    check_given_up(plan, options.give_up, plan.node(node).replica)
    if options.dry_run:
        return _dry_run(options, node_context, plan.node(node))
    with locked(node_context.files, plan.node(node).root):
        journal = apply_plan(node_context, plan, node, phase=plan.steps[-1])
    return _print_journal(options, journal, f"plan {plan.id} is applied in {plan.node(node).root}")


def _dry_run(options: argparse.Namespace, node_context: NodeContext, part: NodePlan) -> int:
    from rmqpy.upgrade.plan.own_paths import check_own_paths
    from rmqpy.upgrade.plan.preconditions import check_sources, verify_preconditions
    from rmqpy.upgrade.plan.space import missing_space

    check_own_paths(node_context, part)
    wrong = verify_preconditions(node_context, part)
    check_sources(node_context, part)
    wrong += missing_space(node_context, part)
    _print(options, {"wrong": wrong}, wrong or ["every operation could be done"])
    return EXIT_NO if wrong else EXIT_DONE


def _switch(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.runbook import switch_runbook
    from rmqpy.upgrade.steps.old_log_mark import save_old_log_mark
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_switch

    names = [name_of(text) for text in options.replica]
    switch = SwitchOptions(
        peers=options.peers,
        self_ids=named(options.self_id, names, "--self-id"),
        dledger_group=options.group,
    )
    context = plan_context_of(options, switch)
    if options.runbook:
        print("\n".join(switch_runbook(context, options.runbook)))
        return EXIT_DONE
    if options.dry_run:
        return _show_plan(options, plan_switch(context))

    def save_mark(node_context: NodeContext, part: NodePlan) -> None:
        save_old_log_mark(node_context.files, context.group.replica(part.replica))

    with announced_in_all(context, "switch"):
        plan = plan_switch(context)
        carry_out(context, plan, "switched", save_mark)
    _print(
        options,
        {"plan": plan.id, "nodes": [part.replica for part in plan.nodes]},
        [*(note for part in plan.nodes for note in part.notes), "switched: start the brokers"],
    )
    return EXIT_DONE


def _join(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_joining

    options.replica = [options.directory, options.source]
    name, source = (name_of(text) for text in options.replica)
    context = plan_context_of(options, SwitchOptions(reference=source))
    plan = plan_joining(context, name)
    check_given_up(plan, options.give_up)
    if options.dry_run or plan.is_empty:
        return _show_plan(options, plan)
    (part,) = plan.nodes
    _confirm(options, plan, f"change {part.root} as planned")
    (journal,) = carry_out(context, plan, "aligned")
    return _print_journal(options, journal, f"{name} has the old log of {source}: start its broker")


def _leave(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.runbook import leave_runbook
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_leaving

    names = [name_of(text) for text in options.replica]
    switch = SwitchOptions(
        cut_index=options.cut_index,
        reads_version=1 if options.reader == "4" else 2,
        roles=named(options.role, names, "--role"),
        peers=options.peers,
        write_config=not options.into,
    )
    if options.into:
        options.replica = [copied(options)]
    context = plan_context_of(options, switch)
    if options.runbook:
        print("\n".join(leave_runbook(context, options.runbook)))
        return EXIT_DONE
    if not (options.apply or options.into):
        plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        return _show_plan(options, plan)
    with announced_in_all(context, "leave --apply"):
        plan = plan_leaving(context)
        check_given_up(plan, options.give_up)
        carry_out(context, plan, "left")
    notes = [f"{part.replica}: {note}" for part in plan.nodes for note in part.notes]
    _print(options, {"plan": plan.id, "notes": notes}, [*notes, f"left DLedger: plan {plan.id}"])
    return EXIT_DONE


def _verify(options: argparse.Namespace) -> int:
    from pathlib import Path

    from rmqpy.audit.replicas.certificate import certify
    from rmqpy.audit.replicas.certificate_text import certificate_lines
    from rmqpy.upgrade.checks.replica import LocalReplica

    before = [read_manifest(path) for path in options.before]
    replicas = plan_context_of(options).group.replicas
    manifests = [*before, *(replica.survey().manifest for replica in replicas)]
    if len(manifests) < 2:
        raise RmqError("give two replicas, or --before MANIFEST: equality needs two sides")
    available = {
        replica.name: replica.messages() if isinstance(replica, LocalReplica) else replica
        for replica in replicas
    }
    key = read_secret(options.key)
    check_certificate_target(options.out, key)
    earlier = len(before) if replicas else 0
    certificate = certify(manifests, now_ms(), available, earlier=earlier)
    text = certificate.encode(key)
    if options.out:
        Path(options.out).write_bytes(text)
    _print(options, json.loads(text), certificate_lines(certificate))
    return EXIT_DONE if certificate.holds else EXIT_NO


def _rollback(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import roll_back, to_roll_back
    from rmqpy.upgrade.plan.journal import APPLIED

    root = absolute(options.directory)
    node_context = recorded_context(options, root)
    lines = described(node_context, to_roll_back(node_context, options.plan))
    if options.format != "json":
        _print(options, None, lines)
    with locked(node_context.files, root):
        journal = roll_back(node_context, options.plan)
    text = f"{root} is as before"
    if journal.state == APPLIED:
        text += f" plan {lines[0].split()[3]}; plan {journal.plan_id} is still applied"
    return _print_journal(options, journal, text)


def _finalize(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.plan.engine import finalize

    root = absolute(options.directory)
    journal = finalize(recorded_context(options, root))
    return _print_journal(options, journal, f"{root}: the upgrade is final, undo records removed")


def _status(options: argparse.Namespace) -> int:
    replicas = all_replicas(options)
    states = {replica.name: replica.status() for replica in replicas}
    lines = [line for name, state in states.items() for line in _status_lines(name, state)]
    _print(options, states, lines)
    half = [
        name
        for name, state in states.items()
        if state["state"] in ("applying", "rolling_back", "damaged")
    ]
    return EXIT_NO if half else EXIT_DONE


def _status_lines(name: str, state: dict[str, Any]) -> Iterable[str]:
    plan = f" (plan {state['plan']}, {state['phase']})" if "plan" in state else ""
    yield f"{name}: {state['state']}{plan}"
    if "damage" in state:
        yield f"{name}: {state['damage']}"
    at = state.get("root", "DIR")
    match state["state"]:
        case "applying":
            yield (
                f"{name}: {state['done']} operations are done; continue with rmqpy upgrade apply"
                f" --resume {at}, or take the plan back with rmqpy upgrade rollback {at}"
            )
        case "rolling_back":
            yield (
                f"{name}: {state['done']} operations are left to take back; finish with"
                f" rmqpy upgrade rollback {at}"
            )


def _serve(options: argparse.Namespace) -> int:
    try:
        from rmqpy.upgrade.serve import TokenAuth, run
    except ModuleNotFoundError as error:
        raise RmqError(
            f"serve needs {error.name}, which is not installed: pip install 'rmqpy[upgrade]'"
        ) from error

    options.replica = [options.directory]
    (replica,) = local_replicas(options)
    token = read_token(options.token_file)
    check_readable(options.certificate, "the certificate")
    check_readable(options.key, "the key of the certificate")
    auth = TokenAuth(
        host=options.host,
        port=options.port,
        token=token,
        certificate=options.certificate,
        key=options.key,
    )
    run(replica, auth, lambda address: print(f"ready: {address}", flush=True))
    return EXIT_DONE


# Shared by the verbs


def _replica_of(context: PlanContext, part: NodePlan) -> Replica:
    """Return the replica of this host whose directory a part of a plan is for.

    The directory is never taken from the plan, which may come from another host.
    """
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    local = context.on_this_host
    for replica in local:
        if replica.root == part.root:
            return replica
    given = ", ".join(f"{each.name}={each.root}" for each in local) or "no directory"
    raise UpgradeRefusedError(
        f"the plan's part for {part.replica} is for {part.root!r}: found {given} among the replicas"
        f" given, expected that directory; if it is this node's, give {part.replica}=DIR"
    )


def _confirm(options: argparse.Namespace, plan: Plan, what: str) -> None:
    """Show the plan, and ask at a terminal. Raise UpgradeRefusedError unless the answer is yes."""
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    if options.yes:
        return
    if options.format != "json":
        _print(options, None, plan.lines())
        if sys.stdin.isatty() and input(f"{what}? [y/N] ").strip().lower() in ("y", "yes"):
            return
    raise UpgradeRefusedError(
        f"found no confirmation to {what}, expected --yes or the answer y at a terminal; nothing"
        " was changed. Read the plan (--dry-run), then run the command again with --yes"
    )


def _read_plan(path: str | None, key: bytes | None) -> Plan:
    """Return the plan. Raise UpgradeRefusedError if it is not the plan that was signed."""
    from rmqpy.upgrade.plan.plan import Plan, check_signed

    if path is None:
        raise RmqError("--plan FILE is missing: give the plan, or --resume DIR")
    value = read_plan(path)
    check_signed(value, key)
    try:
        return Plan.from_json(value)
    except (RmqError, ValueError, KeyError, TypeError) as error:
        raise RmqError(f"{path}: found a plan that cannot be used: {error}") from None


def _show_plan(options: argparse.Namespace, plan: Plan) -> int:
    from pathlib import Path

    value = plan.to_json(read_secret(getattr(options, "key", None)))
    if getattr(options, "out", None):
        Path(options.out).write_text(json.dumps(value, indent=1), encoding="utf-8")
    _print(options, value, plan.lines())
    return EXIT_DONE


def _print_journal(options: argparse.Namespace, journal: Journal, text: str) -> int:
    value = {"plan": journal.plan_id, "state": journal.state, "done": journal.done}
    _print(options, value, [text])
    return EXIT_DONE


def _print(
    options: argparse.Namespace, value: object, lines: Iterable[str], stream: TextIO | None = None
) -> None:
    if options.format == "json":
        json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
        print()
        return
    for line in lines:
        # Plans and surveys of other hosts contain names of their choice.
        print(line.translate(_CONTROL), file=stream or sys.stdout)
