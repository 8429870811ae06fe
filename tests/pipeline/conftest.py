"""One Spark session for the suite; stores by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rmqpy.model.errors import ConfigFault
from rmqpy.pipeline.session import SessionPlan, check_needs, spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two cores; the tests that ask for it are skipped where it cannot start."""
    import os

    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigFault):
            pytest.skip(f"{name}: {found}")
    with spark_session(SessionPlan(master="local[2,4]")) as session:
        yield session


@pytest.fixture
def arrow() -> Any:
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed; pip install 'rmqpy[spark]'")
    import pyarrow

    return pyarrow


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def _node(folder: Path, node: str) -> Path:
    stores = sorted(path.parent for path in folder.rglob("consumequeue"))
    return next(store for store in stores if not node or store.name == node)


@pytest.fixture
def store_of(golden: Callable[[str], Path]) -> Callable[[str], Path]:
    """ "A-classic-clean-v497" or "C-upgraded-v497/n0" → that node's store folder; only to read."""

    def find(name: str) -> Path:
        archive, _, node = name.partition("/")
        return _node(golden(archive), node)

    return find


@pytest.fixture
def copy_of(golden_copy: Callable[[str], Path]) -> Callable[[str], Path]:
    """The same as a copy to write to."""

    def find(name: str) -> Path:
        archive, _, node = name.partition("/")
        return _node(golden_copy(archive), node)

    return find
