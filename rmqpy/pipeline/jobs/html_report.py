"""A self-contained HTML page about an audit: the logs, the damage, the equality of replicas, and
the messages over time.

All stores share the axis of physical offsets, divided into ``CELLS`` cells. The page loads nothing:
it has inline SVG and no script, and each shape has a title.

==================  ==============================================================================
map of a store      its log files up to their content, and the divide between the classic log and
                    the DLedger log
heat                findings by cell: darker means more, the colour shows the worst severity
equality strip      (two stores or more) blocks of 64 KiB by cell: all equal, different, or not
                    present in all stores
over time           a row per topic: messages stored in each interval
==================  ==============================================================================
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from attrs import define, field

from rmqpy.audit.checks.engine import StoreAudit
from rmqpy.audit.facts.facts import StoreFacts
from rmqpy.audit.scan.findings import Finding, Severity
from rmqpy.codec.tally.kernel import BLOCK_SIZE
from rmqpy.pipeline.jobs.timeline import BIN_COUNT

__all__ = ["Axis", "PageStore", "render_page", "take_findings"]

CELLS: Final = 240
WIDTH: Final = 960
ROW: Final = 22
LABEL: Final = 200
TOPICS_MAX: Final = 40
SHOWN_FINDINGS: Final = 200

COLOURS: Final = {
    "classic": "#4878a8",
    "ledger": "#58925c",
    "equal": "#58925c",
    "different": "#b03a3a",
    "missing": "#d8d8d8",
    Severity.DAMAGE: "#b03a3a",
    Severity.DERIVED: "#c98a1b",
    Severity.TAIL: "#7d5ba6",
    Severity.NOTE: "#8a8a8a",
}
STYLE: Final = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1180px;color:#222}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
svg{display:block;margin:.4em 0}svg text{font:11px system-ui,sans-serif;fill:#444}
.bad{color:#b03a3a;font-weight:600}.good{color:#3f7a44;font-weight:600}
"""


@define(slots=True, kw_only=True)
class PageStore:
    """One audited store. ``over_time`` counts messages by topic and interval."""

    root: str
    audit: StoreAudit = field(init=False)
    cells: Counter[tuple[int, Severity]] = field(factory=Counter)
    findings: list[Finding] = field(factory=list)
    over_time: Counter[tuple[str, int]] = field(factory=Counter)


