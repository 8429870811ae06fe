"""Recorded Java frames and config files as fixtures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import define

GOLDEN = Path(__file__).parent.parent / "golden"


@define(slots=True, frozen=True)
class Recorded:
    """One frame; ``request_code`` is that of the request, for an answer too."""

    source: str
    type: str
    request_code: int
    frame: bytes


def _recorded() -> list[Recorded]:
    lines = (GOLDEN / "wire" / "frames.jsonl").read_text().splitlines()
    return [
        Recorded(line["from"], line["type"], line["code"], bytes.fromhex(line["frame"]))
        for line in map(json.loads, lines)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recorded" in metafunc.fixturenames:
        frames = _recorded()
        ids = [f"{item.source}-{item.request_code}-{item.type}" for item in frames]
        metafunc.parametrize("recorded", frames, ids=ids)


@pytest.fixture(scope="session")
def all_recorded() -> list[Recorded]:
    return _recorded()


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN
