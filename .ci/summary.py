"""Print the summary lines of several pytest runs, read from standard input, and their sum."""

from __future__ import annotations

import re
import sys
from collections import Counter

SUMMARY = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|errors?|skipped|xfailed|deselected)\b.*)$")
COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?)")
SECONDS = re.compile(r"in ([\d.]+)s")


def main() -> None:
    total: Counter[str] = Counter()
    seconds = 0.0
    for line in sys.stdin:
        found = SUMMARY.match(line.rstrip())
        if found is None or SECONDS.search(line) is None:
            continue
        print(found.group(1).rstrip(" ="))
        for count, outcome in COUNT.findall(line):
            singular = outcome.rstrip("s") if outcome in ("errors", "warnings") else outcome
            total[singular] += int(count)
        seconds += float(SECONDS.search(line).group(1))
    order = ("failed", "error", "passed", "skipped")
    counts = ", ".join(f"{total[outcome]} {outcome}" for outcome in order if total[outcome])
    print(f"=== {counts or 'no tests ran'} in {seconds:.2f}s ===")


if __name__ == "__main__":
    main()
