"""The figures of a run as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from rows import Row, Sample

import rmqpy

Results = Mapping[str, Mapping[str, Mapping[str, list[dict[str, Any]]]]]
"""``results[profile][load][kind]`` holds one result per round."""


def summary(rows: Sequence[Row], results: Results) -> list[dict[str, Any]]:
    """Return min, median, and max of both samples of each row, and the ratio of the medians."""
    lines = []
    for row in rows:
        base, sample = (_figures(row, each, results) for each in row.samples)
        line: dict[str, Any] = {"row": row.name, "figure": row.figure}
        for name, each, figures in (
            ("base", row.base, base),
            ("sample", row.sample, sample),
        ):
            line[name] = {"kind": each.kind, "load": each.load, "figures": _three(figures)}
        line["ratio"] = (
            round(statistics.median(sample) / statistics.median(base), 3)
            if base and sample
            else None
        )
        line["lower_is_better"] = row.lower_is_better
        lines.append(line)
    return lines


def table(rows: Sequence[Row], results: Results) -> str:
    lines = [f"{'row':19} {'figure':26} {'base':>36} {'rmqpy':>36} {'ratio':>8}"]
    for line in summary(rows, results):
        cells = [f"{_text(line[name]['figures']):>36}" for name in ("base", "sample")]
        ratio = "-" if line["ratio"] is None else f"{line['ratio']:.2f}x"
        lines.append(f"{line['row']:19} {line['figure']:26} {' '.join(cells)} {ratio:>8}")
    return "\n".join(lines)


def write_results(path: Path | None, rounds: int, seconds: float, results: object) -> None:
    """Write the results of a run to ``path``, if it is given."""
    if path is None:
        return
    content = {
        "date": date.today().isoformat(),
        "machine": machine(),
        "rounds": rounds,
        "seconds": seconds,
        "results": results,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": _version("uvloop"),
        "rmqpy": rmqpy.__version__,
        "load_before": os.getloadavg()[0],
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def write_json(path: Path, about: Mapping[str, Any], rows: Sequence[Row], results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": date.today().isoformat(),
        **about,
        "rows": summary(rows, results),
        "results": results,
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def brief(result: Mapping[str, Any]) -> str:
    return (
        f"{result['messages_per_server_cpu_s']:12,.0f} msg/CPU-s"
        f" {result['messages_per_s']:12,.0f} msg/s p99 {result['latency_ms']['p99']:8.3f} ms,"
        f" core {result['server_cpu_share']:.0%}, refused {result['refused']}"
    )


def _figures(row: Row, sample: Sample, results: Results) -> list[float]:
    measured = results.get(row.profile, {}).get(sample.load, {}).get(sample.kind, [])
    return [result[row.figure] for result in measured]


def _three(figures: Sequence[float]) -> list[float] | None:
    return [min(figures), statistics.median(figures), max(figures)] if figures else None


def _text(three: Sequence[float] | None) -> str:
    if three is None:
        return "-"
    digits = 3 if three[2] < 100 else 0
    return " / ".join(f"{figure:,.{digits}f}" for figure in three)
