"""An installed package with put-message hooks, for a test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rmqpy.broker.processors.put_hooks import ENTRY_POINT_GROUP


def install_hooks(
    site: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, points: Mapping[str, str]
) -> None:
    """Install a package in the empty folder ``site`` until the end of the test. It has the module
    ``module`` and these entry points, from names to objects.
    """
    (site / f"{module}.py").write_text(code, encoding="utf-8")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n" + "".join(lines))
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(site))
