"""How much of what an audit says it has read itself, and how much was learned earlier."""

from __future__ import annotations

from typing import Any

from attrs import define

from rmqpy.model.text import format_bytes, format_duration
from rmqpy.model.typed_json import check_types

__all__ = ["ProofAge", "age_of_json", "age_sentences"]


@define(slots=True, frozen=True)
class ProofAge:
    """How much of what an audit says was read by it, and how much was learned earlier.

    ``oldest_ms`` is the time at which the oldest part was read, -1 if nothing was learned earlier.
    ``grown_bytes`` of ``learned_bytes`` are in index files that have grown since: their times do
    not show whether these bytes are still the same. ``wrong`` has the paths of files about which
    something else was learned earlier: their bytes have changed although nobody should have
    written to them.
    """

    read_bytes: int = 0
    learned_bytes: int = 0
    oldest_ms: int = -1
    wrong: tuple[str, ...] = ()
    grown_bytes: int = 0


def age_of_json(tree: dict[str, Any] | None) -> ProofAge | None:
    """Decode an age. Raise TypeError if ``tree`` is not one."""
    if tree is None:
        return None
    check_types(ProofAge, tree)
    return ProofAge(**{**tree, "wrong": tuple(map(str, tree.get("wrong", ())))})


def age_sentences(age: ProofAge | None, now_ms: int) -> list[str]:
    """Return what a report says on the age of its evidence; nothing if everything was read."""
    if age is None:
        return []
    found = [
        f"{path}: found other bytes than before although nobody has written to it; check the disk"
        for path in age.wrong
    ]
    if age.learned_bytes:
        oldest = format_duration((now_ms - age.oldest_ms) / 1000)
        found.append(
            f"read now {format_bytes(age.read_bytes)}, learned earlier"
            f" {format_bytes(age.learned_bytes)}, the oldest part {oldest} ago"
            " (--full reads everything again)"
        )
    if age.grown_bytes:
        found.append(
            f"{format_bytes(age.grown_bytes)} of these are the older entries of index files that"
            " have grown since; a later change of these entries is found only with --full"
        )
    return found
