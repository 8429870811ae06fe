"""Write docs/reference/performance.md and its pictures from the committed results.

    python bench/performance.py

The page has every row of the newest full run of ``compare.py``, the newest runs of ``requests.py``,
``tailing.py``, and ``clients.py``, and the runs of ``live.py``. It depends on the results only, so
a test compares it without a tolerance.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from html import escape
from operator import getitem
from pathlib import Path
from typing import Any, Final

from attrs import frozen

FOLDER: Final = Path(__file__).parent
PICTURES: Final = FOLDER.parent / "docs" / "plots"
PAGE: Final = FOLDER.parent / "docs" / "reference" / "performance.md"
ROWS_OF_A_FULL_RUN: Final = 20
LIVE: Final = "*-live-own-disks.json"
"""The name of the results of bench/live.py that the pages show."""
RATE: Final = "messages_per_server_cpu_s"
CLIENT_RATE: Final = "messages_per_cpu_s"
WIDTH: Final = 760
COLOURS: Final = {"better": "#1f6fb4", "worse": "#b4541f", "switch": "#1f6fb4", "leave": "#3a8f3a"}

MEANINGS: Final = {
    "send-128": "sends of 128 bytes, 4 connections with 64 requests in flight",
    "send-128-binary": "the same with ROCKETMQ headers",
    "send-1k": "sends of 1 KiB",
    "send-64x1": "64 connections with one request each",
    "batch-16x128": "batches of 16 messages",
    "pull-32x128": "pulls of 32 stored messages",
    "send-128-pure": "send-128 without the C core",
    "floor-send-128": "a program that only stores the bytes: the upper bound",
    "floor-send-1k": "the same, 1 KiB",
    "floor-send-64x1": "the same, 64 connections with one request each",
    "p99-ms-4x64": "99th percentile of the latency of send-128, ms",
    "p50-ms-5000-a-s": "median latency of 5,000 sends per second, ms",
    "p99-ms-under-admin": "99th percentile beside ten admin commands a second; base: without, ms",
    "memory-idle-kb": "anonymous memory before any load, KiB",
    "memory-10m-kb": "anonymous memory after 10,000,000 sends, KiB",
    "send-128-access": "send-128, signed, with access control",
    "send-1k-access": "send-1k, signed, with access control",
    "sync-flush-128": "SYNC_FLUSH, messages per second of wall time",
    "dledger-128": "DLedger group of one member, 128 bytes",
    "dledger-1k": "the same, 1 KiB",
    "dledger-3x128": "DLedger group of three members on one core, 128 bytes",
    "dledger-3x1k": "the same, 1 KiB",
    "failover-s": "a killed leader is replaced, s",
    "failover-fast-s": "the same, rmqpy with its fast profile",
    "start-s": "start with an empty store, s",
    "groups-1": "1 group, 4 queues",
    "groups-10": "10 groups, 4 queues",
    "groups-10-500": "the same, 500 sends per second",
    "groups-100": "100 groups, 4 queues",
    "groups-100-100": "the same, 100 sends per second",
    "groups-1000": "1,000 groups, 1 queue",
    "held-1000": "1,000 waiting pulls: 10 groups, 100 queues",
    "held-1000-200": "the same, 200 sends per second",
    "held-10000": "10,000 waiting pulls: 100 groups, 100 queues",
    "held-10000-50": "the same, 50 sends per second",
}


@frozen
class Gain:
    """A row of a table: how many times better rmqpy is than its base (below 1: worse)."""

    name: str
    times: float


def newest(pattern: str) -> Path:
    return max((FOLDER / "results").glob(pattern))


def full_run() -> Path:
    """Return the newest results of ``compare.py`` with all rows."""
    found = [path for path in (FOLDER / "results").glob("*.json") if _is_full(_read(path))]
    return max(found)


def _is_full(content: Mapping[str, Any]) -> bool:
    return len(content.get("rows", ())) >= ROWS_OF_A_FULL_RUN


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def gains(rows: Sequence[Mapping[str, Any]]) -> list[Gain]:
    """Return the rows beside Java, the largest gain first."""
    found = []
    for row in rows:
        if row["base"]["kind"] == "java" and row["sample"]["kind"] != "floor":
            ratio = row["ratio"]
            found.append(Gain(row["row"], 1 / ratio if row["lower_is_better"] else ratio))
    return sorted(found, key=lambda each: -each.times)


# -- Pictures


def bars(found: Sequence[Gain]) -> str:
    """Return a picture of the gains on a logarithmic axis; bars begin at 1."""
    left, line = 170, 20
    height = line * len(found) + 70
    low, high = 0.1, 100.0

    def place(value: float) -> float:
        share = math.log10(value / low) / math.log10(high / low)
        return left + share * (WIDTH - left - 60)

    parts = _head(height, "times Java 4.9.7 (right of 1: rmqpy is better)")
    for tick in (0.1, 1.0, 10.0, 100.0):
        parts.append(_line(place(tick), 36, place(tick), height - 30))
        parts.append(_text(place(tick), height - 12, f"{tick:g}", "middle"))
    for number, gain in enumerate(found):
        top = 40 + line * number
        begin, end = sorted((place(1), place(min(max(gain.times, low), high))))
        colour = COLOURS["better" if gain.times >= 1 else "worse"]
        parts.append(
            f'<rect x="{begin:.1f}" y="{top}" width="{end - begin:.1f}" height="14"'
            f' fill="{colour}"/>'
        )
        parts.append(_text(left - 8, top + 11, gain.name, "end"))
        parts.append(_text(end + 4, top + 11, _times(gain.times), "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def gaps(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a picture of the longest gap between acknowledged sends in every run of a change."""
    height, left, top, bottom = 320, 60, 40, 50
    groups = sorted({(run["change"], run["gigabytes"]) for run in runs}, reverse=True)
    low, high = 10.0, 1000.0

    def place(value: float) -> float:
        share = math.log10(value / low) / math.log10(high / low)
        return height - bottom - share * (height - bottom - top)

    parts = _head(height, "longest gap between two acknowledged sends, ms: one circle a run")
    for tick in (10.0, 100.0, 1000.0):
        parts.append(_line(left, place(tick), WIDTH - 20, place(tick)))
        parts.append(_text(left - 6, place(tick) + 4, f"{tick:g}", "end"))
    step = (WIDTH - left - 20) / len(groups)
    for number, (change, gigabytes) in enumerate(sorted(groups)):
        middle = left + step * (number + 0.5)
        parts.append(_text(middle, height - 26, f"{change}, {gigabytes} GB", "middle"))
        found = [run for run in runs if (run["change"], run["gigabytes"]) == (change, gigabytes)]
        for index, run in enumerate(run for run in found if run["decided"]):
            x = middle + (index - 5) * 6
            parts.append(
                f'<circle cx="{x:.1f}" cy="{place(run["gap_ms"]):.1f}" r="3"'
                f' fill="{COLOURS[change]}"/>'
            )
    parts.append(_text(left, height - 8, "old log of the group; 1 disk, 2 cores", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-weight="bold">{escape(title)}</text>',
    ]


def _line(x: float, y: float, x2: float, y2: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d0d0"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


# -- The page

_PAGE: Final = """\
# Performance

<!-- Generated by: python bench/performance.py -->

rmqpy beside Apache RocketMQ 4.9.7 (JDK 17), measured in turn in one run on one machine. Only the
ratios of one run are comparable: on a shared or virtual core, speed varies by a factor of two from
hour to hour. [bench/README.md](../../bench/README.md) says how each load is made,
[profile.md](../../bench/profile.md) what determines the figures and how they differ between runs.
Nothing was measured beside Java 5.x, over a network, or on more than two cores.

## Where rmqpy is slower

Every measured load at which rmqpy does less than Java:

| load | times Java | results |
|---|---|---|
{slower}

## A broker under load

![How many times better than Java, by load](../plots/beside-java.svg)

`python bench/compare.py`, {rounds} rounds of {seconds:g} s, {cores} cores ({cpu}), kernel {kernel},
Python {python}, uvloop {uvloop}, load before the run {load:.1f}. Rates are messages per CPU-second
of the broker: minimum / median / maximum. [Raw data](../../bench/results/{run})

| load | | base | rmqpy | ratio |
|---|---|---|---|---|
{rows}

Three Java members share one core badly: in some runs their rounds differ by a factor of eight.
Divided by Java's best round, the ratios of `dledger-3x…` are {best_128:.0f} and {best_1k:.0f}.

## A group that changes while it runs

![Longest gap between acknowledged sends, by change and size of the log](../plots/live-gaps.svg)

`python bench/live.py --disks DIR DIR DIR DIR`: eight tasks send without a retry while a group of
three becomes a DLedger group (switch), and a classic slave takes over from it (leave). Each broker
has a disk of its own.
[Live changes](live-changes.md#how-long-requests-wait) has the table and what determines it.
[Raw data](../../bench/results/{live})

## Each request

`python bench/requests.py`, requests per CPU-second of the broker, medians. {requests_load}
[Raw data](../../bench/results/{requests})

| request | Java 4.9.7 | rmqpy | ratio | Rust |
|---|---|---|---|---|
{request_rows}

Rust is the crate `rocketmq-broker` 1.0.0 with its defaults (`--rust`), one round of another run. An
empty cell: it refused the request, or was not measured. Each request is described in
[bench/README.md](../../bench/README.md#other-requests).

## Consumers that wait

`python bench/tailing.py`, deliveries to consumers that wait at the ends of their queues, per
CPU-second of the broker, and their latency from the moment at which the send was due; medians.
Rows without a rate keep 32 messages under way to all groups, on either broker. {tailing_load}
[Raw data](../../bench/results/{tailing})

| load | | Java 4.9.7 | rmqpy | ratio | p99 of Java, ms | of rmqpy, ms |
|---|---|---|---|---|---|---|
{tailing_rows}

## The client

`python bench/clients.py`, messages per CPU-second of the client, medians. {clients_load}
[Raw data](../../bench/results/{clients})

| load | Java 4.9.7 | rmqpy | ratio |
|---|---|---|---|
{client_rows}

rmqpy's pull consumer requests the next messages ahead, Java's does not;
[bench/README.md](../../bench/README.md#clients) has the figure without that, and all on uvloop.

## Growth, and the pipeline

[Growth](growth.md) shows what queues, groups, and waiting pulls cost;
[bench/README.md](../../bench/README.md#audit) compares audits, exports, and rebuilds with md5 and
Spark's own writer.
"""


def page() -> str:
    """Return the text of docs/reference/performance.md."""
    run, requests, clients = full_run(), newest("*-requests.json"), newest("*-clients.json")
    tailing = newest("*-tailing.json")
    content, of_requests, of_clients = _read(run), _read(requests), _read(clients)
    of_tailing = _read(tailing)
    machine, rows = content["machine"], content["rows"]
    return _PAGE.format(
        slower="\n".join(
            slower(
                (rows, run),
                ((of_requests, requests), (of_tailing, tailing)),
                (of_clients, clients),
            )
        ),
        rounds=content["rounds"],
        seconds=content["seconds"],
        cores=machine["cores"],
        cpu=machine["cpu"],
        kernel=machine["kernel"].partition("-")[0],
        python=machine["python"],
        uvloop=machine["uvloop"],
        load=machine["load_before"],
        run=run.name,
        rows="\n".join(map(_row, rows)),
        best_128=_beside_best(rows, "dledger-3x128"),
        best_1k=_beside_best(rows, "dledger-3x1k"),
        live=newest(LIVE).name,
        requests_load=_load(of_requests),
        requests=requests.name,
        request_rows="\n".join(_with_rust(of_requests)),
        tailing_load=_load(of_tailing),
        tailing=tailing.name,
        tailing_rows="\n".join(_deliveries(of_tailing)),
        clients_load=_load(of_clients),
        clients=clients.name,
        client_rows="\n".join(_pairs(of_clients, CLIENT_RATE)),
    )


def _row(row: Mapping[str, Any]) -> str:
    cells = [row["row"], MEANINGS.get(row["row"], ""), _three(row["base"]["figures"])]
    cells += [_three(row["sample"]["figures"]), f"{row['ratio']:.3g}"]
    return f"| {' | '.join(cells)} |"


def _load(content: Mapping[str, Any]) -> str:
    return f"The load before the run was {content['machine']['load_before']:.1f}."


def _medians(content: Mapping[str, Any], *figure: str) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each load and the medians of a figure, which may be within another."""
    for name, kinds in content["results"].items():
        if kinds.get("java") and kinds.get("rmqpy"):
            java, ours = (
                statistics.median(reduce(getitem, figure, each) for each in kinds[kind])
                for kind in ("java", "rmqpy")
            )
            yield name, java, ours


def _pairs(content: Mapping[str, Any], figure: str) -> Iterator[str]:
    for name, java, ours in _medians(content, figure):
        yield f"| {name} | {_short(java)} | {_short(ours)} | {ours / java:.3g} |"


def _deliveries(content: Mapping[str, Any]) -> Iterator[str]:
    rates = _medians(content, RATE)
    latencies = _medians(content, "latency_ms", "p99")
    for (name, java, ours), (_, java_ms, our_ms) in zip(rates, latencies, strict=True):
        cells = [name, MEANINGS[name], *map(_short, (java, ours)), f"{ours / java:.3g}"]
        yield f"| {' | '.join([*cells, *map(_short, (java_ms, our_ms))])} |"


def _with_rust(content: Mapping[str, Any]) -> Iterator[str]:
    for name, row in zip(content["results"], _pairs(content, RATE), strict=True):
        rounds = content["results"][name].get("rust", ())
        served = [each[RATE] for each in rounds if not each["refused"]]
        yield f"{row} {_short(statistics.median(served)) if served else ''} |"


def slower(
    compared: tuple[Sequence[Mapping[str, Any]], Path],
    of_brokers: Sequence[tuple[Mapping[str, Any], Path]],
    of_clients: tuple[Mapping[str, Any], Path],
) -> Iterator[str]:
    found = [(gain.name, gain.times, compared[1]) for gain in gains(compared[0])]
    for (content, path), figure in (
        *((each, RATE) for each in of_brokers),
        (of_clients, CLIENT_RATE),
    ):
        whose = "of the client: " if figure == CLIENT_RATE else ""
        medians = _medians(content, figure)
        found += [(whose + name, ours / java, path) for name, java, ours in medians]
    for name, times, path in sorted(found, key=lambda each: each[1]):
        if times < 1:
            yield f"| {name} | {_times(times)} | [{path.name}](../../bench/results/{path.name}) |"


def _beside_best(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    [row] = [each for each in rows if each["row"] == name]
    _, median, _ = row["sample"]["figures"]
    return float(median / max(row["base"]["figures"]))


def _three(figures: Sequence[float]) -> str:
    return " / ".join(_short(each) for each in figures)


def _short(figure: float) -> str:
    if figure >= 10_000:
        return f"{figure / 1000:,.0f} k"
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def pictures() -> dict[str, str]:
    """Return the pictures of the page by file name."""
    return {
        "beside-java.svg": bars(gains(_read(full_run())["rows"])),
        "live-gaps.svg": gaps(_read(newest(LIVE))["runs"]),
    }


def main() -> int:
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(FOLDER.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
