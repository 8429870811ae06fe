"""The end of a verb that may have changed a group: what was done, the state, the next command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from rmqpy.cli.upgrade.base.output import print_result
from rmqpy.cli.upgrade.group.facts import view_group
from rmqpy.cli.upgrade.group.table import state_json, state_lines


def print_outcome(
    options: argparse.Namespace, value: Mapping[str, Any], lines: Iterable[str]
) -> None:
    """Print the result of a verb, and for a group its state and the next command after it.

    A verb that ``next`` or ``run`` carries out leaves that to them.
    """
    group = options.given_group
    if group is None or not options.is_typed:
        print_result(options, value, lines)
        return
    view = view_group(options, group)
    step = view.state.next_step(returning=False)
    print_result(
        options,
        {**value, **state_json(group.file, view, step)},
        [*lines, *state_lines(group.file, view, step)],
    )


def show_state(options: argparse.Namespace) -> None:
    """Show the same after a verb whose JSON form is a file, as that of ``plan``."""
    if options.format != "json":
        print_outcome(options, {}, ())


def member_rows(values: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of members, by name, as the JSON form lists them."""
    return [
        {"member": name, **{key: each for key, each in value.items() if key != "name"}}
        for name, value in values.items()
    ]


def rows_by_name(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the results that a member's host has listed, by name."""
    rows = (dict(each) for each in value["members"])
    return {name: {"name": name, **row} for row in rows if (name := row.pop("member"))}
