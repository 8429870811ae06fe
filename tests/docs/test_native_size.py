"""The table of the C core's size in native/README.md has every file and its lines."""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
ROW = re.compile(r"\| ([^|]+) \| ((?:`\w+\.[ch]`(?:, )?)+) \| ([\d,]+) \|", re.ASCII)


def lines_of(name: str) -> int:
    return (NATIVE / name).read_text().count("\n")


def test_the_table_of_sizes_is_complete_and_right() -> None:
    text = (NATIVE / "README.md").read_text()
    rows = [
        (purpose, files.strip("`").split("`, `"), lines)
        for purpose, files, lines in ROW.findall(text)
    ]
    counted = {purpose: f"{sum(map(lines_of, files)):,}" for purpose, files, _ in rows}
    assert {purpose: lines for purpose, _, lines in rows} == counted
    listed = sorted(name for _, files, _ in rows for name in files)
    assert listed == sorted(path.name for path in NATIVE.glob("*.[ch]"))


def test_the_sum_of_the_sizes_is_right() -> None:
    total = sum(lines_of(path.name) for path in NATIVE.glob("*.[ch]"))
    text = (NATIVE / "README.md").read_text()
    assert f"\n{total:,} lines, without `fuzz/`" in text, f"the C core has {total:,} lines"
