"""``rmqpy upgrade prepare`` for a group on several hosts: each host prepares its own directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmqpy.cli.upgrade.base.contexts import plan_context_of
from rmqpy.cli.upgrade.base.hosts import long_form, reach_hosts, run_there
from rmqpy.cli.upgrade.base.replicas import all_replicas
from rmqpy.cli.upgrade.group.outcome import rows_by_name

if TYPE_CHECKING:
    from rmqpy.cli.upgrade.base.given import GivenGroup
    from rmqpy.upgrade.group.group_file import MemberSpec


def prepare_alone(
    options: argparse.Namespace,
    group: GivenGroup,
    more: Sequence[str] = (),
    *,
    empty_too: bool = False,
) -> dict[str, Any]:
    """Prepare the members of other hosts without looking at the rest of the group; return the
    results by name. ``more`` are further options. An empty member has nothing to be read; it is
    left out unless ``empty_too``.
    """
    from rmqpy.audit.facts.facts import Mode

    reach_hosts(options, group.file)
    rate = ["--rate", str(options.rate), *(["--full"] if options.full else [])]
    empty = {each.name for each in all_replicas(options) if each.facts().mode is Mode.EMPTY}
    found: dict[str, Any] = {}
    for member in group.file.linked:
        if member.name in empty and not empty_too:
            continue
        found |= rows_by_name(
            run_there(options, member, ["prepare", *_alone(member), *rate, *more])
        )
    return found


def stage_there(
    options: argparse.Namespace, group: GivenGroup, alone: dict[str, Any]
) -> dict[str, Any]:
    """Copy the sealed files that members of other hosts lack to their stages, and build twins.

    ``alone`` is the result of :func:`prepare_alone`, after which every survey is quick.
    """
    context = plan_context_of(options)
    words = ["--rate", str(options.rate), *(["--leave"] if options.leave else [])]
    found: dict[str, Any] = {}
    for member in group.file.linked:
        line = ["prepare", *long_form(group.file, member), *words]
        value = rows_by_name(run_there(options, member, line, context.group.replicas))[member.name]
        before = alone.get(member.name, value)
        found[member.name] = {**value, "read_bytes": before["read_bytes"]}
    return found


def clear_there(options: argparse.Namespace, group: GivenGroup) -> list[str]:
    """Remove what was learned on other hosts; return the names of their members."""
    reach_hosts(options, group.file)
    for member in group.file.linked:
        run_there(options, member, ["prepare", *long_form(group.file, member), "--clear"])
    return [member.name for member in group.file.linked]


def _alone(member: MemberSpec) -> list[str]:
    return [f"{member.name}={member.directory}", "-c", f"{member.name}={member.config}"]