@define(slots=True, frozen=True)
class Axis:
    """Physical offsets from ``begin`` to ``end`` in ``CELLS`` cells."""

    begin: int
    end: int

    @property
    def span(self) -> int:
        return max(self.end - self.begin, 1)

    def x(self, offset: int) -> float:
        part = (offset - self.begin) / self.span
        return LABEL + (WIDTH - LABEL) * min(max(part, 0.0), 1.0)

    def cell(self, offset: int) -> int:
        return min(max((offset - self.begin) * CELLS // self.span, 0), CELLS - 1)

    @classmethod
    def over(cls, facts: Sequence[StoreFacts]) -> Axis:
        """Return the axis that covers all of these stores."""
        return cls(min(fact.begin for fact in facts), max(fact.end for fact in facts))

    def places(self, cell: int) -> tuple[int, int]:
        """Return the first and the end offset of a cell."""
        return (
            self.begin + cell * self.span // CELLS,
            self.begin + (cell + 1) * self.span // CELLS,
        )


def render_page(stores: Sequence[PageStore], axis: Axis, times_ms: tuple[int, int]) -> str:
    """Return the page as HTML; ``times_ms`` is the time span of the intervals of ``over_time``."""
    clean = all(store.audit.is_clean for store in stores)
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Audit of stores</title>",
        f"<style>{STYLE}</style></head><body><h1>Audit of {len(stores)} store"
        f"{'s' if len(stores) != 1 else ''}</h1>",
        f"<p class={'good' if clean else 'bad'}>{'clean' if clean else 'findings above note'}</p>",
        *_summary(stores),
        "<h2>Logs by physical offset</h2>",
        *_logs(stores, axis),
    ]
    if len(stores) > 1:
        parts += ["<h2>Equality of the replicas</h2>", *_equality(stores, axis)]
    parts += ["<h2>Messages over time</h2>", *_over_time(stores, times_ms), *_findings(stores)]
    return "\n".join([*parts, "</body></html>", ""])


def _summary(stores: Sequence[PageStore]) -> Iterator[str]:
    yield "<table><tr><th>store<th>mode<th>offsets<th>divide<th>records<th>queues<th>findings</tr>"
    for store in stores:
        facts = store.audit.facts
        divide = "" if facts.divided_offset is None else f"{facts.divided_offset:,}"
        counts = ", ".join(
            f"{count} {escape(code.name)}" for code, count in store.audit.counts.items()
        )
        yield (
            f"<tr><td>{escape(store.root)}<td>{escape(facts.mode.value)}"
            f"<td>{facts.begin:,} to {facts.end:,}<td>{divide}<td>{store.audit.records:,}"
            f"<td>{len(store.audit.queues)}<td>{counts or 'none'}</tr>"
        )
    yield "</table>"


# ------------------------------------------------------------------------------ logs and heat


def _logs(stores: Sequence[PageStore], axis: Axis) -> Iterator[str]:
    height = len(stores) * 2 * ROW + 20
    yield _svg(height, "store-map")
    for number, store in enumerate(stores):
        top = number * 2 * ROW
        yield _text(0, top + 14, _short(store.root))
        yield from _files(store, axis, top)
        yield from _heat(store, axis, top + ROW - 4)
        divide = store.audit.facts.divided_offset
        if divide is not None:
            x = axis.x(divide)
            yield (
                f'<line class="divide" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + ROW + 10}" '
                f'stroke="#222" stroke-dasharray="3 2"><title>divide at {divide:,}</title></line>'
            )
    yield from _scale(axis, height - 6)
    yield "</svg><p>Blue: classic files; green: DLedger files; dashed: the divide. Below each map "
    yield "are its findings: red damage, amber derived files, purple tails, grey notes."
    yield "</p>"


def _files(store: PageStore, axis: Axis, top: int) -> Iterator[str]:
    for kind, log in (("classic", store.audit.classic), ("ledger", store.audit.ledger)):
        for file in log.files if log is not None else ():
            left, right = axis.x(file.first_offset), axis.x(file.end)
            yield (
                f'<rect x="{left:.1f}" y="{top + 2}" width="{max(right - left, 0.5):.1f}" '
                f'height="14" fill="{COLOURS[kind]}" stroke="#fff" stroke-width=".6"><title>'
                f"{escape(file.file)}: {file.first_offset:,} to {file.end:,}</title></rect>"
            )


def _heat(store: PageStore, axis: Axis, top: int) -> Iterator[str]:
    by_cell: dict[int, Counter[Severity]] = defaultdict(Counter)
    for (cell, severity), count in store.cells.items():
        by_cell[cell][severity] += count
    most = max((counts.total() for counts in by_cell.values()), default=1)
    for cell, counts in sorted(by_cell.items()):
        worst = min(counts, key=list(Severity).index)
        begin, end = axis.places(cell)
        opacity = 0.35 + 0.65 * math.log1p(counts.total()) / math.log1p(most)
        yield (
            f'<rect class="heat" x="{axis.x(begin):.1f}" y="{top}" '
            f'width="{max(axis.x(end) - axis.x(begin), 1.5):.1f}" height="10" '
            f'fill="{COLOURS[worst]}" fill-opacity="{opacity:.2f}">'
            f"<title>{counts.total()} findings at {begin:,} to {end:,}</title></rect>"
        )


def _scale(axis: Axis, baseline: int) -> Iterator[str]:
    for part in range(5):
        offset = axis.begin + axis.span * part // 4
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        yield _text(axis.x(offset), baseline, f"{offset:,}", anchor)


# ------------------------------------------------------------------------------ replicas


def _equality(stores: Sequence[PageStore], axis: Axis) -> Iterator[str]:
    blocks = [dict(_blocks(store.audit)) for store in stores]
    cells = [_agreement(axis.places(cell), blocks) for cell in range(CELLS)]
    yield _svg(ROW + 20, "equality")
    for cell, (kind, note) in enumerate(cells):
        if kind:
            begin, end = axis.places(cell)
            width = axis.x(end) - axis.x(begin)
            yield (
                f'<rect class="{kind}" x="{axis.x(begin):.1f}" y="2" width="{width + 0.2:.1f}" '
                f'height="16" fill="{COLOURS[kind]}">'
                f"<title>{begin:,} to {end:,}: {note}</title></rect>"
            )
    yield from _scale(axis, ROW + 14)
    yield "</svg><p>Green: equal in all stores; red: different; grey: not in all stores.</p>"


def _blocks(audit: StoreAudit) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield ((kind of log, offset), digest) of each block."""
    for kind, log in (("classic", audit.classic), ("ledger", audit.ledger)):
        for file in log.files if log is not None else ():
            for number, digest in enumerate(file.blocks):
                yield (kind, file.first_offset + number * BLOCK_SIZE), digest


def _agreement(
    bounds: tuple[int, int], stores: Sequence[Mapping[tuple[str, int], str]]
) -> tuple[str, str]:
    """Return (kind, text) of the agreement of a cell's blocks, or empty texts without blocks."""
    first = bounds[0] // BLOCK_SIZE * BLOCK_SIZE
    equal = different = missing = 0
    for offset in range(first, max(bounds[1], first + 1), BLOCK_SIZE):
        for kind in ("classic", "ledger"):
            found = [store.get((kind, offset)) for store in stores]
            present = [digest for digest in found if digest is not None]
            if not present:
                continue
            different += len(set(present)) > 1
            missing += len(present) < len(found)
            equal += len(present) == len(found) and len(set(present)) == 1
    if different:
        return "different", f"{different} blocks differ"
    if missing:
        return "missing", f"{missing} blocks are not present in all stores"
    return ("equal", f"{equal} blocks, all equal") if equal else ("", "")


# ------------------------------------------------------------------------------ time


def _over_time(stores: Sequence[PageStore], times_ms: tuple[int, int]) -> Iterator[str]:
    total: Counter[tuple[str, int]] = Counter()
    for store in stores:
        for key, count in store.over_time.items():
            total[key] = max(total[key], count)  # replicas have the same messages
    sums: Counter[str] = Counter()
    for (topic, _), count in total.items():
        sums[topic] += count
    shown = [topic for topic, _ in sums.most_common(TOPICS_MAX)]
    yield _svg(len(shown) * ROW + 20, "over-time")
    for number, topic in enumerate(shown):
        yield _text(0, number * ROW + 14, _short(topic))
        counts = [total[topic, part] for part in range(BIN_COUNT)]
        yield from _bars(topic, counts, number * ROW)
    first, last = times_ms
    for part, anchor in ((0, "start"), (1, "end")):
        x = LABEL + (WIDTH - LABEL) * part
        yield _text(x, len(shown) * ROW + 14, _moment((first, last)[part]), anchor)
    yield "</svg>"
    hidden = len(sums) - len(shown)
    yield f"<p>{sums.total():,} messages of {len(sums)} topics; each row has its own scale"
    yield f"; {hidden} topics with fewer are not shown</p>" if hidden else "</p>"


def _bars(topic: str, counts: Sequence[int], top: int) -> Iterator[str]:
    most, width = max([*counts, 1]), (WIDTH - LABEL) / BIN_COUNT
    for part, count in enumerate(counts):
        if count:
            height = max((ROW - 4) * count / most, 1.0)
            yield (
                f'<rect x="{LABEL + part * width:.1f}" y="{top + ROW - 2 - height:.1f}" '
                f'width="{width - 0.4:.1f}" height="{height:.1f}" fill="{COLOURS["classic"]}">'
                f"<title>{escape(topic)}: {count}</title></rect>"
            )


def _moment(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


# ------------------------------------------------------------------------------ findings, SVG


def _findings(stores: Sequence[PageStore]) -> Iterator[str]:
    for store in stores:
        if store.findings:
            yield f"<h2>Findings of {escape(store.root)}</h2><table>"
            for finding in store.findings:
                severity = finding.code.severity.value
                yield f"<tr><td>{escape(severity)}<td>{escape(str(finding))}</tr>"
            yield "</table>"
            hidden = sum(store.audit.counts.values()) - len(store.findings)
            if hidden:
                yield f"<p>{hidden} more: run rmqpy pipeline audit to list them</p>"


def take_findings(store: PageStore, axis: Axis, findings: Iterable[Finding]) -> None:
    """Count findings in their cells and keep the first ones."""
    for finding in findings:
        if finding.offset >= 0:
            store.cells[axis.cell(finding.offset), finding.code.severity] += 1
        if len(store.findings) < SHOWN_FINDINGS:
            store.findings.append(finding)


def _svg(height: int, name: str) -> str:
    return (
        f'<svg id="{name}" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(words: str) -> str:
    return words if len(words) <= 32 else f"…{words[-31:]}"
