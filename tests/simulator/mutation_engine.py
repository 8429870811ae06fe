"""Patches of the production code that plant bugs, and their removal.

The modules that define bugs register them in ``MUTATIONS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define, evolve, field

from simulator.plan import NO_FAULTS, SimulationPlan


@define(slots=True)
class Patches:
    """The attributes that were replaced, with their original values."""

    _before: list[tuple[object, str, object]] = field(factory=list)

    @staticmethod
    def original(owner: object, name: str) -> Any:
        """Return the attribute of the production code."""
        return getattr(owner, name)

    def replace(self, owner: object, name: str, value: object) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


@define(slots=True, frozen=True)
class Mutation:
    """A planted bug, and the families of seeds that must find it."""

    name: str
    plant: Callable[[Patches], None]
    families: tuple[str, ...] = ("group",)
    refuses: bool = False
    """Whether the bug is that a broker refuses to start; otherwise that finds nothing."""

    aim: Mapping[str, Any] = field(factory=dict)
    """The values of plans that bring about the rare situation which the bug needs."""

    def plan(self, plan: SimulationPlan) -> SimulationPlan:
        """Return the plan of a seed with the values that aim at this bug."""
        return plan if plan.bare else evolve(plan, **self.aim)


MUTATIONS: dict[str, Mutation] = {}


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """Run with the bug in the code."""
    planting = Patches()
    try:
        mutation.plant(planting)
        yield
    finally:
        planting.undo()


Plant = Callable[[Patches], None]


def group_mutation(plant: Plant) -> Plant:
    """Register a bug that groups of brokers find."""
    return _register(plant, "group")


def aimed_mutation(*others: str, **aim: object) -> Callable[[Plant], Plant]:
    """Register a bug that groups of brokers find if their plans have these faults and no others,
    and ``others``, which are families, with any plan.
    """
    return lambda plant: _register(plant, "group", *others, aim={**NO_FAULTS, **aim})


def fast_path_mutation(plant: Plant) -> Plant:
    """Register a bug that brokers with the fast path find."""
    return _register(plant, "fast")


def node_mutation(plant: Plant) -> Plant:
    """Register a bug that groups of bare nodes find."""
    return _register(plant, "nodes")


def lonely_mutation(plant: Plant) -> Plant:
    """Register a bug that single brokers find."""
    return _register(plant, "lonely")


def lonely_refusal_mutation(plant: Plant) -> Plant:
    """Register a bug because of which single brokers refuse to start."""
    return _register(plant, "lonely", refuses=True)


def consensus_mutation(plant: Plant) -> Plant:
    """Register a bug that groups of both kinds find."""
    return _register(plant, "group", "nodes")


def switch_mutation(plant: Plant) -> Plant:
    """Register a bug that groups find which switch to DLedger."""
    return _register(plant, "switch")


def leave_mutation(plant: Plant) -> Plant:
    """Register a bug that groups find which leave DLedger."""
    return _register(plant, "leave")


def change_mutation(plant: Plant) -> Plant:
    """Register a bug that a switch and a leave find."""
    return _register(plant, "switch", "leave")


def _register(
    plant: Plant, *families: str, refuses: bool = False, aim: Mapping[str, Any] | None = None
) -> Plant:
    MUTATIONS[plant.__name__] = Mutation(plant.__name__, plant, families, refuses, aim or {})
    return plant
