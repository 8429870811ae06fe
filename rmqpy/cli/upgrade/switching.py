"""``rmqpy upgrade switch | join``: go to DLedger or to a controller, and bring a member up to its
group.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from rmqpy.cli.parsing import CAN_BE_RESUMED, EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.carry_out import carry_out
from rmqpy.cli.upgrade.base.carry_out_switch import AFTER, CONTROLLER, DLEDGER, carry_out_switch
from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.options import (
    add_verb,
    details_option,
    full_option,
    give_up_option,
    input_options,
    replica_options,
    runbook_option,
)
from rmqpy.cli.upgrade.base.output import confirm, journal_json, print_result, show_plan
from rmqpy.cli.upgrade.base.replicas import name_of, named
from rmqpy.cli.upgrade.controllers import (
    check_controller_configs,
    refuse_known_group,
    write_controller_configs,
)
from rmqpy.cli.upgrade.group.outcome import print_outcome
from rmqpy.cli.upgrade.group.switching import switch_hosts
from rmqpy.cli.upgrade.runbooks import print_runbook
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.upgrade.steps.join_verdict import JoinVerdict


_OF_CONTROLLERS = ("controllers", "controller_conf")


def add_verbs(verbs: Commands) -> None:
    switch = add_verb(
        verbs, "switch", "seal the old logs and write the configuration of each node", _switch
    )
    replica_options(switch, may_be_empty=True, of_group=True)
    full_option(switch)
    switch.add_argument(
        "--to",
        choices=[DLEDGER, CONTROLLER],
        default=DLEDGER,
        help="a replicated log of these brokers, or the controller mode of RocketMQ 5.x",
    )
    switch.add_argument(
        "--controllers", default="", metavar="HOST:PORT;...", help="controllerAddr, for controller"
    )
    switch.add_argument(
        "--controller-conf", metavar="DIR", help="write the configuration of new controllers to DIR"
    )
    switch.add_argument("--peers", default="", metavar="ID-HOST:PORT;...", help="dLegerPeers")
    switch.add_argument(
        "--self-id", action="append", default=[], metavar="[NAME=]ID", help="a node's dLegerSelfId"
    )
    switch.add_argument("--group", default="", help="dLegerGroup; default: brokerName")
    switch.add_argument("--dry-run", action="store_true", help="only print the plan")
    details_option(switch)
    runbook_option(switch)
    switch.set_defaults(interrupted=CAN_BE_RESUMED)

    join = add_verb(
        verbs,
        "join",
        "let a member that its group refuses join again, with the data of another one",
        _join,
    )
    join.add_argument(
        "directory", metavar="[NAME=]DIR", help="the storePathRootDir of the refused member"
    )
    join.add_argument(
        "--from", dest="source", required=True, metavar="NAME=DIR|URL", help="a member that has it"
    )
    input_options(join)
    full_option(join)
    give_up_option(join)
    join.add_argument("--dry-run", action="store_true", help="only print the plan")
    details_option(join)
    join.add_argument("--yes", action="store_true", help="carry out the plan without asking")
    join.set_defaults(interrupted=CAN_BE_RESUMED, may_be_empty=True)


def _switch(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.runbook import controller_runbook, switch_runbook
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_switch

    to_controller = options.to == CONTROLLER
    if options.runbook:
        to_controllers = partial(controller_runbook, controllers=options.controllers)
        return print_runbook(options, to_controllers if to_controller else switch_runbook)
    _check_destination(options)
    if options.controller_conf is not None:
        check_controller_configs(options.controllers, options.controller_conf)
    names = [name_of(text) for text in options.replica]
    switch = SwitchOptions(
        peers=options.peers,
        self_ids=named(options.self_id, names, "--self-id"),
        dledger_group=options.group,
        controllers=options.controllers,
    )
    context = plan_context_of(options, switch)
    if to_controller:
        names = [each.setting("brokerName") for each in context.group.surveys]
        refuse_known_group(options.controllers, [*dict.fromkeys(filter(None, names))])
        if options.controller_conf is not None and not options.dry_run:
            write_controller_configs(options.controllers, options.controller_conf)
    if options.given_group is not None and not options.given_group.file.is_local:
        return switch_hosts(options, options.given_group, context)
    if options.dry_run:
        return show_plan(options, plan_switch(context), context)
    plan = carry_out_switch(context)
    print_outcome(
        options,
        {"plan": plan.id, "nodes": [part.replica for part in plan.nodes]},
        [*plan.note_lines(), f"switched: {AFTER[options.to]}"],
    )
    return EXIT_DONE


def _check_destination(options: argparse.Namespace) -> None:
    """Raise RmqError if the options belong to different destinations."""
    if options.to == CONTROLLER and not options.controllers:
        raise RmqError(
            "--to controller: found no --controllers, expected the addresses of the controller;"
            " add --controllers HOST:PORT, with a semicolon between several"
        )
    other = ("peers", "self_id", "group") if options.to == CONTROLLER else _OF_CONTROLLERS
    given = [f"--{name.replace('_', '-')}" for name in other if getattr(options, name)]
    if given:
        raise RmqError(
            f"--to {options.to}: found {', '.join(given)}, which belongs to another destination;"
            " leave it out"
        )


def _join(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.steps.given_up import check_given_up
    from rmqpy.upgrade.steps.join_verdict import judge_member
    from rmqpy.upgrade.steps.plan_context import SwitchOptions
    from rmqpy.upgrade.steps.planning import plan_joining

    options.replica = [options.directory, options.source]
    name, source = (name_of(text) for text in options.replica)
    switch = SwitchOptions(reference=source)
    context = plan_context_of(options, switch)
    plan = plan_joining(context, name, given_up=options.give_up is not None)
    if options.dry_run:
        return show_plan(options, plan, context)
    check_given_up(plan, options.give_up)
    value: dict[str, object] = {"plan": plan.id}
    if not plan.is_empty:
        (part,) = plan.nodes
        confirm(options, plan, context.group, f"change {part.root} as planned")
        (journal,) = carry_out(context, plan, "aligned")
        value = journal_json(journal)
        context = plan_context_of(options, switch)
    judged = judge_member(context.group.replica(name), context.group.replica(source))
    lines = [*judged.lines(), f"{name}: {_next_step(judged, options.directory, source)}"]
    print_result(options, {**value, **judged.as_json()}, lines)
    return EXIT_DONE if judged.can_join else EXIT_NO


def _next_step(judged: JoinVerdict, directory: str, source: str) -> str:
    if judged.can_join:
        return "start its broker"
    if judged.has_more:
        return (
            f"it has entries that {source} lacks: if {source} only lags, start its broker,"
            " otherwise join it with the data of the leader; if rmqpy admin dledger then reports it"
            " as diverged, join it again with --give-up"
        )
    return f"do not start its broker; rmqpy upgrade rollback {directory} takes the join back"
