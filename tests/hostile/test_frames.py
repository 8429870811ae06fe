"""Attacks with nineteen kinds of malformed frames on a broker and a name server.

``RMQPY_HOSTILE_FRAMES`` is the number of frames of all kinds together (a million takes some
minutes), ``RMQPY_HOSTILE_SEED`` the seed; both are printed with a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from fuzz.frames import (
    HEAVY_KINDS,
    KINDS,
    Expected,
    HostileFrame,
    hostile_frames,
)
from fuzz.peer import HostilePeer
from harness.hostile import Besiege, BesiegedSite

FRAMES = int(os.environ.get("RMQPY_HOSTILE_FRAMES", "5700"))
SEED = int(os.environ.get("RMQPY_HOSTILE_SEED", "1"))
PEERS = 4
HEAVY_PART = 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_malformed_frames_are_handled_as_expected(kind: str, besiege: Besiege) -> None:
    count = FRAMES // len(KINDS) // (HEAVY_PART if kind in HEAVY_KINDS else 1)
    wrong: list[tuple[int, Expected, HostileFrame]] = []

    async def attack(address: str, frames: Iterator[tuple[int, HostileFrame]]) -> None:
        host, _, port = address.rpartition(":")
        peer = HostilePeer(host, int(port))
        for number, frame in frames:
            seen = await peer.deliver(frame)
            if not seen & frame.expected:
                wrong.append((number, seen, frame))
        await peer.close()

    async def test(site: BesiegedSite) -> None:
        frames = [enumerate(hostile_frames(kind, SEED, count)) for _ in site.addresses]
        attacks = [
            attack(address, source)
            for address, source in zip(site.addresses, frames, strict=True)
            for _ in range(PEERS)
        ]
        await site.until_over(asyncio.gather(*attacks))
        assert site.checks > 2

    besiege(test)
    examples = [(number, seen, str(frame)[:300]) for number, seen, frame in wrong[:3]]
    assert not wrong, f"{len(wrong)} of {count}, seed {SEED}: {examples}"


@pytest.mark.slow
def test_a_seed_always_gives_the_same_frames() -> None:
    for kind in KINDS:
        first = [frame.data for frame in hostile_frames(kind, 5, 3)]
        assert first == [frame.data for frame in hostile_frames(kind, 5, 3)]
        assert len({*first}) > 1 or kind in HEAVY_KINDS
