"""Inject faults one by one and collect what the commands said of each."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

from attrs import define

from campaign.faults import KINDS, Fault, StoreFiles, copy_sparse
from campaign.judges import COMMANDS, Judges, run
from campaign.stores import GROUPS, build_group, random_store
from rmqpy.cli.parsing import EXIT_DONE

__all__ = ["Alarm", "Result", "run_faults", "run_healthy"]

EQUAL = "EQUAL"
TELLING = ("fsck", "verify")
"""Commands that report a fault with exit code 0, too: notes, and how far a replica is behind."""


@define(frozen=True)
class Result:
    """What the commands said of one fault.

    ``reports`` has for each command that reported it one of its lines. ``called_equal`` names the
    commands that compared the damaged store and found it equal.
    """

    number: int
    group: str
    node: str
    fault: Fault
    reports: dict[str, str]
    called_equal: tuple[str, ...]

    @property
    def missed(self) -> bool:
        """Whether no command reported a fault that matters."""
        return self._detectable and not self.reports

    @property
    def overlooked(self) -> bool:
        """Whether a comparison called a store equal that has a fault that matters."""
        return self._detectable and bool(self.called_equal)

    @property
    def _detectable(self) -> bool:
        return self.fault.matters and not self.fault.limit


@define(frozen=True)
class Alarm:
    """A command that did not accept a healthy store."""

    store: str
    command: str
    lines: tuple[str, ...]


class _Bench:
    """One group with a pristine copy of it, and the answers of the commands while it is healthy."""

    def __init__(self, name: str, base: Path) -> None:
        self.group = build_group(name, base / "group")
        self.judges = Judges.of(self.group, base)
        self.healthy = {node: self.judges.answers(node) for node in self.group.stores}
        self.stores = {
            node: StoreFiles(store, _copy(store, base / "pristine" / node))
            for node, store in self.group.stores.items()
        }

    def alarms(self) -> Iterator[Alarm]:
        for node, answers in self.healthy.items():
            for command, answer in answers.items():
                alone = command == "verify" and len(self.group.stores) == 1
                if answer.code != EXIT_DONE and not alone and not answer.only_unread:
                    lines = tuple(sorted(answer.lines))
                    yield Alarm(f"{self.group.name} {node}", command, lines)

    def judge(self, number: int, kinds: Sequence[str]) -> Result:
        """Inject fault ``number``, ask every command, and take the fault back."""
        dice = random.Random(f"{self.group.name} {number}")
        node = dice.choice(sorted(self.stores))
        store = self.stores[node]
        fault = None
        while fault is None:
            fault = store.inject(dice.choice(kinds), dice)
        try:
            answers = self.judges.answers(node)
        finally:
            store.restore()
        reports = {}
        for command in COMMANDS:
            notes = command in TELLING
            lines = answers[command].new_lines(self.healthy[node][command], notes=notes)
            if lines:
                reports[command] = min(lines, key=_verdict_last)
        equal = tuple(command for command in COMMANDS if EQUAL in answers[command].lines)
        return Result(number, self.group.name, node, fault, reports, equal)


def _verdict_last(line: str) -> tuple[bool, str]:
    return line.isupper(), line


def _copy(store: Path, target: Path) -> Path:
    for path in store.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(store)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_sparse(path, copy)
    return target


def run_faults(
    numbers: Iterable[int], kinds: Sequence[str] = tuple(KINDS), jobs: int = 1
) -> Iterator[Result | Alarm]:
    """Yield the result of each fault; the groups take turns by number.

    A group whose healthy stores are not accepted yields `Alarm` as well.
    """
    shares: dict[str, list[int]] = {name: [] for name in GROUPS}
    names = list(GROUPS)
    for number in numbers:
        shares[names[number % len(names)]].append(number)
    work = partial(_run_share, kinds=tuple(kinds))
    tasks = [(name, share) for name, share in shares.items() if share]
    if jobs == 1:
        yield from chain.from_iterable(map(work, tasks))
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from chain.from_iterable(pool.map(work, tasks))


def _run_share(task: tuple[str, Sequence[int]], kinds: Sequence[str]) -> list[Result | Alarm]:
    name, numbers = task
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        bench = _Bench(name, Path(folder))
        return [*bench.alarms(), *(bench.judge(number, kinds) for number in numbers)]


def run_healthy(seeds: Iterable[int]) -> Iterator[Alarm | None]:
    """Write a random healthy store for each seed; yield the alarm of ``fsck``, or None."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
            random_store(seed, Path(folder) / "store")
            answer = run("store", "fsck", str(Path(folder) / "store"))
            found = answer.code != EXIT_DONE
            yield Alarm(f"store {seed}", "fsck", tuple(sorted(answer.lines))) if found else None
