"""A self-contained HTML page about an audit: the logs, the damage, the equality of replicas, and
the messages over time.

The stores are drawn on one store map (:mod:`rmqpy.audit.picture`). The page loads nothing: it has
inline SVG and no script, and each shape has a title.

over time: a row per topic has the messages that were stored in each interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from attrs import define, field

from rmqpy.audit.checks.engine import StoreAudit
from rmqpy.audit.picture.layout import lay_out
from rmqpy.audit.picture.reading import replica_of_audit
from rmqpy.audit.picture.svg import MAP_SHAPES, MAP_STYLE, map_svg
from rmqpy.audit.scan.findings import Finding
from rmqpy.model.text import count_text
from rmqpy.pipeline.jobs.timeline import BIN_COUNT

__all__ = ["PageStore", "render_page"]

WIDTH: Final = 960
ROW: Final = 22
LABEL: Final = 200
TOPICS_MAX: Final = 40
SHOWN_FINDINGS: Final = 200

STYLE: Final = """
table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
.over-time{display:block;margin:.4em 0}
.over-time text{font:11px system-ui,"DejaVu Sans",sans-serif;fill:var(--dim)}
"""


@define(slots=True, kw_only=True)
class PageStore:
    """One audited store. ``over_time`` counts messages by topic and interval."""

    root: str
    audit: StoreAudit = field(init=False)
    findings: list[Finding] = field(factory=list)
    over_time: Counter[tuple[str, int]] = field(factory=Counter)


def render_page(stores: Sequence[PageStore], times_ms: tuple[int, int]) -> str:
    """Return the page as HTML; ``times_ms`` is the time span of the intervals of ``over_time``."""
    clean = all(store.audit.is_clean for store in stores)
    layout = lay_out(
        [replica_of_audit(store.root, store.audit, store.findings) for store in stores]
    )
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Audit of stores</title>",
        f"<style>{MAP_STYLE}{MAP_SHAPES}{STYLE}</style></head>",
        f"<body><h1>Audit of {count_text(len(stores), 'store')}</h1>",
        f"<p class={'good' if clean else 'bad'}>{'clean' if clean else 'findings above note'}</p>",
        *_summary(stores),
        "<h2>Logs by physical offset</h2>",
        f"<p>{escape(layout.verdict)}</p>" if layout.verdict else "",
        map_svg(layout),
    ]
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
            f"<td>{store.audit.queue_count}<td>{counts or 'none'}</tr>"
        )
    yield "</table>"


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
    topics = count_text(len(sums), "topic")
    yield f"<p>{sums.total():,} messages of {topics}; each row has its own scale"
    yield f"; {count_text(hidden, 'topic')} with fewer not shown</p>" if hidden else "</p>"


def _bars(topic: str, counts: Sequence[int], top: int) -> Iterator[str]:
    most, width = max([*counts, 1]), (WIDTH - LABEL) / BIN_COUNT
    for part, count in enumerate(counts):
        if count:
            height = max((ROW - 4) * count / most, 1.0)
            yield (
                f'<rect x="{LABEL + part * width:.1f}" y="{top + ROW - 2 - height:.1f}" '
                f'width="{width - 0.4:.1f}" height="{height:.1f}" class="classic">'
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
            for finding in store.findings[:SHOWN_FINDINGS]:
                severity = finding.code.severity.value
                yield f"<tr><td>{escape(severity)}<td>{escape(str(finding))}</tr>"
            yield "</table>"
            hidden = sum(store.audit.counts.values()) - min(len(store.findings), SHOWN_FINDINGS)
            if hidden:
                yield f"<p>{hidden} more: run rmqpy pipeline audit to list them</p>"


def _svg(height: int, name: str) -> str:
    return (
        f'<svg class="{name}" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">'
    )


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _short(words: str) -> str:
    return words if len(words) <= 32 else f"…{words[-31:]}"
