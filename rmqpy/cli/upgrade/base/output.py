"""The output of ``rmqpy upgrade``: text or JSON, refusals included."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rmqpy.cli.errors import error_json
from rmqpy.cli.given_files import read_secret
from rmqpy.cli.parsing import EXIT_DONE, EXIT_NO
from rmqpy.cli.terminal import Rows, show

if TYPE_CHECKING:
    from typing import TextIO

    from rmqpy.upgrade.checks.findings import Group
    from rmqpy.upgrade.plan.journal import Journal
    from rmqpy.upgrade.plan.plan import Plan
    from rmqpy.upgrade.steps.plan_context import PlanContext

Verb = Callable[[argparse.Namespace], int]


def guarded(run: Verb) -> Verb:
    def guarded(options: argparse.Namespace) -> int:
        from rmqpy.cli.upgrade.base.given import use_group
        from rmqpy.cli.upgrade.base.hosts import Hosts
        from rmqpy.upgrade.plan.node_context import UpgradeRefusedError
        from rmqpy.upgrade.steps.reference import DivergedError

        mine = None if hasattr(options, "hosts") else Hosts()
        if mine is not None:
            options.hosts = mine
        options.is_typed = mine is not None
        try:
            options.given_group = use_group(options) if options.of_group else None
            return run(options)
        except UpgradeRefusedError as refused:
            text = _as_typed(options, str(refused))
            sides = refused.sides if isinstance(refused, DivergedError) else {}
            more = {"refused": text, **({"sides": sides} if sides else {})}
            value = error_json(text, EXIT_NO, more)
            print_result(options, value, _refusal_lines(text, sides), sys.stderr)
            return EXIT_NO
        finally:
            if mine is not None:
                mine.close()

    return guarded


def _as_typed(options: argparse.Namespace, text: str) -> str:
    """Return a refusal with the commands of a group as they are typed in its directory."""
    group = getattr(options, "given_group", None)
    for member in group.file.members if group is not None else ():
        for words in (f"apply --resume {member.directory}", f"rollback {member.directory}"):
            text = text.replace(f"rmqpy upgrade {words}", f"rmqpy upgrade {words.split()[0]}")
    return text


def _refusal_lines(text: str, sides: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    yield f"rmqpy: refused: {text}"
    for pair, messages in sides.items():
        for side, lines in messages.items():
            yield f"{pair}, only on {side}:"
            yield from (f"  {line}" for line in lines)


def confirm(options: argparse.Namespace, plan: Plan, group: Group, what: str) -> None:
    """Show the plan, and ask at a terminal. Raise UpgradeRefusedError unless the answer is yes."""
    if not options.yes and options.format != "json":
        print_result(options, None, _plan_lines(options, plan, group))
    ask(options, what, "Read the plan (--dry-run), then run")


def ask(options: argparse.Namespace, what: str, remedy: str = "Run") -> None:
    """Ask at a terminal, unless ``--yes`` was given. Raise UpgradeRefusedError if the answer is not
    yes.
    """
    from rmqpy.upgrade.plan.node_context import UpgradeRefusedError

    if options.yes:
        return
    if options.format != "json":
        if sys.stdin.isatty() and input(f"{what}? [y/N] ").strip().lower() in ("y", "yes"):
            return
    raise UpgradeRefusedError(
        f"found no confirmation to {what}, expected --yes or the answer y at a terminal; nothing"
        f" was changed. {remedy} the command again with --yes"
    )


def show_plan(options: argparse.Namespace, plan: Plan, context: PlanContext) -> int:
    """Show a plan for a group, and write it to the file of ``--out``."""
    space = [
        {"member": name, "folder": each.folder, "needed": each.needed, "free": each.free}
        for name, each in context.space_of(plan)
    ]
    value = plan.to_json(read_secret(getattr(options, "key", None)), space)
    if getattr(options, "out", None):
        write_result(options.out, json.dumps(value, indent=1).encode())
    lines = [*_plan_lines(options, plan, context.group), *written_line(options)]
    print_result(options, value, lines)
    return EXIT_DONE


def write_result(path: str, data: bytes) -> None:
    """Write the file of ``--out``. On a full disk, the one that was there stays as it is."""
    from pathlib import Path

    from rmqpy.store.files.disk import OsFileSystem

    target = Path(path).resolve()
    special = target.exists() and not target.is_file()  # a pipe, or /dev/stdout
    if special or not target.parent.is_dir():
        target.write_bytes(data)  # An unknown folder may be a mistake: this does not create it.
    else:
        OsFileSystem().replace_bytes(str(target), data)


def written_line(options: argparse.Namespace) -> list[str]:
    """Return the line that says where the result is written, if it is."""
    from pathlib import Path

    if not getattr(options, "out", None):
        return []
    path = Path(options.out)
    return [f"written to {path.name if path.parent == Path.cwd() else path}"]


def _plan_lines(options: argparse.Namespace, plan: Plan, group: Group) -> Iterable[str]:
    free = {each.name: each.disk_free for each in group.surveys}
    return plan.lines(free, details=options.details)


def print_journal(options: argparse.Namespace, journal: Journal, text: str) -> int:
    print_result(options, journal_json(journal), [text])
    return EXIT_DONE


def journal_json(journal: Journal) -> dict[str, Any]:
    return {"plan": journal.plan_id, "state": journal.state, "done": journal.done}


def print_result(
    options: argparse.Namespace,
    value: object,
    lines: Iterable[str | Rows],
    stream: TextIO | None = None,
) -> None:
    if options.format == "json":
        json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
        print()
        return
    show(lines, stream)
