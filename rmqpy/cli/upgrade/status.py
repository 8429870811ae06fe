"""``rmqpy upgrade status``: the progress of each replica."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.upgrade.base.options import add_verb, replica_options
from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.base.replicas import all_replicas
from rmqpy.cli.upgrade.group.driving import show_group
from rmqpy.cli.upgrade.group.outcome import member_rows
from rmqpy.model.text import count_text

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands


def add_verbs(verbs: Commands) -> None:
    status = add_verb(
        verbs,
        "status",
        "show the state of the group and the next command; of directories, the progress of each",
        _status,
    )
    replica_options(status, may_be_empty=True, of_group=True)


def _status(options: argparse.Namespace) -> int:
    if options.given_group is not None:
        return show_group(options, options.given_group)
    replicas = all_replicas(options)
    states = {replica.name: replica.status() for replica in replicas}
    lines = [line for name, state in states.items() for line in _status_lines(name, state)]
    print_result(options, {"members": member_rows(states)}, lines)
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
                f"{name}: {count_text(state['done'], 'operation is', 'operations are')} done;"
                " continue with rmqpy upgrade apply"
                f" --resume {at}, or take the plan back with rmqpy upgrade rollback {at}"
            )
        case "rolling_back":
            yield (
                f"{name}: {count_text(state['done'], 'operation is', 'operations are')} left to"
                " take back; finish with"
                f" rmqpy upgrade rollback {at}"
            )
