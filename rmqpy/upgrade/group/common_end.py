"""The end up to which the stores of running members are compared.

A message reaches the members one after the other. A follower of DLedger, Java's and rmqpy's, learns
that an entry is committed with the next push of its leader, which comes a second later if nothing
else is sent; until then, no consume queue of its store leads to the message. A slave copies from
its master. And clients go on sending while one store after the other is read.

So all running members are read up to the same offset: the end of the one that was ahead when the
comparison began. The others are waited for while they come closer to it. A member that does not
reach it is compared as it is, and then lacks messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define

from rmqpy.model.text import count_text
from rmqpy.upgrade.checks.member_facts import MemberFacts

STILL_SECONDS: Final = 10.0
"""How long a member that comes no closer is waited for: a push each second, and a broker that waits
for a busy disk or processor."""
SECONDS_MAX: Final = 60.0
"""How long a member is waited for at most."""
PAUSE_SECONDS: Final = 0.2


class LiveReplica(Protocol):
    """What is asked of a replica here (:class:`rmqpy.upgrade.checks.replica.Replica`)."""

    @property
    def name(self) -> str: ...

    def facts(self) -> MemberFacts: ...

    def read_until(self, end: int) -> None: ...


@define(slots=True, frozen=True)
class Waiting:
    """The clock (seconds), the pause, and who is told what is waited for."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    note: Callable[[str], None]


def level_running(replicas: Sequence[LiveReplica], waiting: Waiting) -> None:
    """Let the surveys of all replicas whose broker runs end at the same offset of the log, and wait
    for the members that have not reached it. Stopped replicas are read whole, as always.
    """
    ends = _running_ends(replicas)
    if len(ends) < 2:
        return
    end = max(ends.values())
    running = [replica for replica in replicas if replica.name in ends]
    _await(running, ends, end, waiting)
    for replica in running:
        replica.read_until(end)


def _running_ends(replicas: Sequence[LiveReplica]) -> dict[str, int]:
    """Return the end of what consumers can read of each replica whose broker runs."""
    facts = (replica.facts() for replica in replicas)
    return {each.name: each.end for each in facts if each.running and not each.problem}


def _await(
    replicas: Sequence[LiveReplica], ends: dict[str, int], end: int, waiting: Waiting
) -> None:
    """Wait until the running replicas have reached an end, or come no closer to it."""
    started = moved = waiting.monotonic()
    ahead = next(name for name in ends if ends[name] == end)
    behind = {name: at for name, at in ends.items() if at < end}
    if behind:
        waiting.note(f"waiting for {_listed(behind, end)}: {ahead} is ahead")
    while behind:
        now = waiting.monotonic()
        if now - moved > STILL_SECONDS or now - started > SECONDS_MAX:
            waiting.note(
                f"{_listed(behind, end)} did not catch up with {ahead} in {now - started:.0f} s,"
                " and is compared as it is"
            )
            return
        waiting.sleep(PAUSE_SECONDS)
        found = _running_ends([replica for replica in replicas if replica.name in behind])
        if found != behind:
            moved = waiting.monotonic()
        behind = {name: at for name, at in found.items() if at < end}


def _listed(behind: dict[str, int], end: int) -> str:
    texts = (f"{name} ({count_text(end - at, 'byte')} behind)" for name, at in behind.items())
    return ", ".join(texts)
