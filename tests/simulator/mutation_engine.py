"""Setting bugs over the production code, and taking them back. ``MUTATIONS`` fills with the modules
that plant them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import define, field


@define(slots=True)
class Planting:
    """Sets attributes over others, and takes them back."""

    _before: list[tuple[Any, str, Any]] = field(factory=list)

    @staticmethod
    def real(owner: Any, name: str) -> Any:
        """What stands there."""
        return getattr(owner, name)

    def put(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def take_back(self) -> None:
        while self._before:
            setattr(*self._before.pop())


@define(slots=True, frozen=True)
class Mutation:
    """A planted bug, and the families of seeds that have to find it."""

    name: str
    plant: Callable[[Planting], None]
    families: tuple[str, ...] = ("group",)


MUTATIONS: dict[str, Mutation] = {}


@contextmanager
def planted(mutation: Mutation) -> Iterator[None]:
    """While it lasts, the bug is in the code."""
    planting = Planting()
    try:
        mutation.plant(planting)
        yield
    finally:
        planting.take_back()


Plant = Callable[[Planting], None]


def bug(plant: Plant) -> Plant:
    """Register a bug that groups of brokers find."""
    return _register(plant, "group")


def node_bug(plant: Plant) -> Plant:
    """Register a bug that groups of bare nodes find."""
    return _register(plant, "nodes")


def consensus_bug(plant: Plant) -> Plant:
    """Register a bug that groups of both kinds find."""
    return _register(plant, "group", "nodes")


def _register(plant: Plant, *families: str) -> Plant:
    MUTATIONS[plant.__name__] = Mutation(plant.__name__, plant, families)
    return plant
