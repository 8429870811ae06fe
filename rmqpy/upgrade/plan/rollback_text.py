"""What a rollback will undo, as lines to read before it is carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from rmqpy.audit.scan.directory import LEDGER_PREFIX, PATH_SEPARATOR, paths_below
from rmqpy.model.text import count_text, format_bytes
from rmqpy.upgrade.plan import undo
from rmqpy.upgrade.plan.engine import Rollback
from rmqpy.upgrade.plan.evidence import UNKNOWN_FINGERPRINT
from rmqpy.upgrade.plan.journal import APPLIED
from rmqpy.upgrade.plan.node_context import ABSENT
from rmqpy.upgrade.plan.operations import (
    Create,
    Cut,
    Derive,
    Fetch,
    Install,
    MakeDir,
    Move,
    Op,
    OpState,
    Write,
)

_LOG = "files of the log"
_CHANGED = "changed back"
_REMOVED = "removed"
_MOVED = "moved back"


def rollback_lines(rollback: Rollback) -> list[str]:
    """Return lines with the plan, its progress, and what changes: configuration, files, messages.

    An operation that had been done before the plan is not undone, and not counted among the files.
    """
    context, journal, record = rollback.context, rollback.journal, rollback.record
    lines = [
        f"undoes plan {journal.plan_id} ({', '.join(record.plan.steps)}), which is"
        f" {journal.state}: {rollback.begun} of {count_text(len(record.node.ops), 'operation')}"
    ]
    if journal.damage:
        lines.insert(0, f"the journal is damaged ({journal.damage}): going by the other evidence")
    undone = _Undone(rollback)
    for number, op in enumerate(record.node.ops[: rollback.begun]):
        if not undo.is_skipped(context.files, context.undo_path(journal.plan_id, number)):
            undone.add(op)
    lines += undone.lines()
    if journal.earlier:
        lines.append(f"plan {journal.earlier[-1]}, which was applied before it, stays applied")
    return lines


@define(slots=True)
class _Undone:
    """The places that a rollback changes, counted."""

    _rollback: Rollback
    _configuration: list[str] = field(factory=list)
    _places: Counter[tuple[str, str]] = field(factory=Counter)
    _seen: set[tuple[str, str]] = field(factory=set)
    _sources: dict[str, None] = field(factory=dict)
    _cut_bytes: int = 0

    def add(self, op: Op) -> None:
        place, effect = _effect(op, self._is_own(op.path))
        if self._is_own(place):
            return  # built ahead of time: no part of the store yet
        if place in self._rollback.context.configuration:
            removed = effect == _REMOVED
            text = f"{place} {'is removed' if removed else 'gets back its earlier content'}"
            if op.state(self._rollback.context) is OpState.OTHER:
                text += ", and what was edited since is lost"
            self._configuration.append(text)
            return
        area = self._area(place)
        if (place, effect) not in self._seen:
            self._seen.add((place, effect))
            self._places[area, effect] += 1
        if area == _LOG and (source := _source_of(op)):
            self._sources[source] = None
        if isinstance(op, Cut):
            self._cut_bytes += op.end - op.start

    def lines(self) -> Iterator[str]:
        yield f"configuration: {'; '.join(self._configuration) or 'unchanged'}"
        for area in dict.fromkeys(area for area, _ in self._places):
            counts = [
                f"{count} {effect}"
                for (where, effect), count in self._places.items()
                if where == area
            ]
            yield f"{area}: {', '.join(counts)}"
        if self._sources:
            yield f"messages: those copied from {', '.join(self._sources)} are removed here again"
        if self._cut_bytes:
            yield f"messages: {format_bytes(self._cut_bytes)} that were cut off return"
        yield f"messages: {self._written_since()}"

    def _written_since(self) -> str:
        journal = self._rollback.journal
        if journal.state != APPLIED:
            return (
                "the plan is half done, so no rmqpy broker can have written any since; what a Java"
                " broker has written would be lost"
            )
        if journal.fingerprint == UNKNOWN_FINGERPRINT:
            return "it is not known whether any were written since; they would be lost"
        return "none were written since the plan was applied, so none are lost"

    def _is_own(self, place: str) -> bool:
        context = self._rollback.context
        folders = (context.work, self._rollback.record.node.keep)
        return any(place == folder or place.startswith(f"{folder}/") for folder in folders)

    def _area(self, place: str) -> str:
        context = self._rollback.context
        paths = paths_below(context.root, context.settings)
        areas = {
            _LOG: paths.commit_log.split(PATH_SEPARATOR),
            "consume queues and key index": [paths.consume_queue, paths.index],
            "tables": [paths.config],
        }
        if place.startswith(f"{context.root}/{LEDGER_PREFIX}"):
            return _LOG
        for area, folders in areas.items():
            if any(place == folder or place.startswith(f"{folder}/") for folder in folders):
                return area
        return "other files"


def _source_of(op: Op) -> str:
    if isinstance(op, Fetch):
        return op.replica
    return op.source[0] if op.source is not None else ""


def _effect(op: Op, starts_in_own: bool) -> tuple[str, str]:
    """Return the place that taking ``op`` back changes, and how.

    ``starts_in_own`` says whether the path of ``op`` is below a folder of the plan, from which a
    move brings what was built ahead of time.
    """
    if isinstance(op, Move):
        return (op.to, _REMOVED) if starts_in_own else (op.path, _MOVED)
    if isinstance(op, Install):
        return op.path, _MOVED
    if isinstance(op, (Create, Derive, MakeDir)):
        return op.path, _REMOVED
    if isinstance(op, (Write, Fetch)) and op.before == ABSENT:
        return op.path, _REMOVED
    return op.path, _CHANGED
