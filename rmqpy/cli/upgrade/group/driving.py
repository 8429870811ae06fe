"""``rmqpy upgrade next | run``: carry out the next step of a group, or all up to a state.

The state is detected anew before each step, so both can be killed and called again at any time.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from rmqpy.cli.parsing import CAN_BE_RESUMED, EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.hosts import reach_hosts
from rmqpy.cli.upgrade.base.options import add_verb
from rmqpy.cli.upgrade.base.output import ask, print_result
from rmqpy.cli.upgrade.base.replicas import now_ms
from rmqpy.cli.upgrade.group.facts import view_group
from rmqpy.cli.upgrade.group.roles import running_roles
from rmqpy.cli.upgrade.group.table import command_of, group_json, group_lines
from rmqpy.model.errors import RmqError
from rmqpy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.cli.upgrade.group.facts import GroupView
    from rmqpy.upgrade.group.states import NextStep, State


def add_verbs(verbs: Commands) -> None:
    step = add_verb(
        verbs, "next", "explain the next step of the group, and carry it out when confirmed", _next
    )
    step.add_argument("--back", action="store_true", help="the step back to master and slaves")
    run = add_verb(
        verbs, "run", "carry out the steps up to a state, or until a person must decide", _run
    )
    run.add_argument("--until", metavar="STATE", help="a state, as verified or returned; required")
    for verb in (step, run):
        verb.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        verb.add_argument(
            "--no-fence",
            action="store_true",
            help="stop a DLedger group without rmqpy admin fence; its members may then end at"
            " different entries",
        )
        verb.set_defaults(
            of_group=True, interrupted=CAN_BE_RESUMED, token_file=None, authority=None
        )


def show_group(options: argparse.Namespace, group: GivenGroup) -> int:
    """Show the state of a group; the exit code is 2 if a person must look at it."""
    from rmqpy.upgrade.group.states import NextStep

    view = view_group(options, group)
    step = view.state.next_step(returning=False)
    _show(options, group, view, step)
    odd = step in (NextStep.LOOK, NextStep.RESUME, NextStep.ROLLBACK) or view.contradictions
    return EXIT_NO if odd else EXIT_DONE


def _show(
    options: argparse.Namespace,
    group: GivenGroup,
    view: GroupView,
    coming: NextStep,
    **more: object,
) -> None:
    """Show the state of the group; ``more`` are further members of the JSON form."""
    given = group.file, view, coming, running_roles(group.file, view), now_ms()
    print_result(options, {**more, **group_json(*given)}, group_lines(*given))


def _next(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.group.states import NextStep

    group: GivenGroup = options.given_group
    view = view_group(options, group)
    step = view.state.next_step(returning=options.back)
    is_left = step not in (NextStep.NOTHING, NextStep.LOOK)
    if options.format != "json" or not (is_left or view.contradictions):
        _show(options, group, view, step)
    _refuse_contradictions(view)
    if not is_left:
        return EXIT_DONE if step is NextStep.NOTHING else EXIT_NO
    reach_hosts(options, group.file)
    ask(options, f"carry out the next step, {command_of(step, view.facts)}")
    code, result = _perform(options, group, view, step)
    if options.format == "json":
        now = view_group(options, group)
        further = now.state.next_step(returning=options.back)
        _show(options, group, now, further, step=step.value, code=code, result=result)
    return code


def _run(options: argparse.Namespace) -> int:
    from rmqpy.upgrade.group.states import NextStep, is_back, needs_leave, reaches

    group: GivenGroup = options.given_group
    target = _state_of(options.until)
    returning, steps = is_back(target), []
    before: tuple[State, NextStep] | None = None
    code, stuck = EXIT_DONE, ""
    while True:
        view = view_group(options, group)
        if reaches(view.state, target):
            break
        _refuse_contradictions(view)
        if needs_leave(view.state, target) and not returning:
            raise RmqError(
                f"found the group {view.state.name}, expected a group of classic logs on the way to"
                f" {target.name}; lead it back first with rmqpy upgrade leave, then apply"
            )
        step = view.state.next_step(returning=returning)
        if before is None:
            reach_hosts(options, group.file)
            ask(options, f"carry out the steps from {view.state.name} to {target.name}")
        if step in (NextStep.LOOK, NextStep.NOTHING):
            code = EXIT_NO
            break
        if before == (view.state, step):
            code = EXIT_NO
            stuck = (
                f"{command_of(step, view.facts)} has ended without an error, but the group is still"
                f" in the state {view.state.name}: look at what it printed, and at rmqpy upgrade"
                " check"
            )
            break
        if options.format != "json":
            print_result(options, None, [f"{view.state.name}: {command_of(step, view.facts)}"])
        before = view.state, step
        code, result = _perform(options, group, view, step)
        steps.append({"state": view.state.name, "step": step.value, "result": result})
        if code != EXIT_DONE:
            view = view_group(options, group)
            break
    step = view.state.next_step(returning=returning and not reaches(view.state, target))
    _show(options, group, view, step, steps=steps, stuck=stuck)
    if options.format != "json":
        print_result(options, None, [stuck] if stuck else [])
    return code


def _state_of(name: str | None) -> State:
    from rmqpy.upgrade.group.states import BACKWARD, FORWARD

    known = {each.name: each for each in (*FORWARD, *BACKWARD)}
    if name in known:
        return known[name]
    there, back = (", ".join(each.name for each in way) for way in (FORWARD, BACKWARD))
    expected = f"expected one of {there}, or on the way back {back}"
    if name is None:
        raise RmqError(f"run: found no --until STATE, {expected}; add it, as --until verified")
    near = did_you_mean(name, known) or "; correct it"
    raise RmqError(f"--until {name}: found no such state, {expected}{near}")


def _refuse_contradictions(view: GroupView) -> None:
    if view.contradictions:
        raise RmqError("; ".join(view.contradictions))


def _perform(
    options: argparse.Namespace, group: GivenGroup, view: GroupView, step: NextStep
) -> tuple[int, Any]:
    """Carry out one step; return its exit code, and the JSON result of its verb."""
    from rmqpy.cli import main
    from rmqpy.cli.upgrade.group.turning import turn
    from rmqpy.upgrade.group.states import NextStep

    if step is NextStep.LOOK:
        return EXIT_NO, None
    if step in (NextStep.START, NextStep.STOP):
        return turn(options, group, view, step)
    words = shlex.split(command_of(step, view.facts))[1:]
    if options.format != "json":
        return main(words, hosts=options.hosts), None
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = main([*words, "--format", "json"], hosts=options.hosts)
    try:
        return code, json.loads(printed.getvalue())
    except ValueError:
        sys.stderr.write(printed.getvalue())
        return code, None
